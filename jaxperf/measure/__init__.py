"""The instruments, for the sections and for a reader's own functions.

Names are loaded when first used: `record` and `store` must be importable where JAX is not (the runners of
other frameworks), and the command line must answer before JAX is imported.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxperf.measure.environment import current_environment
    from jaxperf.measure.guards import RetraceError
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
    from jaxperf.measure.staging import Program, Stages, TraceCounter, count_ops, count_traces, stages
    from jaxperf.measure.store import load_result, save_result
    from jaxperf.measure.timing import Benchmark, Timer, block, measure

_HOMES = {
    "environment": ("current_environment",),
    "guards": ("RetraceError",),
    "record": ("Claim", "Environment", "Measurement", "Reference", "Result", "Series", "Span", "Timeline"),
    "rounds": ("interleaved", "per_round", "together"),
    "staging": ("Program", "Stages", "TraceCounter", "count_ops", "count_traces", "stages"),
    "store": ("load_result", "save_result"),
    "timing": ("Benchmark", "Timer", "block", "measure"),
}

__all__ = [
    "Benchmark",
    "Claim",
    "Environment",
    "Measurement",
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
    "block",
    "count_ops",
    "count_traces",
    "current_environment",
    "interleaved",
    "load_result",
    "measure",
    "per_round",
    "save_result",
    "stages",
    "together",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"jaxperf.measure.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
