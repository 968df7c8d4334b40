"""The report of a watch: a result like any other, whose blocks fit on one screen."""

from __future__ import annotations

import datetime
import sys
from collections import defaultdict
from collections.abc import Iterator

from jaxperf.report.words import quantity
from jaxperf.result import (
    Axis,
    Block,
    Code,
    Curve,
    Environment,
    Fact,
    Grid,
    Heading,
    Lines,
    Note,
    Result,
    Text,
)
from jaxperf.watch.advice.advice import advice
from jaxperf.watch.observe import backend, compiles
from jaxperf.watch.observe.compiles import Compiled
from jaxperf.watch.observe.source_location import NOWHERE, shorten
from jaxperf.watch.report import top_programs
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.report.top_programs import KEPT, ROWS
from jaxperf.watch.rules import program_notes
from jaxperf.watch.rules.find import find
from jaxperf.watch.rules.traces import EAGER_CAUSES, eager_cause
from jaxperf.watch.session import Record

FINDINGS = 5  # shown with their snippets
WIDEST, NAME = 44, 14  # letters of a reason, and of a program's name, in a table


def result(record: Record, *, command: str = "", ended: str = "") -> Result:
    """The record as a result; `ended` says how the program ended if it did not end normally."""
    analysis, environment = Analysis(record), _environment()
    return Result(
        experiment="watch",
        section="",
        title=f"watch: {record.name}",
        question="Where does its time go, why, and what would save it?",
        config={},
        environment=environment,
        blocks=tuple(_blocks(analysis, environment, ended)),
        command=command,
        started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        wall_s=record.wall_s,
    )


def _environment() -> Environment:
    if "jax" not in sys.modules or not backend.started(otherwise=True):
        return Environment()
    from jaxperf.measure.environment import current_environment

    return current_environment()


def _blocks(analysis: Analysis, environment: Environment, ended: str) -> Iterator[Block]:
    record = analysis.record
    said = f"It ran for {quantity(record.wall_s, 's')}{ended and ', ' + ended}. "
    if not record.used_jax:
        yield Note(said + "Nothing in it used JAX.")
        return
    yield Text(said + _overhead(record))
    yield _shares(analysis)
    yield from _compiled(record)
    yield from _waits(analysis)
    yield from top_programs.blocks(analysis, environment)
    yield from _memory(analysis)
    yield from _findings(analysis)
    yield from program_notes.blocks(analysis)
    for remark in record.remarks:
        yield Note(remark)


def _overhead(record: Record) -> str:
    parts = ", ".join(f"{name} {seconds / record.wall_s:.1%}" for name, seconds in record.overhead_s.items())
    seen = sum(b - a for a, b in record.seen.windows)
    return (
        f"Watching itself took {sum(record.overhead_s.values()) / record.wall_s:.1%} of that ({parts}); "
        f"devices were seen for {quantity(seen, 's')}."
    )


def _shares(analysis: Analysis) -> Grid:
    wall_s, shares = analysis.record.wall_s, analysis.shares()
    rows = [(name, f"{share:.0%}", quantity(share * wall_s, "s")) for name, share in shares.items()]
    return Grid("Shares of the time", ("", "share", "seconds"), tuple(rows), (1, 2))


def _compiled(record: Record) -> Iterator[Block]:
    groups: dict[tuple[str, str], list[Compiled]] = defaultdict(list)
    for c in record.compiled:
        groups[c.name, c.defined if c.explained else str(c.at)].append(c)
    longest = sorted(groups.values(), key=lambda group: -sum(c.total_s for c in group))
    rows = []
    for group in longest[:KEPT]:
        seconds = [
            sum(c.seconds(s) for c in group) for s in (compiles.TRACE, compiles.LOWER, compiles.COMPILE)
        ]
        rows.append(
            (
                group[0].called[:NAME],
                str(len(group)),
                *(quantity(s, "s") for s in seconds),
                _at(group[-1]),
                _why(group),
            )
        )
    if rows:
        total = sum(c.total_s for c in record.compiled)
        title = f"Traced and compiled: {len(record.compiled)} times, {quantity(total, 's')}"
        heads = ("", "times", "trace", "lower", "compile", "called at", "why again")
        yield Grid(title, heads, tuple(rows), (1, 2, 3, 4), first=ROWS)


def _at(c: Compiled) -> str:
    return str(c.at) if c.at != NOWHERE else "-"


def _why(group: list[Compiled]) -> str:
    if len(group) == 1:
        return ""
    last = group[-1]
    if last.changes:
        said = "; ".join(f"{c.kind}, {c}" if c.what else str(c) for c in last.changes)
        return said if len(said) <= WIDEST else f"{said[: WIDEST - 3]}..."
    if last.explained:
        return "a new function object"
    return f"{EAGER_CAUSES[eager_cause(group)]}, not in jit"


def _waits(analysis: Analysis) -> Iterator[Block]:
    rows = [
        (
            line.kind, str(line.count), quantity(line.total_s, "s"),
            quantity(line.after_s, "s"), quantity(line.nbytes, "bytes"), str(line.at), line.at.source[:40],
        )
        for line in analysis.lines[:KEPT]
    ]  # fmt: skip
    if rows:
        heads = ("", "times", "waited", "t3", "to the host", "at", "")
        yield Grid("Where the front end waits for devices", heads, tuple(rows), (1, 2, 3, 4), first=ROWS)


def _memory(analysis: Analysis) -> Iterator[Block]:
    record = analysis.record
    if not record.memory:
        return
    peak = max(b for _, b in record.memory)
    held = "; ".join(
        f"{number} x {name}, {quantity(total, 'bytes')}" for name, number, total in record.held[:3]
    )
    yield Fact("peak_bytes", peak, "bytes", "Peak of resident memory")
    if held:
        yield Fact("held", held, meaning="Largest arrays alive near the peak")
    for said in program_notes.temporaries(analysis):
        yield Note(said)
    step = -(-len(record.memory) // 200)
    points = [
        max(record.memory[i : i + step], key=lambda p: p[1]) for i in range(0, len(record.memory), step)
    ]
    if len(points) > 2:
        curve = Curve(
            "resident", tuple(t - record.start for t, _ in points), tuple(float(b) for _, b in points)
        )
        yield Lines("Memory over time", (curve,), Axis("time", "s"), Axis("resident memory", "bytes"))


def _findings(analysis: Analysis) -> Iterator[Block]:
    found = find(analysis)
    most_first = f"Findings: {len(found)}, by the seconds that they could save"
    yield Heading(most_first if found else "Findings: none")
    if not analysis.steady:
        yield Note("devices were not seen, so what may keep them idle was not judged: waits, data, dispatch")
    for i, finding in enumerate(found, start=1):
        what = advice(finding)
        saves = f"saves up to {quantity(finding.seconds, 's')}"
        if finding.memory_bytes:
            saves += f" and {quantity(finding.memory_bytes, 'bytes')} of memory"
        reason = finding.reason[0].upper() + finding.reason[1:]
        said = f"{i}. {what.title}, {finding.at}: {saves}. {reason}."
        if i > FINDINGS:
            yield Text(said)
            continue
        section = f"section {what.section}" if what.section[0].isdigit() else f'section "{what.section}"'
        yield Text(f"{said} See {section}.")
        yield Code(what.change, shorten(finding.at.file), finding.at.line)
