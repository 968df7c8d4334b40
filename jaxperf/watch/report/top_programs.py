"""Report the lines and programs that kept devices busy longest, and the figures of a run for comparisons.

An instruction has the line at which it was traced. In a backward pass, that is the line of the forward pass.
A fusion has the line of a matrix product or convolution in it, else that of its last operation.

The profiler's windows have only a program's name. So if programs with one name differ in their work, it is
unknown which one ran, and none of them gets FLOPs and bytes.
"""

import re
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from jaxperf.hlo import Instruction
from jaxperf.result import Block, Grid, Measurement, Table
from jaxperf.result.formatting import format_quantity
from jaxperf.result.intervals import intersection, total_length
from jaxperf.watch.grouping import group_by
from jaxperf.watch.log import COMPILE, LOWER, TRACE, Compiled, ExecutedProgram
from jaxperf.watch.observe.executables import CONTAINERS, Facts, own_line
from jaxperf.watch.observe.source_location import NOWHERE, Place, library_of
from jaxperf.watch.report.analysis import LONG_WAIT_S, Analysis, once
from jaxperf.watch.source.statements import LOOP, enclosing_nodes

LINES, STORED_LINES = 5, 20  # on a terminal, and in the result
ROWS, STORED_ROWS = 6, 100  # the same, of other tables
ROW_SHARE = 0.03  # smallest share of the devices' time that a line needs
WORTH = 0.05  # smallest share of the run in which devices compute, for the table of lines to appear
NAME = 22  # characters of a program's name in the table
SEEN = 3  # executions that have a median
WHOLE = "Whole run"
_HEAVY = (
    "while", "convolution", "dot", "custom-call", "sort", "scatter", "reduce-window", "gather", "reduce",
)  # fmt: skip
IN_GROUPS = re.compile(r"feature_group_count=([2-9]|\d\d+)")  # of a convolution
_KERNEL = re.compile(r'"kind":"_*(\w+)"')  # of a fusion that calls a library, such as XLA's ynn_fusion
_PRODUCTS = {"dot": "dot_general", "convolution": "conv_general_dilated"}  # `op_name` may be an operand's


def line_blocks(analysis: Analysis) -> Iterator[Block]:
    lines = device_lines(analysis) if analysis.computing_s >= WORTH * analysis.log.wall_s else {}
    seconds = {at: sum(operations.values()) for at, operations in lines.items()}
    total_s, rows = sum(seconds.values()), []
    for at in sorted(lines, key=lambda at: -seconds[at]):
        if seconds[at] >= ROW_SHARE * total_s:
            operation = max(lines[at], key=lines[at].__getitem__)
            source = at.source[:40] if at else "no line of its own"
            rows.append((operation, f"{seconds[at] / total_s:.0%}", str(at or "-"), source))
    if rows:
        title = "Where devices spend their time in jitted functions"
        yield Grid(title, ("", "share", "at", ""), tuple(rows[:STORED_LINES]), (1,), first=LINES)


def device_lines(analysis: Analysis) -> dict[Place, dict[str, float]]:
    """Return seconds by line (NOWHERE if unknown) and by operation."""
    lines: dict[Place, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    programs = analysis.log.activity.programs
    # what a library jits for itself counts, too: of Keras, it is all that runs
    jitted = {*analysis.jitted, *(c.program for c in analysis.log.compiled if c.owner)}
    for name in sorted(jitted & programs.keys()):
        program, known = programs[name], analysis.programs.get(name, [])
        seen = {op for _, op in program.ops}
        origins = _origins(known, seen)
        around = {name for facts in known for name in containers(facts, seen)}
        for (_, op), times in program.ops.items():
            if op not in around:
                operation, at = origins.get(op, (op.rstrip(".0123456789"), NOWHERE))
                lines[at][operation] += sum(times)
        loops = {
            i.name: len(facts.module.inside(i)) * (i.trips or 1)
            for facts in known
            for i in facts.instructions
            if i.opcode == "while"
        }
        # a loop that windows cut off has no events, and may have none inside
        if program.cut_off and loops and not loops.keys() & around:
            operation, at = origins[max(loops, key=loops.__getitem__)]
            lines[at][operation] += total_length(program.spans) * (cut_off_factor(analysis) - 1)
    return lines


def containers(facts: Facts, seen: set[str]) -> set[str]:
    """Return the instructions whose times include `seen` ones: not those of a loop that is one kernel."""
    with_events = set[str]()
    for name, body in facts.module.computations.items():  # a computation comes before its callers
        if any(i.name in seen or i.called in with_events for i in body):
            with_events.add(name)
    inside = ((i.name, {i.called, *i.branches}) for i in facts.instructions if i.opcode in CONTAINERS)
    return {name for name, called in inside if called & with_events}


@once
def cut_off_factor(analysis: Analysis) -> float:
    """Return how many times longer devices compute than windows say in which no execution is whole."""
    seen_s = analysis.in_run(intersection(analysis.busy, analysis.steady))
    return max(1.0, analysis.computing_s / seen_s) if seen_s else 1.0


def _origins(programs: list[Facts], seen: Collection[str]) -> dict[str, tuple[str, Place]]:
    """Return the JAX operation and line of loops and `seen` instructions; NOWHERE if programs differ in it.

    What XLA adds, such as a copy, has the line of its first use.
    """
    origins: dict[str, tuple[str, Place]] = {}
    for facts in programs:
        used_at: dict[str, Place] = {}
        fused = {i.called for i in facts.instructions if i.opcode == "fusion"}
        for i in reversed(facts.instructions):  # users come first
            # a part of a fusion has no events of its own
            if i.computation in fused and i.name not in seen:
                continue
            inside = facts.module.inside(i)
            # what XLA groups without naming an operation or a line has those of the heaviest inside, as a
            # product always is
            grouped = inside if i.opcode in ("fusion", "call") else ()
            heavy = [j for j in (i, *grouped) if j.opcode in _HEAVY]
            heavy.sort(key=lambda j: _HEAVY.index(j.opcode))
            products = [j for j in heavy[:1] if j.opcode in _PRODUCTS]
            at = _line(facts, [*products, i, *heavy, *grouped]) or used_at.get(i.name, NOWHERE)
            used_at |= dict.fromkeys([*i.operands, *(j.name for j in inside if j.root)], at)
            if i.name not in seen and i.opcode != "while":
                continue
            name, line = origins.setdefault(i.name, (_operation(i, [*heavy, i][0]), at))
            if line != at:
                origins[i.name] = (name, NOWHERE)
    return origins


def _operation(i: Instruction, heaviest: Instruction) -> str:
    if groups := IN_GROUPS.search(heaviest.text):
        return f"convolution in {groups[1]} groups"
    name = _PRODUCTS.get(heaviest.opcode) or i.operation or heaviest.operation or heaviest.opcode
    kernel = _KERNEL.search(i.attributes)
    return f"{name} ({kernel[1]})" if kernel and not i.op_name else name


def _line(facts: Facts, instructions: list[Instruction]) -> Place:
    """Return the reader's line of the first instruction that has any, else the line of a library but JAX."""
    frames = next(filter(None, map(facts.module.frames, instructions)), ())
    if at := own_line(frames):
        return at
    return next((p for p in frames if library_of(p.file) not in ("jax", "jaxlib")), NOWHERE)


@dataclass(frozen=True)
class Hot:
    """A program, per call."""

    name: str
    calls: int  # from Python, in the windows
    dispatch_s: float | None  # t1, the front end's seconds for a call; None if no call was seen
    device_s: float  # t2, the seconds in which a device computed, as a mean over the devices
    longer: bool  # whether windows cut off every execution, so that `device_s` is a lower bound
    facts: Facts | None  # the only program of this name; None if there are several, or none is known
    host_bytes: int  # the most bytes of NumPy arrays that a call passes
    busy_s: float  # in the windows, on all devices


def program_blocks(analysis: Analysis) -> Iterator[Block]:
    rows = []
    hot = {h.name: h for h in (*hottest_programs(analysis), *_waited_for(analysis))}
    for h in sorted(hot.values(), key=lambda row: -row.busy_s)[:STORED_ROWS]:
        flops, nbytes = (h.facts.flops, h.facts.bytes_accessed) if h.facts else (None, None)
        least = "> " if h.facts and h.facts.loops else ""
        rows.append(
            (
                h.name[:NAME], str(h.calls), format_quantity(h.dispatch_s, "s"),
                ("> " if h.longer else "") + format_quantity(h.device_s, "s"),
                least + format_quantity(flops, "FLOP"), least + format_quantity(nbytes, "bytes"),
                format_quantity(h.host_bytes or None, "bytes"),
            )
        )  # fmt: skip
    if rows:
        heads = ("", "seen", "t1", "t2", "FLOPs", "bytes", "from the host")
        yield Grid("Hottest programs, per call", heads, tuple(rows), tuple(range(1, 7)), first=ROWS)


@once
def hottest_programs(analysis: Analysis) -> list[Hot]:
    """Return the programs that devices computed in the windows, the most seconds first."""
    compiled, hot = group_by(analysis.log.compiled, lambda c: c.program), list[Hot]()
    for p in analysis.log.activity.programs.values():
        busy_s = [seconds for seconds in map(total_length, p.devices.values()) if seconds]
        if not busy_s:
            continue
        known = analysis.programs.get(p.name, [])
        work = {(f.platform, f.flops, f.bytes_accessed) for f in known}
        facts = max(known, key=lambda f: len(f.text)) if len(work) == 1 else None
        if p.cut_off:
            device_s = statistics.fmean(p.run_s)
        # other programs interrupt a few executions
        elif len(p.run_s) >= SEEN and p.whole >= SEEN:
            device_s = statistics.median(p.run_s)
        else:
            executions = execution_count(p, facts) if facts else 0.0
            device_s = statistics.fmean(busy_s) / (executions or p.calls or 1)
        dispatch_s = statistics.median(p.dispatch_s) if p.dispatch_s else None
        copied = max((c.host_bytes for c in compiled.get(p.name, ()) if p.copies), default=0)
        hot.append(Hot(p.name, p.calls, dispatch_s, device_s, p.cut_off, facts, copied, sum(busy_s)))
    return sorted(hot, key=lambda row: -row.busy_s)


def _waited_for(analysis: Analysis) -> Iterator[Hot]:
    """Yield programs that no window saw whole, but that waits at the same line are for."""
    seen = {p.name for p in analysis.log.activity.programs.values() if p.spans and not p.cut_off}
    waits = group_by((w for w in analysis.waits if w.end - w.start >= LONG_WAIT_S), lambda w: w.at)
    for at, calls in group_by(analysis.called, lambda pair: pair[1]).items():
        names = {c.program for c, _ in calls}
        # what other lines of its loop dispatch is also waited for
        loops = {*enclosing_nodes(at, LOOP)}
        beside = any(
            c.program not in names and loops.intersection(enclosing_nodes(where, LOOP))
            for c, where in analysis.called
        )
        if len(names) == 1 and at in waits and not names & seen and not beside:
            (name,) = names
            facts = analysis.programs.get(name, [])
            only = facts[0] if len(facts) == 1 else None
            waits_s = [w.end - w.start for w in waits[at]]
            device_s = statistics.median(waits_s)
            yield Hot(name, len(waits_s), None, device_s, False, only, 0, sum(waits_s))


def execution_count(program: ExecutedProgram, facts: Facts) -> float:
    """Return how often each device executed a program in the windows, including cut-off fractions.

    The number of calls is not enough, because the front end runs ahead of the devices. Instead, this counts
    the runs of instructions that an execution runs once, weighted by their times.
    """
    once = [times for (_, op), times in program.ops.items() if op in facts.steps and times]
    means_s = sum(map(statistics.fmean, once))
    return sum(map(sum, once)) / means_s if means_s else 0.0


def figure_blocks(analysis: Analysis) -> Iterator[Block]:
    """Yield a table for the whole run and one for each function, for `compare` and `upgrade`."""
    log = analysis.log
    if not log.compiled:
        return
    device_s = {hot.name: hot.device_s for hot in hottest_programs(analysis) if not hot.longer}
    peaks = [(f"peak of {kind} memory", "bytes", float(peak)) for kind, peak in log.peaks.items()]
    tables = {WHOLE: [("time", "s", log.wall_s), *_compiling(log.compiled), *peaks]}
    for name, calls in group_by(log.compiled, lambda c: c.called).items():
        program_s = [device_s[c.program] for c in calls if c.program in device_s][:1]
        tables[name] = _compiling(calls) + [("t2, the program on the device", "s", s) for s in program_s]
    for title, values in tables.items():
        rows = tuple(Measurement(name, unit, (value,)) for name, unit, value in values if value)
        yield Table(title, rows, detail=True)


def _compiling(calls: list[Compiled]) -> list[tuple[str, str, float]]:
    stages = [(stage, "s", seconds) for stage, seconds in stage_seconds(calls).items()]
    return [*stages, ("programs", "", float(len(calls)))]


def stage_seconds(calls: list[Compiled]) -> dict[str, float]:
    """Return the seconds of each stage; threads may overlap."""
    return {
        stage: total_length(c.stages[stage] for c in calls if stage in c.stages)
        for stage in (TRACE, LOWER, COMPILE)
    }
