"""How noisy a machine may be for a true difference of 5 % to be found: both rules on independent noise.

    python benchmarks/simulate_verdicts.py

Each row is a spread of the values (interquartile range over median). Runs stop as those of `measure` do with
its default settings for calls of 2 ms or less: after 0.25 s, which are 125 values, if their spread is at most
2 %, or after 200. The columns "measure" are of rounds that stop as those of `jaxperf measure` do: after 15 if
their ratio is known within 2 % by then, later, or after 1000.
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.process import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from verdicts import by_ranks, by_ratio

from jaxperf.measure.rounds import rounds_to_add
from jaxperf.result import Measurement

SPREADS = (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.12)
ROUNDS = (6, 12, 20, 40, 100)
SETTLED = 125  # values in 0.25 s
MOST = 1000  # rounds that fit into the 5 s of `jaxperf measure`, for calls of 2 ms
IQR_OF_SIGMA = 1.349


@dataclass(frozen=True)
class Config:
    """How much is simulated."""

    trials: int = 200  # per row
    difference: float = 0.05  # the true one


def values(
    rng: random.Random, spread: float, factor: float, stop: Callable[[list[float]], bool]
) -> Measurement:
    """Draw lognormal values until `stop` has seen enough."""
    drawn: list[float] = []
    while not stop(drawn):
        drawn.append(factor * rng.lognormvariate(0, spread / IQR_OF_SIGMA))
    return Measurement("m", "s", tuple(drawn))


def settled(drawn: list[float]) -> bool:
    """Return whether the rule of `measure` would stop here."""
    if len(drawn) < SETTLED or len(drawn) >= 200:
        return len(drawn) >= 200
    return Measurement("m", "s", tuple(drawn)).rel_iqr <= 0.02


def _full(number: int, drawn: list[float]) -> bool:
    return len(drawn) >= number


def rounds_that_stop(rng: random.Random, spread: float, factor: float) -> list[Measurement]:
    """Draw two programs' values in rounds, until these know the ratio."""
    first: list[float] = []
    other: list[float] = []
    more = 15
    while more and len(first) < MOST:
        for _ in range(more):
            first.append(rng.lognormvariate(0, spread / IQR_OF_SIGMA))
            other.append(factor * rng.lognormvariate(0, spread / IQR_OF_SIGMA))
        more = rounds_to_add(first, other)
    return [Measurement("m", "s", tuple(values)) for values in (first, other)]


def main(config: Config) -> int:
    """Print a row per spread: how often each rule is right, and wrong about equal runs."""
    heads = "".join(f"{f'{n} rounds':>11}" for n in ROUNDS)
    print(f"{'spread':>6}  {'compare':>8} {'wrong':>6}  {'measure':>8} {'wrong':>6} {'rounds':>6}  {heads}")
    for spread in SPREADS:
        rng = random.Random(0)
        counts: dict[object, int] = dict.fromkeys(
            ("found", "wrong", "slower", "differs", "taken", *ROUNDS), 0
        )
        for _ in range(config.trials):
            base, equal, slow = (values(rng, spread, f, settled) for f in (1, 1, 1 + config.difference))
            counts["found"] += by_ranks(base, slow) == "slower"
            counts["wrong"] += by_ranks(base, equal) in ("slower", "faster")
            pair = rounds_that_stop(rng, spread, 1 + config.difference)
            counts["slower"] += by_ratio(*pair) == "slower"
            counts["taken"] += len(pair[0].values)
            counts["differs"] += by_ratio(*rounds_that_stop(rng, spread, 1)) != "undecided"
            for n in ROUNDS:
                pair = [values(rng, spread, f, partial(_full, n)) for f in (1, 1 + config.difference)]
                counts[n] += by_ratio(*pair) == "slower"
        share = {what: count / config.trials for what, count in counts.items()}
        rounds = "".join(f"{share[n]:11.0%}" for n in ROUNDS)
        stopped = f"{share['slower']:8.0%} {share['differs']:6.1%} {share['taken']:6.0f}"
        print(f"{spread:6.0%}  {share['found']:8.0%} {share['wrong']:6.1%}  {stopped}  {rounds}", flush=True)
    return 0


if __name__ == "__main__":
    from jaxperf import flags
    from jaxperf.process import ended

    raise SystemExit(ended(lambda: main(flags.parse_config(Config, __doc__))))
