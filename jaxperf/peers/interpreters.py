"""A Python that a peer runs on: the running one, those on PATH, those that pyenv keeps."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jaxperf.peers.known import Peer, Version

# A Python without ensurepip (Debian ships it apart) makes environments into which nothing can be installed.
_PROBE = "import sys, venv, ensurepip; print(sys.version_info[0], sys.version_info[1])"


@dataclass(frozen=True)
class Interpreter:
    """A Python that can make environments."""

    path: Path
    version: Version


def fitting(peer: Peer) -> Iterator[Interpreter]:
    """Interpreters that `peer` runs on and that can make an environment, best first; tried as they come."""
    seen = set()
    for path, version in _candidates(peer):
        key = path.resolve()
        if key not in seen:
            seen.add(key)
            if probe(path) == version:
                yield Interpreter(path, version)


def probe(path: Path) -> Version | None:
    """The version of a Python that can make environments; None for what can't, or doesn't start."""
    try:
        done = subprocess.run(
            [path, "-I", "-c", _PROBE], capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL
        )
        major, minor = map(int, done.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return (major, minor) if done.returncode == 0 else None


def _candidates(peer: Peer) -> Iterator[tuple[Path, Version]]:
    running = sys.version_info[:2]
    pythons = list(peer.pythons)
    if peer.running_first and running in pythons:
        pythons.remove(running)
        pythons.insert(0, running)
    for version in pythons:
        if version == running:
            yield Path(sys.executable), version
        if found := shutil.which(f"python{version[0]}.{version[1]}"):
            yield Path(found), version
        for path in _of_pyenv(version):
            yield path, version


def _of_pyenv(version: Version) -> list[Path]:
    """pyenv's interpreters of this version, the newest first; its shims may point anywhere, so not those."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = (root / "versions").glob(f"{version[0]}.{version[1]}.*/bin/python")
    return sorted(found, key=_patch, reverse=True)


def _patch(path: Path) -> int:
    last = path.parent.parent.name.split(".")[-1]
    return int(last) if last.isdecimal() else -1
