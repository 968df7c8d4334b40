"""Two results side by side: is anything faster or slower, beyond noise and beyond a minimum that matters?

Every row holds two samples, the values of A and those of B, compared by ranks (`ranks` says why). The test
asks whether B differs from A by more than `least`, not by anything at all.

Values of one process follow each other closely when the machine is busy for a while, and a rank test would
take that for certainty. Where there are many, the medians of `ranks.BLOCKS` stretches are compared instead.

One wrong "slower" among many rows breaks a build, so it is the chance of any wrong verdict in the whole
comparison that stays under `alpha`: Holm's procedure, which holds whatever the rows have in common (they ran
on one machine), where Benjamini and Hochberg's would bound only a share. Rows with so few values that they
could never pass are set aside first, by their numbers alone (Tarone, 1990), and cost the others nothing.

With one result a side the chance is that of these two processes. Two processes of the same program may differ
by more than their own spread (how memory and threads happened to lie, what else ran), which only several
results a side can tell: then the values of a row are the medians of the processes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from jaxperf.errors import JaxperfError
from jaxperf.measure.record import Measurement, Result
from jaxperf.report import ranks

Side = Result | Sequence[Result]
Verdict = Literal["same", "faster", "slower", "changed", "undecided"]
ALPHA = 0.05
LEAST = 0.02
WIDE = 0.10  # an interval that leaves 1 by more does not let us say "same"


@dataclass(frozen=True)
class Compared:
    """One measurement of both results.

    Attributes:
      name, unit: of the measurement.
      a, b: its medians, in `unit`.
      ratio: b as a multiple of a; NaN where there is none.
      low, high: the ratio's interval at level 1 - alpha, for this row alone; NaN for too few values.
      p: chance of so large a difference if there were none beyond `least`, Holm's correction in it.
      verdict: "same" means that no difference beyond `least` is shown and the interval leaves no room for
        one beyond 10 %; "undecided" that too little is known for any of these; "changed" is for units that
        know neither faster nor slower.
      remark: why there is no verdict, or "noisy".
    """

    name: str
    unit: str
    a: float
    b: float
    ratio: float
    low: float
    high: float
    p: float
    verdict: Verdict
    remark: str = ""


@dataclass(frozen=True)
class Comparison:
    """All rows, what only one side has, and what else differs between the two runs."""

    rows: tuple[Compared, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    differences: tuple[str, ...]
    alpha: float
    least: float
    runs: tuple[int, int]

    @property
    def status(self) -> int:
        """Exit status for a build: 1 if any row is slower, else 0."""
        return int(any(row.verdict == "slower" for row in self.rows))


def compare(a: Side, b: Side, *, alpha: float = ALPHA, least: float = LEAST) -> Comparison:
    """Compare two results by the names of their measurements; `b` is judged against `a`.

    Args:
      a: the base, a result or several of the same experiment.
      b: the other, likewise.
      alpha: chance of one or more wrong verdicts among all rows.
      least: the smallest difference that counts, as a fraction: 0.02 is 2 %.

    Raises:
      JaxperfError: an option is out of range, no measurement is in both, or a side mixes experiments.
    """
    sides = [[side] if isinstance(side, Result) else list(side) for side in (a, b)]
    a, b = map(pooled, sides)
    if not 0 < alpha < 1:
        raise JaxperfError(f"--alpha is {alpha:g}; give a chance between 0 and 1, e.g. {ALPHA}")
    if not 0 <= least < 1:
        raise JaxperfError(f"--least is {least:g}; give a fraction from 0 up to 1, e.g. {LEAST} for 2 %")
    ours, theirs = _named(a), _named(b)
    pairs = [(m, theirs[name]) for name, m in ours.items() if name in theirs]
    if not pairs:
        raise JaxperfError(
            f"no measurement is in both: {a.experiment} has {_few(ours)}, {b.experiment} has {_few(theirs)}"
        )
    return Comparison(
        rows=tuple(_judge(pairs, alpha, least)),
        only_a=tuple(name for name in ours if name not in theirs),
        only_b=tuple(name for name in theirs if name not in ours),
        differences=tuple(differences(a, b)),
        alpha=alpha,
        least=least,
        runs=(len(sides[0]), len(sides[1])),
    )


def pooled(results: Sequence[Result]) -> Result:
    """Several results of one experiment as one, whose values are the medians of the processes.

    Raises:
      JaxperfError: none, results of different experiments, or a measurement whose unit differs.
    """
    if not results:
        raise JaxperfError("no result to compare on one side; give a result's JSON file or a folder of them")
    first = results[0]
    if len(results) == 1:
        return first
    if len(names := dict.fromkeys(r.experiment for r in results)) > 1:
        raise JaxperfError(f"results of {', '.join(names)} on one side; compare one experiment at a time")
    found: dict[tuple[str, str], list[float]] = {}
    for m in (m for r in results for m in _named(r).values()):
        found.setdefault((m.name, m.unit), []).append(m.median)
    if len({name for name, _ in found}) < len(found):
        raise JaxperfError(f"results of {first.experiment} on one side have different units; compare fewer")
    measurements = tuple(Measurement(name, unit, tuple(v)) for (name, unit), v in found.items())
    return dataclasses.replace(first, measurements=measurements, smoke=any(r.smoke for r in results))


def _named(result: Result) -> dict[str, Measurement]:
    """Measurements by name; where several have the same, the second is called "name (2)"."""
    found: dict[str, Measurement] = {}
    for m in result.measurements:
        name, i = m.name, 2
        while name in found:
            name, i = f"{m.name} ({i})", i + 1
        found[name] = dataclasses.replace(m, name=name)
    return found


def _few(names: dict[str, Measurement]) -> str:
    some = ", ".join(repr(name) for name in list(names)[:3]) or "none"
    return some + (", ..." if len(names) > 3 else "")


def _judge(pairs: Sequence[tuple[Measurement, Measurement]], alpha: float, least: float) -> list[Compared]:
    samples = [None if _excuse(x, y) else (ranks.blocks(x.values), ranks.blocks(y.values)) for x, y in pairs]
    smallest = {i: ranks.smallest_p(len(s[0]), len(s[1])) for i, s in enumerate(samples) if s}
    able = ranks.testable(smallest, alpha)
    chances = {i: ranks.p_value(*s, least=least) for i, s in enumerate(samples) if s and i in able}
    adjusted = ranks.holm(chances)
    found = []
    for i, ((x, y), sample) in enumerate(zip(pairs, samples)):
        ratio = ranks.ratio(*sample) if sample else math.nan
        low, high = ranks.interval(*sample, alpha=alpha) if sample else (math.nan, math.nan)
        p = adjusted.get(i, math.nan)
        room = 1 + max(WIDE, least)
        verdict: Verdict = "same" if 1 / room <= low and high <= room and i in able else "undecided"
        if p <= alpha:
            verdict = _word(ratio, x.unit)
        few = "" if i in able else f"too few values: {len(x.values)} and {len(y.values)}"
        noisy = "noisy" if "noisy" in (x.noise, y.noise) else ""
        remark = _excuse(x, y) or few or noisy
        found.append(Compared(x.name, x.unit, x.median, y.median, ratio, low, high, p, verdict, remark))
    return found


def _excuse(x: Measurement, y: Measurement) -> str:
    """Why two measurements have no ratio; "" where they have."""
    if x.unit != y.unit:
        return f"units differ: {x.unit or 'none'} and {y.unit or 'none'}"
    if min(*x.values, *y.values) <= 0:
        return "values of 0 or below have no ratio"
    return ""


def _word(ratio: float, unit: str) -> Verdict:
    """What a shown difference is called: less time is faster, so are more things per second."""
    if unit == "s":
        return "slower" if ratio > 1 else "faster"
    if unit.endswith("/s"):
        return "faster" if ratio > 1 else "slower"
    return "changed"


def differences(a: Result, b: Result) -> list[str]:
    """What else differs between two runs, a line each: what ran, on which machine, with which software."""
    lines = []
    if a.smoke != b.smoke:
        lines.append(f"only {'A' if a.smoke else 'B'} is a smoke run, whose toy sizes take other times")
    for name in ("experiment", "config"):
        lines += _difference(name, getattr(a, name), getattr(b, name))
    for name in a.environment.__dataclass_fields__:
        lines += _difference(name, getattr(a.environment, name), getattr(b.environment, name))
    return lines


def _difference(name: str, a: object, b: object) -> list[str]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        pairs = ((k, a.get(k, "unset"), b.get(k, "unset")) for k in dict.fromkeys([*a, *b]))
        return [line for k, x, y in pairs for line in _difference(f"{name} {k}", x, y)]
    return [f"{name}: {a} and {b}"] if a != b else []
