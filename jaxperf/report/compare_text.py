"""A comparison as text for a terminal or a build's log."""

from __future__ import annotations

import io
import math

from rich.console import Console
from rich.table import Table

from jaxperf.report.compare import Comparison
from jaxperf.report.text import literal, quantity

STYLES = {"slower": "red", "faster": "green", "same": "", "changed": "yellow", "undecided": "dim"}


def render_comparison(comparison: Comparison, *, color: bool = False, width: int = 100) -> str:
    """A comparison as text for a terminal: what differs, a row each, what is missing, how it was judged."""
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, force_terminal=color, no_color=not color)
    for line in comparison.differences:
        console.print(literal(f"differs: {line}", style="yellow"), soft_wrap=True)
    shown = Table(box=None, pad_edge=False)
    shown.add_column("", overflow="fold")
    for head in ("A", "B", "B / A", f"{(1 - comparison.alpha) * 100:g} % interval"):
        shown.add_column(head, justify="right", no_wrap=True)
    shown.add_column("verdict")
    for row in comparison.rows:
        verdict = f"{row.verdict} ({row.remark})" if row.remark else row.verdict
        span = f"{row.low:.3f} to {row.high:.3f}" if math.isfinite(row.low) else "-"
        times = f"{row.ratio:.3f}" if math.isfinite(row.ratio) else "-"
        medians = quantity(row.a, row.unit), quantity(row.b, row.unit)
        shown.add_row(literal(row.name), *medians, times, span, literal(verdict, style=STYLES[row.verdict]))
    console.print(shown)
    for side, names in (("A", comparison.only_a), ("B", comparison.only_b)):
        for name in names:
            console.print(literal(f"only in {side}: {name}"), soft_wrap=True)
    counts = {v: sum(row.verdict == v for row in comparison.rows) for v in STYLES}
    console.print(literal(", ".join(f"{n} {v}" for v, n in counts.items() if n)))
    console.print(_how(comparison), soft_wrap=True)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _how(comparison: Comparison) -> str:
    """What the verdicts mean, and what they leave open."""
    single = min(comparison.runs) == 1
    return (
        f"By ranks, against a difference of {comparison.least * 100:g} %; the chance of any wrong verdict "
        f"is at most {comparison.alpha * 100:g} % (Holm){' for these processes' if single else ''}. "
        "Intervals are of each row alone."
        + (" Give several results a side to judge the program, not one process of it." if single else "")
    )
