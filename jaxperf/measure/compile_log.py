"""Refuse what makes a timing wrong: tracing, compiling, debug settings, donated inputs, cached calls."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from jaxperf import jax_internals
from jaxperf.errors import JaxperfError
from jaxperf.jax_internals import DEBUG_FLAGS

COPIES = "its NumPy arguments are copied to the device at every call"
_STAGES = {"jaxpr_trace_duration": "traced", "backend_compile_duration": "compiled"}


class RetraceError(JaxperfError):
    """Something was traced or compiled in a timed part, so the time is not that of the program alone."""


class CompileLog(list[str]):
    """Remarks on what was traced or compiled so far, such as "step was traced".

    Attributes:
      programs: the number of programs that XLA compiled.
      compile_s: the seconds for that, summed over threads.
    """

    programs = 0
    compile_s = 0.0

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
    arrays = [x for x in jax.tree.leaves(out) if isinstance(x, jax.Array) and id(x) not in inputs]
    if arrays and len(arrays) == len(before) and all(x is ref() for x, ref in zip(arrays, before)):
        raise JaxperfError(
            f"{name}: the second call returned the very arrays of the first, so it computed nothing; "
            "time the function behind the cache"
        )
    return [weakref.ref(x) for x in arrays]


def host_copies_note(args: Any, out: Any) -> str:
    """Return a remark for a JAX function with NumPy arguments; "" for any other function."""
    host = any(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(args))
    return COPIES if host and any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(out)) else ""
