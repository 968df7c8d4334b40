"""How a section's blocks and figures show: on a terminal, in a notebook, and on the pages of the book."""

import html
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxperf.result import Block, Claim, Fact, Failed, Grid, Note, Table, Text, markdown, terminal
from jaxperf.result.formatting import as_grid, format_scalar


@dataclass(frozen=True)
class Figure:
    """A drawn figure, its caption, and `alt`: the picture in words, for who cannot see it."""

    svg: str
    caption: str
    alt: str = ""


Shown = Block | Figure
ALT = "application/x-jaxperf-alt"  # the MIME type under which a notebook keeps a figure's text for the blind


def on_terminal(item: Shown) -> None:
    console = terminal.console()
    if isinstance(item, Figure):
        terminal.print_line(console, f"figure: {item.caption}", style="dim")
    elif isinstance(item, Table | Grid) and item.detail:
        terminal.print_line(console, f"{item.title}: {len(item.rows)} rows, in the notebook", style="dim")
    else:
        terminal.show(console, item)


def bundle(item: Shown) -> dict[str, str]:
    """Return an item in the forms that notebooks show, by MIME type."""
    match item:
        case Figure():
            return {"image/svg+xml": item.svg, "text/plain": item.caption, ALT: item.alt or item.caption}
        case Table() | Grid():
            return {"text/markdown": _markdown_table(as_grid(item)), "text/plain": item.title}
        case Claim():
            return {"text/html": _claim_html(item), "text/plain": f"[{item.verdict}] {item.statement}"}
        case Fact():
            return _line("fact", f"{item.meaning or item.name}: {format_scalar(item.value, item.unit)}")
        case Failed():
            return _line("failed", f"{item.part}: {item.error}")
        case Text() | Note():
            return {"text/markdown": item.text, "text/plain": item.text}
    raise TypeError(f"{type(item).__name__} is not shown in a notebook")


def _line(style: str, line: str) -> dict[str, str]:
    return {"text/html": f'<p class="{style}">{html.escape(line)}</p>', "text/plain": line}


def _markdown_table(grid: Grid) -> str:
    table = "\n".join(markdown.table(grid.heads, grid.rows, right=grid.right))
    remarks = "\n\n".join(markdown.escape(remark) for remark in grid.remarks)
    if grid.detail:
        summary = f"<summary>{html.escape(grid.title)}</summary>"
        return f'<details class="evidence">{summary}\n\n{table}\n{remarks}\n\n</details>'
    return f"{markdown.strong(grid.title)}\n\n{table}\n{remarks}"


def _claim_html(claim: Claim) -> str:
    anchor = re.sub("[^a-z0-9]+", "-", claim.statement.lower()).strip("-")
    verdict, statement, expected, observed, source = map(
        html.escape, (claim.verdict, claim.statement, claim.expected, claim.observed, claim.source)
    )
    by = "" if claim.source == "jaxperf" else f' <span class="source">{source}</span>'
    text = f'<p><a href="#{anchor}">{verdict}</a> {statement}.{by}</p>'
    if claim.conclusion:
        text += f'<p class="conclusion">{inline(claim.conclusion)}</p>'
    text += f'<p class="evidence">Expected: {expected}. Observed: {observed}.</p>'
    if claim.first:
        history = html.escape(f"At first it was: {claim.first}.")
        text += f"<details><summary>Earlier expectation</summary>{history}</details>"
    return f'<div class="claim {claim.verdict.replace(" ", "-")}" id="{anchor}">{text}</div>'


def inline(text: str) -> str:
    """Return a sentence of Markdown as HTML: code, and words that are emphasized or strong."""
    parts = html.escape(text, quote=False).split("`")
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = f"<code>{part}</code>"
        else:
            strong = re.sub(r"\*\*(\S(?:.*?\S)?)\*\*", r"<strong>\1</strong>", part)
            parts[i] = re.sub(r"\*(\S(?:.*?\S)?)\*", r"<em>\1</em>", strong)
    return "".join(parts)


def in_notebook() -> Any:
    """Return IPython's shell, where this runs in a notebook; else None."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def show(item: Shown) -> None:
    """Show an item where this runs: in a notebook, in a script, or in the cell runner."""
    if in_notebook():
        sys.modules["IPython"].display.display(bundle(item), raw=True)
    else:
        printer(item)


printer: Callable[[Shown], None] = on_terminal  # `jaxperf.chapter.cells` also keeps each item in the notebook
