"""Compare two runs: is anything faster or slower, beyond noise and beyond a minimum that matters?

Every row has two samples, the medians of the processes of A and those of B, compared by ranks (see
`result.ranks`). The test asks whether B differs from A by more than `least`. One process per side decides
nothing: two processes of the same program differ by their placement of memory and threads, and the machine by
what it did meanwhile, which no number of values within a process shows.

One wrong "slower" among many rows breaks a build, so the chance of any wrong verdict in the whole comparison
is at most `alpha`, by Holm's procedure, which allows any dependence between rows. Rows that can never be
significant because they have too few values are left out first (Tarone, 1990).

- A difference counts only if, on each side, more than half of the processes had their cores for themselves in
  most of their values.
- A value that a process measures only once, such as a compile time, does not show that. So a difference in
  such values counts only if the processes of A and B took turns.
"""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal, NamedTuple

from jaxperf.errors import JaxperfError
from jaxperf.result import Block, Grid, Heading, Measurement, Note, Result, Table, Text, ranks
from jaxperf.result.formatting import format_on_page

Verdict = Literal["same", "faster", "slower", "not slower", "changed", "undecided"]
ALPHA = 0.05
LEAST = 0.02
LARGEST = 1e75  # values between its inverse and this have finite products of ratios
FEW, NOISY, IDENTICAL = "too few runs", "too noisy", "identical values"
ONCE = "measured once per process: take A and B in turns"
WIDE = 0.10  # if an interval extends further from 1, the verdict is not "same"
ORDER = ("slower", "faster", "same", "changed", "undecided")
MOST_RUNS = 100


class RowKey(NamedTuple):
    """The key of a row: the experiment, the title of the table or the part, and the name of the row."""

    experiment: str
    title: str
    name: str

    def __str__(self) -> str:
        return ": ".join(filter(None, self))


Rows = dict[RowKey, Measurement]


@dataclass(frozen=True)
class Compared:
    key: RowKey
    unit: str
    a: float  # its medians, in `unit`
    b: float
    ratio: float  # b as a multiple of a; NaN if there is none
    low: float  # the ratio's interval at level 1 - alpha, for this row alone; NaN for too few runs
    high: float
    p: float  # of the hypothesis of no difference beyond `least`, with Holm's correction
    # "same" if no difference beyond `least` is found and the interval excludes one beyond 10 %; "changed" for
    # units that are neither times nor rates. A gate says "not slower" instead of "same".
    verdict: Verdict
    remark: str = ""  # why there is no verdict

    @property
    def cells(self) -> tuple[str, ...]:
        medians = (format_on_page(median, self.unit) for median in (self.a, self.b))
        times = f"{self.ratio:.3f}" if math.isfinite(self.ratio) else "-"
        interval = f"{self.low:.3f} to {self.high:.3f}" if math.isfinite(self.low) else "-"
        return *medians, times, interval, f"{self.verdict} ({self.remark})" if self.remark else self.verdict


@dataclass(frozen=True)
class Comparison:
    """All rows, rows of one side only, other differences, and `runs`, the number of results per side."""

    rows: tuple[Compared, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    differences: tuple[str, ...]
    alpha: float
    least: float
    runs: tuple[int, ...]

    @property
    def status(self) -> int:
        return int(any(row.verdict == "slower" for row in self.rows))


def compare(
    a: Sequence[Result],
    b: Sequence[Result],
    *,
    alpha: float = ALPHA,
    least: float = LEAST,
    only: Set[RowKey] | None = None,
    apart: bool = True,
) -> Comparison:
    """Compare a run with a base, each of one or more results of one or more experiments.

    `alpha` is the chance of one or more wrong verdicts among all rows, or those in `only`, and `least` the
    smallest difference that counts (0.02: 2 %). With `apart`, values that each process measures once count
    only if the processes took turns.
    """
    if not a or not b:
        raise JaxperfError("no result to compare on one side; give a result's JSON file or a folder of them")
    rows_a, rows_b = _medians(a, only), _medians(b, only)
    pairs = {key: (m, rows_b[key]) for key, m in rows_a.items() if key in rows_b}
    if not pairs:
        raise JaxperfError(f"no measurement is in both: A has {_few(rows_a)}, B has {_few(rows_b)}")
    names = dict.fromkeys(key.experiment for key in pairs)
    sides = [[[r for r in side if r.experiment == name] for name in names] for side in (a, b)]
    once = set[RowKey]()
    if apart and not _are_interleaved(a, b):
        once = pairs.keys() - measured_often([*a, *b])
    return Comparison(
        rows=tuple(_judge(pairs, alpha, least, once)),
        only_a=_only(rows_a, rows_b),
        only_b=_only(rows_b, rows_a),
        # Each experiment may have the same differences
        differences=tuple(dict.fromkeys(line for each in zip(*sides) for line in _differences(*each))),
        alpha=alpha,
        least=least,
        runs=tuple(min(map(len, side)) for side in sides),
    )


def measurements_by_key(result: Result) -> Rows:
    """Return the measurements by their keys; if several have the same name, the second is "name (2)"."""
    rows: Rows = {}
    part = ""
    for block in result.blocks:
        if isinstance(block, Heading):
            part = block.title
        elif isinstance(block, Table):
            for m in block.rows:
                key, i = RowKey(result.experiment, block.title or part, m.name), 2
                while key in rows:
                    key, i = key._replace(name=f"{m.name} ({i})"), i + 1
                rows[key] = m
    return rows


def measured_often(results: Sequence[Result]) -> set[RowKey]:
    return {key for r in results for key, m in measurements_by_key(r).items() if len(m.values) > 1}


def _medians(results: Sequence[Result], only: Set[RowKey] | None) -> Rows:
    """Return the measurements of one side, whose values are the medians of its results."""
    measurements = defaultdict[RowKey, list[Measurement]](list)
    for result in results:
        for key, m in measurements_by_key(result).items():
            if only is None or key in only:
                measurements[key].append(m)
    rows: Rows = {}
    for key, measured in measurements.items():
        if len({m.unit for m in measured}) > 1:
            raise JaxperfError(f"results of {key.experiment} on one side have different units; compare fewer")
        medians = tuple(m.median for m in measured)
        disturbed = sum(not m.trusted for m in measured)
        rows[key] = Measurement(key.name, measured[0].unit, medians, disturbed=disturbed)
    return rows


def _are_interleaved(a: Sequence[Result], b: Sequence[Result]) -> bool:
    """Return whether the processes of two sides took turns; True if their times are not known."""
    starts = sorted((r.started_at, side) for side, results in enumerate((a, b)) for r in results)
    changes = sum(before[1] != after[1] for before, after in itertools.pairwise(starts))
    return not all(start for start, _ in starts) or changes >= min(len(a), len(b))


def _only(rows: Rows, others: Rows) -> tuple[str, ...]:
    """Return what `others` lack: rows, or the names of whole experiments."""
    known = {key.experiment for key in others}
    missing = (key for key in rows if key not in others)
    return tuple(dict.fromkeys(str(k) if k.experiment in known else k.experiment for k in missing))


def _few(rows: Rows) -> str:
    names = ", ".join(repr(str(key)) for key in list(rows)[:3]) or "none"
    return names + (", ..." if len(rows) > 3 else "")


def _differences(a: Sequence[Result], b: Sequence[Result]) -> Iterator[str]:
    """Yield other differences between two runs of an experiment, by their first results, one per line."""
    for side, results in (("A", a), ("B", b)):
        if any(r.incomplete for r in results):
            yield f"{side} is incomplete: its run has not come to its end"
    yield from _difference("config", a[0].config, b[0].config)
    yield from _difference("", vars(a[0].environment), vars(b[0].environment))


def _difference(name: str, a: object, b: object) -> Iterator[str]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in dict.fromkeys([*a, *b]):
            yield from _difference(f"{name} {key}".strip(), a.get(key, "unset"), b.get(key, "unset"))
    elif a != b:
        yield f"{name}: {a} and {b}"


def _judge(
    pairs: Mapping[RowKey, tuple[Measurement, Measurement]], alpha: float, least: float, once: Set[RowKey]
) -> Iterator[Compared]:
    """Yield the verdict on each row; what each process measured `once`, and not in turns, shows none."""
    samples = {key: (x.values, y.values) for key, (x, y) in pairs.items() if not _excuse(x, y)}
    smallest = {key: ranks.smallest_p(len(x), len(y)) for key, (x, y) in samples.items()}
    decidable = ranks.decidable(smallest, alpha)
    adjusted = ranks.holm({k: ranks.p_value(*samples[k], least=least) for k in samples if k in decidable})
    room = 1 + max(WIDE, least)
    for key, (x, y) in pairs.items():
        ratio, low, high, p = math.nan, math.nan, math.nan, adjusted.get(key, math.nan)
        if key in samples:
            ratio = ranks.ratio(*samples[key])
            low, high = ranks.interval(*samples[key], alpha=alpha)
        verdict: Verdict = "same" if 1 / room <= low and high <= room else "undecided"
        remark = _excuse(x, y)
        if x.values == y.values:
            verdict, remark = "same", remark or IDENTICAL
        elif remark:
            verdict = "undecided"
        elif key not in decidable:
            verdict, remark = "undecided", f"{FEW}: {len(x.values)} and {len(y.values)}"
        elif p <= alpha:
            remark = _busy(x, y) or (ONCE if key in once else "")
            verdict = verdict if remark else _word(ratio, x.unit)
        yield Compared(key, x.unit, x.median, y.median, ratio, low, high, p, verdict, remark)


def _busy(x: Measurement, y: Measurement) -> str:
    """Return a remark if half or more of a side's processes shared their cores; "" if the medians decide."""
    worst = max(x, y, key=lambda m: m.disturbed / len(m.values))
    if worst.trusted:
        return ""
    return f"{NOISY}: other programs had the core in {worst.disturbed} of {len(worst.values)} processes"


def _excuse(x: Measurement, y: Measurement) -> str:
    """Return why two measurements have no ratio; "" if they have one."""
    if x.unit != y.unit:
        return f"units differ: {x.unit or 'none'} and {y.unit or 'none'}"
    low, high = min(*x.values, *y.values), max(*x.values, *y.values)
    if low <= 0:
        return "values of 0 or below have no ratio"
    return "" if low >= 1 / LARGEST and high <= LARGEST else f"values beyond {LARGEST:g} have no ratio"


def _word(ratio: float, unit: str) -> Verdict:
    if unit == "s":
        return "slower" if ratio > 1 else "faster"
    if unit.endswith("/s"):
        return "faster" if ratio > 1 else "slower"
    return "changed"


# --- as blocks, for a terminal or as Markdown


def comparison_blocks(comparison: Comparison) -> Iterator[Block]:
    for line in comparison.differences:
        yield Note(f"differs: {line}")
    heads = ("", "A", "B", "B / A", f"{(1 - comparison.alpha) * 100:g} % interval", "verdict")
    cells: list[tuple[str, ...]] = []
    for key, rows in itertools.groupby(comparison.rows, lambda row: row.key[:2]):
        # Rows stand below the title of their own table
        cells.append((": ".join(filter(None, key)), "", "", "", "", ""))
        cells += [(row.key.name, *row.cells) for row in rows]
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
