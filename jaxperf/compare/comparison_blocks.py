"""A comparison of two runs as blocks, for a terminal or as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from jaxperf.compare.results import Comparison
from jaxperf.result import Block, Grid, Note, Text, ranks
from jaxperf.result.formatting import format_quantity

ORDER = ("slower", "faster", "same", "changed", "undecided")
MOST_RUNS = 100


def comparison_blocks(comparison: Comparison) -> Iterator[Block]:
    """Yield the differences of the two runs, the rows, what is missing, and how it was judged."""
    for line in dict.fromkeys(comparison.differences):  # each experiment may have the same differences
        yield Note(f"differs: {line}")
    yield _grid(comparison)
    for side, names in (("A", comparison.only_a), ("B", comparison.only_b)):
        for name in names:
            yield Note(f"only in {side}: {name}")
    counts = Counter[str](row.verdict for row in comparison.rows)
    yield Text(", ".join(f"{counts[verdict]} {verdict}" for verdict in ORDER if counts[verdict]))
    for line in what_would_decide(comparison):
        yield Text(line)
    yield Note(
        f"Rank test for differences over {comparison.least * 100:g} %; the chance of any wrong verdict is at "
        f"most {comparison.alpha * 100:g} % (Holm). Each interval is for its row alone."
    )


def _grid(comparison: Comparison) -> Grid:
    """Return a table with a row per measurement, below the title of its own table."""
    heads = ("", "A", "B", "B / A", f"{(1 - comparison.alpha) * 100:g} % interval", "verdict")
    rows: list[tuple[str, ...]] = []
    last_title = ""
    for row in comparison.rows:
        title = ": ".join(part for part in row.key[:2] if part)
        if title != last_title:
            rows.append((title, *[""] * (len(heads) - 1)))
            last_title = title
        medians = (format_quantity(median, row.unit) for median in (row.a, row.b))
        rows.append((row.key.name, *medians, *row.verdict_cells))
    return Grid("", heads, tuple(rows), (1, 2, 3, 4))


def what_would_decide(comparison: Comparison) -> list[str]:
    """Return a line per reason for undecided rows, and one on how many runs would decide; [] if none is."""
    undecided = [row for row in comparison.rows if row.verdict == "undecided"]
    if not undecided:
        return []
    reasons = Counter((row.remark or "interval too wide").split(":")[0] for row in undecided)
    lines = [
        f"undecided, {reason}: {count} of {len(comparison.rows)}" for reason, count in reasons.most_common()
    ]
    needed_p = comparison.alpha / len(comparison.rows)
    enough = 2
    while ranks.smallest_p(enough, enough) > needed_p and enough < MOST_RUNS:
        enough += 1
    a, b = comparison.runs
    if min(a, b) < enough:
        lines.append(
            f"What would decide: {enough} results per side instead of {a} and {b}, each from a process of "
            "its own, taken in turns: A, B, A, B. Give them with commas, or as a folder."
        )
    else:
        lines.append(
            f"What would decide: a machine that does nothing else, or {4 * max(a, b)} results per side, "
            "which halve the intervals."
        )
    return lines
