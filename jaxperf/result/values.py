"""The contents of blocks: measurements, time spans and published figures.

Raw values are kept; medians and intervals are computed when needed.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Basis = Literal["measured", "fitted", "predicted"]  # fitted: it agrees with the data that it was chosen from

LEVEL = 0.95  # of the intervals
NOISY = 0.10  # a median that may be off by more than this share of itself
RARE = 0.1  # share of values that hardly changes a median; services of an idle machine disturb 3 %


@dataclass(frozen=True)
class Measurement:
    """Raw values of one quantity, `values[i]` in `unit`; warm-up values are kept separately."""

    name: str  #: the row's label, unique within its table
    unit: str  #: "s", "bytes", "images/s", ...; SI, unscaled
    values: tuple[float, ...]  #: one per repetition, in their order; times are per call
    warmup: tuple[float, ...] = ()  #: values of the warm-up; no statistic uses them
    loops: int = 1  #: calls of which each value is the mean
    items: float = 0  #: work items per call (images, operations), for `items_per_s`; 0 if none were given
    note: str = ""  #: a remark on the data, such as "devices are fake"
    #: The name of the interleaved rounds, of which `values[i]` belongs to round i; "" for none. Only
    #: measurements from the same rounds have a `Ratio`.
    rounds: str = ""
    system: str = ""  #: the measured framework ("jax", "mxnet", "torch"), if there are several
    workload: str = ""  #: the work, by the same name for all systems
    configuration: str = ""  #: how the system did it ("hybridize", "compiled")
    quantity: str = ""  #: the measured quantity ("queued", "finished"), if there are several
    set_aside: tuple[float, ...] = ()  #: values while another program had the core; no statistic uses them
    disturbed: int = 0  #: how many of `values` were kept although another program had the core meanwhile
    basis: Basis = "measured"  #: or of a model: predicted, or fitted to such measurements

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError(f"measurement {self.name!r} has no values")
        if not all(math.isfinite(v) for v in (*self.values, *self.warmup, *self.set_aside)):
            raise ValueError(f"measurement {self.name!r} holds a value that is not finite")

    @property
    def median(self) -> float:
        """Return the median of `values`, in `unit`."""
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Return the lower and upper quartile of `values`; a single value is both."""
        if len(self.values) < 2:
            return self.median, self.median
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return low, high

    @property
    def iqr(self) -> float:
        """Return the interquartile range of `values`, in `unit`; 0 for a single value."""
        low, high = self.quartiles
        return high - low

    @property
    def rel_iqr(self) -> float:
        """Return the interquartile range as a fraction of the median."""
        return self.iqr / abs(self.median) if self.median else 0.0

    @property
    def off_by(self) -> float:
        """Return how far the median's 95 % interval reaches from it, as a fraction; NaN under 6 values."""
        low, high = interval(self.values)
        reach = max(self.median - low, high - self.median)
        if self.median == 0:
            return math.inf if reach > 0 else reach
        return reach / abs(self.median)

    @property
    def noise(self) -> str:
        """Return "few" (under 6 values, which have no interval), "noisy" (`off_by` over 10 %) or "quiet".

        How far single values lie apart does not decide: the median of many values that differ is well known.
        """
        if math.isnan(self.off_by):
            return "few"
        return "noisy" if self.off_by > NOISY else "quiet"

    @property
    def trusted(self) -> bool:
        """Return whether less than half of the values are disturbed."""
        return 2 * self.disturbed < len(self.values)

    @property
    def disturbance(self) -> str:
        """Return a phrase with the number of disturbed values; "" if they are rare."""
        disturbed, total = self.disturbed + len(self.set_aside), len(self.values) + len(self.set_aside)
        if disturbed <= RARE * total:
            return ""
        return f"another program had the core in {disturbed} of {total} values"

    @property
    def items_per_s(self) -> float | None:
        """Return items per second at the median; None for no items, or values other than times."""
        return self.items / self.median if self.unit == "s" and self.items and self.median else None


@dataclass(frozen=True)
class Reference:
    """A published figure for the measurement called `name`, of a system such as "MXNet"."""

    name: str
    value: float
    unit: str
    system: str
    source: str


@dataclass(frozen=True)
class Span:
    """An interval in which `lane` was busy with `name`, in seconds since the timeline began."""

    lane: str
    name: str
    start_s: float
    end_s: float

    def __post_init__(self) -> None:
        if not -math.inf < self.start_s <= self.end_s < math.inf:
            raise ValueError(f"span {self.name!r} runs from {self.start_s} to {self.end_s}")


@dataclass(frozen=True)
class Timeline:
    """What every lane did during one run of a program."""

    name: str  #: of the program that ran
    spans: tuple[Span, ...]  #: of all lanes; those of one lane may overlap
    wall_s: float  #: seconds of the run by the process's clock
    traced_s: float = 0.0  #: seconds of the run by the profiler's clock; 0 if the profiler saw nothing

    @property
    def lanes(self) -> tuple[str, ...]:
        """Return the names of the lanes, in the order in which they first appear."""
        return tuple(dict.fromkeys(span.lane for span in self.spans))

    def intervals(self, lane: str) -> list[tuple[float, float]]:
        """Return start and end, in seconds, of every span of one lane."""
        return [(span.start_s, span.end_s) for span in self.spans if span.lane == lane]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the true median of independent values; NaN for fewer than six.

    By the sign test, it is between two order statistics, whatever the distribution is.
    """
    from scipy.stats import quantile_test  # the import takes a third of a second

    bounds = quantile_test(list(values), q=0, p=0.5).confidence_interval(LEVEL)
    return float(bounds.low), float(bounds.high)
