"""Refuse to time a function that returns before what it calls has finished.

Whoever waits for a function's results waits for all that they are computed from, and for nothing else: not
for an array that the function keeps in a variable of its own, or drops, as in `step(x).shape`. JAX says which
results each call of a jitted function gave, and operations outside of jit are such calls, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
from jax.core import Tracer

from jaxperf import jax_internals
from jaxperf.errors import JaxperfError

CALLS = 2  # calls of a function that are checked: the first one may compile, and the second one shows more
KEPT = 8  # calls whose results are kept meanwhile; more could need much memory


class Checked:
    """A function that raises JaxperfError where its results do not cover what it dispatches.

    A function that returns arrays is checked in its first two calls. One that returns none is checked in
    every call, since a short program may have finished by chance.
    """

    def __init__(self, name: str, fn: Callable[..., Any]) -> None:
        self._name, self._fn, self._left = name, fn, CALLS

    def __call__(self, *args: Any) -> Any:
        """Call the function, wait for its results, and check that nothing else is under way."""
        if self._left == 0:
            return self._fn(*args)
        calls: deque[tuple[str, list[jax.Array]]] = deque(maxlen=KEPT)

        def note(function: Any, _args: Any, _kwargs: Any, output: Any) -> None:
            calls.append((getattr(function, "__name__", "a program"), _arrays(output)))

        with jax_internals.after_each_call(note):
            out = self._fn(*args)
        if isinstance(out, Iterator):  # which nobody can wait for; `block` says so
            return out
        returned = _arrays(out)
        jax.block_until_ready(returned)
        jax.effects_barrier()
        unfinished = _unfinished(calls)
        if unfinished and returned:
            raise JaxperfError(
                f"{self._name} returns before {unfinished}, which it calls, has finished; return all that it "
                "computes, or wait for the rest inside, with jax.block_until_ready"
            )
        if unfinished:
            raise JaxperfError(
                f"{self._name} calls {unfinished} and returns no array to wait for, so its time would be "
                "that of the dispatch; return the arrays, or wait for them with jax.block_until_ready"
            )
        if returned:
            self._left -= 1
        return out


def _arrays(tree: Any) -> list[jax.Array]:
    return [x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array) and not isinstance(x, Tracer)]


def _unfinished(calls: Iterable[tuple[str, list[jax.Array]]]) -> str:
    """Return the name of a function that is still computing; "" if there is none.

    A program makes all its results at the same time, but they are marked as ready one after the other. So it
    has finished if one of them is.
    """
    for name, results in calls:
        kept = [x for x in results if not x.is_deleted()]
        if kept and not any(x.is_ready() for x in kept):  # type: ignore[attr-defined]
            return name
    return ""
