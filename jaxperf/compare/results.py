"""Compare two runs: is anything faster or slower, beyond noise and beyond a minimum that matters?

Every row has two samples, the values of A and those of B, compared by ranks (see `ranks`). The test asks
whether B differs from A by more than `least`.

Successive values of one process are correlated when the machine is busy for a while, which a rank test does
not expect. So if there are many values, the medians of `ranks.BLOCKS` consecutive stretches are compared.

One wrong "slower" among many rows breaks a build, so the chance of any wrong verdict in the whole comparison
is at most `alpha`, by Holm's procedure, which allows any dependence between rows. Rows that can never be
significant because they have too few values are left out first (Tarone, 1990).

With several results per side, the values of a row are the medians of the processes:

- A difference counts only if, on each side, more than half of the processes had their cores for themselves in
  most of their values.
- A value that a process measures only once, such as a compile time, does not show that. So a difference in
  such values counts only if the processes of A and B took turns.

With one result per side, the verdict is about these two processes only. Two processes of the same program may
differ by more than their own spread, for example by their placement of memory and threads:

- A difference must exceed the interquartile range of the values or, if that is less, `DRIFT` times that of
  the stretches' medians. Noise from value to value hardly moves these medians, but a drift of the machine's
  speed does.
- Nothing is decided if the spread is above `TURBULENT`, if another program had the core in more than a tenth
  of the values, or if stretches of A and B overlap: a shared core may be slower for tenths of a second.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Literal

from jaxperf.compare import ranks
from jaxperf.compare.rows import RowKey, Rows, differences, measured_often, pooled
from jaxperf.errors import JaxperfError
from jaxperf.result import Measurement, Result

Verdict = Literal["same", "faster", "slower", "changed", "undecided"]
ALPHA = 0.05
LEAST = 0.02
DRIFT = 1.5  # 1.5 interquartile ranges of normal values are 2.02 standard deviations
TURBULENT = 0.5  # interquartile range over the median, beyond which the machine's speed has changed
LARGEST = 1e75  # values between its inverse and this have finite products of ratios
OVERLAP = "runs overlap: the machine's speed changed"
FEW, NOISY, IDENTICAL = "too few values", "too noisy", "identical values"
ONCE = "measured once per process: take A and B in turns"
WIDE = 0.10  # if an interval extends further from 1, the verdict is not "same"


@dataclass(frozen=True)
class Compared:
    """One measurement of both runs.

    Attributes:
      key, unit: key and unit of the measurement.
      a, b: its medians, in `unit`.
      ratio: b as a multiple of a; NaN if there is none.
      low, high: the ratio's interval at level 1 - alpha, for this row alone; NaN for too few values.
      p: p-value of the hypothesis of no difference beyond `least`, with Holm's correction.
      verdict: "same" if no difference beyond `least` is found and the interval excludes one beyond 10 %;
        "changed" for units that are neither times nor rates.
      remark: why there is no verdict, or "noisy".
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
    def ratio_cells(self) -> tuple[str, str]:
        """Return the ratio and its interval as a table shows them; "-" for none."""
        times = f"{self.ratio:.3f}" if math.isfinite(self.ratio) else "-"
        return times, f"{self.low:.3f} to {self.high:.3f}" if math.isfinite(self.low) else "-"


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

    Raises:
      JaxperfError: an option is out of range, no measurement is in both, or units differ within a side.
    """
    if not 0 < alpha < 1:
        raise JaxperfError(f"alpha is {alpha:g}; give a chance between 0 and 1, e.g. {ALPHA}")
    if not 0 <= least < 1:
        raise JaxperfError(f"least is {least:g}; give a fraction from 0 up to 1, e.g. {LEAST} for 2 %")
    if not a or not b:
        raise JaxperfError("no result to compare on one side; give a result's JSON file or a folder of them")
    groups = [
        {r.experiment: [s for s in side if s.experiment == r.experiment] for r in side} for side in (a, b)
    ]
    base_rows, other_rows = (
        {k: m for some in side.values() for k, m in pooled(some).items() if only is None or k in only}
        for side in groups
    )
    pairs = {key: (m, other_rows[key]) for key, m in base_rows.items() if key in other_rows}
    if not pairs:
        raise JaxperfError(f"no measurement is in both: A has {_few(base_rows)}, B has {_few(other_rows)}")
    both = [name for name in groups[0] if name in groups[1]]
    runs = [min(len(side[name]) for name in both) for side in groups]
    lone = {n for n in both if any(len(s[n]) == 1 for s in groups)}
    judged_apart = apart and not _are_interleaved(a, b)
    once = pairs.keys() - measured_often([*a, *b]) if judged_apart else set[RowKey]()
    return Comparison(
        rows=tuple(_judge(pairs, alpha, least, lone, once)),
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
    some = ", ".join(repr(str(key)) for key in list(rows)[:3]) or "none"
    return some + (", ..." if len(rows) > 3 else "")


def _judge(
    pairs: Mapping[RowKey, tuple[Measurement, Measurement]],
    alpha: float,
    least: float,
    lone: Set[str],
    once: Set[RowKey],
) -> list[Compared]:
    """Return the verdict on each row.

    Args:
      pairs: the measurements of both sides.
      alpha, least: as for `compare`.
      lone: experiments that have one process on a side.
      once: rows with one value per process, whose processes did not take turns.
    """
    samples = {
        key: (ranks.blocks(x.values), ranks.blocks(y.values))
        for key, (x, y) in pairs.items()
        if not _excuse(x, y) and not (key.experiment in lone and _too_noisy(x, y))
    }
    able = ranks.testable({key: ranks.smallest_p(*map(len, s)) for key, s in samples.items()}, alpha)
    p_values = {}
    for key in [key for key in samples if key in able]:
        swings = map(_swing, pairs[key], samples[key]) if key.experiment in lone else ()
        p_values[key] = ranks.p_value(*samples[key], least=max([least, *swings]))
    adjusted = ranks.holm(p_values)
    compared = []
    for key, (x, y) in pairs.items():
        ratio, (low, high), p = math.nan, (math.nan, math.nan), adjusted.get(key, math.nan)
        if key in samples:
            ratio, (low, high) = ranks.ratio(*samples[key]), ranks.interval(*samples[key], alpha=alpha)
        room = 1 + max(WIDE, least)
        near: Verdict = "same" if 1 / room <= low and high <= room else "undecided"
        differs = _word(ratio, x.unit) if p <= alpha else near
        verdict, remark = _verdict(x, y, near, differs, single=key.experiment in lone, able=key in able)
        if key in once and verdict == differs != near:
            verdict, remark = near, ONCE
        compared.append(Compared(key, x.unit, x.median, y.median, ratio, low, high, p, verdict, remark))
    return compared


def _verdict(
    x: Measurement, y: Measurement, near: Verdict, differs: Verdict, *, single: bool, able: bool
) -> tuple[Verdict, str]:
    """Return the verdict on a row and its remark.

    Args:
      x, y: the measurements.
      near: the verdict if no difference is shown.
      differs: the verdict of the test, which is `near` if it shows no difference.
      single: whether a side has one process.
      able: whether there are enough values for the test.
    """
    if excuse := _excuse(x, y):
        return "same" if x.values == y.values else "undecided", excuse
    if x.values == y.values:
        return "same", IDENTICAL
    if single and (noise := _too_noisy(x, y)):
        return "undecided", noise
    if not able:
        return "undecided", f"{FEW}: {len(x.values)} and {len(y.values)}"
    if differs != near:
        overlaps = single and ranks.overlap(x.values, y.values)
        if doubt := OVERLAP if overlaps else "" if single else _busy(x, y):
            return near, doubt
    return differs, "noisy" if "noisy" in (x.noise, y.noise) else ""


def _swing(m: Measurement, stretches: Sequence[float]) -> float:
    """Return by which fraction the machine may have moved the values of one process."""
    return min(m.rel_iqr, DRIFT * replace(m, values=tuple(stretches)).rel_iqr)


def _too_noisy(x: Measurement, y: Measurement) -> str:
    """Return why the values of one process per side decide nothing; "" if they may."""
    if (spread := max(x.rel_iqr, y.rel_iqr)) > TURBULENT:
        return f"{NOISY}: values spread by {spread:.0%}"
    disturbance = x.disturbance or y.disturbance
    return f"{NOISY}: {disturbance}" if disturbance else ""


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
