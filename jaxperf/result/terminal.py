"""Results on a terminal: the log of a run as it happens, and a whole result as text."""

import io
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, JustifyMethod
from rich.table import Table as RichTable
from rich.text import Text as Words

from jaxperf.errors import escape_control
from jaxperf.result import Block, Environment, Grid, Result, record
from jaxperf.result.formatting import as_grid, format_quantity, format_scalar

GAP = 2  # columns of the terminal for each column of a table, at most
WHOLE = 0.75  # share of the terminal for columns that are not wrapped, at most
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
            _show_result(console, block)
        case record.Heading():
            console.rule(literal_text(block.title, style="bold"), align="left")
        case record.Text():
            _print_wrapped(console, literal_text(block.text))
        case record.Code():
            lines = (f"    {line}" for line in block.source.splitlines())
            print_line(console, "\n".join(lines), style="cyan")
        case record.Table() | Grid():
            _show_grid(console, as_grid(block))
        case record.Claim():
            verdict = Words(f"[{block.verdict}] ", style=f"bold {STYLES[block.verdict]}")
            console.print(Words.assemble(verdict, literal_text(block.statement)), soft_wrap=True)
            if block.conclusion:
                print_line(console, f"    {block.conclusion}")
            print_line(console, f"    expected: {block.expected}; observed: {block.observed}", style="dim")
        case record.Fact() if not block.in_table:
            print_line(console, f"{block.meaning or block.name}: {format_scalar(block.value, block.unit)}")
        case record.Note():
            print_line(console, f"note: {block.text}", style="dim")
        case record.Failed():
            print_line(console, f"failed: {block.part}: {block.error}", style="bold red")


def print_line(console: Console, text: str, *, style: str = "") -> None:
    if text:
        lines = (line.rstrip() for line in text.splitlines())
        console.print(literal_text("\n".join(lines), style=style), soft_wrap=True)


def _show_grid(console: Console, grid: Grid) -> None:
    first = grid.rows[: grid.first or None]
    if first:
        shown = RichTable(box=None, pad_edge=False)
        whole = _whole_columns(grid.heads, first, console.width)
        for i, head in enumerate(grid.heads):
            justify: JustifyMethod = "right" if i in grid.right else "left"
            shown.add_column(literal_text(head), justify=justify, overflow="fold", no_wrap=i in whole)
        for cells in first:
            shown.add_row(*map(literal_text, cells))
        print_line(console, grid.title, style="bold")
        _print_wrapped(console, shown)
    if len(first) < len(grid.rows):
        print_line(console, f"and {len(grid.rows) - len(first)} more, which --json FILE keeps", style="dim")
    for remark in grid.remarks:
        print_line(console, remark, style="dim")


def _whole_columns(heads: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> set[int]:
    """Return the columns of numbers, names and paths, whose cells stay whole where the others leave room."""
    columns = [*zip(heads, *rows, strict=True)]
    widths = {
        i: max(map(len, cells)) for i, cells in enumerate(columns) if not any(" " in c for c in cells[1:])
    }
    return {*widths} if sum(widths.values()) + GAP * len(columns) <= WHOLE * width else set()


def _print_wrapped(console: Console, shown: RichTable | Words) -> None:
    """Print a table or a paragraph; in a file, no line ends in blanks."""
    if console.is_terminal:
        console.print(shown)
        return
    for line in console.render_lines(shown, pad=False):
        words = "".join(segment.text for segment in line)
        console.print(Words(words.rstrip()), soft_wrap=True)


def environment_lines(e: Environment) -> list[str]:
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


def _show_result(console: Console, result: Result) -> None:
    console.print()
    show(console, record.Heading(f"{result.section} {result.title}".strip()))
    for text in (result.question, *environment_lines(result.environment)):
        print_line(console, text)
    if result.incomplete:
        print_line(console, "Incomplete: the run has not come to its end yet.", style="yellow")
    if result.smoke:
        print_line(console, "smoke run: toy sizes, the times mean nothing", style="yellow")
    for block in result.blocks:
        try:
            show(console, block)
        except (ArithmeticError, ValueError) as e:  # a file may hold numbers that break every statistic
            name = type(block).__name__.lower()
            print_line(console, f"{name} left out, its values cannot be shown: {e}")


def print_all(items: Iterable[Block | Result], screen: Console | None = None) -> Console:
    """Print blocks or complete results on a console, by default that of this process, and return it."""
    screen = screen or console()
    for item in items:
        show(screen, item)
    return screen


def render_text(items: Iterable[Block | Result], *, color: bool = False, width: int = 100) -> str:
    out = io.StringIO()
    # rich would show HTML in a notebook, and write nothing to `out`
    options: Any = {"force_terminal": color, "no_color": not color, "force_jupyter": False}
    print_all(items, Console(file=out, width=width, highlight=False, **options))
    return out.getvalue()


def render_html(items: Iterable[Block | Result]) -> str:
    """Return blocks or complete results as HTML for a notebook: the text of a terminal, with its colors."""
    options: Any = {"file": io.StringIO(), "record": True, "force_jupyter": False}
    screen = print_all(items, Console(width=100, highlight=False, **options))
    return screen.export_html(inline_styles=True, code_format='<pre style="white-space: pre">{code}</pre>')
