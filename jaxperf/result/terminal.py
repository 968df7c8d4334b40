"""Results on a terminal: the log of a run as it happens, and a whole result as text."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text as Words

from jaxperf.errors import escape_control
from jaxperf.result import Environment, Result
from jaxperf.result.blocks import Block, Claim, Code, Fact, Failed, Grid, Heading, Note, Table, Text
from jaxperf.result.formatting import INCOMPLETE, format_quantity, format_scalar
from jaxperf.result.tables import as_grid

STYLES = {"holds": "green", "does not hold": "red", "undecided": "yellow", "not measurable here": "dim"}


def literal_text(text: str, *, style: str = "") -> Words:
    """Return words that the terminal does not interpret: no markup, no control characters."""
    return Words(escape_control(text), style=style)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let `process.ended` end the program: rich would exit with 1, as if a section had failed."""
        raise BrokenPipeError


def console() -> Console:
    """Return a console that uses color on a terminal and is plain, 100 columns wide, when piped."""
    sized = _Console(highlight=False)
    return sized if sized.is_terminal else _Console(highlight=False, width=100, force_jupyter=False)


def show(console: Console, block: Block | Result) -> None:
    match block:
        case Result():
            _result(console, block)
        case Heading():
            console.rule(literal_text(block.title, style="bold"), align="left")
        case Text():
            _print_wrapped(console, literal_text(block.text))
        case Code():
            print_line(console, _indented(block.source), style="cyan")
        case Table() | Grid():
            _grid(console, as_grid(block))
        case Claim():
            _claim(console, block)
        case Fact() if not block.in_table:
            print_line(console, f"{block.meaning or block.name}: {format_scalar(block.value, block.unit)}")
        case Note():
            print_line(console, f"note: {block.text}", style="dim")
        case Failed():
            print_line(console, f"failed: {block.part}: {block.error}", style="bold red")


def print_line(console: Console, text: str, *, style: str = "") -> None:
    if text:
        lines = (line.rstrip() for line in text.splitlines())
        console.print(literal_text("\n".join(lines), style=style), soft_wrap=True)


def _indented(code: str) -> str:
    return "\n".join(f"    {line}" for line in code.splitlines())


def _grid(console: Console, grid: Grid) -> None:
    if not grid.rows and not grid.remarks:
        return
    shown = RichTable(box=None, pad_edge=False)
    for i, head in enumerate(grid.heads):
        shown.add_column(literal_text(head), justify="right" if i in grid.right else "left", overflow="fold")
    first = grid.rows[: grid.first or None]
    for cells in first:
        shown.add_row(*map(literal_text, cells))
    if grid.rows:
        print_line(console, grid.title, style="bold")
        _print_wrapped(console, shown)
    left = len(grid.rows) - len(first)
    if left:
        print_line(console, f"and {left} more in the result's file", style="dim")
    for remark in grid.remarks:
        print_line(console, remark, style="dim")


def _print_wrapped(console: Console, shown: RichTable | Words) -> None:
    """Print a table or a paragraph; in a file, no line ends in blanks."""
    if console.is_terminal:
        console.print(shown)
        return
    for line in console.render_lines(shown, pad=False):
        words = "".join(segment.text for segment in line)
        console.print(Words(words.rstrip()), soft_wrap=True)


def _claim(console: Console, claim: Claim) -> None:
    first = Words()
    first.append(f"[{claim.verdict}] ", style=f"bold {STYLES[claim.verdict]}")
    first.append(literal_text(claim.statement))
    console.print(first, soft_wrap=True)
    if claim.conclusion:
        print_line(console, f"    {claim.conclusion}")
    print_line(console, f"    expected: {claim.expected}; observed: {claim.observed}", style="dim")


def environment_lines(result: Result) -> list[str]:
    """Return machine, versions and data in a few lines, with a remark if the devices are fake."""
    e = result.environment
    if e == Environment():  # a program that never started JAX
        return []
    memory = format_quantity(e.memory_bytes, "bytes")
    versions = ", ".join(f"{name} {v}" for name, v in e.versions.items() if name in ("jax", "flax"))
    lines = [
        f"{e.cpu}, {e.cores} cores, {memory}; Python {e.python}, {versions}; "
        f"{e.backend}: {', '.join(e.devices)}"
    ]
    if e.devices_are_fake:
        lines.append(
            f"devices are fake: {len(e.devices)} CPU devices share the {e.cores} cores of one host, "
            "so times say nothing about real devices"
        )
    if e.data_source:
        lines.append(f"data: {e.data_source}")
    return lines


def head(console: Console, result: Result) -> None:
    console.print()
    console.rule(literal_text(f"{result.section} {result.title}".strip(), style="bold"), align="left")
    for text in (result.question, *environment_lines(result)):
        print_line(console, text)
    if result.incomplete:
        print_line(console, INCOMPLETE, style="yellow")
    if result.smoke:
        print_line(console, "smoke run: toy sizes, the times mean nothing", style="yellow")


def _result(console: Console, result: Result) -> None:
    head(console, result)
    for block in result.blocks:
        try:
            show(console, block)
        except (ArithmeticError, ValueError) as e:  # a file may hold numbers that break every statistic
            print_line(console, f"{block.kind} left out, its values cannot be shown: {e}")


def print_all(items: Iterable[Block | Result]) -> None:
    screen = console()
    for item in items:
        show(screen, item)


def render_text(items: Iterable[Block | Result], *, color: bool = False, width: int = 100) -> str:
    out = io.StringIO()
    # rich would show HTML in a notebook, and write nothing to `out`
    options: Any = {"force_terminal": color, "no_color": not color, "force_jupyter": False}
    screen = Console(file=out, width=width, highlight=False, **options)
    for item in items:
        show(screen, item)
    return out.getvalue()


def render_html(items: Iterable[Block | Result]) -> str:
    """Return blocks or complete results as HTML for a notebook: the text of a terminal, with its colors."""
    screen = Console(file=io.StringIO(), width=100, highlight=False, record=True, force_jupyter=False)
    for item in items:
        show(screen, item)
    return screen.export_html(inline_styles=True, code_format='<pre style="white-space: pre">{code}</pre>')
