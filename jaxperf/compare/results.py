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

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from jaxperf.compare.rows import RowKey, Rows, differences, measured_often, pooled
from jaxperf.errors import JaxperfError
from jaxperf.result import Measurement, Result, ranks

Verdict = Literal["same", "faster", "slower", "not slower", "changed", "undecided"]
ALPHA = 0.05
LEAST = 0.02
LARGEST = 1e75  # values between its inverse and this have finite products of ratios
FEW, NOISY, IDENTICAL = "too few runs", "too noisy", "identical values"
ONCE = "measured once per process: take A and B in turns"
WIDE = 0.10  # if an interval extends further from 1, the verdict is not "same"


@dataclass(frozen=True)
class Compared:
    """One measurement of both runs.

    Attributes:
      key, unit: key and unit of the measurement.
      a, b: its medians, in `unit`.
      ratio: b as a multiple of a; NaN if there is none.
      low, high: the ratio's interval at level 1 - alpha, for this row alone; NaN for too few runs.
      p: p-value of the hypothesis of no difference beyond `least`, with Holm's correction.
      verdict: "same" if no difference beyond `least` is found and the interval excludes one beyond 10 %;
        "changed" for units that are neither times nor rates. A gate says "not slower" instead of "same".
      remark: why there is no verdict.
    """

    key: RowKey
    unit: str
    a: float
    b: float
    ratio: float
    low: float
    high: float
    p: float
    verdict: Verdict
    remark: str = ""

    @property
    def is_speed(self) -> bool:
        """Return whether it is a time or a rate, which may be slower."""
        return self.unit == "s" or self.unit.endswith("/s")

    @property
    def verdict_cells(self) -> tuple[str, str, str]:
        """Return the ratio, its interval and the verdict as a table shows them; "-" for none."""
        times = f"{self.ratio:.3f}" if math.isfinite(self.ratio) else "-"
        interval = f"{self.low:.3f} to {self.high:.3f}" if math.isfinite(self.low) else "-"
        return times, interval, f"{self.verdict} ({self.remark})" if self.remark else self.verdict


@dataclass(frozen=True)
class Comparison:
    """All rows, rows of one side only, other differences, and `runs`, the number of results per side."""

    rows: tuple[Compared, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    differences: tuple[str, ...]
    alpha: float
    least: float
    runs: tuple[int, int]

    @property
    def status(self) -> int:
        """Return the exit status: 1 if any row is slower, else 0."""
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
    """Compare two runs, each of one or more results of one or more experiments.

    Args:
      a: the base.
      b: the run that is judged.
      alpha: chance of one or more wrong verdicts among all rows.
      least: the smallest difference that counts, as a fraction: 0.02 is 2 %.
      only: the rows to compare; None for all.
      apart: whether values that each process measures once count only if the processes took turns.
    """
    if not a or not b:
        raise JaxperfError("no result to compare on one side; give a result's JSON file or a folder of them")
    groups = [
        {r.experiment: [s for s in side if s.experiment == r.experiment] for r in side} for side in (a, b)
    ]
    base_rows, other_rows = (
        {k: m for results in side.values() for k, m in pooled(results).items() if only is None or k in only}
        for side in groups
    )
    pairs = {key: (m, other_rows[key]) for key, m in base_rows.items() if key in other_rows}
    if not pairs:
        raise JaxperfError(f"no measurement is in both: A has {_few(base_rows)}, B has {_few(other_rows)}")
    both = [name for name in groups[0] if name in groups[1]]
    runs = [min(len(side[name]) for name in both) for side in groups]
    judged_apart = apart and not _are_interleaved(a, b)
    once = pairs.keys() - measured_often([*a, *b]) if judged_apart else set[RowKey]()
    return Comparison(
        rows=tuple(_judge(pairs, alpha, least, once)),
        only_a=_only(base_rows, other_rows),
        only_b=_only(other_rows, base_rows),
        differences=tuple(line for name in both for line in differences(*(side[name] for side in groups))),
        alpha=alpha,
        least=least,
        runs=(runs[0], runs[1]),
    )


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


def _judge(
    pairs: Mapping[RowKey, tuple[Measurement, Measurement]],
    alpha: float,
    least: float,
    once: Set[RowKey],
) -> list[Compared]:
    """Return the verdict on each row, from one value per process.

    A difference does not count in the rows `once`: each process measured them once, and not in turns.
    """
    samples = {key: (x.values, y.values) for key, (x, y) in pairs.items() if not _excuse(x, y)}
    smallest = {key: ranks.smallest_p(len(x), len(y)) for key, (x, y) in samples.items()}
    decidable = ranks.decidable(smallest, alpha)
    p_values = {key: ranks.p_value(*samples[key], least=least) for key in samples if key in decidable}
    adjusted = ranks.holm(p_values)
    room = 1 + max(WIDE, least)
    compared = []
    for key, (x, y) in pairs.items():
        ratio, low, high, p = math.nan, math.nan, math.nan, adjusted.get(key, math.nan)
        if key in samples:
            ratio = ranks.ratio(*samples[key])
            low, high = ranks.interval(*samples[key], alpha=alpha)
        without: Verdict = "same" if 1 / room <= low and high <= room else "undecided"
        verdict, remark = without, ""
        excuse = _excuse(x, y)
        if excuse:
            verdict, remark = "same" if x.values == y.values else "undecided", excuse
        elif x.values == y.values:
            verdict, remark = "same", IDENTICAL
        elif key not in decidable:
            verdict, remark = "undecided", f"{FEW}: {len(x.values)} and {len(y.values)}"
        elif p <= alpha:
            remark = _busy(x, y) or (ONCE if key in once else "")
            verdict = without if remark else _word(ratio, x.unit)
        compared.append(Compared(key, x.unit, x.median, y.median, ratio, low, high, p, verdict, remark))
    return compared


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
    """Return the verdict for a difference: less time is "faster", and so is a higher rate."""
    if unit == "s":
        return "slower" if ratio > 1 else "faster"
    if unit.endswith("/s"):
        return "faster" if ratio > 1 else "slower"
    return "changed"
