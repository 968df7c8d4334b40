"""What blocks are made of: measured values, curves over an axis, spans of time, published numbers.

Raw values are kept: medians and intervals are computed when needed. Standard library only.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Literal

NOISY_REL_IQR = 0.10  # torch.utils.benchmark warns at the same spread
RARE = 0.1  # of the values; a median hardly feels so few, and an idle machine's services disturb 3 %

Draw = Literal["line and points", "line", "points", "thin line", "hollow points"]


@dataclass(frozen=True)
class Measurement:
    """Raw values of one quantity, `values[i]` in `unit`; warm-up values are kept separately.

    Attributes:
      name: what was measured; the row's label, unique within its table.
      unit: "s", "bytes", "images/s", ... SI, unscaled.
      values: one per repetition, in the order taken; times are per call.
      warmup: values taken before the program was warm; never part of a statistic.
      loops: calls that each value is the mean of (1: every value is one call).
      items: work items per call (images, operations), for `items_per_s`; 0 if none were given.
      note: one remark that travels with the data, e.g. "devices are fake".
      rounds: the name of the set of interleaved rounds to which `values[i]` belongs as round i; "" for values
        that were not interleaved with any other. Only measurements from the same rounds have a `Ratio`.
      system: the framework that was measured ("jax", "mxnet", "torch"), if there are several.
      workload: the piece of work, the same word for all systems.
      configuration: how the system did it ("hybridize", "compiled").
      quantity: what was measured about the workload ("queued", "finished"), if there are several quantities.
      set_aside: further values, in which another program had the core; never part of a statistic.
      disturbed: in how many of `values` another program had the core too: too many to set aside, or few.
    """

    name: str
    unit: str
    values: tuple[float, ...]
    warmup: tuple[float, ...] = ()
    loops: int = 1
    items: float = 0
    note: str = ""
    rounds: str = ""
    system: str = ""
    workload: str = ""
    configuration: str = ""
    quantity: str = ""
    set_aside: tuple[float, ...] = ()
    disturbed: int = 0

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError(f"measurement {self.name!r} has no values")
        if not all(math.isfinite(v) for v in (*self.values, *self.warmup, *self.set_aside)):
            raise ValueError(f"measurement {self.name!r} holds a value that is not finite")

    @property
    def median(self) -> float:
        """Median of `values`, in `unit`."""
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Lower and upper quartile of `values`; of a single value, that value twice."""
        if len(self.values) < 2:
            return self.median, self.median
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return low, high

    @property
    def iqr(self) -> float:
        """Interquartile range of `values`, in `unit`; 0 for a single value."""
        low, high = self.quartiles
        return high - low

    @property
    def rel_iqr(self) -> float:
        """Interquartile range as a fraction of the median."""
        return self.iqr / abs(self.median) if self.median else 0.0

    @property
    def noise(self) -> str:
        """ "quiet", "noisy" (interquartile range over 10 % of the median) or "few" (under 4 values)."""
        if len(self.values) < 4:
            return "few"
        return "noisy" if self.rel_iqr > NOISY_REL_IQR else "quiet"

    @property
    def trusted(self) -> bool:
        """Return whether less than half of the values are disturbed; the median is then of the rest."""
        return 2 * self.disturbed < len(self.values)

    @property
    def disturbance(self) -> str:
        """Return in how many of all values another program had the core, in words; "" if that was rare."""
        disturbed, total = self.disturbed + len(self.set_aside), len(self.values) + len(self.set_aside)
        if disturbed <= RARE * total:
            return ""
        return f"another program had the core in {disturbed} of {total} values"

    @property
    def items_per_s(self) -> float | None:
        """Items per second at the median, for times with a number of items."""
        return self.items / self.median if self.unit == "s" and self.items and self.median else None


@dataclass(frozen=True)
class Reference:
    """A published figure, shown next to the measurement called `beside`, never mixed with it."""

    name: str
    value: float
    unit: str
    system: str
    source: str
    hardware: str = "unstated"
    beside: str = ""


@dataclass(frozen=True)
class Axis:
    """What an axis shows: `label` in words, and the unit of its values ("" for a plain number)."""

    label: str
    unit: str = ""


@dataclass(frozen=True)
class Curve:
    """A line of a figure: `y[i]` over `x[i]`; None in `y` is a missing point.

    Attributes:
      name: its label in the legend.
      x, y: the points.
      draw: how it looks; "hollow points" are published figures, "thin line" is one of several runs.
      color: curves with the same word share a color; "" gives the curve its own.
      dash: curves with the same word share a dash; "" is a solid line.
      system, workload, configuration, quantity: as for a `Measurement`.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    draw: Draw = "line and points"
    color: str = ""
    dash: str = ""
    system: str = ""
    workload: str = ""
    configuration: str = ""
    quantity: str = ""

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"curve {self.name!r} has {len(self.x)} x for {len(self.y)} y")


@dataclass(frozen=True)
class Span:
    """A stretch of time in which `lane` was busy with `name`, in seconds since the timeline began."""

    lane: str
    name: str
    start_s: float
    end_s: float

    def __post_init__(self) -> None:
        if not -math.inf < self.start_s <= self.end_s < math.inf:
            raise ValueError(f"span {self.name!r} runs from {self.start_s} to {self.end_s}")


@dataclass(frozen=True)
class Timeline:
    """What every lane did during one run of a program.

    Attributes:
      name: of the program that ran.
      spans: of all lanes; spans of one lane may overlap.
      wall_s: how long the run took by the process's own clock.
      traced_s: how long the same stretch took by the clock of the spans (0: the profiler saw nothing).
      trace: file with the raw trace ("" if it was not kept).
    """

    name: str
    spans: tuple[Span, ...]
    wall_s: float
    traced_s: float = 0.0
    trace: str = ""

    @property
    def lanes(self) -> tuple[str, ...]:
        """Names of the lanes, in the order in which they first appear."""
        return tuple(dict.fromkeys(span.lane for span in self.spans))

    def intervals(self, lane: str) -> list[tuple[float, float]]:
        """Start and end, in seconds, of every span of one lane."""
        return [(span.start_s, span.end_s) for span in self.spans if span.lane == lane]
