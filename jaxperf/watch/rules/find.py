"""Apply all rules to a run, and keep the findings that could save a share of its time.

The seconds of a finding are an estimate from this run: the time of repeated work, or the time in which
devices were idle for that reason.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from jaxperf.watch.finding import Finding
from jaxperf.watch.observe.sampler import IMPORT
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules.between_devices import find_moves, find_replicated_work
from jaxperf.watch.rules.eager import find_eager_operations
from jaxperf.watch.rules.idle import find_data_waits, find_numpy_work, find_transfers, find_waits
from jaxperf.watch.rules.precision import find_float64
from jaxperf.watch.rules.programs import (
    find_callbacks,
    find_constant_work,
    find_constants,
    find_cpu_programs,
    find_donations,
    find_eager_copies,
    find_module_state,
    find_unequal_shards,
    find_unrolled_loops,
)
from jaxperf.watch.rules.settings import EXPLAINS, find_debug_settings
from jaxperf.watch.rules.steps import (
    find_list_conversions,
    find_python_work,
    find_repeated_puts,
    find_slow_dispatch,
    find_small_puts,
    find_writes,
)
from jaxperf.watch.rules.traces import (
    find_cleared_caches,
    find_eager_recompiles,
    find_placements,
    find_retraces,
)

LEAST_SHARE = 0.05  # share of the run without imports that a finding must save
LEAST_S = 0.02  # seconds that a finding must save
LARGE = 64 << 20  # bytes to free that are worth a finding, whatever the seconds

RULES: tuple[Callable[[Analysis], Iterator[Finding]], ...] = (
    find_debug_settings, find_retraces, find_placements, find_cleared_caches, find_eager_recompiles,
    find_waits, find_data_waits, find_numpy_work, find_eager_operations, find_transfers, find_donations,
    find_eager_copies, find_module_state, find_float64, find_unrolled_loops, find_constants,
    find_constant_work, find_callbacks, find_cpu_programs, find_unequal_shards, find_slow_dispatch,
    find_python_work, find_list_conversions, find_repeated_puts, find_moves, find_small_puts, find_writes,
    find_replicated_work,
)  # fmt: skip


def find_causes(analysis: Analysis) -> list[Finding]:
    """Return the findings that could save enough time or memory, the most seconds first."""
    r = analysis.record
    if not analysis.record.names_causes:
        return []
    least_s = max(LEAST_S, LEAST_SHARE * (r.wall_s - analysis.front_s[IMPORT]))
    settled = {cause for setting in r.settings for cause in EXPLAINS.get(setting, ())}
    found: list[Finding] = []
    for rule in RULES:
        what = f"findings ({rule.__name__})"
        found += r.losses.ask(what, functools.partial(_found, rule, analysis), [])
    candidates = _worst(f for f in found if f.cause not in settled)
    findings = [f for f in candidates if f.seconds >= least_s or f.memory_bytes >= LARGE]
    findings = [replace(f, seconds=min(f.seconds, r.wall_s)) for f in findings]
    return sorted(findings, key=lambda f: (-f.seconds, f.at))


def _found(rule: Callable[[Analysis], Iterator[Finding]], analysis: Analysis) -> list[Finding]:
    return list(rule(analysis))


def _worst(findings: Iterable[Finding]) -> list[Finding]:
    """Return the costliest finding for each cause and line, which programs of several sizes may share."""
    worst: dict[tuple[str, Place], Finding] = {}
    for finding in sorted(findings, key=lambda f: (f.seconds, f.memory_bytes)):
        worst[finding.cause, finding.at] = finding
    return list(worst.values())
