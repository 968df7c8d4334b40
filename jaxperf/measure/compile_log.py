"""Refuse what makes a timing wrong: tracing, compiling, debug settings, donated inputs, and work left over.

Whoever waits for a function's results waits for all that they are computed from, and for nothing else: not
for an array that the function keeps in a variable of its own, or drops, as in `step(x).shape`. JAX says which
results each call of a jitted function gave, and operations outside of jit are such calls, too.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
from jax.core import Tracer

from jaxperf import jax_internals
from jaxperf.errors import JaxperfError
from jaxperf.jax_internals import DEBUG_FLAGS

COPIES = "its NumPy arguments are copied to the device at every call"
_STAGES = {"jaxpr_trace_duration": "traced", "backend_compile_duration": "compiled"}
CHECKED = 2  # calls of a function that are checked: the first one may compile, and the second one shows more
KEPT = 8  # calls whose results are kept meanwhile; more could need much memory


class RetraceError(JaxperfError):
    """Something was traced or compiled in a timed part, so the time is not that of the program alone."""


class CompileLog(list[str]):
    """Remarks on what was traced or compiled so far, such as "step was traced"."""

    programs = 0  #: that XLA compiled
    compile_s = 0.0  #: for that, in seconds, summed over threads

    def refuse(self, name: str) -> None:
        """Raise RetraceError, naming the timed function, if anything was traced or compiled."""
        if self:
            raise RetraceError(
                f"{name}: {self[0]} inside the timed part; "
                "call it with the same shapes, dtypes and static values every time, and jit outside of it"
            )


@contextmanager
def watch_compilation() -> Iterator[CompileLog]:
    """Record what JAX traces and compiles inside, in any thread.

    `jax.no_tracing` would also reject calls that trace nothing but leave the fast path, such as an eager
    `jax.grad` or a program that prints.
    """
    log = CompileLog()

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        verb = _STAGES.get(event.rsplit("/", 1)[-1])
        if verb:
            log.append(f"{kwargs.get('fun_name', 'a program')} was {verb}")
            if verb == "compiled":
                log.programs += 1
                log.compile_s += duration_secs

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield log
    finally:
        jax_internals.stop_listening("event_duration", listen)


@contextmanager
def nothing_compiles(name: str) -> Iterator[CompileLog]:
    """Raise `RetraceError`, naming the function, if anything was traced or compiled inside."""
    with watch_compilation() as log:
        yield log
    log.refuse(name)


def refuse_debug_flags() -> None:
    """Raise JaxperfError if a JAX setting is on that slows programs down for debugging."""
    for flag in DEBUG_FLAGS:
        if getattr(jax.config, flag, False):
            raise JaxperfError(f"{flag} is on: times would be of debugging, not of the program; turn it off")


def refuse_donated(name: str, args: Any) -> None:
    """Raise JaxperfError if a call has donated an argument, which the next call still needs."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(args):
        if isinstance(leaf, jax.Array) and leaf.is_deleted():
            raise JaxperfError(
                f"{name}: args{jax.tree_util.keystr(path)} was donated, so it can be used only once; "
                "give `interleaved` a `before` that makes a new one for each call, or do not donate"
            )


def refuse_same_arrays(
    name: str, out: Any, before: Sequence[weakref.ref[jax.Array]], args: Any
) -> list[weakref.ref[jax.Array]]:
    """Raise JaxperfError if a call returned the arrays of the previous call, so that it computed nothing.

    Arrays among its own arguments do not count, nor do calls that return no array.
    """
    inputs = {id(leaf) for leaf in jax.tree.leaves(args)}
    arrays = [x for x in arrays_of(out) if id(x) not in inputs]
    if arrays and len(arrays) == len(before) and all(x is ref() for x, ref in zip(arrays, before)):
        raise JaxperfError(
            f"{name}: the second call returned the very arrays of the first, so it computed nothing; "
            "time the function behind the cache"
        )
    return [weakref.ref(x) for x in arrays]


class Checked:
    """A function that raises JaxperfError where its results do not cover what it dispatches.

    A function that returns arrays is checked in its first two calls. One that returns none is checked in
    every call, since a short program may have finished by chance.
    """

    def __init__(self, name: str, fn: Callable[..., Any]) -> None:
        self._name, self._fn, self._left = name, fn, CHECKED

    def __call__(self, *args: Any) -> Any:
        """Call the function, wait for its results, and check that nothing else is under way."""
        if self._left == 0:
            return self._fn(*args)
        calls: deque[tuple[str, list[jax.Array]]] = deque(maxlen=KEPT)

        def note(function: Any, _args: Any, _kwargs: Any, output: Any) -> None:
            calls.append((getattr(function, "__name__", "a program"), arrays_of(output)))

        with jax_internals.after_each_call(note):
            out = self._fn(*args)
        if isinstance(out, Iterator):  # which nobody can wait for; `block` says so
            return out
        returned = arrays_of(out)
        jax.block_until_ready(returned)
        jax.effects_barrier()
        for called, results in calls:
            # A program makes all its results at the same time, but they are marked as ready one after the
            # other. So it has finished if one of them is.
            kept = [x for x in results if not x.is_deleted()]
            if not kept or any(x.is_ready() for x in kept):  # type: ignore[attr-defined]
                continue
            if returned:
                raise JaxperfError(
                    f"{self._name} returns before {called}, which it calls, has finished; return all that it "
                    "computes, or wait for the rest inside, with jax.block_until_ready"
                )
            raise JaxperfError(
                f"{self._name} calls {called} and returns no array to wait for, so its time would be that of "
                "the dispatch; return the arrays, or wait for them with jax.block_until_ready"
            )
        if returned:
            self._left -= 1
        return out


def arrays_of(tree: Any) -> list[jax.Array]:
    """Return the arrays among the leaves of a pytree, without tracers."""
    return [x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array) and not isinstance(x, Tracer)]
