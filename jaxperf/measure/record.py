"""The one kind of result: measured values, claims and published figures; frozen dataclasses, JSON in and out.

Everything that measures returns a `Result`; everything that shows reads one. Raw values are kept: medians and
verdicts are properties, computed when somebody looks. Standard library only, so that renderers and the
runners of other frameworks can use it in environments without JAX.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA_VERSION = 2  # 2: timelines
NOISY_REL_IQR = 0.10  # torch.utils.benchmark warns at the same spread

Scalar = float | int | str | bool | None


@dataclass(frozen=True)
class Measurement:
    """Raw values of one quantity, `values[i]` in `unit`, warm-up values apart.

    Attributes:
      name: what was measured, e.g. "hybridize" or "jax/pmap".
      unit: "s", "bytes", "images/s", ... SI, unscaled.
      values: one per repetition, in the order taken; a timing is per call.
      warmup: values taken before the program was warm; never part of a statistic.
      loops: calls that each value is the mean of (1: every value is one call).
      items: work items per call (images, operations), for `items_per_s`; 0 where none were named.
      note: one remark that travels with the data, e.g. "devices are fake".
      group: the part of the story it belongs to; a table shows one group's rows together.
      base: name of the measurement of the same result that it is shown as a multiple of ("": none).
    """

    name: str
    unit: str
    values: tuple[float, ...]
    warmup: tuple[float, ...] = ()
    loops: int = 1
    items: float = 0
    note: str = ""
    group: str = ""
    base: str = ""

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError(f"measurement {self.name!r} has no values")
        if not all(math.isfinite(v) for v in (*self.values, *self.warmup)):
            raise ValueError(f"measurement {self.name!r} holds a value that is not finite")

    @property
    def median(self) -> float:
        """Median of `values`, in `unit`."""
        return statistics.median(self.values)

    @property
    def iqr(self) -> float:
        """Inter-quartile range of `values`, in `unit`; 0 for a single value."""
        if len(self.values) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return high - low

    @property
    def rel_iqr(self) -> float:
        """Inter-quartile range as a fraction of the median."""
        return self.iqr / abs(self.median) if self.median else 0.0

    @property
    def noise(self) -> str:
        """ "quiet", "noisy" (inter-quartile range over 10 % of the median) or "few" (under 4 values)."""
        if len(self.values) < 4:
            return "few"
        return "noisy" if self.rel_iqr > NOISY_REL_IQR else "quiet"

    @property
    def items_per_s(self) -> float | None:
        """Items per second at the median, for timings that name their items."""
        return self.items / self.median if self.unit == "s" and self.items and self.median else None


@dataclass(frozen=True)
class Series:
    """A curve: `y[i]` in `y_unit` over `x[i]` in `x_unit`; None in `y` is a point that could not be had."""

    name: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    x_unit: str
    y_unit: str

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"series {self.name!r} has {len(self.x)} x for {len(self.y)} y")


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
      trace: file with the raw trace ("" when it was not kept).
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


@dataclass(frozen=True)
class Claim:
    """A sentence of the chapter, what was predicted, what was observed and whether it held here.

    `held` is None where this machine cannot decide it (`observed` then says why).
    """

    statement: str
    predicted: str
    observed: str
    held: bool | None
    source: str = ""


@dataclass(frozen=True)
class Reference:
    """A published figure, shown beside the measurement named in `beside`, never mixed with it."""

    name: str
    value: float
    unit: str
    system: str
    source: str
    hardware: str = "unstated"
    beside: str = ""


@dataclass(frozen=True)
class Environment:
    """Where a result came from: enough to repeat it, or to say why it can't be compared.

    Attributes:
      python, platform, cpu: interpreter, operating system, processor model.
      versions: package name to version (jax, jaxlib, flax, ...).
      backend: "cpu", "gpu", ...
      devices: one description a device, in the order of `jax.devices()`.
      devices_are_fake: several CPU devices that share one host's cores.
      cores, threads: processors this process may use; threads its libraries were told to use (0: unset).
      memory_bytes: memory of the machine.
      flags: environment variables and JAX settings that change speed, as set.
      data_source: where the images came from ("" when none were read).
      commit: revision of the code, with "+dirty" when changed since ("" outside a checkout).
    """

    python: str = ""
    platform: str = ""
    cpu: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    backend: str = ""
    devices: tuple[str, ...] = ()
    devices_are_fake: bool = False
    cores: int = 0
    threads: int = 0
    memory_bytes: int = 0
    flags: Mapping[str, str] = field(default_factory=dict)
    data_source: str = ""
    commit: str = ""


@dataclass(frozen=True)
class Result:
    """All that one experiment found. `facts` are named scalars; `config` is the experiment's own settings."""

    experiment: str
    section: str
    title: str
    question: str
    config: Mapping[str, Any]
    environment: Environment
    measurements: tuple[Measurement, ...] = ()
    series: tuple[Series, ...] = ()
    timelines: tuple[Timeline, ...] = ()
    facts: Mapping[str, Scalar] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    references: tuple[Reference, ...] = ()
    notes: tuple[str, ...] = ()
    command: str = ""
    smoke: bool = False
    started_at: str = ""
    wall_s: float = 0.0
    schema_version: int = SCHEMA_VERSION

    def measurement(self, name: str) -> Measurement:
        """The measurement called `name`; KeyError that lists the names there are."""
        for m in self.measurements:
            if m.name == name:
                return m
        raise KeyError(f"no measurement {name!r}; there are {[m.name for m in self.measurements]}")
