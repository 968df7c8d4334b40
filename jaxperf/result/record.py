"""A result: the blocks of one section, in the book's order, and the environment of the run.

Renderers use a block's fields and never interpret names. This module uses the standard library only, because
runners of other frameworks use it without JAX.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from jaxperf.result.values import Basis, Measurement, Reference

SCHEMA_VERSION = 4
FINDINGS_VERSION = 1  # of the entries of "findings"; see docs/watch-json.md

B = TypeVar("B")
Scalar = float | int | str | bool | None
Verdict = Literal["holds", "does not hold", "undecided", "not measurable here"]


@dataclass(frozen=True)
class Heading:
    """The title of the blocks that follow."""

    title: str


@dataclass(frozen=True)
class Text:
    """One paragraph of text. Words between backticks are code; there is no other markup."""

    text: str


@dataclass(frozen=True)
class Code:
    """The source of a function as it ran, from line `line` of `file` ("" if it has no file)."""

    source: str
    file: str = ""
    line: int = 0


@dataclass(frozen=True)
class Table:
    """Measurements as rows."""

    title: str  #: above the table
    rows: tuple[Measurement, ...]  #: names are unique within the table
    base: str = ""  #: name of the row of which the others are shown as a multiple; "" for none
    references: tuple[Reference, ...] = ()  #: published figures, each shown next to the row that it names
    detail: bool = False  #: shown only on request, as evidence behind a number in the text


@dataclass(frozen=True)
class Grid:
    """A table of text."""

    title: str  #: above the table
    heads: tuple[str, ...]  #: of the columns
    rows: tuple[tuple[str, ...], ...]  #: the cells, as many in each row as there are heads
    right: tuple[int, ...] = ()  #: the columns that are aligned right
    detail: bool = False  #: shown only on request
    first: int = 0  #: how many rows a terminal shows, with a line on how many more there are; 0 for all
    remarks: tuple[str, ...] = ()  #: below the table

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.heads):
                raise ValueError(f"grid {self.title!r} has {len(self.heads)} columns, a row has {len(row)}")


@dataclass(frozen=True)
class Claim:
    """A sentence and its verdict on this machine."""

    statement: str  #: the sentence
    verdict: Verdict  #: whether it holds on this machine
    expected: str  #: the observation for which it holds
    observed: str  #: what was seen, or why nothing could be measured
    source: str = ""  #: origin of the sentence: "section 8.2.1" of the book, or "jaxperf"
    first: str = ""  #: the first expectation and its result, if it was changed after a measurement
    conclusion: str = ""  #: what follows from this verdict, in a sentence; other verdicts have other ones
    basis: Basis = "measured"  #: whether what was judged is measured, predicted, or only fitted


@dataclass(frozen=True)
class Fact:
    """A named scalar."""

    name: str
    value: Scalar
    unit: str = ""
    meaning: str = ""  #: in words, which are shown instead of the name
    in_table: bool = False  #: whether a table shows it, so that it has no line of its own
    basis: Basis = "measured"  #: whether it is measured, fitted or predicted


@dataclass(frozen=True)
class Note:
    """A remark on the figures."""

    text: str


@dataclass(frozen=True)
class Failed:
    """A part that raised an error, such as a cell of a section, and the error's last line."""

    part: str
    error: str


@dataclass(frozen=True)
class Found:
    """A finding of `jaxperf watch` for other programs (docs/watch-json.md); no renderer shows it."""

    fields: Mapping[str, Any]


Block = Heading | Text | Code | Table | Grid | Claim | Fact | Note | Failed | Found


@dataclass(frozen=True)
class About:
    """What is run: its name, its number in the book ("" if it has none), its title, and what it asks."""

    name: str
    number: str
    title: str
    question: str


@dataclass(frozen=True)
class Environment:
    """The conditions of a result, to repeat it, or to tell why it cannot be compared."""

    python: str = ""  #: version of the interpreter
    platform: str = ""  #: operating system
    cpu: str = ""  #: model of the processor
    versions: Mapping[str, str] = field(default_factory=dict)  #: by package name (jax, jaxlib, flax, ...)
    backend: str = ""  #: "cpu", "gpu", ...
    devices: tuple[str, ...] = ()  #: one description per device, in the order of `jax.devices()`
    devices_are_fake: bool = False  #: whether several CPU devices share one host's cores
    gpus: tuple[str, ...] = ()  #: the NVIDIA driver, then each GPU with its clock and power at the start
    cores: int = 0  #: that this process may use
    threads: int = 0  #: the value of OMP_NUM_THREADS; 0 if unset
    memory_bytes: int = 0  #: of the machine
    flags: Mapping[str, str] = field(default_factory=dict)  #: variables and JAX settings that change speed
    accelerated: tuple[str, ...] = ()  #: parts of JAX that jaxperf has replaced; empty by default
    data_source: str = ""  #: where the images came from; "" if none were read
    commit: str = ""  #: revision of the code, with "+dirty" if it was changed; "" outside a checkout

    @property
    def machine(self) -> str:
        """Return the hardware in words, such as "AMD EPYC, 2 cores, cpu".

        Times may be compared if it is the same. Versions and flags are left out, because a comparison should
        show what they change.
        """
        kinds = Counter(d.partition(" ")[2] for d in self.devices if not d.startswith("cpu:"))
        devices = [f"{n} {kind}" for kind, n in sorted(kinds.items())]
        return ", ".join(filter(None, [self.cpu, f"{self.cores} cores", self.backend, *devices]))

    @property
    def fingerprint(self) -> str:
        """Return `machine` as a file name: its first words, and eight digits of its hash."""
        slug = re.sub("[^a-z0-9]+", "-", self.machine.lower()).strip("-")[:40].strip("-")
        return f"{slug}-{hashlib.sha256(self.machine.encode()).hexdigest()[:8]}"


@dataclass(frozen=True, repr=False)
class Result:
    """The blocks of one section, in the book's order, and what is needed to repeat the run."""

    experiment: str
    section: str
    title: str
    question: str
    config: Mapping[str, Any]  #: the section's settings
    environment: Environment
    blocks: tuple[Block, ...] = ()
    command: str = ""
    smoke: bool = False
    incomplete: bool = False  #: whether the run was stopped, or has not ended yet
    started_at: str = ""
    wall_s: float = 0.0
    schema_version: int = SCHEMA_VERSION

    def __repr__(self) -> str:
        return f"<Result of {self.experiment}: {len(self.blocks)} blocks>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the report, without the evidence behind it."""
        from jaxperf.result.terminal import render_html

        shown = (block for block in self.blocks if not getattr(block, "detail", False))
        return render_html([replace(self, blocks=tuple(shown))])

    def of(self, block_class: type[B]) -> Iterator[B]:
        """Return the blocks of one class, in order."""
        return (block for block in self.blocks if isinstance(block, block_class))

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """Return the rows of all tables, in order."""
        return tuple(m for table in self.of(Table) for m in table.rows)

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Return the claims, in order."""
        return tuple(self.of(Claim))

    @property
    def facts(self) -> dict[str, Scalar]:
        """Return the facts' values by name."""
        return {fact.name: fact.value for fact in self.of(Fact)}
