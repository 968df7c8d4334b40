"""A result: what one section found, as a list of blocks in the book's order, and where it was found.

Standard library only, so that the runners of other frameworks can use it in environments without JAX.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from jaxperf.result.blocks import Block, Claim, Fact, Note, Scalar, Table
from jaxperf.result.values import Measurement

SCHEMA_VERSION = 4  # 4: a claim has one verdict; measurements, claims and facts stand at the top level too

B = TypeVar("B")


@dataclass(frozen=True)
class Environment:
    """Where a result came from: enough to repeat it, or to say why it cannot be compared.

    Attributes:
      python, platform, cpu: interpreter, operating system, processor model.
      versions: package name to version (jax, jaxlib, flax, ...).
      backend: "cpu", "gpu", ...
      devices: one description per device, in the order of `jax.devices()`.
      devices_are_fake: several CPU devices that share one host's cores.
      gpus: the NVIDIA driver, then each GPU with its clock and power, in words, at the start.
      cores, threads: processors this process may use; threads its libraries were told to use (0: unset).
      memory_bytes: memory of the machine.
      flags: environment variables and JAX settings that change speed, as set.
      accelerated: what of jaxperf's own replaces a part of JAX ("oneDNN convolutions"); empty by default.
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
        """Return the hardware in words, the same for machines whose times may be compared.

        Processor, cores, backend, and devices that are not the host's own: "AMD EPYC, 2 cores, cpu". It
        leaves out versions and flags: a comparison should show what they change.
        """
        kinds = Counter(d.partition(" ")[2] for d in self.devices if not d.startswith("cpu:"))
        devices = [f"{n} {kind}" for kind, n in sorted(kinds.items())]
        return ", ".join(filter(None, [self.cpu, f"{self.cores} cores", self.backend, *devices]))

    @property
    def fingerprint(self) -> str:
        """`machine` as a file name: its first words, and eight digits of a hash of all of it."""
        slug = re.sub("[^a-z0-9]+", "-", self.machine.lower()).strip("-")[:40].strip("-")
        return f"{slug}-{hashlib.sha256(self.machine.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Result:
    """All that one section found: its blocks in the book's order, and what it takes to repeat it.

    `config` holds the section's own settings, `script` the source of the script as it ran. An `incomplete`
    result is from a run that was stopped, or has not ended yet.
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
    incomplete: bool = False
    started_at: str = ""
    wall_s: float = 0.0
    schema_version: int = SCHEMA_VERSION

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

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the notes, in order."""
        return tuple(note.text for note in self.of(Note))

    def measurement(self, name: str) -> Measurement:
        """Return the first measurement called `name`; otherwise raise a KeyError that lists all names."""
        for m in self.measurements:
            if m.name == name:
                return m
        raise KeyError(f"no measurement {name!r}; there are {[m.name for m in self.measurements]}")
