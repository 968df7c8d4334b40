"""What became of a workload: its rows, whether they agree, and each framework's fastest against JAX's."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from workloads import ONEDNN, Workload

from jaxperf.result import Measurement, Ratio, ratio

BASE = "jax"  # as installed
QUEUED = "queued"  # the quantity that says when a call returns, which is no comparison of speed
OVER = 1.1  # a row that used so many times the cores that it was given is not judged


@dataclass
class Row:
    """A configuration of a system in one workload, and its results so far."""

    system: str
    configuration: str
    workload: Workload
    first_s: float = 0.0  # of its first call
    answers: Mapping[str, np.ndarray] | None = None  # what it computed
    difference: float | None = None  # from JAX's first row, relative to the largest value
    # Of the rounds, by quantity: seconds of a call (the warm-up's apart), and CPU seconds per second
    warmup: dict[str, float] = field(default_factory=dict)
    values: dict[str, list[float]] = field(default_factory=dict)
    cores: dict[str, list[float]] = field(default_factory=dict)
    calls: int = 1  # in one turn; after the warm-up round, as many as last as long as the workload asks
    lost: str = ""  # why it is not (or no longer) timed

    @property
    def key(self) -> str:
        """Return the name that its process knows it by."""
        return f"{self.workload.name}/{self.configuration}"

    def measurement(self, quantity: str) -> Measurement:
        """Return its raw values of one quantity; `values[i]` of a workload's rows are from one round."""
        what = f"{self.workload.name}, {quantity}" if quantity else self.workload.name
        return Measurement(
            f"{what}: {self.system} {self.configuration}",
            "s",
            tuple(self.values[quantity]),
            warmup=(self.warmup[quantity],) if quantity in self.warmup else (),
            loops=self.calls,
            note="devices are fake" if self.workload.devices > 1 else "",
            rounds=f"rounds of {self.workload.name}",
            system=self.system,
            workload=self.workload.name,
            configuration=self.configuration,
            quantity=quantity,
        )


def compare_answers(base: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> float:
    """Return the largest difference, relative to the largest absolute value of each array.

    Not element by element: a logit near zero has no relative precision of its own. A way that does not have
    all of JAX's answers, as a scan that is never fed from the host, is compared by those that it has.

    Raises:
      ValueError: an array has another name or shape, or is not finite; one line says which.
    """
    if not set(other) <= set(base) or not other:
        raise ValueError(f"it answers {sorted(other)} where JAX answers {sorted(base)}")
    differences = []
    for name, actual in other.items():
        expected = base[name]
        if actual.shape != expected.shape:
            raise ValueError(f"its {name} has shape {actual.shape} where JAX's has {expected.shape}")
        if not (np.isfinite(expected).all() and np.isfinite(actual).all()):
            raise ValueError(f"its {name} or JAX's is not finite")
        largest = max(np.abs(expected).max(initial=0), 1e-30)
        differences.append(float(np.abs(actual - expected).max(initial=0) / largest))
    return max(differences)


@dataclass(frozen=True)
class Study:
    """The rows of one workload, and the threads that each device was given (0: not known)."""

    workload: Workload
    rows: list[Row]
    threads: int = 0

    def allotted(self, quantity: str) -> int:
        """Return the cores that each row was given."""
        return self.threads * (1 if quantity in self.workload.alone else self.workload.devices)

    def used(self, row: Row, quantity: str) -> float:
        """Return the cores that a row used, by its CPU time; 0 if it did not say."""
        return float(np.median(row.cores.get(quantity) or [0.0]))

    def fair(self, row: Row, quantity: str) -> bool:
        """Return whether a row used no more cores than it was given."""
        given = self.allotted(quantity)
        return not given or self.used(row, quantity) <= OVER * given

    def best(self, system: str, quantity: str) -> Row | None:
        """Return the system's fastest row by median, of those that are fair; None for none."""
        rows = [
            row
            for row in self.rows
            if row.system == system and row.values.get(quantity) and self.fair(row, quantity)
        ]
        return min(rows, key=lambda row: float(np.median(row.values[quantity])), default=None)

    def verdict(self, quantity: str, times: Ratio, jax: Row, other: Row) -> str:
        """Return in words what a framework's time over JAX's shows about one quantity.

        A row may be slower only because it left cores idle. So a row is called slower if it would be so with
        all of its cores, too: then its time would be shorter by the share of them that it used.
        """
        if times.word == "undecided":
            return "undecided"
        slower = other if times.word == "slower" else jax
        used, given = self.used(slower, quantity), self.allotted(quantity)
        share = min(1.0, used / given) if given and used else 1.0
        stands = times.above(1 / share) if slower is other else times.below(share)
        if not stands:
            return f"not judged: {slower.system} used {used:.2f} of {given} cores"
        return "JAX is faster" if slower is other else "JAX is slower"

    def measurements(self) -> list[Measurement]:
        rows = [(row, quantity) for quantity in self.workload.quantities for row in self.rows]
        return [row.measurement(quantity) for row, quantity in rows if row.values.get(quantity)]

    def comparisons(self) -> list[dict[str, Any]]:
        """Compare each framework's fastest row with JAX's: its time over JAX's, round by round."""
        compared = []
        peers = dict.fromkeys(row.system for row in self.rows if row.system not in (BASE, ONEDNN))
        for quantity in (q for q in self.workload.quantities if q != QUEUED):
            jax = self.best(BASE, quantity)
            for peer in peers:
                other = self.best(peer, quantity)
                if jax is None or other is None:
                    continue
                times = ratio(other.measurement(quantity), jax.measurement(quantity))
                comparison = {
                    "quantity": quantity,
                    "system": peer,
                    "configuration": other.configuration,
                    "jax": jax.configuration,
                    "ratio": times.median,
                    # NaN is not JSON
                    "interval": None if np.isnan(times.low) else [times.low, times.high],
                    "text": str(times),
                    "verdict": self.verdict(quantity, times, jax, other),
                }
                compared.append(comparison)
        return compared

    def to_json(self) -> dict[str, Any]:
        """Return all that is known, for a JSON file."""
        rows = []
        for row in self.rows:
            quantities = [q for q in self.workload.quantities if row.cores.get(q)]
            shown = {
                "system": row.system,
                "configuration": row.configuration,
                "first_s": row.first_s,
                "difference": row.difference,
                "lost": row.lost,
                "cores": {q: [self.used(row, q), self.allotted(q)] for q in quantities},
                "fair": {q: self.fair(row, q) for q in quantities},
            }
            rows.append(shown)
        return {
            "name": self.workload.name,
            "title": self.workload.title,
            "rtol": self.workload.rtol,
            "rows": rows,
            "comparisons": self.comparisons(),
            "measurements": [dataclasses.asdict(m) for m in self.measurements()],
        }


def agreement(studies: list[dict[str, Any]], system: str) -> str:
    """Return in words how many of a system's rows computed what JAX did, and why others did not."""
    rows = [(study, row) for study in studies for row in study["rows"] if row["system"] == system]
    answered = [(row["difference"], study["rtol"]) for study, row in rows if row["difference"] is not None]
    agree = [difference for difference, rtol in answered if difference <= rtol]
    lost = [f"; {study['name']}, {row['configuration']}: {row['lost']}" for study, row in rows if row["lost"]]
    largest = f"largest difference {max(agree, default=0):.2g}"
    return f"{len(agree)} of {len(rows)} configurations agree, {largest}{''.join(lost)}"
