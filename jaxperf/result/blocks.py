"""The blocks of a story: headings, text, code, output, tables, figures, claims, facts.

The section, which knows what a figure or a table means, declares it; renderers read fields and never
interpret a name. Blocks are frozen dataclasses that convert to JSON and back. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from jaxperf.result.values import Axis, Curve, Measurement, Reference, Timeline

Scalar = float | int | str | bool | None
Holds = Literal["holds", "does not hold", "undecided", "cannot be measured here"]
Prediction = Literal["right", "wrong", "undecided", "not stated"]


def _kind(name: str) -> Any:
    """The field that names a block's class in JSON; never given by a caller."""
    return field(default=name, init=False)


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
    """The source of a function as it ran, from line `line` of `file` ("" if it has no file)."""

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
      bars: "bars" also draws the medians, "stacked" draws the rows as consecutive parts of the base row.
      key: names of the important rows, which the short log shows; empty for all.
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
    """A table of words: `rows` of cells under `heads`; columns of numbers in `right` are aligned right.

    A terminal shows the `first` rows and how many more there are; 0 shows all.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...] = ()
    detail: bool = False
    first: int = 0
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
      mark: a point to label: (x, y); `marked` is the label.
      zero: y begins at zero, for curves that are compared by height.
      panels: each curve in its own panel, for curves that would hide each other.
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
      prediction: whether the prediction was right.
      observed: what was seen, or why nothing could be measured.
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
    """A remark that readers of the figures must know."""

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
