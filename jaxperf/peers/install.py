"""`jaxperf peers install`: an environment for a peer, whole or not at all.

An environment cannot be moved once it is made, so it is made in its place and a marker file is written last;
what has no marker counts as missing and is cleared away, by whoever fails or by the next installation.
"""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxperf.errors import JaxperfError
from jaxperf.measure.store import write_whole
from jaxperf.peers.environments import MARKER, folder, imported, last_line, look, python_in, root
from jaxperf.peers.interpreters import Interpreter, fitting
from jaxperf.peers.known import Peer

Say = Callable[[str], None]
_OFFLINE = re.compile(
    r"NewConnectionError|NameResolutionError|Temporary failure in name resolution|Connection refused|"
    r"Network is unreachable|ConnectTimeout|ProxyError|Failed to establish|Max retries"
)
_NOT_OFFERED = re.compile(r"No matching distribution found for (\S+)")


class NotOfferedError(JaxperfError):
    """The index has no such version for this Python."""


def install(peer: Peer, *, say: Say = print) -> None:
    """Make the peer's environment unless it is there and works; tells its steps as it goes.

    Raises:
      JaxperfError: no Python that fits, no network, no space, another installation is running, or what was
        installed cannot be imported; nothing half-made is left.
    """
    with _alone():
        found = look(peer)
        if found.state == "ready":
            say(f"{peer.name}: already there ({found.detail})")
            return
        if found.state == "broken":
            say(f"{peer.name}: made anew, since {found.detail}")
        began = time.perf_counter()
        _first_that_works(peer, say)
        say(f"{peer.name}: ready after {time.perf_counter() - began:.0f} s, in {folder(peer)}")


def _first_that_works(peer: Peer, say: Say) -> None:
    """Each Python with each list of pins until one is offered."""
    refused: NotOfferedError | None = None
    for interpreter in fitting(peer):
        say(f"{peer.name}: making its environment with {interpreter.path}")
        for requires in peer.requires:
            try:
                _make(peer, interpreter, requires, say)
            except NotOfferedError as e:
                refused = e
            else:
                return
    raise refused or JaxperfError(no_python(peer))


def no_python(peer: Peer) -> str:
    """The line for a machine without a Python for `peer`."""
    return (
        f"{peer.name} needs {peer.span} with venv and ensurepip, and none is here; "
        "install one, e.g. `pyenv install 3.11` or `apt install python3.11-venv`"
    )


def _make(peer: Peer, interpreter: Interpreter, requires: tuple[str, ...], say: Say) -> None:
    where = folder(peer)
    _clear(where)
    try:
        _run([str(interpreter.path), "-m", "venv", str(where)], peer, lambda line: None)
        pip = [str(python_in(where)), "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
        _run([*pip, "--progress-bar", "off", "--retries", "2", *requires], peer, _progress(peer, say))
        versions, trouble = imported(peer, python_in(where))
        if trouble:
            raise JaxperfError(f"{peer.name} was installed, but {trouble}")
        marker = {"requires": requires, "python": str(interpreter.path), "versions": versions}
        write_whole(where / MARKER, json.dumps(marker, indent=1) + "\n")
    except BaseException:  # an interrupt leaves nothing either
        _clear(where)
        raise


def _clear(where: Path) -> None:
    (where / MARKER).unlink(missing_ok=True)  # from now on it counts as missing
    shutil.rmtree(where, ignore_errors=True)


def _progress(peer: Peer, say: Say) -> Say:
    """Tell what pip fetches and installs, and leave out the rest of what it says."""

    def show(line: str) -> None:
        if got := re.match(
            r"\s*(?:Downloading|Using cached|Processing) (?:\S*/)?(\S+)(?: (\([\d.]+ \w+\)))?", line
        ):
            say(f"{peer.name}: {' '.join(filter(None, got.groups()))}")
        elif line.startswith("Installing collected"):
            say(f"{peer.name}: installing")

    return show


def _run(words: list[str], peer: Peer, show: Say) -> None:
    """Run to the end, line by line; one error line when it fails, and the process ended when we are."""
    streams: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    said = []
    with subprocess.Popen(words, text=True, errors="replace", **streams) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                said.append(line)
                show(line)
            status = process.wait()
        except BaseException:
            process.kill()
            raise
    if status:
        raise _explained(peer, "".join(said), status)


def _explained(peer: Peer, said: str, status: int) -> JaxperfError:
    if _OFFLINE.search(said):
        return JaxperfError(f"{peer.name}: the package index cannot be reached; try again with a network")
    if missing := _NOT_OFFERED.search(said):
        return NotOfferedError(f"{peer.name}: no index offers {missing[1]} for this Python and machine")
    if "No space left on device" in said:
        return JaxperfError(f"{peer.name}: no space left in {root()}; JAXPERF_PEERS names another folder")
    errors = [line for line in said.splitlines() if line.startswith("ERROR")]
    return JaxperfError(
        f"{peer.name}: installing failed: {last_line(chr(10).join(errors) or said) or status}"
    )


@contextmanager
def _alone() -> Iterator[None]:
    """One installation at a time: two would clear away each other's work."""
    try:
        root().mkdir(parents=True, exist_ok=True)
        lock = (root() / ".lock").open("w")
    except OSError as e:
        raise JaxperfError(
            f"cannot write to {root()}: {e.strerror or e}; JAXPERF_PEERS names another folder"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise JaxperfError(f"another installation is running in {root()}; wait for it") from None
        yield
