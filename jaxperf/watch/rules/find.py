"""Rules: what a program loses, where, and why. Each gives findings with the seconds that a change could save.

A rule reports nothing below a share of the run's time, so that programs without a fault have no findings.
Seconds are an estimate from this run: what was spent repeatedly, or how long devices were idle for that
reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from jaxperf.watch.finding import Finding
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules.eager import eager
from jaxperf.watch.rules.idle import data, numpy, transfers, waits
from jaxperf.watch.rules.programs import (
    accelerators,
    callbacks,
    captured,
    constant_work,
    donation,
    eager_copies,
    float64,
    shards,
    state,
    unrolled,
)
from jaxperf.watch.rules.settings import EXPLAINS, debugging
from jaxperf.watch.rules.steps import dispatch, lists, puts, python, small_puts, write
from jaxperf.watch.rules.traces import cleared, eager_recompiles, placed, retraced

LEAST_SHARE = 0.02  # of the time without compiling that a finding must be able to save
LEAST_OF_ALL = 0.005  # of the wall time
LEAST_S = 0.02  # seconds that are worth reading a line about
LARGE = 64 << 20  # bytes that are worth freeing whatever that saves

RULES: tuple[Callable[[Analysis], Iterator[Finding]], ...] = (
    debugging, retraced, placed, cleared, eager_recompiles, waits, data, numpy, eager, transfers,
    donation, eager_copies, state, float64, unrolled, captured, constant_work, callbacks, accelerators,
    shards, dispatch, python, lists, puts, small_puts, write,
)  # fmt: skip


def find(analysis: Analysis) -> list[Finding]:
    """Everything that could save a share of the run's time, largest first."""
    r = analysis.record
    steady_s = r.wall_s - analysis.compiling.within(r.start, r.end)
    settled = {cause for setting in r.settings for cause in EXPLAINS.get(setting, ())}
    found = _worst(f for rule in RULES for f in rule(analysis) if f.cause not in settled)
    kept = [
        f
        for f in found
        if f.seconds >= max(max(LEAST_SHARE * steady_s, LEAST_S) * f.doubt, LEAST_OF_ALL * r.wall_s)
        or f.memory_bytes >= LARGE
    ]
    kept = [replace(f, seconds=min(f.seconds, r.wall_s)) for f in kept]
    return sorted(kept, key=lambda f: (-f.seconds, f.at))


def _worst(found: Iterable[Finding]) -> list[Finding]:
    """The costliest of the findings with one cause at one line, such as for programs of several sizes."""
    worst: dict[tuple[str, Place], Finding] = {}
    for finding in sorted(found, key=lambda f: (f.seconds, f.memory_bytes)):
        worst[finding.cause, finding.at] = finding
    return list(worst.values())
