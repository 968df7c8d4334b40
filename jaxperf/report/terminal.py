"""Results on a terminal: the log of a run as it happens, and a whole result as text."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text as Words

from jaxperf.errors import plain
from jaxperf.report.draw import Picture
from jaxperf.report.gantt import gantt
from jaxperf.report.story import Facts, Item, walk
from jaxperf.report.tables import Rows
from jaxperf.report.words import INCOMPLETE, quantity, scalar
from jaxperf.result import Claim, Code, Failed, Habit, Heading, Note, Output, Result, Text

STYLES = {"holds": "green", "does not hold": "red", "undecided": "yellow", "cannot be measured here": "dim"}


def literal(words: str, *, style: str = "") -> Words:
    """Words that the terminal does not interpret: no markup, no control characters."""
    return Words(plain(words), style=style)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let `jaxperf.exits` end the program: rich itself would exit with 1, as if a section had failed."""
        raise BrokenPipeError


def console(*, color: bool | None = None, width: int | None = None) -> Console:
    """A console that uses color on a terminal and is plain, 100 columns wide, when piped."""
    if color is False:
        return _Console(no_color=True, width=width or 100, highlight=False, force_terminal=False)
    found = _Console(highlight=False, force_terminal=color, width=width)
    return found if found.is_terminal else _Console(highlight=False, width=width or 100, force_jupyter=False)


def show(console: Console, item: Item, *, verbose: bool) -> None:
    """Print one item; without `verbose`, only if it belongs to the short log of a run."""
    match item:
        case Heading():
            if verbose:  # the short log should fit on a few screens
                console.print()
            console.rule(literal(item.title, style="bold"), align="left")
        case Rows() if verbose or not item.detail:
            _table(console, item)
        case Output() if verbose or not item.detail:
            _say(console, item.text)
        case Claim():
            _claim(console, item)
        case Note():
            _say(console, f"note: {item.text}", style="dim")
        case Failed():
            _say(console, f"failed: {item.part}: {item.error}", style="bold red")
        case _ if verbose:
            _in_full(console, item)


def _in_full(console: Console, item: Item) -> None:
    """Print an item that only the long log and a complete result show."""
    match item:
        case Text():
            console.print(literal(item.text), soft_wrap=False)
        case Habit():
            _say(console, f"In Gluon:\n{_indented(item.gluon)}\nin JAX:\n{_indented(item.jax)}")
            _say(console, item.remark)
        case Code():
            _say(console, _indented(item.source), style="cyan")
        case Facts():
            for fact in item.facts:
                _say(console, f"{fact.words or fact.name}: {scalar(fact.value, fact.unit)}")
        case Picture():
            for run in item.runs:
                _say(console, gantt(run, width=min(console.width, 100)))
            if not item.runs:
                _say(console, f"figure: {item.title}. {item.description}")


def _say(console: Console, words: str, *, style: str = "") -> None:
    if words:
        console.print(literal(words, style=style), soft_wrap=True)


def _indented(code: str) -> str:
    return "\n".join(f"    {line}" for line in code.splitlines())


def _table(console: Console, rows: Rows) -> None:
    if not rows.cells and not rows.remarks:
        return
    shown = Table(box=None, pad_edge=False)
    for i, head in enumerate(rows.heads):
        shown.add_column(literal(head), justify="right" if i in rows.right else "left", overflow="fold")
    first = rows.cells[: rows.first or None]
    for cells in first:
        shown.add_row(*map(literal, cells))
    if rows.cells:
        _say(console, rows.title, style="bold")
        console.print(shown)
    if left := len(rows.cells) - len(first):
        _say(console, f"and {left} more in the result's file", style="dim")
    for remark in rows.remarks:
        _say(console, remark, style="dim")


def _claim(console: Console, claim: Claim) -> None:
    """Two lines: the sentence with both verdicts, then what was predicted and what was seen."""
    line = Words()
    line.append(f"[{claim.holds}] ", style=f"bold {STYLES[claim.holds]}")
    line.append(literal(claim.statement))
    console.print(line, soft_wrap=True)
    verdict = "" if claim.prediction == "not stated" else f"prediction {claim.prediction}: "
    _say(console, f"    {verdict}{claim.predicted}; observed: {claim.observed}", style="dim")


def environment_lines(result: Result) -> list[str]:
    """Machine, versions and data in a few lines, with a remark if the devices are fake."""
    e = result.environment
    lines = [
        f"{e.cpu}, {e.cores} cores, {quantity(e.memory_bytes, 'bytes')}; Python {e.python}, "
        + ", ".join(f"{k} {v}" for k, v in e.versions.items() if k in ("jax", "flax"))
        + f"; {e.backend}: {', '.join(e.devices)}"
    ]
    if e.devices_are_fake:
        lines.append(
            f"devices are fake: {len(e.devices)} CPU devices share the {e.cores} cores of one host, "
            "so times say nothing about real devices"
        )
    return lines + ([f"data: {e.data_source}"] if e.data_source else [])


def head(console: Console, result: Result) -> None:
    """Print a result's title, question and environment."""
    console.print()
    console.rule(literal(f"{result.section} {result.title}".strip(), style="bold"), align="left")
    for line in (result.question, *environment_lines(result)):
        _say(console, line)
    if result.incomplete:
        _say(console, INCOMPLETE, style="yellow")
    if result.smoke:
        _say(console, "smoke run: toy sizes, the times mean nothing", style="yellow")


def render_text(
    results: Sequence[Result], *, left_out: Sequence[str] = (), color: bool = False, width: int | None = None
) -> str:
    """Complete results as text."""
    out = io.StringIO()
    # rich would show HTML in a notebook, and write nothing to `out`
    con = Console(
        file=out,
        width=width or 100,
        highlight=False,
        force_terminal=color,
        no_color=not color,
        force_jupyter=False,
    )
    for result in results:
        head(con, result)
        for item in walk(result, peers=[r for r in results if r.experiment == "peers"]):
            show(con, item, verbose=True)
    for line in left_out:
        _say(con, f"left out: {line}")
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
