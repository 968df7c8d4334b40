"""The blocks of a result: headings, text, code, tables, claims, facts.

Renderers use a block's fields and never interpret names. Blocks are frozen dataclasses that convert to JSON
and back. This module uses the standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxperf.result.values import Basis, Measurement, Reference

Scalar = float | int | str | bool | None
Verdict = Literal["holds", "does not hold", "undecided", "not measurable here"]


def _kind(name: str) -> Any:
    """Return the field that names a block's class in JSON; callers do not pass it."""
    return field(default=name, init=False)


@dataclass(frozen=True)
class Heading:
    """The title of the blocks that follow."""

    title: str
    kind: str = _kind("heading")


@dataclass(frozen=True)
class Text:
    """One paragraph of text. Words between backticks are code; there is no other markup."""

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
      title: the title above the table.
      rows: the measurements; names are unique within the table.
      base: name of the row of which the others are shown as a multiple; "" for none.
      references: published figures, each shown next to the row that it names.
      detail: whether the table is shown only on request, as evidence behind a number in the text.
    """

    title: str
    rows: tuple[Measurement, ...]
    base: str = ""
    references: tuple[Reference, ...] = ()
    detail: bool = False
    kind: str = _kind("table")


@dataclass(frozen=True)
class Grid:
    """A table of text: `rows` of cells under `heads`, and `remarks` below it.

    Columns `right` are aligned right. A terminal shows the first `first` rows, and how many more there are; 0
    shows all.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...] = ()
    detail: bool = False
    first: int = 0
    remarks: tuple[str, ...] = ()
    kind: str = _kind("grid")

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.heads):
                raise ValueError(f"grid {self.title!r} has {len(self.heads)} columns, a row has {len(row)}")


@dataclass(frozen=True)
class Claim:
    """A sentence and its verdict on this machine.

    Attributes:
      statement: the sentence.
      verdict: whether it holds on this machine.
      expected: the observation for which the sentence holds.
      observed: what was seen, or why nothing could be measured.
      source: origin of the sentence: "section 8.2.1" of the book, or "jaxperf".
      first: the first expectation and its result, if the expectation was changed after a measurement.
      conclusion: what follows from this verdict, in a sentence; other verdicts have other ones.
      basis: whether what was judged is measured, predicted, or only fitted.
    """

    statement: str
    verdict: Verdict
    expected: str
    observed: str
    source: str = ""
    first: str = ""
    conclusion: str = ""
    basis: Basis = "measured"
    kind: str = _kind("claim")


@dataclass(frozen=True)
class Fact:
    """A named scalar with its unit, and its `meaning` in words; if that is "", the name is shown.

    One with `in_table` has no line of its own, because a table shows it. `basis` says whether the number is
    measured, fitted or predicted.
    """

    name: str
    value: Scalar
    unit: str = ""
    meaning: str = ""
    in_table: bool = False
    basis: Basis = "measured"
    kind: str = _kind("fact")


@dataclass(frozen=True)
class Note:
    """A remark on the figures."""

    text: str
    kind: str = _kind("note")


@dataclass(frozen=True)
class Failed:
    """A part that raised an error, such as a cell of a section, and the error's last line."""

    part: str
    error: str
    kind: str = _kind("failed")


@dataclass(frozen=True)
class Found:
    """A finding of `jaxperf watch` for other programs (docs/watch-json.md); no renderer shows it."""

    fields: Mapping[str, Any]
    kind: str = _kind("found")


Block = Heading | Text | Code | Table | Grid | Claim | Fact | Note | Failed | Found
