"""A result: the blocks of one section, in the book's order, and the environment of the run.

This module uses the standard library only, because runners of other frameworks use it without JAX.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from jaxperf.result.blocks import Block, Claim, Fact, Scalar, Table
from jaxperf.result.values import Measurement

SCHEMA_VERSION = 4
FINDINGS_VERSION = 1  # of the entries of "findings"; see docs/watch-json.md

B = TypeVar("B")


@dataclass(frozen=True)
class About:
    """What is run: its name, its number in the book ("" if it has none), its title, and what it asks."""

    name: str
    number: str
    title: str
    question: str


@dataclass(frozen=True)
class Environment:
    """The conditions of a result, to repeat it, or to tell why it cannot be compared.

    Attributes:
      python, platform, cpu: interpreter, operating system, processor model.
      versions: package name to version (jax, jaxlib, flax, ...).
      backend: "cpu", "gpu", ...
      devices: one description per device, in the order of `jax.devices()`.
      devices_are_fake: whether several CPU devices share one host's cores.
      gpus: the NVIDIA driver, then each GPU with its clock and power at the start, in words.
      cores, threads: cores that this process may use, and the value of OMP_NUM_THREADS (0: unset).
      memory_bytes: memory of the machine.
      flags: environment variables and JAX settings that change speed.
      accelerated: parts of JAX that jaxperf has replaced ("oneDNN convolutions"); empty by default.
      data_source: where the images came from; "" if none were read.
      commit: revision of the code, with "+dirty" if it was changed; "" outside a checkout.
    """

    python: str = ""
    platform: str = ""
    cpu: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    backend: str = ""
    devices: tuple[str, ...] = ()
    devices_are_fake: bool = False
    gpus: tuple[str, ...] = ()
    cores: int = 0
    threads: int = 0
    memory_bytes: int = 0
    flags: Mapping[str, str] = field(default_factory=dict)
    accelerated: tuple[str, ...] = ()
    data_source: str = ""
    commit: str = ""

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
    """The blocks of one section, in the book's order, and what is needed to repeat the run.

    `config` holds the section's own settings. An `incomplete` result is from a run that was stopped or
    has not ended yet.
    """

    experiment: str
    section: str
    title: str
    question: str
    config: Mapping[str, Any]
    environment: Environment
    blocks: tuple[Block, ...] = ()
    command: str = ""
    smoke: bool = False
    incomplete: bool = False
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

    def of(self, kind: type[B]) -> Iterator[B]:
        """Return the blocks of one class, in order."""
        return (block for block in self.blocks if isinstance(block, kind))

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
