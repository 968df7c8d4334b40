"""What must not happen while a clock runs: tracing, compiling, debug settings, used inputs, cached calls."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from jaxperf.errors import JaxperfError

DEBUG_FLAGS = (
    "jax_disable_jit",
    "jax_debug_nans",
    "jax_debug_infs",
    "jax_debug_key_reuse",
    "jax_check_tracer_leaks",
    "jax_enable_checks",
    "jax_log_compiles",
)  # jax_explain_cache_misses costs time only when something is traced, which is an error here anyway
COPIES = "its NumPy arguments are copied to the device at every call"
_STAGES = {"jaxpr_trace_duration": "traced", "backend_compile_duration": "compiled"}


class RetraceError(JaxperfError):
    """Something was traced or compiled inside a timed part, so the time is not the program's."""


class CompileLog(list[str]):
    """What was traced or compiled so far, one remark for each ("step was traced").

    Attributes:
      programs: how many programs XLA compiled.
      compile_s: the seconds for that, added up over threads.
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

    JAX itself reports both. Its own switch, `jax.no_tracing`, does not help: it rejects every call that
    leaves the fast path, e.g. an eager `jax.grad` or a program that prints, although nothing is traced.
    """
    log = CompileLog()

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if verb := _STAGES.get(event.rsplit("/", 1)[-1]):
            log.append(f"{kwargs.get('fun_name', 'a program')} was {verb}")
            if verb == "compiled":
                log.programs += 1
                log.compile_s += duration_secs

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield log
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@contextmanager
def nothing_compiles(name: str) -> Iterator[CompileLog]:
    """Raise `RetraceError`, naming the function, when anything was traced or compiled inside."""
    with watch_compilation() as log:
        yield log
    log.refuse(name)


def refuse_debug_flags() -> None:
    """Raise JaxperfError when a JAX setting is on that makes programs slow on purpose."""
    for flag in DEBUG_FLAGS:
        if getattr(jax.config, flag, False):
            raise JaxperfError(f"{flag} is on: times would be of debugging, not of the program; turn it off")


def refuse_donated(name: str, args: Any) -> None:
    """Raise JaxperfError if a call has donated one of its arguments, which the next call still needs."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(args):
        if isinstance(leaf, jax.Array) and leaf.is_deleted():
            raise JaxperfError(
                f"{name}: args{jax.tree_util.keystr(path)} was donated, so it can be used only once; "
                "give `interleaved` a `before` that makes a new one for each call, or do not donate"
            )


def refuse_same_arrays(
    name: str, out: Any, before: Sequence[weakref.ref[jax.Array]], args: Any
) -> list[weakref.ref[jax.Array]]:
    """Raise JaxperfError if a call returned only the arrays of the previous call, from a cache.

    Arrays never change, so a call that returns the same ones has computed nothing. Arrays among its own
    arguments do not count, nor do calls that return no array.

    Args:
      name: of the timed function.
      out: what the call returned.
      before: what this function returned for the previous call; empty for the first.
      args: what the call was given.

    Returns:
      References to the arrays in `out`, which do not keep them alive.
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
    """Return a remark for a JAX function that is given NumPy arrays; "" for any other."""
    host = any(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(args))
    return COPIES if host and any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(out)) else ""
