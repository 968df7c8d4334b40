"""The summary of a study: measurements, best configurations, ratios to JAX, and which systems agreed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxperf.frameworks.study import BASE, Entry, Study
from jaxperf.frameworks.workloads import ONEDNN
from jaxperf.result import Decision, Measurement, Ratio, ratio


@dataclass(frozen=True)
class FrameworkComparison:
    """A peer's best configuration against JAX's best, round by round.

    Attributes:
      workload, quantity: what was compared.
      framework: the peer's entry.
      jax: JAX's entry.
      ratio: the peer's time over JAX's: above 1 if JAX is faster.
    """

    workload: str
    quantity: str
    framework: Entry
    jax: Entry
    ratio: Ratio

    @property
    def work(self) -> str:
        """Return what was compared, in words."""
        return f"{self.workload}, {self.quantity}" if self.quantity else self.workload

    @property
    def cells(self) -> tuple[str, ...]:
        """Return a row for a table of comparisons."""
        word = {"slower": "JAX is faster", "faster": "JAX is slower"}.get(self.ratio.word, "undecided")
        peer = f"{self.framework.system} {self.framework.configuration}"
        return self.work, self.jax.configuration, peer, str(self.ratio), word


def measurements(study: Study, quantity: str) -> list[Measurement]:
    """Return one quantity of every configuration that was timed."""
    return [e.measurement(study.workload, quantity) for e in study.timed if quantity in e.values]


def comparisons(study: Study) -> list[FrameworkComparison]:
    """Compare every peer with JAX as installed, in each quantity.

    Nothing if one of the two was not timed in rounds, or used more cores than it was given.
    """
    compared = []
    for quantity in study.workload.quantities:
        jax = study.best(BASE, quantity)
        for peer in dict.fromkeys(e.system for e in study.entries if e.system not in (BASE, ONEDNN)):
            framework = study.best(peer, quantity)
            if jax and framework and min(jax.values[quantity]) > 0:
                pair = [e.measurement(study.workload, quantity) for e in (framework, jax)]
                compared.append(
                    FrameworkComparison(study.workload.name, quantity, framework, jax, ratio(*pair))
                )
    return compared


@dataclass(frozen=True)
class Agreement:
    """Whether all of a system's configurations computed what JAX's first one did."""

    agrees: Decision
    tolerance: str
    seen: str


def agreement(studies: Sequence[Study], system: str) -> Agreement:
    """Return whether a system agreed with JAX in all that it started; undecided if an answer is missing."""
    rows = [(study, e) for study in studies for e in study.entries if e.system == system]
    started = [(study, e) for study, e in rows if not e.refused]
    wrong = [(study, e) for study, e in started if e.verdict and not e.verdict.agrees]
    missing = [(study, e) for study, e in started if not e.verdict]
    errors = [e.verdict.error for _, e in started if e.verdict and e.verdict.agrees]
    seen = f"{len(errors)} of {len(started)} configurations agree, "
    seen += f"largest difference {max(errors, default=0.0):.2g}"
    seen += "".join(f"; {s.workload.name}, {e.configuration}: {e.lost}" for s, e in (*wrong, *missing))
    seen += f"; {len(rows) - len(started)} were not started" if len(started) < len(rows) else ""
    tolerances = sorted({study.workload.rtol for study, _ in rows})
    tolerance = f"within {' or '.join(f'{t:g}' for t in tolerances)} of the largest value, by workload"
    return Agreement(False if wrong else None if missing or not started else True, tolerance, seen)
