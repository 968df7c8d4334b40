"""A comparison of two runs as blocks, for a terminal or as Markdown."""

from collections import Counter
from collections.abc import Iterator

from jaxperf.compare.results import Comparison
from jaxperf.result import Block, Grid, Note, Text, ranks

ORDER = ("slower", "faster", "same", "changed", "undecided")
MOST_RUNS = 100


def comparison_blocks(comparison: Comparison) -> Iterator[Block]:
    """Yield the differences of the two runs, the rows, what is missing, and how it was judged."""
    for line in dict.fromkeys(comparison.differences):  # each experiment may have the same differences
        yield Note(f"differs: {line}")
    heads = ("", "A", "B", "B / A", f"{(1 - comparison.alpha) * 100:g} % interval", "verdict")
    cells: list[tuple[str, ...]] = []
    last_title = ""
    for row in comparison.rows:
        # Rows stand below the title of their own table
        title = ": ".join(filter(None, row.key[:2]))
        if title != last_title:
            cells.append((title, "", "", "", "", ""))
            last_title = title
        cells.append((row.key.name, *row.cells))
    yield Grid("", heads, tuple(cells), (1, 2, 3, 4))
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


def what_would_decide(comparison: Comparison) -> Iterator[str]:
    """Yield a line per reason for undecided rows, and one on how many runs would decide, if any row is."""
    undecided = [row for row in comparison.rows if row.verdict == "undecided"]
    if not undecided:
        return
    total = len(comparison.rows)
    reasons = Counter((row.remark or "interval too wide").split(":")[0] for row in undecided)
    for reason, count in reasons.most_common():
        yield f"undecided, {reason}: {count} of {total}"
    needed_p = comparison.alpha / total
    enough = next((n for n in range(2, MOST_RUNS) if ranks.smallest_p(n, n) <= needed_p), MOST_RUNS)
    a, b = comparison.runs
    if min(a, b) < enough:
        yield (
            f"What would decide: {enough} results per side instead of {a} and {b}, each from a process of "
            "its own, taken in turns: A, B, A, B. Give them with commas, or as a folder."
        )
    else:
        yield (
            f"What would decide: a machine that does nothing else, or {4 * max(a, b)} results per side, "
            "which halve the intervals."
        )
