"""`jaxperf peers install`: an environment for a peer, complete or not at all.

An environment cannot be moved once it is created, so it is created in place, and a marker file is written
last. Without the marker it counts as missing; the failed installation removes it, or the next one does.

The installer is each environment's own pip, not uv: pip takes the user's indexes, wheels and certificates
from its configuration and PIP_ variables, which uv does not read, and uv does not search pyenv's versions.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from jaxperf.errors import JaxperfError
from jaxperf.frameworks.environments import (
    MARKER,
    Peer,
    environment_folder,
    imported_versions,
    last_line,
    look,
    python_in,
    root,
    run_program,
)
from jaxperf.result.store import write_whole

Say = Callable[[str], None]
# A Python without ensurepip (Debian packages it separately) makes environments in which pip is missing.
_PROBE = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
_OFFLINE = re.compile(
    r"NewConnectionError|NameResolutionError|Temporary failure in name resolution|Connection refused|"
    r"Network is unreachable|ConnectTimeout|ProxyError|Failed to establish|Max retries"
)
_NOT_OFFERED = re.compile(r"No matching distribution found for (\S+)")
_FETCHED = re.compile(r"\s*(?:Downloading|Using cached|Processing) (?:\S*/)?(\S+)(?: (\([\d.]+ \w+\)))?")


class NotOfferedError(JaxperfError):
    """No index has such a version for this Python."""


# --- finding a Python


def fitting(peer: Peer) -> Iterator[Path]:
    """Yield the Pythons that `peer` runs on and that can make an environment, best version first."""
    seen = set()
    for version in peer.pythons:
        for path in _candidates(version):
            if path.resolve() not in seen:
                seen.add(path.resolve())
                if _makes_environments(path, version):
                    yield path


def no_python(peer: Peer) -> str:
    """Return the line for a machine without a Python for `peer`."""
    *others, last = peer.pythons
    versions = f"{', '.join(others)} or {last}" if others else last
    return (
        f"{peer.name} needs Python {versions} with venv and ensurepip, which this machine does not have; "
        "install it, e.g. `pyenv install 3.11` or `apt install python3.11-venv`"
    )


def _candidates(version: str) -> list[Path]:
    """Return the running Python, the one on PATH, and pyenv's, the newest first."""
    running = [Path(sys.executable)] if sys.version.startswith(f"{version}.") else []
    on_path = shutil.which(f"python{version}")
    # pyenv's shims may be on PATH without starting any Python, so its versions are searched directly.
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    of_pyenv = sorted(pyenv.glob(f"{version}.*/bin/python"), key=_patch, reverse=True)
    return [*running, *([Path(on_path)] if on_path else []), *of_pyenv]


def _patch(path: Path) -> int:
    last = path.parent.parent.name.split(".")[-1]
    return int(last) if last.isdecimal() else -1


def _makes_environments(python: Path, version: str) -> bool:
    """Return whether `python` starts, is of this version and has venv and ensurepip."""
    try:
        done = run_program(python, _PROBE, limit_s=30)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0 and done.stdout.strip() == version


# --- the installation


def install(peer: Peer, *, say: Say = print) -> None:
    """Make the peer's environment unless it exists and works; report each step to `say`.

    Raises:
      JaxperfError: no suitable Python, no network, no space, another installation is running, or what was
        installed cannot be imported; no incomplete environment is left.
    """
    with _alone():
        environment = look(peer)
        if environment.state == "ready":
            say(f"{peer.name}: already there ({environment.detail})")
            return
        if environment.state == "broken":
            say(f"{peer.name}: rebuilding, because {environment.detail}")
        began = time.perf_counter()
        _first_that_works(peer, say)
        say(f"{peer.name}: ready after {time.perf_counter() - began:.0f} s, in {environment_folder(peer)}")


def _first_that_works(peer: Peer, say: Say) -> None:
    """Try each Python with each list of pins until an index has them."""
    refused: NotOfferedError | None = None
    for python in fitting(peer):
        say(f"{peer.name}: installing with {python}; takes about {peer.costs}")
        for requires in peer.requires:
            try:
                _make(peer, python, requires, say)
            except NotOfferedError as e:
                refused = e
            else:
                return
    raise refused or JaxperfError(no_python(peer))


def _make(peer: Peer, python: Path, requires: tuple[str, ...], say: Say) -> None:
    where = environment_folder(peer)
    _clear(where)
    try:
        _run([str(python), "-m", "venv", str(where)], peer, lambda line: None)
        pip = [str(python_in(where)), "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
        _run([*pip, "--progress-bar", "off", "--retries", "2", *requires], peer, say)
        versions, trouble = imported_versions(peer, python_in(where))
        if trouble:
            raise JaxperfError(f"{peer.name} was installed, but {trouble}")
        marker = {"requires": requires, "python": str(python), "versions": versions}
        write_whole(where / MARKER, json.dumps(marker, indent=1) + "\n")
    except BaseException:  # an interrupt must not leave anything either
        _clear(where)
        raise


def _clear(where: Path) -> None:
    (where / MARKER).unlink(missing_ok=True)  # from now on it counts as missing
    shutil.rmtree(where, ignore_errors=True)


def _run(command: list[str], peer: Peer, say: Say) -> None:
    """Run a program to its end and report what pip fetches; the program ends if this one is interrupted."""
    streams: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    output = []
    with subprocess.Popen(command, text=True, errors="replace", **streams) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                output.append(line)
                if got := _FETCHED.match(line):
                    say(f"{peer.name}: {' '.join(filter(None, got.groups()))}")
            status = process.wait()
        except BaseException:
            process.kill()
            raise
    if status:
        raise _explained(peer, "".join(output), status)


def _explained(peer: Peer, output: str, status: int) -> JaxperfError:
    """Return the one line that says why pip failed."""
    if _OFFLINE.search(output):
        return JaxperfError(f"{peer.name}: the package index cannot be reached; try again with a network")
    if missing := _NOT_OFFERED.search(output):
        return NotOfferedError(f"{peer.name}: no index offers {missing[1]} for this Python and machine")
    if "No space left on device" in output:
        return JaxperfError(f"{peer.name}: no space left in {root()}; JAXPERF_PEERS names another folder")
    errors = "\n".join(line for line in output.splitlines() if line.startswith("ERROR"))
    return JaxperfError(f"{peer.name}: installing failed: {last_line(errors or output) or status}")


@contextmanager
def _alone() -> Iterator[None]:
    """Allow one installation at a time: two would remove each other's work."""
    try:
        root().mkdir(parents=True, exist_ok=True)
        lock = FileLock(root() / ".lock").acquire(blocking=False)
    except Timeout:
        raise JaxperfError(f"another installation is running in {root()}; wait for it") from None
    except OSError as e:
        raise JaxperfError(
            f"cannot write to {root()}: {e.strerror or e}; JAXPERF_PEERS names another folder"
        ) from None
    with lock:
        yield
