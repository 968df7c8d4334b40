"""What must not happen while a clock runs: tracing, compiling, and JAX's debug settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax

from jaxperf.errors import JaxperfError

DEBUG_FLAGS = (
    "jax_disable_jit",
    "jax_debug_nans",
    "jax_debug_infs",
    "jax_debug_key_reuse",
    "jax_check_tracer_leaks",
    "jax_enable_checks",
    "jax_log_compiles",
)  # jax_explain_cache_misses costs only where something is traced, which a timed part refuses anyway
_STAGES = {"jaxpr_trace_duration": "traced", "backend_compile_duration": "compiled"}


class RetraceError(JaxperfError):
    """Something was traced or compiled inside a timed part, so the time is not the program's."""


class Witness(list[str]):
    """What was traced or compiled so far, one remark each ("step was traced")."""

    def refuse(self, name: str) -> None:
        """Raise RetraceError, naming the timed function, if there was anything."""
        if self:
            raise RetraceError(
                f"{name}: {self[0]} inside the timed part; "
                "call it with the same shapes, dtypes and static values every time, and jit outside of it"
            )


@contextmanager
def witness() -> Iterator[Witness]:
    """Note what JAX traces and compiles inside, in any thread.

    JAX reports both itself. Its own switch, `jax.no_tracing`, does not help: it objects to every call that
    leaves the fast path, e.g. an eager `jax.grad` or a program that prints, although nothing is traced.
    """
    seen = Witness()

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if verb := _STAGES.get(event.rsplit("/", 1)[-1]):
            seen.append(f"{kwargs.get('fun_name', 'a program')} was {verb}")

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@contextmanager
def nothing_compiles(name: str) -> Iterator[Witness]:
    """Raise `RetraceError`, naming the function, when anything was traced or compiled inside."""
    with witness() as seen:
        yield seen
    seen.refuse(name)


def refuse_debug_flags() -> None:
    """Raise JaxperfError when a JAX setting is on that makes programs slow on purpose."""
    for flag in DEBUG_FLAGS:
        if getattr(jax.config, flag, False):
            raise JaxperfError(f"{flag} is on: times would be of debugging, not of the program; turn it off")
