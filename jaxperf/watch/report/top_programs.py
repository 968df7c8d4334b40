"""Report the programs that kept devices busy longest, and the cost of a call.

The profiler's windows have only a program's name. So if programs with one name differ in their work, it is
unknown which one ran, and none of them gets FLOPs and bytes.

`figure_blocks` has the figures of a run for `compare` and `upgrade`.

`line_blocks` reports the lines of jitted functions on whose instructions devices spend most time in windows.

An instruction has the line at which it was traced. In a backward pass, that is the line of the forward pass.
A fusion has the line of its last operation.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from jaxperf.hlo import Instruction
from jaxperf.result import Block, Grid, Measurement, Table
from jaxperf.result.formatting import format_quantity
from jaxperf.result.intervals import total_length
from jaxperf.watch.grouping import group_by
from jaxperf.watch.log import COMPILE, LOWER, TRACE, Compiled, ExecutedProgram
from jaxperf.watch.observe.executables import CONTAINERS, Facts
from jaxperf.watch.observe.source_location import NOWHERE, Place, library_of
from jaxperf.watch.report.analysis import Analysis

LINES, STORED_LINES = 5, 20  # on a terminal, and in the result
ROW_SHARE = 0.03  # smallest share of the devices' time that a row needs
WORTH = 0.05  # smallest share of the run in which devices compute, for the table to appear
_HEAVY = ("convolution", "dot", "custom-call", "sort", "scatter", "reduce-window", "gather", "reduce")
_GROUPS = re.compile(r"feature_group_count=(\d+)")
_KERNEL = re.compile(r'"kind":"_*(\w+)"')  # of a fusion that calls a library, such as XLA's ynn_fusion
NO_LINE = "no line of its own"
_PRODUCTS = {"dot": "dot_general", "convolution": "conv_general_dilated"}  # `op_name` may be an operand's


def line_blocks(analysis: Analysis) -> Iterator[Block]:
    """Yield the table of lines, if devices compute for a share of the run that matters."""
    if analysis.computing_s < WORTH * analysis.log.wall_s:
        return
    lines, total_s = device_lines(analysis)
    seconds = {at: sum(operations.values()) for at, operations in lines.items()}
    rows = [
        (
            max(lines[at], key=lines[at].__getitem__),
            f"{seconds[at] / total_s:.0%}",
            str(at or "-"),
            at.source[:40] if at else NO_LINE,
        )
        for at in sorted(lines, key=seconds.__getitem__, reverse=True)
        if seconds[at] >= ROW_SHARE * total_s
    ]
    if rows:
        title = "Where devices spend their time in jitted functions"
        yield Grid(title, ("", "share", "at", ""), tuple(rows[:STORED_LINES]), (1,), first=LINES)


def device_lines(analysis: Analysis) -> tuple[dict[Place, dict[str, float]], float]:
    """Return seconds by line (NOWHERE if unknown) and by operation, and the seconds of all lines."""
    lines: dict[Place, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    total_s, programs = 0.0, analysis.log.activity.programs
    # what a library jits for itself counts, too: of Keras, it is all that runs
    jitted = {*analysis.jitted, *(c.program for c in analysis.log.compiled if c.owner)}
    for name in sorted(jitted & programs.keys()):
        instructions = _origins(analysis.programs.get(name, []))
        for (_, op), times in programs[name].ops.items():
            opcode, operation, at = instructions.get(op, ("", op.rstrip(".0123456789"), NOWHERE))
            if opcode in CONTAINERS:
                continue
            total_s += sum(times)
            lines[at][operation] += sum(times)
    return lines, total_s


def _origins(programs: list[Facts]) -> dict[str, tuple[str, str, Place]]:
    """Return each instruction's opcode, JAX operation and line; NOWHERE if programs differ in the line."""
    origins: dict[str, tuple[str, str, Place]] = {}
    for facts in programs:
        for i in facts.instructions:
            name, at = _operation(facts, i), _line(facts, i)
            known = origins.setdefault(i.name, (i.opcode, name, at))
            if known[2] != at:
                origins[i.name] = (*known[:2], NOWHERE)
    return origins


def _operation(facts: Facts, i: Instruction) -> str:
    """Return what an instruction computes; what XLA fuses without naming an operation, by what is inside."""
    inside = facts.module.computations.get(i.called, ())
    heaviest = next((j for opcode in _HEAVY for j in (i, *inside) if j.opcode == opcode), i)
    groups = _GROUPS.search(heaviest.text) if heaviest.opcode == "convolution" else None
    if groups and int(groups[1]) > 1:
        return f"convolution in {groups[1]} groups"
    name = _PRODUCTS.get(heaviest.opcode) or i.operation or heaviest.operation or heaviest.opcode
    kernel = _KERNEL.search(i.attributes)
    return f"{name} ({kernel[1]})" if kernel and not i.op_name else name


def _line(facts: Facts, i: Instruction) -> Place:
    """Return the reader's line of an instruction or of what it fuses, else the line of a library but JAX."""
    inside = facts.module.computations.get(i.called, ()) if i.opcode == "fusion" else ()
    heavy = [j for opcode in _HEAVY for j in inside if j.opcode == opcode]
    for around in filter(None, map(facts.around, (i, *heavy, *inside))):
        own = next((p for p in around if not library_of(p.file)), None)
        return own or next((p for p in around if library_of(p.file) not in ("jax", "jaxlib")), NOWHERE)
    return NOWHERE


ROWS, STORED_ROWS = 6, 100  # in a table on a terminal, and in the result
NAME = 22  # characters of a program's name in the table
SEEN = 3  # executions that have a median


@dataclass(frozen=True)
class Hot:
    """A program, per call.

    Attributes:
      name, calls: the function's name, and how often Python called it in the windows.
      dispatch_s: t1, the seconds until a call returned; None if no call was seen.
      device_s: t2, the seconds in which a device computed, as a mean over the devices.
      longer: whether windows cut off every execution, so that `device_s` is a lower bound.
      facts: the only program of this name; None if there are several, or none is known.
      host_bytes: the most bytes of NumPy arrays that a call passes.
    """

    name: str
    calls: int
    dispatch_s: float | None
    device_s: float
    facts: Facts | None
    host_bytes: int
    longer: bool = False


def program_blocks(analysis: Analysis) -> Iterator[Block]:
    """Yield the table of the hottest programs."""
    programs = hottest_programs(analysis)[:STORED_ROWS]
    if not programs:
        return
    rows = [
        (
            h.name[:NAME], str(h.calls), format_quantity(h.dispatch_s, "s"),
            ("> " if h.longer else "") + format_quantity(h.device_s, "s"), *_work(h.facts),
            format_quantity(h.host_bytes, "bytes") if h.host_bytes else "-",
        )
        for h in programs
    ]  # fmt: skip
    heads = ("", "seen", "t1", "t2", "FLOPs", "bytes", "from the host")
    yield Grid("Hottest programs, per call", heads, tuple(rows), tuple(range(1, 7)), first=ROWS)


def _work(facts: Facts | None) -> tuple[str, str]:
    least = "> " if facts and facts.loops else ""
    return (
        least + format_quantity(facts.flops if facts else None, "FLOP"),
        least + format_quantity(facts.bytes_accessed if facts else None, "bytes"),
    )


def hottest_programs(analysis: Analysis) -> list[Hot]:
    """Return the programs that devices computed in the windows, the most seconds first."""
    host = group_by(analysis.log.compiled, lambda c: c.program)
    programs = analysis.log.activity.programs
    busy = {name: sum(map(total_length, p.devices.values())) for name, p in programs.items()}
    names = sorted((n for n in busy if busy[n]), key=lambda n: -busy[n])
    return [
        _hot(programs[n], busy[n], analysis.programs.get(n, []), [c.host_bytes for c in host.get(n, ())])
        for n in names
    ]


def _hot(program: ExecutedProgram, busy_s: float, known: list[Facts], host_bytes: list[int]) -> Hot:
    facts = _only(known)
    runs = execution_count(program, facts) if facts else 0.0
    devices = len([spans for spans in program.devices.values() if spans])
    return Hot(
        program.name,
        program.calls,
        statistics.median(program.dispatch_s) if program.dispatch_s else None,
        _device_s(program, busy_s / devices / (runs or program.calls or 1)),
        facts,
        max(host_bytes, default=0) if program.copies else 0,
        longer=program.cut_off,
    )


def _device_s(program: ExecutedProgram, mean_s: float) -> float:
    """Return t2: the median execution that was seen, since other programs interrupt a few; else the mean."""
    if program.cut_off:
        return statistics.fmean(program.run_s)
    if len(program.run_s) >= SEEN and program.whole >= SEEN:
        return statistics.median(program.run_s)
    return mean_s


def _only(known: list[Facts]) -> Facts | None:
    """Return one of the programs with a name, preferably with text; None if their work differs."""
    work = {(f.platform, f.flops, f.bytes_accessed) for f in known}
    return max(known, key=lambda f: len(f.text)) if len(work) == 1 else None


def execution_count(program: ExecutedProgram, facts: Facts) -> float:
    """Return how often each device executed a program in the windows, including cut-off fractions.

    The number of calls is not enough, because the front end runs ahead of the devices. Instead, this counts
    the runs of instructions that an execution runs once, weighted by their times.
    """
    once = [times for (_, op), times in program.ops.items() if op in facts.steps and times]
    means_s = sum(sum(times) / len(times) for times in once)
    return sum(map(sum, once)) / means_s if means_s else 0.0


WHOLE, STAGES = "Whole run", (TRACE, LOWER, COMPILE)


def figure_blocks(analysis: Analysis) -> Iterator[Block]:
    log = analysis.log
    if not log.used_jax or not log.compiled:
        return
    peaks = [(f"peak of {kind} memory", "bytes", float(peak)) for kind, peak in log.peaks.items()]
    yield _table(
        WHOLE,
        [("time", "s", log.wall_s), *stage_seconds(log.compiled),
         ("programs", "", float(len(log.compiled))), *peaks],
    )  # fmt: skip
    device_s = {hot.name: hot.device_s for hot in hottest_programs(analysis) if not hot.longer}
    for name, calls in group_by(log.compiled, lambda c: c.called).items():
        program_s = [device_s[c.program] for c in calls if c.program in device_s][:1]
        values = [*stage_seconds(calls), ("programs", "", float(len(calls)))]
        yield _table(name, values + [("t2, the program on the device", "s", s) for s in program_s])


def stage_seconds(calls: list[Compiled]) -> list[tuple[str, str, float]]:
    """Return the name of each stage, "s", and its seconds; threads may overlap."""
    return [
        (stage, "s", total_length(c.stages[stage] for c in calls if stage in c.stages)) for stage in STAGES
    ]


def _table(title: str, values: list[tuple[str, str, float]]) -> Table:
    rows = tuple(Measurement(name, unit, (value,)) for name, unit, value in values if value)
    return Table(title, rows, detail=True)
