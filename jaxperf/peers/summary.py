"""What a study says: measurements, best configurations, ratios to JAX, and who agreed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxperf.measure.record import Claim, Measurement, Scalar, Series
from jaxperf.peers.ratios import CONFIDENCE, Ratio, ratio
from jaxperf.peers.study import BASE, Entry, Study


@dataclass(frozen=True)
class Comparison:
    """A peer's best configuration against JAX's best, round by round.

    Attributes:
      measured: the workload's name in measurements, its quantity included.
      peer, best: the peer and its configuration.
      base: JAX's configuration.
      ratio: the peer's time (or bytes) over JAX's: above 1 where JAX is quicker (or smaller).
    """

    measured: str
    peer: str
    best: str
    base: str
    ratio: Ratio


def measurements(study: Study, quantity: str) -> list[Measurement]:
    """`SYSTEM/WORKLOAD QUANTITY/CONFIGURATION` of every configuration that was timed."""
    return [e.measurement(study.workload, quantity) for e in study.timed if quantity in e.values]


def curves(study: Study) -> list[Series]:
    """Loss over steps of every configuration that trained."""
    return [curve for entry in study.timed if (curve := entry.curve(study.workload))]


def comparisons(study: Study) -> list[Comparison]:
    """Every peer with JAX, in each quantity; nothing where one of the two was not timed."""
    found = []
    for quantity in study.workload.quantities:
        ours = study.best(BASE, quantity)
        for peer in dict.fromkeys(e.system for e in study.entries if e.system != BASE):
            theirs = study.best(peer, quantity)
            if ours and theirs and min(ours.values[quantity]) > 0:
                found.append(_comparison(study, quantity, ours, theirs))
    return found


def _comparison(study: Study, quantity: str, ours: Entry, theirs: Entry) -> Comparison:
    return Comparison(
        study.workload.measured(quantity),
        theirs.system,
        theirs.configuration,
        ours.configuration,
        ratio(theirs.values[quantity], ours.values[quantity]),
    )


def facts(study: Study) -> dict[str, Scalar]:
    """Ratios with their intervals, the configurations they are of, and the seconds of every first call."""
    found: dict[str, Scalar] = {}
    for c in comparisons(study):
        name = f"ratio/{c.measured}/{c.peer}_over_{BASE}"
        found |= {
            name: c.ratio.median,
            f"{name}/low": c.ratio.low,
            f"{name}/high": c.ratio.high,
            f"{name}/coverage": c.ratio.coverage,
            f"best/{c.measured}/{c.peer}": c.best,
            f"best/{c.measured}/{BASE}": c.base,
        }
    for e in study.timed:
        found[f"first_call_s/{e.system}/{study.workload.name}/{e.configuration}"] = e.first_s
        if e.verdict:
            found[f"difference/{e.system}/{study.workload.name}/{e.configuration}"] = e.verdict.error
    return found


def line(c: Comparison) -> str:
    """A comparison for reading: "8.1 MLP: mxnet (static) over jax (aot): 2.1 (1.9 to 2.4), slower"."""
    return f"{c.measured}: {c.peer} ({c.best}) over {BASE} ({c.base}): {shown(c.ratio)}"


def shown(r: Ratio) -> str:
    """ "2.1 (1.9 to 2.4), slower"."""
    if r.coverage < CONFIDENCE:
        return f"{r.median:.3g} ({r.low:.3g} to {r.high:.3g} in too few rounds to decide)"
    return f"{r.median:.3g} ({r.low:.3g} to {r.high:.3g}), {r.verdict}"


def agreement(studies: Sequence[Study], system: str) -> Claim:
    """Whether all of a system's configurations computed, in all workloads, what JAX's first one did."""
    rows = [(study, e) for study in studies for e in study.entries if e.system == system]
    wrong = [(study, e) for study, e in rows if e.verdict and not e.verdict.agrees]
    missing = [(study, e) for study, e in rows if not e.verdict]
    errors = [e.verdict.error for _, e in rows if e.verdict and e.verdict.agrees]
    worst = max(errors, default=0.0)
    seen = f"{len(errors)} of {len(rows)} configurations do, largest difference {worst:.2g}"
    seen += "".join(f"; {s.workload.name}, {e.configuration}: {e.lost}" for s, e in (*wrong, *missing))
    tolerances = sorted({study.workload.rtol for study, _ in rows})
    return Claim(
        f"{system} computes what JAX does, outputs and losses",
        predicted=f"within {' or '.join(f'{t:g}' for t in tolerances)} of the largest value, by workload",
        observed=seen,
        held=False if wrong else None if missing else True,
        source="peers",
    )
