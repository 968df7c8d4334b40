"""The origin's four files, fetched once into the user's cache and checked against pinned SHA-256.

No network must cost seconds, not minutes. A socket's own timeout does not cover the name look-up, so the
first contact runs in a thread that is given up after `PROBE_S`; after it every read has a timeout and the
whole transfer a deadline and a size that it may not exceed. Proxies are those that `requests` takes from the
environment.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import IO, Any
from urllib.parse import urljoin, urlsplit

from jaxperf.data import origin
from jaxperf.errors import JaxperfError

URL_VARIABLE = "JAXPERF_FASHION_MNIST_URL"
CONNECT_S = 3.0
PROBE_S = 4.0
READ_S = 10.0
TOTAL_S = 900.0
_CHUNK_BYTES = 1 << 16


class DownloadError(JaxperfError):
    """The files cannot be had from the network: it is not there, or the server gives something else."""


def cache_folder() -> Path:
    """The folder that downloads are kept in, below the user's cache folder."""
    import platformdirs

    return platformdirs.user_cache_path("jaxperf") / "fashion-mnist"


def fetch(*, url: str | None = None, cache: Path | None = None) -> Path:
    """Brings the four files into `cache`, downloading those that are not there with the right SHA-256.

    Args:
      url: base URL to fetch from; default JAXPERF_FASHION_MNIST_URL, else the origin.
      cache: folder to keep them in; default `cache_folder()`.

    Returns:
      `cache`, now holding all four.

    Raises:
      DownloadError: the server does not answer within seconds, answers with something else, or too slowly.
      JaxperfError: `url` is no web address, or the cache cannot be written.
    """
    import pooch

    base, cache = base_url(url), cache or cache_folder()
    download = _Download(base, {urljoin(base, file.name): file.size_bytes for file in origin.ORIGIN_FILES})
    for file in origin.ORIGIN_FILES:
        source = urljoin(base, file.name)
        try:
            pooch.retrieve(source, known_hash=file.sha256, fname=file.name, path=cache, downloader=download)
        except ValueError as error:  # pooch's answer to a wrong checksum
            raise DownloadError(
                f"{source}: SHA-256 is not the pinned {file.sha256[:12]}...; nothing was kept, try again or "
                f"set {URL_VARIABLE} to another mirror"
            ) from error
        except OSError as error:
            raise JaxperfError(
                f"{cache}: cannot be written ({error.strerror or error}); make it writable, "
                "or name a folder of the files"
            ) from error
    return cache


def base_url(url: str | None) -> str:
    """The URL that the files lie below: `url`, else JAXPERF_FASHION_MNIST_URL, else the origin; ends in "/".

    Raises:
      JaxperfError: it is no http or https address.
    """
    base = url or os.environ.get(URL_VARIABLE) or origin.ORIGIN_URL
    if urlsplit(base).scheme not in ("http", "https") or not urlsplit(base).netloc:
        raise JaxperfError(f"{base!r} is no http or https URL; give one such as {origin.ORIGIN_URL}")
    return base if base.endswith("/") else base + "/"


class _Download:
    """What pooch calls to bring a URL into a file; turns every failure of the network into one line."""

    def __init__(self, base: str, sizes: dict[str, int]) -> None:
        self._base = base
        self._sizes = sizes  # bytes by URL
        self._deadline: float | None = None

    def __call__(self, url: str, output_file: Any, pooch: Any, check_only: bool = False) -> None:
        """Fetches `url` into `output_file`, a path; the other two are pooch's and not used here."""
        import requests

        try:
            if self._deadline is None:
                _probe(self._base)
                self._deadline = time.monotonic() + TOTAL_S
            with (
                requests.get(url, stream=True, timeout=(CONNECT_S, READ_S)) as response,
                Path(output_file).open("wb") as stream,
            ):
                if response.status_code != requests.codes.ok:
                    raise DownloadError(
                        f"{url}: the server answers {response.status_code}; set {URL_VARIABLE} to a mirror"
                    )
                self._copy(url, response, stream)
        except requests.RequestException as error:
            raise _unreachable(url, type(error).__name__) from error

    def _copy(self, url: str, response: Any, stream: IO[bytes]) -> None:
        left = self._sizes[url]
        for chunk in response.iter_content(_CHUNK_BYTES):
            left -= len(chunk)
            if left < 0:
                raise DownloadError(
                    f"{url}: sends more than the file's {self._sizes[url]} bytes; "
                    f"set {URL_VARIABLE} to another mirror"
                )
            if self._deadline is not None and time.monotonic() > self._deadline:
                raise DownloadError(
                    f"{url}: not done after {TOTAL_S:.0f} s; name a folder of the files instead"
                )
            stream.write(chunk)


def _probe(base: str) -> None:
    """Returns once the server has answered anything; raises DownloadError after PROBE_S at the latest."""
    import requests

    failures: list[str] = []

    def ask() -> None:
        try:
            requests.head(base, timeout=(CONNECT_S, CONNECT_S)).close()
        except requests.RequestException as error:
            failures.append(type(error).__name__)

    # A daemon, so that a name look-up that hangs cannot keep the process alive.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PROBE_S)
    if thread.is_alive():
        raise _unreachable(base, f"no answer in {PROBE_S:.0f} s")
    if failures:
        raise _unreachable(base, failures[0])


def _unreachable(url: str, why: str) -> DownloadError:
    return DownloadError(
        f"{urlsplit(url).hostname} cannot be reached ({why}); connect, set {URL_VARIABLE} to a mirror, "
        "or name a folder of the files"
    )
