"""The instruments, for the sections and for a reader's own functions.

Names are loaded when first used: `record` and `store` must be importable where JAX is not (the runners of
other frameworks), and the command line must answer before JAX is imported.

Functions that say little without the name of their file are used with it, as `timeline.record`,
`dispatch.fit` and `run_ahead.run_ahead` after `from jaxperf.measure import dispatch, run_ahead, timeline`.
A function named as its own file cannot be had here at all: what is imported first would decide which of
the two it is.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxperf.measure.dispatch import asynchronous_loop, synchronous_loop
    from jaxperf.measure.environment import current_environment
    from jaxperf.measure.fresh import in_fresh_process
    from jaxperf.measure.guards import RetraceError
    from jaxperf.measure.memory import MemorySampler, device_memory, live_bytes
    from jaxperf.measure.record import (
        Claim,
        Environment,
        Measurement,
        Reference,
        Result,
        Series,
        Span,
        Timeline,
    )
    from jaxperf.measure.rounds import interleaved, per_round, together
    from jaxperf.measure.run_ahead import pending, probe, run_ahead_depth
    from jaxperf.measure.staging import Program, Stages, TraceCounter, count_ops, count_traces, stages
    from jaxperf.measure.store import load_result, save_result
    from jaxperf.measure.timing import Benchmark, Timer, block, measure

_HOMES = {
    "dispatch": ("asynchronous_loop", "synchronous_loop"),
    "environment": ("current_environment",),
    "fresh": ("in_fresh_process",),
    "guards": ("RetraceError",),
    "memory": ("MemorySampler", "device_memory", "live_bytes"),
    "record": ("Claim", "Environment", "Measurement", "Reference", "Result", "Series", "Span", "Timeline"),
    "rounds": ("interleaved", "per_round", "together"),
    "run_ahead": ("pending", "probe", "run_ahead_depth"),
    "staging": ("Program", "Stages", "TraceCounter", "count_ops", "count_traces", "stages"),
    "store": ("load_result", "save_result"),
    "timing": ("Benchmark", "Timer", "block", "measure"),
}

__all__ = [
    "Benchmark",
    "Claim",
    "Environment",
    "Measurement",
    "MemorySampler",
    "Program",
    "Reference",
    "Result",
    "RetraceError",
    "Series",
    "Span",
    "Stages",
    "Timeline",
    "Timer",
    "TraceCounter",
    "asynchronous_loop",
    "block",
    "count_ops",
    "count_traces",
    "current_environment",
    "device_memory",
    "in_fresh_process",
    "interleaved",
    "live_bytes",
    "load_result",
    "measure",
    "pending",
    "per_round",
    "probe",
    "run_ahead_depth",
    "save_result",
    "stages",
    "synchronous_loop",
    "together",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"jaxperf.measure.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
