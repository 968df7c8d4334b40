"""Report the programs that kept devices busy longest: the cost of a call, and its place under the roofline.

The profiler's windows have only a program's name. So if programs with one name differ in their work, it is
unknown which one ran, and none of them gets FLOPs and bytes.

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
from typing import TYPE_CHECKING

from jaxperf.errors import JaxperfError
from jaxperf.hlo import Instruction
from jaxperf.result import Block, Environment, Grid, Note, Text
from jaxperf.result.formatting import format_list, format_quantity
from jaxperf.result.intervals import total_length
from jaxperf.watch.grouping import group_by
from jaxperf.watch.log import ExecutedProgram
from jaxperf.watch.observe.executables import CONTAINERS, Facts
from jaxperf.watch.observe.source_location import NOWHERE, Place, library_of
from jaxperf.watch.report.analysis import Analysis

if TYPE_CHECKING:
    from jaxperf.measure.roofline import Position, Roofline

LINES, STORED_LINES = 5, 20  # on a terminal, and in the result
ROW_SHARE = 0.03  # smallest share of the devices' time that a row needs
WORTH = 0.05  # smallest share of the run in which devices compute, for the table to appear
HINT_SHARE = 0.3  # share of the devices' time from which on an operation gets a hint
_INTEGERS = re.compile(r"[su]\d+\[")
_HESSIAN = "vmap(jvp(vmap(transpose("  # part of the `op_name` of what `jax.hessian` computes
_HEAVY = ("convolution", "dot", "custom-call", "sort", "scatter", "reduce-window", "gather", "reduce")
_GROUPS = re.compile(r"feature_group_count=(\d+)")
_KERNEL = re.compile(r'"kind":"_*(\w+)"')  # of a fusion that calls a library, such as XLA's ynn_fusion
NO_LINE = "no line of its own"
_PRODUCTS = {"dot": "dot_general", "convolution": "conv_general_dilated"}  # `op_name` may be an operand's
_HINTS = {
    "sort": "if only the largest are needed, jax.lax.top_k finds them; a random subset needs no sort if "
    "indices may repeat (jax.random.randint), or if one permutation serves many steps",
    "lu": "a matrix with structure has a quicker solver (jax.lax.linalg.tridiagonal_solve, or Cholesky's "
    "factor), and one that stays the same can be factored once",
    "cholesky": "a matrix that stays the same can be factored once",
    "dot_general of integers": "a product of float32 has faster kernels, and is exact up to 2**24",
    "jax.hessian": "if only its products with vectors are needed, jax.jvp(jax.grad(f), (w,), (v,))[1] "
    "computes one without the matrix",
}


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
    for at, operations in lines.items():
        for name, hint in _HINTS.items():
            if operations.get(name, 0.0) >= HINT_SHARE * total_s:
                yield Note(
                    f"{name} takes {operations[name] / total_s:.0%} of the devices' time at {at}: {hint}"
                )


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
    if _HESSIAN in i.op_name:
        return "jax.hessian"
    inside = facts.module.computations.get(i.called, ())
    heaviest = next((j for opcode in _HEAVY for j in (i, *inside) if j.opcode == opcode), i)
    groups = _GROUPS.search(heaviest.text) if heaviest.opcode == "convolution" else None
    if groups and int(groups[1]) > 1:
        return f"convolution in {groups[1]} groups"
    name = _PRODUCTS.get(heaviest.opcode) or i.operation or heaviest.operation or heaviest.opcode
    if name == "dot_general" and _INTEGERS.match(heaviest.type):
        return "dot_general of integers"
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
PLACED = 3  # programs that get a place under the roofline
NAME = 22  # characters of a program's name in the table
SEEN = 3  # executions that have a median
ABOVE = 1.05  # share of the roofline that noise does not explain


@dataclass(frozen=True)
class Hot:
    """A program, per call.

    Attributes:
      name, calls: the function's name, and how often Python called it in the windows.
      dispatch_s: t1, the seconds until a call returned; None if no call was seen.
      device_s: t2, the seconds in which a device computed, as a mean over the devices.
      longer: whether windows cut off every execution, so that `device_s` is a lower bound.
      facts: the only program of this name; None if there are several, or none is known.
      host_bytes: the most bytes of NumPy arrays that a call passes, and whether other calls pass fewer.
      doubt: why it has no place under the roofline; "" if it may have one.
    """

    name: str
    calls: int
    dispatch_s: float | None
    device_s: float
    facts: Facts | None
    host_bytes: tuple[int, bool]
    doubt: str
    longer: bool = False


def program_blocks(analysis: Analysis, environment: Environment) -> Iterator[Block]:
    """Yield the table of the hottest programs, and the places of the first few under the stored roofline."""
    programs = hottest_programs(analysis)[:STORED_ROWS]
    if not programs:
        return
    rows = [
        (
            h.name[:NAME], str(h.calls), format_quantity(h.dispatch_s, "s"),
            ("> " if h.longer else "") + format_quantity(h.device_s, "s"), *_work(h.facts), _from_host(h),
        )
        for h in programs
    ]  # fmt: skip
    heads = ("", "seen", "t1", "t2", "FLOPs", "bytes", "from the host")
    yield Grid("Hottest programs, per call", heads, tuple(rows), tuple(range(1, 7)), first=ROWS)
    yield from _places(programs[:PLACED], environment)


def _from_host(h: Hot) -> str:
    size, fewer = h.host_bytes
    return ("<= " if fewer else "") + format_quantity(size, "bytes") if size else "-"


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
        _hot(programs[n], busy[n], analysis.programs.get(n, []), {c.host_bytes for c in host.get(n, ())})
        for n in names
    ]


def _hot(program: ExecutedProgram, busy_s: float, known: list[Facts], host_bytes: set[int]) -> Hot:
    facts = _only(known)
    runs = execution_count(program, facts) if facts else 0.0
    devices = len([spans for spans in program.devices.values() if spans])
    doubt = "" if runs and facts else _doubt(known)
    return Hot(
        program.name,
        program.calls,
        statistics.median(program.dispatch_s) if program.dispatch_s else None,
        _device_s(program, busy_s / devices / (runs or program.calls or 1)),
        facts,
        (max(host_bytes, default=0) if program.copies else 0, len(host_bytes) > 1),
        "no execution lay within a window of the profiler" if program.cut_off else doubt,
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


def _doubt(known: list[Facts]) -> str:
    if not known:
        return "its program was gone before it could be read"
    return "its program's text is not known" if _only(known) else f"{len(known)} programs have this name"


def _places(programs: list[Hot], environment: Environment) -> Iterator[Block]:
    from jaxperf.measure import roofline  # which imports JAX

    try:
        stored = roofline.stored_roofline(environment)
    except JaxperfError as e:
        yield Note(str(e))
        return
    if stored is None:
        yield Note(roofline.MISSING)
        return
    doubts = {}
    for hot in programs:
        if doubt := hot.doubt or _no_place(hot.facts, environment):
            doubts[hot.name] = doubt
        elif hot.facts and (at := stored.position(hot.facts, seconds=hot.device_s)):
            yield Text(f"{hot.name}: {roofline_sentence(at)}")
    if doubts:
        reasons = format_list([f"{name} ({doubt})" for name, doubt in doubts.items()])
        yield Note(f"no place under the roofline: {reasons}")
    yield from _conditions(stored, environment)


def _no_place(facts: Facts | None, environment: Environment) -> str:
    if facts is None or not facts.flops + facts.bytes_accessed:
        return "the compiler gives no estimate"
    if facts.loops:
        return "the compiler counts one turn of its loop"
    if facts.platform != environment.backend:
        return f"it runs on {facts.platform}, the roofline is of {environment.backend}"
    if environment.devices_are_fake:
        return "CPU devices share the cores that the roofline is of"
    return ""


def roofline_sentence(at: Position) -> str:
    """Return a sentence with the rates that a program reaches, and its share of the limit."""
    reached = f"{format_quantity(at.flops_per_s, 'FLOP/s')} and {format_quantity(at.bytes_per_s, 'bytes/s')}"
    if at.limit == "dispatch":
        return f"{reached}; so little work that dispatching a call limits it"
    text = f"{reached}, {at.share:.0%} of what {at.limit} allows"
    if at.share > ABOVE:
        text += "; the compiler's estimate is too large, or the roofline was measured on a busy machine"
    return text


def _conditions(stored: Roofline, environment: Environment) -> Iterator[Block]:
    if differences := stored.differences(environment):
        more = f"; and {len(differences) - 2} more" if len(differences) > 2 else ""
        yield Note(f"the roofline was measured under other conditions: {'; '.join(differences[:2])}{more}")
