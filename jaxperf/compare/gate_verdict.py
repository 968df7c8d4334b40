"""Decide whether a program became slower than its baseline, or whether this machine is too noisy to tell.

Each side has several results, one per process, so the compared values are the medians of processes.
Differences up to `least` do not count, and a slowdown of `size` must be found. A measurement is

- slower, if `compare` shows a slowdown beyond `least`;
- not slower, if the interval of the ratio ends below 1 + `size`: for a true ratio of that or more, this
  happens in at most alpha / 2 of all cases;
- undecided, if neither holds, so that the interval contains both no slowdown that counts and one of `size`:
  the machine is too noisy, or there are too few runs.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jaxperf.compare import results
from jaxperf.compare.results import NOISY, Compared, Comparison, Verdict, compare, measured_often
from jaxperf.errors import JaxperfError
from jaxperf.result import Block, Grid, Heading, Note, Result, Text
from jaxperf.result.formatting import format_count, format_list

SLOWER, UNDECIDED = 1, 3  # exit statuses


@dataclass(frozen=True)
class Judgement:
    judged: tuple[Compared, ...]
    not_judged: tuple[Compared, ...]
    comparison: Comparison
    size: float

    def of(self, verdict: Verdict) -> list[Compared]:
        return [row for row in self.judged if row.verdict == verdict]

    @property
    def status(self) -> int:
        """Return the exit status: 1 if anything is slower, 3 if anything is undecided or missing, else 0."""
        if self.of("slower"):
            return SLOWER
        return UNDECIDED if self.of("undecided") or self.comparison.only_a else 0


def judge(
    baseline: Sequence[Result],
    runs: Sequence[Result],
    *,
    alpha: float = results.ALPHA,
    least: float = results.LEAST,
    size: float = results.WIDE,
) -> Judgement:
    often = measured_often([*baseline, *runs])  # if this is empty, all measurements decide
    deciding = compare(baseline, runs, alpha=alpha, least=least, only=often or None, apart=False)
    judged = tuple(_judged(row, size) for row in deciding.rows if row.unit == "s" or row.unit.endswith("/s"))
    if not judged:
        raise JaxperfError("nothing measured is a time or a rate, so nothing can be slower")
    keys = {row.key for row in judged}
    every_row = compare(baseline, runs, alpha=alpha, least=least).rows
    return Judgement(judged, tuple(row for row in every_row if row.key not in keys), deciding, size)


def _judged(row: Compared, size: float) -> Compared:
    if row.verdict == "slower":
        return replace(row, remark="")
    slowest = row.high
    if row.unit != "s":
        slowest = 1 / row.low if row.low else math.nan
    if slowest <= 1 + size:
        return replace(row, verdict="not slower", remark="faster" if row.verdict == "faster" else "")
    remark = f"{NOISY}: it may take up to {slowest:.3f} times as long"
    if math.isnan(slowest):
        remark = row.remark or results.FEW
    return replace(row, verdict="undecided", remark=remark)


def summary_blocks(judgement: Judgement, *, machine: str) -> Iterator[Block]:
    comparison = judgement.comparison
    alpha, least, size, level = (
        f"{share * 100:.3g} %"
        for share in (comparison.alpha, comparison.least, judgement.size, 1 - comparison.alpha)
    )
    how = (
        f"{comparison.runs[1]} processes against {comparison.runs[0]} of the baseline, on {machine}. "
        f'"Slower" means by more than {least}; the chance of any wrong "slower" is at most {alpha}. '
        f'"Not slower" means that the interval leaves no room for a slowdown of {size} or more.'
    )
    if judgement.of("undecided"):
        how += (
            f" Where it is undecided, the runs cannot tell a slowdown of {size} from none: take more of them "
            "(--runs), a quieter machine, or a larger --size."
        )
    yield Heading(headline(judgement))
    yield Text(how)
    heads, right = ("", "baseline", "now", "now / baseline", f"{level} interval", "verdict"), (1, 2, 3, 4)
    names = Counter(row.key.name for row in (*judgement.not_judged, *judgement.judged))

    def cells(row: Compared) -> tuple[str, ...]:
        # With its table, where two rows have the same name
        return str(row.key) if names[row.key.name] > 1 else row.key.name, *row.cells

    yield Grid("", heads, tuple(map(cells, judgement.judged)), right)
    if judgement.not_judged:
        rows = tuple((*cells(row)[:-1], "") for row in judgement.not_judged)
        yield Grid("Shown, not judged", heads, rows, right)
    for name in comparison.only_a:
        yield Note(f"only the baseline has {name}; store a new baseline with --update if that is meant")
    for line in comparison.differences:
        yield Note(f"differs: {line}")


def headline(judgement: Judgement) -> str:
    slower, undecided, total = judgement.of("slower"), judgement.of("undecided"), len(judgement.judged)
    if slower:
        return f"Slower: {format_list([row.key.name for row in slower])}"
    if undecided and all(row.remark.startswith(NOISY) for row in undecided):
        return f"Undecided: this machine is too noisy to decide on {len(undecided)} of {total} measurements"
    if undecided:
        return f"Undecided: too little is known of {len(undecided)} of {total} measurements"
    missing = judgement.comparison.only_a
    if missing:
        return f"Undecided: {len(missing)} of the baseline's measurements are missing"
    return f"Not slower: {format_count(total, 'measurement')}"
