"""The peers, where their environments are, and whether one exists and works."""

from __future__ import annotations

import difflib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import platformdirs

from jaxperf.errors import JaxperfError, not_on_windows

MARKER = "jaxperf-peer.json"  # written last: a folder without it is from an interrupted installation
State = Literal["ready", "missing", "broken"]


@dataclass(frozen=True)
class Peer:
    """A framework that has an environment of its own.

    Attributes:
      name: also of the module that is imported.
      requires: what is installed, pinned; several lists are tried in order until an index has one.
      pythons: the Pythons it runs on, best first.
      costs: roughly how long the installation takes and how much disk space it needs.
    """

    name: str
    requires: tuple[tuple[str, ...], ...]
    pythons: tuple[str, ...]
    costs: str


PEERS = {
    "mxnet": Peer(
        "mxnet",
        requires=(("mxnet==1.9.1", "numpy==1.23.5"),),
        pythons=("3.11", "3.10", "3.9", "3.8"),
        costs="half a minute, 300 MB",
    ),
    # The build without CUDA is a tenth of the other's size; if no index has it under that name, the plain
    # version is that build.
    "torch": Peer(
        "torch",
        requires=(("torch==2.13.0+cpu", "numpy==2.2.6"), ("torch==2.13.0", "numpy==2.2.6")),
        pythons=("3.11", "3.12", "3.13", "3.10"),
        costs="one to several minutes, 1 GB",
    ),
}


@dataclass(frozen=True)
class PeerEnvironment:
    """The state of a peer.

    Attributes:
      state: "ready", "missing" or "broken".
      python: the environment's interpreter, whether or not it exists.
      detail: versions if it is ready; what is wrong if it is broken.
    """

    state: State
    python: Path
    detail: str = ""


def named_peers(name_lists: Iterable[str]) -> tuple[Peer, ...]:
    """Return the peers that the lists name, each once; a list is names separated by commas.

    Raises:
      JaxperfError: a name that no peer has, or any name on Windows.
    """
    names = [name.strip() for name_list in name_lists for name in name_list.split(",")]
    for name in filter(None, names):
        not_on_windows("the comparison with other frameworks")
        if name not in PEERS:
            near = difflib.get_close_matches(name, PEERS, n=1, cutoff=0.0)[0]
            raise JaxperfError(f"no peer {name!r}; did you mean {near!r}? There are {', '.join(PEERS)}")
    return tuple(PEERS[name] for name in dict.fromkeys(filter(None, names)))


def root() -> Path:
    """Return the folder of all peers' environments: JAXPERF_PEERS, or in the user's data folder."""
    named = os.environ.get("JAXPERF_PEERS")
    return Path(named) if named else platformdirs.user_data_path("jaxperf") / "peers"


def environment_folder(peer: Peer) -> Path:
    """Return the folder of the peer's environment, which may not exist."""
    return root().absolute() / peer.name


def python_in(environment: Path) -> Path:
    """Return the interpreter of an environment."""
    return environment / "bin" / "python"


def look(peer: Peer) -> PeerEnvironment:
    """Find out whether the peer's environment exists, has the current pins, and imports the peer."""
    python = python_in(environment_folder(peer))
    try:
        marker = json.loads((environment_folder(peer) / MARKER).read_text(encoding="utf-8"))
        installed = tuple(marker["requires"])
    except FileNotFoundError:
        return PeerEnvironment("missing", python)
    except (OSError, ValueError, KeyError, TypeError):
        return PeerEnvironment("broken", python, f"{environment_folder(peer) / MARKER} cannot be read")
    if installed not in peer.requires:
        return PeerEnvironment("broken", python, f"it holds {' '.join(map(str, installed))}")
    versions, trouble = imported_versions(peer, python)
    return PeerEnvironment("broken" if trouble else "ready", python, trouble or versions)


def named_interpreters(assignments: Iterable[str]) -> dict[str, PeerEnvironment]:
    """Return the interpreters that "torch=/usr/bin/python3" and its like assign, by peer, after trying each.

    Raises:
      JaxperfError: one has another form, a name is not a peer's or comes twice, or an interpreter does not
        start or does not have the framework.
    """
    environments: dict[str, PeerEnvironment] = {}
    for pair in assignments:
        name, _, path = pair.partition("=")
        if not name or not path:
            raise JaxperfError(f"--peer-python is {pair!r}; give NAME=PATH, as in torch=/usr/bin/python3")
        for peer in named_peers([name]):
            if peer.name in environments:
                raise JaxperfError(f"--peer-python names {peer.name} twice; give one interpreter for it")
            python = Path(os.path.expanduser(path)).absolute()  # noqa: PTH111  # raises for unknown users
            versions, trouble = imported_versions(peer, python)
            if trouble:
                raise JaxperfError(f"--peer-python {pair}: {trouble}; name a Python that has {peer.name}")
            environments[peer.name] = PeerEnvironment("ready", python, versions)
    return environments


def running_python(peer: Peer) -> PeerEnvironment | None:
    """Return the Python that runs this, if it has the peer in a build for CUDA; None if it has not."""
    if importlib.util.find_spec(peer.name) is None:
        return None
    versions, _ = imported_versions(peer, Path(sys.executable))
    return PeerEnvironment("ready", Path(sys.executable), versions) if "CUDA" in versions else None


_VERSIONS = """
import platform, numpy, {name} as peer
cuda = getattr(getattr(peer, "version", None), "cuda", None)
print(f"\\n{name} {{peer.__version__}}" + (f" (CUDA {{cuda}})" if cuda else "") +
      f", numpy {{numpy.__version__}}, Python {{platform.python_version()}}")
"""


def imported_versions(peer: Peer, python: Path) -> tuple[str, str]:
    """Return ("torch 2.11.0 (CUDA 13.0), numpy 2.5.2, Python 3.12.3", ""), or ("", why the import fails)."""
    try:
        done = run_program(python, _VERSIONS.format(name=peer.name), limit_s=120)
    except OSError as e:
        return "", f"{python} does not start: {e.strerror or e}"
    except subprocess.TimeoutExpired:
        return "", f"importing {peer.name} takes more than 120 s"
    if done.returncode:
        return "", f"importing {peer.name} fails: {last_line(done.stderr) or f'status {done.returncode}'}"
    versions = last_line(done.stdout)
    return (versions, "") if versions.startswith(f"{peer.name} ") else ("", f"{python} is not a Python")


def run_program(python: Path, program: str, *, limit_s: float) -> subprocess.CompletedProcess[str]:
    """Run a program in another Python, which sees neither our folder nor PYTHON variables."""
    return subprocess.run(
        [str(python), "-I", "-c", program],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=limit_s,
        stdin=subprocess.DEVNULL,
    )


def last_line(text: str) -> str:
    """Return the last line that is not blank, cut to fit on one of our lines."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""
