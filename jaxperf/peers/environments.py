"""Where the peers' environments lie, and whether the one of a peer is there and works."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import platformdirs

from jaxperf.peers.known import Peer

MARKER = "jaxperf-peer.json"  # written last: a folder without it was left by an interrupted installation
State = Literal["ready", "missing", "broken"]


@dataclass(frozen=True)
class Found:
    """What there is of a peer.

    Attributes:
      peer: which.
      state: "ready", "missing" or "broken".
      python: the environment's interpreter, whether or not it is there.
      detail: versions where it is ready; what is wrong where it is broken.
    """

    peer: Peer
    state: State
    python: Path
    detail: str = ""


def root() -> Path:
    """The folder of all peers' environments: JAXPERF_PEERS, or in the user's data folder."""
    named = os.environ.get("JAXPERF_PEERS")
    return Path(named) if named else platformdirs.user_data_path("jaxperf") / "peers"


def folder(peer: Peer) -> Path:
    """The peer's environment, there or not."""
    return root().absolute() / peer.name


def python_in(environment: Path) -> Path:
    """The interpreter of an environment."""
    return environment / "bin" / "python"


def look(peer: Peer) -> Found:
    """Whether the peer's environment is there, is of today's pins, and imports the peer."""
    python = python_in(folder(peer))
    try:
        marker = json.loads((folder(peer) / MARKER).read_text(encoding="utf-8"))
        installed = tuple(marker["requires"])
    except FileNotFoundError:
        return Found(peer, "missing", python)
    except (OSError, ValueError, KeyError, TypeError):
        return Found(peer, "broken", python, f"{folder(peer) / MARKER} cannot be read")
    if installed not in peer.requires:
        return Found(peer, "broken", python, f"it holds {' '.join(map(str, installed))}")
    versions, trouble = imported(peer, python)
    return Found(peer, "broken" if trouble else "ready", python, trouble or versions)


def imported(peer: Peer, python: Path) -> tuple[str, str]:
    """("mxnet 1.9.1, numpy 1.23.5, Python 3.11.7", ""), or ("", why the peer cannot be imported)."""
    program = (
        f"import platform, numpy, {peer.name} as peer; print(f'\\n{peer.name} {{peer.__version__}}, "
        "numpy {numpy.__version__}, Python {platform.python_version()}')"
    )
    try:
        done = subprocess.run(
            [python, "-I", "-c", program],
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )
    except OSError as e:
        return "", f"{python} does not start: {e.strerror or e}"
    except subprocess.TimeoutExpired:
        return "", f"importing {peer.name} takes more than 120 s"
    if done.returncode:
        return "", f"importing {peer.name} fails: {last_line(done.stderr) or f'status {done.returncode}'}"
    return last_line(done.stdout), ""


def last_line(text: str) -> str:
    """The last line that says something, cut to what fits on one of ours."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""
