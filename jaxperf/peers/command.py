"""`jaxperf peers`: what is there and what is missing; `jaxperf peers install [NAME...]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jaxperf.errors import JaxperfError
from jaxperf.peers.environments import look, root
from jaxperf.peers.install import install, no_python
from jaxperf.peers.interpreters import fitting
from jaxperf.peers.known import PEERS, Peer, chosen


def main(words: Sequence[str] = ()) -> int:
    """Run `jaxperf peers WORDS`: 0, or 1 where a peer could not be installed; the others still are.

    Raises:
      JaxperfError: the first word is not "install", or a name that no peer has.
    """
    if not words:
        return show()
    if words[0] != "install":
        raise JaxperfError(f"`peers` knows no {words[0]!r}; say `jaxperf peers` or `jaxperf peers install`")
    failed = 0
    for peer in chosen(words[1:]) or PEERS.values():
        try:
            install(peer, say=_say)
        except JaxperfError as e:
            print(f"failed: {e}", file=sys.stderr)
            failed = 1
    return failed


def show() -> int:
    """Print one line for each peer."""
    for peer in PEERS.values():
        _say(f"{peer.name}: {status(peer)}")
    _say(f"environments lie in {root()} (JAXPERF_PEERS names another folder)")
    return 0


def status(peer: Peer) -> str:
    """What is there of a peer, and the command that mends what is not."""
    found = look(peer)
    if found.state == "ready":
        return f"ready, {found.detail}"
    mend = f"`jaxperf peers install {peer.name}`"
    if found.state == "broken":
        return f"broken, {found.detail}; {mend} makes it anew"
    interpreter = next(fitting(peer), None)
    if interpreter is None:
        return f"missing, {no_python(peer)}"
    return f"missing, {mend} makes it with {interpreter.path}"


def _say(line: str) -> None:
    print(line, flush=True)
