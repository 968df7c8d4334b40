"""Collects what a run measures, block by block: each is shown at once, and kept for the result."""

import datetime
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from jaxperf.result import Block, Decision, Environment, Measurement, Reference, Result, record, terminal
from jaxperf.result.formatting import format_scalar
from jaxperf.result.record import About, Verdict
from jaxperf.result.values import Basis

VERDICTS: dict[bool | None, Verdict] = {True: "holds", False: "does not hold", None: "undecided"}
OF_THE_BOOK = ("8.1", "8.2", "8.3", "8.4", "8.5")  # sections that "Dive into Deep Learning" has, too
NUMBER = re.compile(r"([-+]?[\d.,]+(e[-+]?\d+)?\b|-?$)")
turned: Mapping[Verdict, Verdict] = {}  # a test gives each verdict another one, to read the other sentences


@dataclass(eq=False, repr=False)
class Recorder:
    """The blocks of one run, and what it takes to repeat it."""

    about: About  #: what is run
    environment: Environment  #: where it runs
    config: Mapping[str, Any]  #: its settings
    _: KW_ONLY
    command: str  #: that repeats it
    smoke: bool = False  #: whether it runs at toy sizes

    def __post_init__(self) -> None:
        self.blocks: list[Block] = []
        self._began, self._started_at = time.perf_counter(), datetime.datetime.now(datetime.UTC)

    def add(self, block: Block) -> None:
        """Keep a block, and show it."""
        self.blocks.append(block)
        self.show(block)

    def show(self, block: Block) -> None:
        """Print a block; evidence is in the result only."""
        if not getattr(block, "detail", False):
            terminal.show(terminal.console(), block)

    def heading(self, title: str) -> None:
        """Begin a part with its title."""
        self.add(record.Heading(title))

    def text(self, *paragraphs: str) -> None:
        """Add paragraphs of prose, in which words between backticks are code."""
        for paragraph in paragraphs:
            self.add(record.Text(" ".join(paragraph.split())))

    def note(self, remark: str) -> None:
        """Add a remark that readers of the figures must know."""
        self.add(record.Note(remark))

    def table(
        self,
        rows: Mapping[str, Measurement] | Iterable[Measurement],
        *,
        title: str,
        base: str = "",
        book: Mapping[str, float] | None = None,
        fold: bool = False,
    ) -> None:
        """Show and keep measurements as rows.

        Args:
          rows: the measurements; their names are the labels of the rows.
          title: above the table.
          base: the row of which the others are shown as multiples, with an interval if they took turns.
          book: the book's figure for the same work, in the unit of the row, by the row's name.
          fold: show only the title, which opens to the rows: for evidence behind a number in the text.

        Raises:
          ValueError: no row has the name in `base` or `book`, or two rows have the same name.
        """
        figures = book or {}
        measurements = tuple(rows.values() if isinstance(rows, Mapping) else rows)
        units = {m.name: m.unit for m in measurements}
        for name in filter(None, (base, *figures)):
            if name not in units:
                raise ValueError(f"table {title!r} has no row {name!r}; there are {list(units)}")
        if len(units) < len(measurements):
            raise ValueError(f"table {title!r} has two rows of one name: {[m.name for m in measurements]}")
        source = f"section {self.about.number}" if self.about.number in OF_THE_BOOK else "chapter 8"
        published = tuple(Reference(n, value, units[n], "the book", source) for n, value in figures.items())
        self.add(record.Table(title, measurements, base, published, fold))

    def grid(
        self, heads: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "", fold: bool = False
    ) -> None:
        """Show and keep a table of text and numbers; columns of numbers are aligned right."""
        cells = [
            tuple(format_scalar(v) if isinstance(v, int | float) else str(v) for v in row) for row in rows
        ]
        right = [i for i in range(1, len(heads)) if all(NUMBER.match(row[i]) for row in cells)]
        self.add(record.Grid(title, tuple(heads), tuple(cells), tuple(right), fold))

    def claim(
        self,
        statement: str,
        *,
        holds: Decision,
        expected: str,
        observed: str,
        source: str = "",
        first: str = "",
        cannot: str = "",
        needs: Sequence[str] = (),
        if_holds: str = "",
        if_not: str = "",
        if_open: str = "",
        basis: Basis = "measured",
    ) -> None:
        """Show and keep a sentence with its verdict, and what follows from it.

        Args:
          statement: what is claimed.
          holds: the one expression that decides; None where the measurement cannot decide.
          expected: what is seen where it holds.
          observed: what was seen.
          source: whose claim it is, e.g. "section 8.4.6" of the book; "" for jaxperf's.
          if_holds: the sentence that the page says where the claim holds. Words between backticks are code,
            and between dollars formulas.
          if_not: the sentence where it does not hold.
          if_open: the sentence where the run decides nothing, or where the claim cannot be measured.
          basis: "predicted" if `holds` judges a model by data that it has not seen, "fitted" if by the data
            that it was fitted to.
          first: what was expected first and what was seen then, if the expectation was changed afterwards.
          cannot: why it cannot be measured here, which replaces the verdict; "" if it can.
          needs: what it takes to measure it, which is looked up: "size" (no toy size), "gpu", "devices"
            (several, which are not parts of one CPU), "cores" (several).
        """
        cannot = cannot or self._lacks(needs)
        verdict = self._verdict(holds, cannot)
        conclusion = self.sentence(holds, if_holds=if_holds, if_not=if_not, if_open=if_open, cannot=cannot)
        observed, source = cannot or observed, source or "jaxperf"
        self.add(record.Claim(statement, verdict, expected, observed, source, first, conclusion, basis))

    def sentence(
        self, holds: Decision, *, if_holds: str, if_not: str, if_open: str = "", cannot: str = ""
    ) -> str:
        """Return the sentence that belongs to an outcome, e.g. for the caption of a figure."""
        by_verdict = {"holds": if_holds, "does not hold": if_not}
        return " ".join(by_verdict.get(self._verdict(holds, cannot), if_open).split())

    def say(
        self, holds: Decision, *, if_holds: str, if_not: str, if_open: str = "", cannot: str = ""
    ) -> None:
        """Show and keep the paragraph that belongs to an outcome; one that is "" is left out."""
        text = self.sentence(holds, if_holds=if_holds, if_not=if_not, if_open=if_open, cannot=cannot)
        if text:
            self.text(text)

    def _lacks(self, needs: Sequence[str]) -> str:
        """Return what this run lacks of `needs`, in words; "" if nothing."""
        if isinstance(needs, str):
            raise TypeError(f"needs={needs!r} is a string; give a list of strings")
        e = self.environment
        devices = "" if len(e.devices) > 1 else "there is only one device"
        if e.devices_are_fake:
            devices = "all devices are parts of one CPU"
        lacking = {
            "size": "the sizes are those of a toy" if self.smoke else "",
            "gpu": "" if e.backend == "gpu" else "this needs a GPU",
            "devices": devices,
            "cores": "there is only one core" if e.cores == 1 else "",
        }
        return next((lacking[need] for need in needs if lacking[need]), "")

    def _verdict(self, holds: Decision, cannot: str) -> Verdict:
        verdict: Verdict = "not measurable here"
        if not cannot:
            verdict = VERDICTS[None if holds is None else bool(holds)]
        return turned.get(verdict, verdict)

    def fact(
        self,
        name: str,
        value: Any,
        *,
        unit: str = "",
        meaning: str = "",
        in_table: bool = False,
        basis: Basis = "measured",
    ) -> None:
        """Show and keep a named number; a value that is not finite is kept as None.

        Args:
          name: the key in the result's `facts`.
          value: a Python, NumPy or JAX scalar.
          unit: "s", "bytes", ... SI, unscaled; "" for a plain number.
          meaning: what it is, in words, which is what readers see.
          in_table: whether a table shows it, so that it needs no line of its own.
          basis: whether it is measured, fitted to measurements, or predicted before them.
        """
        plain = value.item() if hasattr(value, "item") else value
        finite = None if isinstance(plain, float) and not math.isfinite(plain) else plain
        self.add(record.Fact(name, finite, unit, meaning, in_table, basis))

    @property
    def facts(self) -> dict[str, Any]:
        """Return the facts until now, by name."""
        return {block.name: block.value for block in self.blocks if isinstance(block, record.Fact)}

    def result(self) -> Result:
        """Return all that was measured and claimed until now."""
        return Result(
            experiment=self.about.name,
            section=self.about.number,
            title=self.about.title,
            question=self.about.question,
            config=self.config,
            environment=self.environment,
            blocks=tuple(self.blocks),
            command=self.command,
            smoke=self.smoke,
            started_at=self._started_at.isoformat(timespec="seconds"),
            wall_s=time.perf_counter() - self._began,
        )
