"""A result: what one section found, told in the book's order; frozen dataclasses that become JSON and back.

A `Result` holds a list of blocks: headings, text, code, output, tables, figures, claims, facts. The section
that knows what a figure or a table means declares it; renderers read fields and never interpret a name. Raw
values are kept: medians and intervals are computed when somebody looks. Standard library only, so that the
runners of other frameworks can use it in environments without JAX.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

SCHEMA_VERSION = 3  # 2: timelines; 3: blocks in order
NOISY_REL_IQR = 0.10  # torch.utils.benchmark warns at the same spread

Scalar = float | int | str | bool | None
Holds = Literal["holds", "does not hold", "undecided", "cannot be measured here"]
Prediction = Literal["right", "wrong", "undecided", "not stated"]
Draw = Literal["line and points", "line", "points", "thin line", "hollow points"]
B = TypeVar("B")


def _kind(name: str) -> Any:
    """The field that names a block's class in JSON; never given by a caller."""
    return field(default=name, init=False)


@dataclass(frozen=True)
class Measurement:
    """Raw values of one quantity, `values[i]` in `unit`, warm-up values apart.

    Attributes:
      name: what was measured; the row's label, unique within its table.
      unit: "s", "bytes", "images/s", ... SI, unscaled.
      values: one per repetition, in the order taken; a timing is per call.
      warmup: values taken before the program was warm; never part of a statistic.
      loops: calls that each value is the mean of (1: every value is one call).
      items: work items per call (images, operations), for `items_per_s`; 0 where none were named.
      note: one remark that travels with the data, e.g. "devices are fake".
      rounds: names the set of interleaved rounds that `values[i]` is of round i of; "" for values that were
        not interleaved with any other. Only measurements of the same rounds have a `Ratio`.
      system: the framework that was measured ("jax", "mxnet", "torch"), where several were.
      workload: the piece of work, the same word for all systems.
      configuration: how the system did it ("hybridize", "compiled").
      quantity: what of the workload was measured ("queued", "finished"), where there are several.
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
    def items_per_s(self) -> float | None:
        """Items per second at the median, for timings that name their items."""
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
    """What runs along an axis: `label` in words, and the unit of its values ("" for a plain number)."""

    label: str
    unit: str = ""


@dataclass(frozen=True)
class Curve:
    """A line of a figure: `y[i]` over `x[i]`; None in `y` is a point that could not be had.

    Attributes:
      name: its label in the legend.
      x, y: the points.
      draw: how it looks; "hollow points" are published figures, "thin line" is one of several runs.
      color: curves with the same word share a color; "" gives it one of its own.
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

    @property
    def known(self) -> list[tuple[float, float]]:
        """The points that could be had."""
        return [(x, y) for x, y in zip(self.x, self.y) if y is not None]


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
class Heading:
    """The title of a part; `part` is the function that told it, for the notebook."""

    title: str
    part: str = ""
    kind: str = _kind("heading")


@dataclass(frozen=True)
class Text:
    """One paragraph of teaching text. Words between backticks are code; nothing else is markup."""

    text: str
    kind: str = _kind("text")


@dataclass(frozen=True)
class Habit:
    """What a reader writes in Gluon, and its counterpart in JAX next to it; `remark` says what differs."""

    gluon: str
    jax: str
    remark: str = ""
    kind: str = _kind("habit")


@dataclass(frozen=True)
class Code:
    """The source of a function as it ran, from line `line` of `file` ("" where it has no file)."""

    source: str
    file: str = ""
    line: int = 0
    kind: str = _kind("code")


@dataclass(frozen=True)
class Output:
    """What the code printed; `detail` keeps it out of the short log of a run."""

    text: str
    detail: bool = False
    kind: str = _kind("output")


@dataclass(frozen=True)
class Table:
    """Measurements as rows.

    Attributes:
      title: above it.
      rows: the measurements; names are unique within the table.
      base: name of the row that the others are shown as a multiple of ("": none).
      references: published figures, each next to the row that it names, or below the table.
      bars: "bars" draws the medians too, "stacked" draws the rows as consecutive parts of the base row.
      key: names of the rows that make the point, which the short log shows; empty for all.
      detail: keeps the table out of the short log.
    """

    title: str
    rows: tuple[Measurement, ...]
    base: str = ""
    references: tuple[Reference, ...] = ()
    bars: Literal["", "bars", "stacked"] = ""
    key: tuple[str, ...] = ()
    detail: bool = False
    kind: str = _kind("table")


@dataclass(frozen=True)
class Grid:
    """A table of words: `rows` of cells under `heads`; columns of numbers in `right` are aligned right."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...] = ()
    detail: bool = False
    kind: str = _kind("grid")

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.heads):
                raise ValueError(f"grid {self.title!r} has {len(self.heads)} columns, a row has {len(row)}")


@dataclass(frozen=True)
class Lines:
    """A figure of curves over a common x.

    Attributes:
      title, caption: the caption says how to read it.
      curves: what is drawn.
      x, y: the axes.
      mark: a point worth a word: (x, y); `marked` is the word.
      zero: y begins at zero, for what is compared by its height.
      panels: each curve in a panel of its own, for curves that would hide each other.
    """

    title: str
    curves: tuple[Curve, ...]
    x: Axis
    y: Axis
    caption: str = ""
    mark: tuple[float, ...] = ()
    marked: str = ""
    zero: bool = False
    panels: bool = False
    kind: str = _kind("lines")


@dataclass(frozen=True)
class Dots:
    """A figure with a row of dots per measurement and a stroke at its median: a few values each."""

    title: str
    rows: tuple[Measurement, ...]
    caption: str = ""
    kind: str = _kind("dots")


@dataclass(frozen=True)
class Timelines:
    """Gantt charts of several runs over one common time axis."""

    title: str
    runs: tuple[Timeline, ...]
    caption: str = ""
    kind: str = _kind("timelines")


@dataclass(frozen=True)
class Claim:
    """A sentence and its two verdicts: does it hold here, and was our prediction right?

    Attributes:
      statement: the sentence.
      holds: whether it holds on this machine.
      predicted: what we expected to see, before measuring.
      prediction: whether that came out.
      observed: what was seen, or why nothing could be.
      source: whose sentence it is: "section 8.2.1" of the book, or "jaxperf".
    """

    statement: str
    holds: Holds
    predicted: str
    prediction: Prediction
    observed: str
    source: str = ""
    kind: str = _kind("claim")


@dataclass(frozen=True)
class Fact:
    """A named scalar: `unit` of the value, and `words` that say what it is ("" shows the name)."""

    name: str
    value: Scalar
    unit: str = ""
    words: str = ""
    kind: str = _kind("fact")


@dataclass(frozen=True)
class Note:
    """A remark that a reader of the figures must know."""

    text: str
    kind: str = _kind("note")


@dataclass(frozen=True)
class Failed:
    """A part that raised: its function, and the last line of the error."""

    part: str
    error: str
    kind: str = _kind("failed")


@dataclass(frozen=True)
class Peers:
    """Where the section discusses a workload: other systems' figures for it are shown here, if measured."""

    workload: str
    kind: str = _kind("peers")


Block = (
    Heading | Text | Habit | Code | Output | Table | Grid | Lines | Dots | Timelines | Claim | Fact | Note
    | Failed | Peers
)  # fmt: skip


@dataclass(frozen=True)
class Environment:
    """Where a result came from: enough to repeat it, or to say why it can't be compared.

    Attributes:
      python, platform, cpu: interpreter, operating system, processor model.
      versions: package name to version (jax, jaxlib, flax, ...).
      backend: "cpu", "gpu", ...
      devices: one description per device, in the order of `jax.devices()`.
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
    """All that one section found: its blocks in the book's order, and what it takes to repeat it.

    `config` holds the section's own settings, `script` the source of the script as it ran.
    """

    experiment: str
    section: str
    title: str
    question: str
    config: Mapping[str, Any]
    environment: Environment
    blocks: tuple[Block, ...] = ()
    script: str = ""
    command: str = ""
    smoke: bool = False
    started_at: str = ""
    wall_s: float = 0.0
    schema_version: int = SCHEMA_VERSION

    def of(self, kind: type[B]) -> Iterator[B]:
        """The blocks of one class, in order."""
        return (block for block in self.blocks if isinstance(block, kind))

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """The rows of all tables and dots, in order."""
        return tuple(m for b in self.blocks if isinstance(b, Table | Dots) for m in b.rows)

    @property
    def curves(self) -> tuple[Curve, ...]:
        """The curves of all figures, in order."""
        return tuple(c for lines in self.of(Lines) for c in lines.curves)

    @property
    def references(self) -> tuple[Reference, ...]:
        """The published figures of all tables, in order."""
        return tuple(r for table in self.of(Table) for r in table.references)

    @property
    def timelines(self) -> tuple[Timeline, ...]:
        """The runs of all timelines, in order."""
        return tuple(run for block in self.of(Timelines) for run in block.runs)

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claims, in order."""
        return tuple(self.of(Claim))

    @property
    def facts(self) -> dict[str, Scalar]:
        """The facts' values by name."""
        return {fact.name: fact.value for fact in self.of(Fact)}

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes, in order."""
        return tuple(note.text for note in self.of(Note))

    def measurement(self, name: str) -> Measurement:
        """The first measurement called `name`; KeyError that lists the names there are."""
        for m in self.measurements:
            if m.name == name:
                return m
        raise KeyError(f"no measurement {name!r}; there are {[m.name for m in self.measurements]}")
