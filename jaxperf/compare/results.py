"""Two runs side by side: is anything faster or slower, beyond noise and beyond a minimum that matters?

Every row holds two samples, the values of A and those of B, compared by ranks (`ranks` says why). The test
asks whether B differs from A by more than `least`, not whether it differs at all.

When the machine is busy for a while, successive values of one process resemble each other, and a rank test
would take that for certainty. If there are many values, the medians of `ranks.BLOCKS` stretches are compared
instead.

One wrong "slower" among many rows breaks a build, so the chance of any wrong verdict in the whole comparison
stays under `alpha`. This is Holm's procedure, which holds however the rows depend on each other (they ran on
one machine); Benjamini and Hochberg's would bound only a share. Rows with so few values that they could never
pass are set aside first, by their numbers alone (Tarone, 1990), and cost the others nothing.

With one result per side, the chance applies to these two processes. Two processes of the same program may
differ by more than their own spread (how memory and threads happened to be placed, what else ran), which
only several results per side can show: then the values of a row are the medians of the processes. A single
process shows how much the machine fluctuates, and is itself subject to that. So a difference must exceed the
interquartile range of its values or, where that is less, `DRIFT` times that of its stretches' medians: noise
from value to value hardly moves these, but a machine whose speed drifts does. For a spread above `TURBULENT`
nothing is decided, nor where another program had the core in more than a tenth of the values: who competes
changes from run to run. With several results per side, a difference needs half of the processes of each side
to have had their cores for themselves in most of their values. Of one process, nothing is decided where the
stretches of both runs overlap. On a host whose neighbors come and go, a core is 1.5 times as slow for tenths
of a second, and one stretch in the other state shows that: 20 of 265 pairs of equal runs were called
different there before stretches had to be apart, 9 since.
"""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from rich.console import Console
from rich.table import Table as Shown

from jaxperf.compare import ranks
from jaxperf.errors import JaxperfError
from jaxperf.report.formatting import format_quantity
from jaxperf.report.terminal import literal_text
from jaxperf.result import Heading, Measurement, Result, Table

Verdict = Literal["same", "faster", "slower", "changed", "undecided"]
ALPHA = 0.05
LEAST = 0.02
DRIFT = 1.5  # 1.5 interquartile ranges of normal values are 2.02 standard deviations
TURBULENT = 0.5  # values that spread by more than half of their median are from several states of the machine
LARGEST = 1e75  # quantities are between its inverse and this, so that products of ratios stay finite floats
OVERLAP = "runs overlap: the machine's speed changed"
FEW, NOISY, IDENTICAL = "too few values", "too noisy", "identical values"
WIDE = 0.10  # if an interval extends further from 1, we cannot say "same"
STYLES = {"slower": "red", "faster": "green", "same": "", "changed": "yellow", "undecided": "dim"}


class RowKey(NamedTuple):
    """What identifies a row in both runs: an experiment, a table's title (or its part), and a row's name."""

    experiment: str
    title: str
    name: str

    def __str__(self) -> str:
        return ": ".join(filter(None, self))


Rows = dict[RowKey, Measurement]


@dataclass(frozen=True)
class Compared:
    """One measurement of both runs.

    Attributes:
      key, unit: of the measurement.
      a, b: its medians, in `unit`.
      ratio: b as a multiple of a; NaN if there is none.
      low, high: the ratio's interval at level 1 - alpha, for this row alone; NaN for too few values.
      p: chance of so large a difference if there were none beyond `least`, with Holm's correction.
      verdict: "same" means that no difference beyond `least` is shown and the interval excludes one beyond
        10 %; "undecided" means that too little is known to decide; "changed" is for units without a faster
        or slower direction.
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


@dataclass(frozen=True)
class Comparison:
    """All rows, what only one side has, and what else differs between the runs; `runs` counts per side."""

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


def compare(
    a: Sequence[Result], b: Sequence[Result], *, alpha: float = ALPHA, least: float = LEAST
) -> Comparison:
    """Compare two runs, each one or more results of one or more experiments; `b` is judged against `a`.

    Args:
      a: the base.
      b: the other.
      alpha: chance of one or more wrong verdicts among all rows.
      least: the smallest difference that counts, as a fraction: 0.02 is 2 %.

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
        {k: m for some in side.values() for k, m in _pooled(some).items()} for side in groups
    )
    pairs = {key: (m, other_rows[key]) for key, m in base_rows.items() if key in other_rows}
    if not pairs:
        raise JaxperfError(f"no measurement is in both: A has {_few(base_rows)}, B has {_few(other_rows)}")
    both = [name for name in groups[0] if name in groups[1]]
    runs = [min(len(side[name]) for name in both) for side in groups]
    return Comparison(
        rows=tuple(_judge(pairs, alpha, least, {n for n in both if any(len(s[n]) == 1 for s in groups)})),
        only_a=_only(base_rows, other_rows),
        only_b=_only(other_rows, base_rows),
        differences=tuple(line for name in both for line in _differences(*(side[name] for side in groups))),
        alpha=alpha,
        least=least,
        runs=(runs[0], runs[1]),
    )


def _pooled(results: Sequence[Result]) -> Rows:
    """The measurements of one experiment; for several results, the values are the medians of the processes.

    Raises:
      JaxperfError: a measurement's unit differs between the results.
    """
    if len(results) == 1:
        return measurements_by_key(results[0])
    measurements: dict[RowKey, list[Measurement]] = {}
    for result in results:
        for key, m in measurements_by_key(result).items():
            measurements.setdefault(key, []).append(m)
    for key, some in measurements.items():
        if len({m.unit for m in some}) > 1:
            raise JaxperfError(f"results of {key.experiment} on one side have different units; compare fewer")
    return {
        k: Measurement(
            k.name, some[0].unit, tuple(m.median for m in some), disturbed=sum(not m.trusted for m in some)
        )
        for k, some in measurements.items()
    }


def measurements_by_key(result: Result) -> Rows:
    """Return the measurements by their keys; if several have the same name, the second is "name (2)"."""
    rows: Rows = {}
    part = ""
    for block in result.blocks:
        if isinstance(block, Heading):
            part = block.title
        if not isinstance(block, Table):
            continue
        for m in block.rows:
            key, i = RowKey(result.experiment, block.title or part, m.name), 2
            while key in rows:
                key, i = key._replace(name=f"{m.name} ({i})"), i + 1
            rows[key] = m
    return rows


def _only(rows: Rows, others: Rows) -> tuple[str, ...]:
    """What the others lack: rows, or the name of an experiment that they do not have at all."""
    known = {key.experiment for key in others}
    missing = (key for key in rows if key not in others)
    return tuple(dict.fromkeys(str(k) if k.experiment in known else k.experiment for k in missing))


def _few(rows: Rows) -> str:
    some = ", ".join(repr(str(key)) for key in list(rows)[:3]) or "none"
    return some + (", ..." if len(rows) > 3 else "")


def _judge(
    pairs: Mapping[RowKey, tuple[Measurement, Measurement]], alpha: float, least: float, lone: Set[str]
) -> list[Compared]:
    """Give each row its verdict; experiments in `lone` have one process on a side."""
    samples = {
        key: (ranks.blocks(x.values), ranks.blocks(y.values))
        for key, (x, y) in pairs.items()
        if not _excuse(x, y) and not (key.experiment in lone and _too_noisy(x, y))
    }
    margin = {
        key: max(least, *map(_swing, pairs[key], sample)) if key.experiment in lone else least
        for key, sample in samples.items()
    }
    able = ranks.testable({key: ranks.smallest_p(*map(len, s)) for key, s in samples.items()}, alpha)
    adjusted = ranks.holm(
        {key: ranks.p_value(*samples[key], least=margin[key]) for key in samples if key in able}
    )
    compared = []
    for key, (x, y) in pairs.items():
        sample = samples.get(key)
        ratio = ranks.ratio(*sample) if sample else math.nan
        low, high = ranks.interval(*sample, alpha=alpha) if sample else (math.nan, math.nan)
        p = adjusted.get(key, math.nan)
        room = 1 + max(WIDE, least)
        verdict: Verdict = "same" if 1 / room <= low and high <= room and key in able else "undecided"
        differs, noisy = p <= alpha, "noisy" if "noisy" in (x.noise, y.noise) else ""
        if differs and key.experiment in lone and ranks.overlap(x.values, y.values):
            differs, noisy = False, OVERLAP
        if differs and (busy := "" if key.experiment in lone else _busy(x, y)):
            differs, noisy = False, busy
        if differs:
            verdict = _word(ratio, x.unit)
        few = "" if key in able else f"{FEW}: {len(x.values)} and {len(y.values)}"
        if key.experiment in lone:
            few = _too_noisy(x, y) or few
        if x.values == y.values:
            verdict, few, noisy = "same", "", IDENTICAL
        remark = _excuse(x, y) or few or noisy
        compared.append(Compared(key, x.unit, x.median, y.median, ratio, low, high, p, verdict, remark))
    return compared


def _swing(m: Measurement, stretches: Sequence[float]) -> float:
    """How far the machine may have moved the values of one process, as a fraction."""
    return min(m.rel_iqr, DRIFT * replace(m, values=tuple(stretches)).rel_iqr)


def _too_noisy(x: Measurement, y: Measurement) -> str:
    """Why the values of one process per side say nothing about the program; "" if they may."""
    if (spread := max(x.rel_iqr, y.rel_iqr)) > TURBULENT:
        return f"{NOISY}: values spread by {spread:.0%}"
    disturbance = x.disturbance or y.disturbance
    return f"{NOISY}: {disturbance}" if disturbance else ""


def _busy(x: Measurement, y: Measurement) -> str:
    """Why the medians of several processes show no difference: most processes of a side shared their core.

    How much other programs take differs from hour to hour, so it may be all that differs between the sides.
    """
    worst = max(x, y, key=lambda m: m.disturbed / len(m.values))
    if worst.trusted:
        return ""
    return f"{NOISY}: other programs had the core in {worst.disturbed} of {len(worst.values)} processes"


def _excuse(x: Measurement, y: Measurement) -> str:
    """Why two measurements have no ratio; "" if they have one."""
    if x.unit != y.unit:
        return f"units differ: {x.unit or 'none'} and {y.unit or 'none'}"
    low, high = min(*x.values, *y.values), max(*x.values, *y.values)
    if low <= 0:
        return "values of 0 or below have no ratio"
    return "" if low >= 1 / LARGEST and high <= LARGEST else f"values beyond {LARGEST:g} have no ratio"


def _word(ratio: float, unit: str) -> Verdict:
    """The word for a difference: less time is "faster", and so are more things per second."""
    if unit == "s":
        return "slower" if ratio > 1 else "faster"
    if unit.endswith("/s"):
        return "faster" if ratio > 1 else "slower"
    return "changed"


def _differences(a: Sequence[Result], b: Sequence[Result]) -> list[str]:
    """What else differs between two runs of an experiment, one line each, by the first result per side."""
    lines = []
    if (smoke := any(r.smoke for r in a)) != any(r.smoke for r in b):
        lines.append(f"only {'A' if smoke else 'B'} is a smoke run, whose toy sizes take other times")
    for side, some in (("A", a), ("B", b)):
        if any(r.incomplete for r in some):
            lines.append(f"{side} is incomplete: its run has not come to its end")
    for name, x, y in (
        ("config", a[0].config, b[0].config),
        ("", vars(a[0].environment), vars(b[0].environment)),
    ):
        lines += _difference(name, x, y)
    return lines


def _difference(name: str, a: object, b: object) -> list[str]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        pairs = ((k, a.get(k, "unset"), b.get(k, "unset")) for k in dict.fromkeys([*a, *b]))
        return [line for k, x, y in pairs for line in _difference(f"{name} {k}".strip(), x, y)]
    return [f"{name}: {a} and {b}"] if a != b else []


def render_comparison(comparison: Comparison, *, color: bool = False, width: int = 100) -> str:
    """Return a comparison as text: differences, rows, what is missing, and how it was judged."""
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, force_terminal=color, no_color=not color)
    for line in dict.fromkeys(comparison.differences):  # experiments of one run differ in the same
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
    """A row per measurement, below the title of its table."""
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
        span = f"{row.low:.3f} to {row.high:.3f}" if math.isfinite(row.low) else "-"
        times = f"{row.ratio:.3f}" if math.isfinite(row.ratio) else "-"
        cells = row.key.name, format_quantity(row.a, row.unit), format_quantity(row.b, row.unit), times, span
        shown.add_row(*map(literal_text, cells), literal_text(verdict, style=STYLES[row.verdict]))
    return shown


def what_would_decide(comparison: Comparison) -> list[str]:
    """Return why rows are undecided, a line per reason, and how many runs would decide; [] if none is."""
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
    """What the verdicts mean, and what they do not decide."""
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
