"""`jaxperf peers`: what is installed and what is missing; `jaxperf peers install [NAME...]`."""

from __future__ import annotations

from collections.abc import Sequence

from jaxperf.errors import JaxperfError, escape_control, not_on_windows
from jaxperf.frameworks.environments import PEERS, Peer, look, named_peers, root
from jaxperf.frameworks.install import Say, fitting, install, no_python


def main(arguments: Sequence[str], *, program: str, warn: Say) -> int:
    """Run `jaxperf peers ARGUMENTS`: return 0, or 1 if a peer could not be installed; the others still are.

    Args:
      arguments: those after `peers`.
      program: what to type to run jaxperf.
      warn: is told in one line which peer could not be installed, and why.

    Raises:
      JaxperfError: the first argument is not "install", or a name that no peer has; or this is Windows.
    """
    not_on_windows("`jaxperf peers`")
    if not arguments:
        return show(program)
    if arguments[0] != "install":
        raise JaxperfError(f"`peers` has no command {arguments[0]!r}; try `jaxperf peers install`")
    failed = 0
    for peer in named_peers(arguments[1:]) or PEERS.values():
        try:
            install(peer, say=_say)
        except JaxperfError as e:
            warn(f"failed: {e}")
            failed = 1
    return failed


def show(program: str) -> int:
    """Print one line for each peer, and where the environments are."""
    for peer in PEERS.values():
        _say(f"{peer.name}: {peer_status(peer, program)}")
    _say(f"environments are in {root()} (JAXPERF_PEERS names another folder)")
    return 0


def peer_status(peer: Peer, program: str = "jaxperf") -> str:
    """Return the state of a peer, and the command that installs or rebuilds it."""
    environment = look(peer)
    if environment.state == "ready":
        return f"ready, {environment.detail}"
    command = f"`{program} peers install {peer.name}`"
    if environment.state == "broken":
        return f"broken, {environment.detail}; {command} rebuilds it"
    python = next(fitting(peer), None)
    return f"missing, {command} installs it with {python}" if python else f"missing, {no_python(peer)}"


def _say(line: str) -> None:
    print(escape_control(line), flush=True)
