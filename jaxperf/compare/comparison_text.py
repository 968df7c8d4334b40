"""Render a comparison of two runs as text for a terminal."""

from __future__ import annotations

import io
from collections import Counter

from rich.console import Console
from rich.table import Table as Shown

from jaxperf.compare import ranks
from jaxperf.compare.results import DRIFT, Comparison
from jaxperf.result.formatting import format_quantity
from jaxperf.result.terminal import literal_text

STYLES = {"slower": "red", "faster": "green", "same": "", "changed": "yellow", "undecided": "dim"}


def render_comparison(comparison: Comparison, *, color: bool = False, width: int = 100) -> str:
    """Return a comparison as text: differences, rows, what is missing, and how it was judged."""
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, force_terminal=color, no_color=not color)
    for line in dict.fromkeys(comparison.differences):  # each experiment may have the same differences
        console.print(literal_text(f"differs: {line}", style="yellow"), soft_wrap=True)
    console.print(_table(comparison))
    for side, names in (("A", comparison.only_a), ("B", comparison.only_b)):
        for name in names:
            console.print(literal_text(f"only in {side}: {name}"), soft_wrap=True)
    counts = Counter[str](row.verdict for row in comparison.rows)
    console.print(literal_text(", ".join(f"{counts[v]} {v}" for v in STYLES if v in counts)))
    for line in what_would_decide(comparison):
        console.print(literal_text(line), soft_wrap=True)
    console.print(_how(comparison), soft_wrap=True)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _table(comparison: Comparison) -> Shown:
    """Return a table with a row per measurement, below the title of its own table."""
    shown = Shown(box=None, pad_edge=False)
    shown.add_column("", overflow="fold")
    for head in ("A", "B", "B / A", f"{(1 - comparison.alpha) * 100:g} % interval"):
        shown.add_column(head, justify="right", overflow="fold")
    shown.add_column("verdict")
    before: tuple[str, ...] = ()
    for row in comparison.rows:
        if row.key[:2] != before:
            before = row.key[:2]
            shown.add_row(literal_text(": ".join(filter(None, before)), style="bold"))
        verdict = f"{row.verdict} ({row.remark})" if row.remark else row.verdict
        medians = (format_quantity(median, row.unit) for median in (row.a, row.b))
        cells = map(literal_text, (row.key.name, *medians, *row.ratio_cells))
        shown.add_row(*cells, literal_text(verdict, style=STYLES[row.verdict]))
    return shown


def what_would_decide(comparison: Comparison) -> list[str]:
    """Return a line per reason for undecided rows, and one on how many runs would decide; [] if none is."""
    undecided = [row for row in comparison.rows if row.verdict == "undecided"]
    if not undecided:
        return []
    reasons = Counter((row.remark or "interval too wide").split(":")[0] for row in undecided)
    lines = [
        f"undecided, {reason}: {count} of {len(comparison.rows)}" for reason, count in reasons.most_common()
    ]
    most = max(comparison.runs)
    enough = next(
        n for n in range(2, 100) if ranks.smallest_p(n, n) <= comparison.alpha / len(comparison.rows)
    )
    if min(comparison.runs) < enough:
        lines.append(
            f"What would decide: {enough} results per side instead of {comparison.runs[0]} and "
            f"{comparison.runs[1]}, each from a process of its own, taken in turns: A, B, A, B. Give them "
            "with commas, or as a folder."
        )
    else:
        lines.append(
            f"What would decide: a machine that does nothing else, or {4 * most} results per side, which "
            "halve the intervals."
        )
    return lines


def _how(comparison: Comparison) -> str:
    """Return what the verdicts mean, and what they do not decide."""
    single = min(comparison.runs) == 1
    return (
        f"Rank test for differences over {comparison.least * 100:g} %; the chance of any wrong verdict "
        f"is at most {comparison.alpha * 100:g} % (Holm){' for these processes' if single else ''}. "
        "Each interval is for its row alone."
        + (
            " With one result per side, a difference must also exceed the values' interquartile range, or "
            f"{DRIFT:g} times that of {ranks.BLOCKS} successive medians where that is less, and stretches of "
            "both must not overlap. To judge the program, not one process, give several results per side: a "
            "folder or a1.json,a2.json."
            if single
            else ""
        )
    )
