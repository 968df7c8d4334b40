"""The results of one workload: what each configuration of each system answered, and its values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxperf.frameworks.agree import Verdict
from jaxperf.frameworks.pool import OVER
from jaxperf.frameworks.workloads import Workload
from jaxperf.result import Measurement

BASE = "jax"  # as installed


@dataclass
class Entry:
    """A configuration of a system in one workload, and its results so far.

    Attributes:
      system, configuration: their names.
      answers: what it computed; None while it has not answered.
      verdict: whether it agreed; None until it was compared.
      first_s: seconds of its first call.
      warmup: values of the warm-up round, by quantity.
      values: values of the rounds, by quantity.
      cores: CPU seconds of its process per second, in each round, by quantity.
      calls: in one turn; after the warm-up round, those that last as long as the workload asks.
      lane: of the system's workers: where time is short, torch.compile has one of its own.
      refused: whether it was not started, because there was no time.
      lost: why it is not (or no longer) timed.
    """

    system: str
    configuration: str
    answers: Mapping[str, np.ndarray] | None = None
    verdict: Verdict | None = None
    first_s: float = 0.0
    warmup: dict[str, float] = field(default_factory=dict)
    values: dict[str, list[float]] = field(default_factory=dict)
    cores: dict[str, list[float]] = field(default_factory=dict)
    calls: int = 1
    lane: str = ""
    refused: bool = False
    lost: str = ""

    @property
    def name(self) -> str:
        """ "mxnet/static"."""
        return f"{self.system}/{self.configuration}"

    def measurement(self, workload: Workload, quantity: str) -> Measurement:
        """Return its raw values of one quantity; `values[i]` of a workload's entries are from one round."""
        return Measurement(
            f"{self.system} {self.configuration}",
            "s",
            tuple(self.values[quantity]),
            warmup=(self.warmup[quantity],) if quantity in self.warmup else (),
            loops=self.calls,
            items=workload.items,
            note="devices are fake" if workload.devices > 1 else "",
            rounds=f"rounds of {workload.name}",
            system=self.system,
            workload=workload.name,
            configuration=self.configuration,
            quantity=quantity,
        )


@dataclass(frozen=True)
class Study:
    """The results of one workload; the timed `entries` have as many values as there were rounds.

    Attributes:
      workload: what was done.
      entries: the configurations of all systems.
      threads: that each device was given.
    """

    workload: Workload
    entries: Sequence[Entry]
    threads: int = 0

    @property
    def timed(self) -> list[Entry]:
        """Return those that agreed and took every turn."""
        return [e for e in self.entries if not e.lost and e.values]

    def allotted(self, quantity: str) -> int:
        """Return the cores that each configuration was given; 0 if that is not known."""
        devices = self.workload.at_once.get(quantity, self.workload.devices)
        return self.threads * devices

    def used(self, entry: Entry, quantity: str) -> float:
        """Return the cores that a configuration used, by its CPU time; 0 if it did not say."""
        return float(np.median(entry.cores.get(quantity) or [0.0]))

    def fair(self, entry: Entry, quantity: str) -> bool:
        """Return whether a configuration used no more cores than it was given."""
        return self.used(entry, quantity) <= OVER * (self.allotted(quantity) or math.inf)

    def best(self, system: str, quantity: str) -> Entry | None:
        """Return the system's fastest configuration by median, of those that are judged; None for none."""
        fair_entries = [e for e in self.timed if e.system == system and self.fair(e, quantity)]
        return min(fair_entries, key=lambda e: float(np.median(e.values[quantity])), default=None)
