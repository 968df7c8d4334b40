"""The same work on several systems: measurements named `system/workload/configuration`.

"torch/8.1 MLP/compile" is PyTorch's compiled run of the workload "8.1 MLP"; a workload that begins with a
section's number or name is shown with that section too. `values[i]` of all its measurements are of round i.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jaxperf.measure.record import Measurement, Result, Series
from jaxperf.report import axes, plots, stacks
from jaxperf.report.curves import by, points
from jaxperf.report.plots import Curve, Picture
from jaxperf.report.rows import Group, row

COLORS = {"jax": 0, "mxnet": 1, "torch": 2}
LEVEL = 0.95


@dataclass(frozen=True)
class Run:
    """One system's run of a workload in one configuration ("" where it has only one)."""

    system: str
    workload: str
    configuration: str
    measured: Measurement

    @property
    def label(self) -> str:
        """What its row is called."""
        return f"{self.system}, {self.configuration}" if self.configuration else self.system


def runs(result: Result) -> dict[str, list[Run]]:
    """Every workload and unit with its runs, named "workload" (or "workload, unit" where it has several)."""
    found: dict[tuple[str, str], list[Run]] = {}
    for m in result.measurements:
        system, _, rest = m.name.partition("/")
        workload, _, configuration = rest.partition("/")
        if workload:
            found.setdefault((workload, m.unit), []).append(Run(system, workload, configuration, m))
    units = [workload for workload, _ in found]
    return {w if units.count(w) == 1 else f"{w}, {unit}": r for (w, unit), r in found.items()}


def belongs_to(workload: str, section: Result) -> bool:
    """Whether a workload is one of this section's."""
    words = [w for w in (section.section, section.experiment) if w]
    return any(workload == w or workload.startswith((f"{w} ", f"{w},", f"{w}:")) for w in words)


def best(some: Sequence[Run]) -> Run:
    """The quickest: the largest rate or the smallest of anything else."""
    rate = some[0].measured.unit.endswith("/s")
    return (max if rate else min)(some, key=lambda r: r.measured.median)


def group(title: str, some: Sequence[Run], result: Result) -> Group:
    """A workload's rows, each as a multiple of JAX's best round by round; the best of each system says so."""
    ours = [r for r in some if r.system == "jax"]
    base = best(ours) if ours else None
    winners = {id(best([r for r in some if r.system == s])) for s in {r.system for r in some}}
    rows = []
    for run in some:
        shown = row(run.measured, result)
        alone = sum(r.system == run.system for r in some) == 1
        note = "" if alone or id(run) not in winners else f"best of {run.system}"
        note = ", ".join(filter(None, [note, run.measured.note]))
        times = _multiple(run.measured, base.measured) if base else ""
        rows.append(replace(shown, name=run.label, of_base=times, note=note))
    return Group(title, base.label if base else "", tuple(rows))


def picture(title: str, some: Sequence[Run], result: Result) -> Picture:
    """Bars with intervals, a colour for each system; published figures in their rows."""
    order = sorted(some, key=lambda r: list(COLORS).index(r.system) if r.system in COLORS else 9)
    colors = [COLORS.get(r.system, 3) for r in order]
    caption = "Median and inter-quartile range."
    labels = [r.label for r in order]
    measured = [r.measured for r in order]
    return plots.bars(title, caption, measured, references=result.references, colors=colors, labels=labels)


def curves(result: Result) -> Iterator[Picture]:
    """Series named as measurements are: a picture a workload, a colour a system, a dash a configuration."""

    def of(s: Series) -> tuple[str, str, str]:
        return s.name.partition("/")[2].partition("/")[0], s.x_unit, s.y_unit

    for (workload, x_unit, y_unit), family in by((s for s in result.series if points(s)), of):
        drawn: list[Curve] = []
        for system, own in by(family, lambda s: s.name.partition("/")[0]):
            color = COLORS.get(system, 3)
            for i, s in enumerate(own):
                label = ", ".join(filter(None, [system, s.name.partition("/")[2].partition("/")[2]]))
                drawn.append(Curve(label, s.x, s.y, color, i))
        if len(family) > 2 and max(len(s.x) for s in family) > stacks.DENSE:
            yield stacks.panels(workload, "", family)
            continue
        title = f"{workload}: {y_unit} over {x_unit}" if y_unit not in axes.SCALED else workload
        yield plots.lines(title, "", drawn, x_unit=x_unit, y_unit=y_unit)


def _multiple(m: Measurement, base: Measurement) -> str:
    """Median of the rounds' ratios and its interval: "1.52x (1.49 to 1.55)"."""
    if m is base:
        return "1x"
    if len(m.values) != len(base.values) or not all(base.values):
        return f"{m.median / base.median:.3g}x" if base.median else ""
    ratios = sorted(a / b for a, b in zip(m.values, base.values))
    middle = Measurement("ratio", "", tuple(ratios)).median
    low, high = median_interval(ratios)
    return f"{middle:.3g}x" + (f" ({low:.3g} to {high:.3g})" if math.isfinite(high - low) else "")


def median_interval(values: Sequence[float], *, level: float = LEVEL) -> tuple[float, float]:
    """Where the median lies, by the sign test; NaN for too few values."""
    from scipy.stats import quantile_test

    interval = quantile_test(list(values), q=0, p=0.5).confidence_interval(level)
    return float(interval.low), float(interval.high)
