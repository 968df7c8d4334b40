"""The figures of a run for `compare` and `upgrade`: of the whole run, and of each function."""

from __future__ import annotations

from collections.abc import Iterator

from jaxperf.result import Block, Measurement, Table
from jaxperf.result.intervals import total_length
from jaxperf.watch.grouping import group_by
from jaxperf.watch.log import COMPILE, LOWER, TRACE, Compiled
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.report.top_programs import hottest_programs

WHOLE, STAGES = "Whole run", ((TRACE, "trace"), (LOWER, "lower"), (COMPILE, "compile"))


def figure_blocks(analysis: Analysis) -> Iterator[Block]:
    log = analysis.log
    if not log.used_jax or not log.compiled:
        return
    peaks = [(f"peak of {kind} memory", "bytes", float(peak)) for kind, peak in log.peaks.items()]
    yield _table(
        WHOLE,
        [("time", "s", log.wall_s), *_stages(log.compiled),
         ("programs", "", float(len(log.compiled))), *peaks],
    )  # fmt: skip
    device_s = {hot.name: hot.device_s for hot in hottest_programs(analysis) if not hot.longer}
    for name, calls in group_by(log.compiled, lambda c: c.called).items():
        program_s = [device_s[c.program] for c in calls if c.program in device_s][:1]
        values = [*_stages(calls), ("programs", "", float(len(calls)))]
        yield _table(name, values + [("t2, the program on the device", "s", s) for s in program_s])


def _stages(calls: list[Compiled]) -> list[tuple[str, str, float]]:
    spans = {
        name: total_length(c.stages[stage] for c in calls if stage in c.stages) for stage, name in STAGES
    }
    return [(name, "s", seconds) for name, seconds in spans.items() if seconds]


def _table(title: str, values: list[tuple[str, str, float]]) -> Table:
    rows = tuple(Measurement(name, unit, (value,)) for name, unit, value in values)
    return Table(title, rows, detail=True)
