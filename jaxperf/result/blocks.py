"""The blocks of a result: headings, text, code, tables, curves, claims, facts.

Whoever measures knows what a table means and declares it; renderers read fields and never interpret a
name. Blocks are frozen dataclasses that convert to JSON and back. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from jaxperf.result.values import Axis, Curve, Measurement, Reference

Scalar = float | int | str | bool | None
Verdict = Literal["holds", "does not hold", "undecided", "not measurable here"]


def _kind(name: str) -> Any:
    """Return the field that names a block's class in JSON; never given by a caller."""
    return field(default=name, init=False)


@dataclass(frozen=True)
class Heading:
    """The title of a part."""

    title: str
    kind: str = _kind("heading")


@dataclass(frozen=True)
class Text:
    """One paragraph of teaching text. Words between backticks are code; nothing else is markup."""

    text: str
    kind: str = _kind("text")


@dataclass(frozen=True)
class Code:
    """The source of a function as it ran, from line `line` of `file` ("" if it has no file)."""

    source: str
    file: str = ""
    line: int = 0
    kind: str = _kind("code")


@dataclass(frozen=True)
class Table:
    """Measurements as rows.

    Attributes:
      title: above it.
      rows: the measurements; names are unique within the table.
      base: name of the row that the others are shown as a multiple of ("": none).
      references: published figures, each next to the row that it names, or below the table.
      detail: evidence behind a number in the text, which is shown when asked for.
    """

    title: str
    rows: tuple[Measurement, ...]
    base: str = ""
    references: tuple[Reference, ...] = ()
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
    """Curves over a common x, with the axes' labels."""

    title: str
    curves: tuple[Curve, ...]
    x: Axis
    y: Axis
    kind: str = _kind("lines")


@dataclass(frozen=True)
class Claim:
    """A sentence and its verdict on this machine.

    Attributes:
      statement: the sentence.
      verdict: whether it holds on this machine.
      expected: what is seen where it holds.
      observed: what was seen, or why nothing could be measured.
      source: whose sentence it is: "section 8.2.1" of the book, or "jaxperf".
      since: since when the expectation stands.
      first: the first expectation and its miss, if the expectation was changed after a measurement.
    """

    statement: str
    verdict: Verdict
    expected: str
    observed: str
    source: str = ""
    since: str = ""
    first: str = ""
    kind: str = _kind("claim")


@dataclass(frozen=True)
class Fact:
    """A named scalar: `unit` of the value, and `meaning`, which says what it is ("" shows the name)."""

    name: str
    value: Scalar
    unit: str = ""
    meaning: str = ""
    kind: str = _kind("fact")


@dataclass(frozen=True)
class Note:
    """A remark that readers of the figures must know."""

    text: str
    kind: str = _kind("note")


@dataclass(frozen=True)
class Failed:
    """A part that raised, such as a cell of a section, and the last line of the error."""

    part: str
    error: str
    kind: str = _kind("failed")


Block = Heading | Text | Code | Table | Grid | Lines | Claim | Fact | Note | Failed
