"""The four files that Zalando published, fetched once into the user's cache; their SHA-256 is pinned.

A file is kept complete or not at all, and a missing network costs seconds, not minutes.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from jaxperf import process
from jaxperf.errors import JaxperfError
from jaxperf.result.store import write_whole

URL_VARIABLE = "JAXPERF_FASHION_MNIST_URL"
ORIGIN_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"  # the one TFDS uses
ANSWER_S = 5.0  # from the name look-up to the first byte of the answer
SILENCE_S = 10.0  # between two packets
TOTAL_S = 900.0  # for all four files
_CHUNK_BYTES = 1 << 16
_GZIP_START = b"\x1f\x8b\x08"  # magic, deflate


class DownloadError(JaxperfError):
    """The files cannot be downloaded: there is no network, or the server sends something else."""


@dataclass(frozen=True)
class OriginFile:
    """A file as Zalando published it.

    Attributes:
      stem: its name without ".gz".
      size_bytes: its compressed size.
      sha256: its checksum, hexadecimal.
      packed_at: the time inside its gzip header, Unix seconds.
    """

    stem: str
    size_bytes: int
    sha256: str
    packed_at: int

    @property
    def name(self) -> str:
        """Its name."""
        return f"{self.stem}.gz"


ORIGIN_FILES = (
    OriginFile(
        "train-images-idx3-ubyte",
        26_421_880,
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        1_504_176_606,
    ),
    OriginFile(
        "train-labels-idx1-ubyte",
        29_515,
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        1_504_176_606,
    ),
    OriginFile(
        "t10k-images-idx3-ubyte",
        4_422_102,
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        1_504_176_627,
    ),
    OriginFile(
        "t10k-labels-idx1-ubyte",
        5_148,
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        1_504_176_627,
    ),
)


def cache_folder() -> Path:
    """Return the folder for downloads, below the user's cache folder."""
    return process.cache_folder() / "fashion-mnist"


def base_url(url: str | None = None) -> str:
    """Return the URL below which the files are: `url`, else JAXPERF_FASHION_MNIST_URL, else the origin.

    Raises:
      JaxperfError: it is not an http or https address.
    """
    base = url or os.environ.get(URL_VARIABLE) or ORIGIN_URL
    try:
        parts = urlsplit(base)
    except ValueError:  # a bracket that is not closed
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise JaxperfError(f"{base!r} is not an http or https URL; give one such as {ORIGIN_URL}")
    return base if base.endswith("/") else base + "/"


def fetch(*, url: str | None = None, cache: Path | None = None, folder: Path | None = None) -> Path:
    """Bring the origin's four files into `cache`: already there, copied from `folder`, or downloaded.

    Args:
      url: base URL to download from; default JAXPERF_FASHION_MNIST_URL, else the origin. Proxies are those
        that `urllib` takes from the environment.
      cache: folder to keep them in; default `cache_folder()`.
      folder: a folder that may hold them, as published or as Debian repacked them.

    Returns:
      `cache`, now holding all four.

    Raises:
      DownloadError: the server does not answer within seconds, sends something else, or is too slow.
      JaxperfError: `url` is not a web address, or the cache cannot be written.
    """
    base, cache = base_url(url), cache or cache_folder()
    deadline = time.monotonic() + TOTAL_S
    for file in ORIGIN_FILES:
        if _published(cache / file.name, file) is None:
            copy = _published(folder / file.name, file) if folder else None
            write_whole(cache / file.name, copy or _download(urljoin(base, file.name), file, deadline))
    return cache


def _published(path: Path, file: OriginFile) -> bytes | None:
    """Return `file` as published, from a copy of it or from Debian's; None if `path` is neither."""
    try:
        with path.open("rb") as stream:
            data = stream.read(file.size_bytes + 1)
    except OSError:
        return None
    return next((b for b in (data, _with_header(data, file)) if _is_pinned(b, file)), None)


def _is_pinned(data: bytes | bytearray, file: OriginFile) -> bool:
    return hashlib.sha256(data).hexdigest() == file.sha256


def _with_header(data: bytes, file: OriginFile) -> bytes:
    """Return `data` with the origin's name and time in its gzip header.

    Debian's package holds the same deflate streams, packed again with `gzip -n`, which leaves out both. With
    the header restored, its files equal the origin's byte for byte, so TensorFlow Datasets, which accepts
    nothing else, works on a machine without a network.
    """
    if data[:4] != _GZIP_START + b"\0":
        return b""
    named = _GZIP_START + struct.pack("<BI", 0x08, file.packed_at)  # flag: a name follows the header
    return named + data[8:10] + file.stem.encode() + b"\0" + data[10:]


def _download(url: str, file: OriginFile, deadline: float) -> bytes:
    """Return the file's bytes from `url`, received in a thread that is abandoned when time is up.

    This is the only way to limit a name look-up that hangs or a server that sends its headers slowly: the
    time limit of a socket starts again with every byte.
    """
    data, answered, given_up = bytearray(), threading.Event(), threading.Event()
    trouble: list[str] = []

    def receive() -> None:
        from urllib.request import urlopen

        try:
            with urlopen(url, timeout=SILENCE_S) as response:
                answered.set()
                # A server may send more than the file, even without end: stop at the first extra byte.
                while len(data) <= file.size_bytes and not given_up.is_set():
                    if not (piece := response.read1(_CHUNK_BYTES)):
                        break
                    data.extend(piece)
        except Exception as e:  # whatever the network library raises
            trouble.append(_explained(url, e))
        answered.set()

    # A daemon, so that an abandoned thread cannot keep the process alive.
    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    in_time = answered.wait(ANSWER_S)
    thread.join(max(0.0, deadline - time.monotonic()) if in_time else 0.0)
    late = thread.is_alive()
    given_up.set()
    if not in_time:
        raise DownloadError(_unreachable(url, f"no answer in {ANSWER_S:.0f} s"))
    if late:
        raise DownloadError(f"{url}: not done after {TOTAL_S:.0f} s; name a folder of the files instead")
    if trouble:
        raise DownloadError(trouble[0])
    if not _is_pinned(data, file):
        raise DownloadError(
            f"{url}: not the published file of {file.size_bytes} bytes with SHA-256 {file.sha256[:12]}...; "
            f"nothing was kept, set {URL_VARIABLE} to another mirror"
        )
    return bytes(data)


def _explained(url: str, error: Exception) -> str:
    from urllib.error import HTTPError

    if isinstance(error, HTTPError):
        error.close()
        return f"{url}: the server answers {error.code}; set {URL_VARIABLE} to a mirror"
    return _unreachable(url, str(getattr(error, "reason", "") or error or type(error).__name__))


def _unreachable(url: str, why: str) -> str:
    return (
        f"{urlsplit(url).hostname} cannot be reached ({' '.join(why.split())}); connect, set {URL_VARIABLE} "
        "to a mirror, or name a folder of the files"
    )
