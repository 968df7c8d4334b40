"""Make the report of a watch: a `Result` whose blocks fit on one screen."""

import contextlib
import datetime
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from jaxperf.libraries import shorten_path
from jaxperf.result import Block, Code, Environment, Fact, Found, Grid, Heading, Note, Result, Text
from jaxperf.result.formatting import format_quantity
from jaxperf.result.intervals import total_length
from jaxperf.watch.grouping import group_by
from jaxperf.watch.log import COMPILE, Compiled, Log, changes_by_field
from jaxperf.watch.observe import hooks
from jaxperf.watch.report import top_programs
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules import find_causes, program_notes
from jaxperf.watch.rules.small_programs import EAGER_CAUSES, eager_cause
from jaxperf.watch.rules.table import SAVES, VERSIONS, Finding, advice_for, cause_of
from jaxperf.watch.source import statements

FINDINGS = 5  # findings that are shown with their statements and advice
OLD_JAX = "causes are not named with this version of JAX: they need 0.8.2 or newer; what is above is certain"
LARGE_SHARE = 0.01  # of the peak of memory, of arrays that are worth a word
WIDEST, NAME = 44, 18  # characters of a reason and of a program's name in a table


def make_result(analysis: Analysis, *, command: str = "", ended: str = "") -> Result:
    log = analysis.log
    environment = log.losses.ask("rows of the report: the environment", environment_of_jax, Environment())
    question = "Where does its time go, why, and what would save it?"
    return Result(
        "watch", "", f"watch: {log.name}", question, {}, environment, tuple(_blocks(analysis, ended)),
        command=command, wall_s=log.wall_s,
        started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )  # fmt: skip


def environment_of_jax() -> Environment:
    """Return the environment; an empty one if the program has not started JAX."""
    if "jax" not in sys.modules or not hooks.is_running(otherwise=True):
        return Environment()
    from jaxperf.measure.environment import current_environment

    return current_environment()


def _blocks(analysis: Analysis, ended: str) -> Iterator[Block]:
    log = analysis.log
    summary = f"It ran for {format_quantity(log.wall_s, 's')}{ended and ', ' + ended}. "
    if not log.used_jax:
        yield Note(summary + "Nothing in it used JAX.")
        return
    parts: dict[str, Callable[[Analysis], Iterable[Block]]] = {
        "shares of the time": _shares,
        "what was compiled": _compiled,
        "waits for devices": _waits,
        "programs": top_programs.program_blocks,
        "lines on which devices work": top_programs.line_blocks,
        "memory": _memory,
        "findings": _findings,
        "notes": program_notes.note_blocks,
        "figures for comparisons": top_programs.figure_blocks,
    }
    blocks: list[Block] = []
    for name, part in parts.items():
        with log.losses.guard(f"rows of the report: {name}"):
            blocks += part(analysis)
    yield Text(summary + log.losses.ask("the cost of watching", lambda: _overhead(log), ""))
    yield from blocks
    yield from map(Note, (*log.remarks, *log.losses.remarks))


def _overhead(log: Log) -> str:
    """Return what watching cost, until now: the report itself is made when this is called."""
    from jaxperf.result import terminal  # noqa: F401  its import is a part of the report's cost

    ended_s = time.process_time()
    parts = {"start": log.before_s, **log.overhead_s, "report": ended_s - log.closed_s}
    process_s = ended_s if log.before_s else ended_s - log.opened_s
    each = ", ".join(f"{name} {format_quantity(s, 's')}" for name, s in parts.items() if s)
    windows_s = sum(b - a for a, b in log.activity.windows)
    return (
        f"Watching took {format_quantity(sum(parts.values()), 's')} of the {format_quantity(process_s, 's')} "
        f"of processor time that this process used ({each}); devices were seen for "
        f"{format_quantity(windows_s, 's')}."
    )


def _shares(analysis: Analysis) -> Iterator[Block]:
    wall_s, shares = analysis.log.wall_s, analysis.shares().items()
    rows = ((name, f"{share:.0%}", format_quantity(share * wall_s, "s")) for name, share in shares)
    yield Grid("Shares of the time", ("", "share", "seconds"), tuple(rows), (1, 2))


def _compiled(analysis: Analysis) -> Iterator[Block]:
    log = analysis.log
    groups = group_by(log.compiled, lambda c: (c.name, c.defined if c.explained else str(c.at)))
    rows = [
        (
            group[0].called[:NAME], str(len(group)),
            *(format_quantity(s, "s") for s in top_programs.stage_seconds(group).values()),
            str(group[-1].at or "-"), _why(group) if log.names_causes else "",
        )
        for group in sorted(groups.values(), key=_compiling_s, reverse=True)[: top_programs.STORED_ROWS]
    ]  # fmt: skip
    if rows:
        seconds = format_quantity(_compiling_s(log.compiled), "s")
        title = f"Traced and compiled: {len(log.compiled)} times, {seconds}"
        heads = ("", "times", "trace", "lower", "compile", "called at", "why again")
        yield Grid(title, heads, tuple(rows), (1, 2, 3, 4), first=top_programs.ROWS)


def _compiling_s(compiled: Iterable[Compiled]) -> float:
    return total_length(span for c in compiled for span in c.stages.values())


def _why(group: list[Compiled]) -> str:
    last = group[-1]
    if len(group) == 1:
        return ""
    if last.changes:
        changes = changes_by_field(group[-2], last)
        description = "; ".join(f"{c.kind}, {c}" if c.what else str(c) for c in changes)
        return description if len(description) <= WIDEST else f"{description[: WIDEST - 3]}..."
    if last.explained:
        # JAX does not explain pmap
        return "a new function object or placement" if last.label else "a new function object"
    if not any(COMPILE in c.stages for c in group):
        return "lowered and never compiled, not in jit"
    return f"{EAGER_CAUSES[eager_cause(group)]}, not in jit"


def _waits(analysis: Analysis) -> Iterator[Block]:
    lines = sorted([*analysis.lines, *analysis.blocked_lines], key=lambda line: -line.total_s)
    names = {key: f"{key[0]} in {library}" for key, library in analysis.log.waiting_libraries.items()}
    rows = [
        (
            names.get((line.kind, line.at), line.kind), str(line.count or "-"),
            format_quantity(line.total_s, "s"), format_quantity(line.after_s, "s"),
            format_quantity(line.nbytes, "bytes"), str(line.at), line.at.source[:40],
        )
        for line in lines[: top_programs.STORED_ROWS]
    ]  # fmt: skip
    if rows:
        heads = ("", "times", "waited", "t3", "to the host", "at", "")
        title, right = "Where the front end waits for devices", (1, 2, 3, 4)
        yield Grid(title, heads, tuple(rows), right, first=top_programs.ROWS)


def _memory(analysis: Analysis) -> Iterator[Block]:
    log = analysis.log
    for kind, peak in log.peaks.items():
        name = "peak_bytes" if kind == "resident" else f"{kind}_peak_bytes"
        yield Fact(name, peak, "bytes", f"Peak of {kind} memory")
    largest = []
    least = LARGE_SHARE * max(log.peaks.values(), default=0)
    for live in (live for live in log.live_arrays[:3] if live.nbytes >= least):
        made = f", made at {live.at}" if live.at else ""
        largest.append(f"{live.number} x {live.kind}, {format_quantity(live.nbytes, 'bytes')}{made}")
    if largest:
        yield Fact("held", "; ".join(largest), meaning="Largest arrays alive near the peak")
    yield from map(Note, program_notes.temporaries_note(analysis))


def _findings(analysis: Analysis) -> Iterator[Block]:
    if not analysis.log.names_causes:
        yield Note(OLD_JAX)
        return
    findings = find_causes(analysis)
    functions = {name for c in analysis.log.compiled for name in (c.name, c.called)}
    most_first = f"Findings: {len(findings)}, by the seconds that they could save"
    yield Heading(most_first if findings else "Findings: none")
    for i, finding in enumerate(findings, start=1):
        yield Found(finding_fields(finding, analysis.log.wall_s))
        yield from _finding(i, finding, functions)
    if not analysis.steady:
        yield Note("no window saw devices, so what may keep them idle was not judged: waits, data, dispatch")


def finding_fields(finding: Finding, wall_s: float) -> dict[str, Any]:
    """Return a finding as other programs read it, given the seconds of the run.

    docs/watch-json.md and the schema beside it describe the fields. They and the ids of causes stay the same
    from release to release. Later releases may add some; one that goes, or changes its meaning, raises
    `jaxperf.result.record.FINDINGS_VERSION`.
    """
    cause, at, file = cause_of(finding), finding.at, finding.at.file
    # an annotation needs a path relative to the working directory
    with contextlib.suppress(ValueError, OSError):
        file = Path(file).relative_to(Path.cwd()).as_posix()
    return {
        "cause": finding.cause,
        "kind": cause.kind,
        "site": {"file": file, "line": at.line, "function": at.function, "statement": at.source},
        "evidence": finding.reason,
        **vars(advice_for(finding)),
        "saving": {
            "seconds": finding.seconds,
            "share": min(1.0, finding.seconds / wall_s) if wall_s else 0.0,
            "memory_bytes": finding.memory_bytes,
        },
        "confidence": cause.confidence,
    }


def _finding(number: int, finding: Finding, functions: Collection[str]) -> Iterator[Block]:
    advice, reason = advice_for(finding), finding.reason
    amounts = [format_quantity(finding.seconds, "s")] if finding.seconds else []
    if finding.memory_bytes:
        amounts.append(f"{format_quantity(finding.memory_bytes, 'bytes')} of memory")
    # names stay as they are
    name = finding.name.removeprefix("jit_")
    if not reason.startswith((f"{name} ", f"{name},")) and reason.split()[0].rstrip(",") not in functions:
        reason = reason[0].upper() + reason[1:]
    saving = f"{SAVES[cause_of(finding).confidence]} {' and '.join(amounts)}"
    summary = f"{number}. {advice.title}, {finding.at}: {saving}. {reason}."
    if number > FINDINGS:
        yield Text(summary)
        return
    section = advice.section
    if section[0].isdigit():
        section = f"section {section}"
    elif section != VERSIONS:
        section = f'section "{section}"'
    yield Text(f"{summary} See {section}.")
    statement = "\n".join(statements.statement_rows(finding.at))
    yield Code(statement, shorten_path(finding.at.file), finding.at.line)
    if advice.change:
        yield Text(advice.change)
    if advice.example:
        yield Code(advice.example)
