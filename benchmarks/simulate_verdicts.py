"""How noisy a machine may be for a true difference of 5 % to be found: both rules on independent noise.

    python benchmarks/simulate_verdicts.py

Each row is a spread (interquartile range over median): for the rank test of `jaxperf compare`, of the
medians of processes; for `Ratio`, of the values. The column "measure" is of rounds that stop as those of
`jaxperf measure` do: after 15 if their ratio is known within 2 % by then, later, or after 1000.
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.process import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from jaxperf.compare.results import ALPHA, LEAST
from jaxperf.measure.rounds import rounds_to_add
from jaxperf.result import ranks, ratio_of

SPREADS = (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.12)
ROUNDS = (6, 12, 20, 40, 100)
RUNS = (4, 7, 12)
MOST = 1000  # rounds that fit into the 5 s of `jaxperf measure`, for calls of 2 ms
IQR_OF_SIGMA = 1.349
Rule = Callable[[random.Random, float, float], str]  # of a spread and a true ratio


@dataclass(frozen=True)
class Config:
    """How much is simulated."""

    trials: int = 200  # per row
    difference: float = 0.05  # the true one


def values(rng: random.Random, number: int, spread: float, factor: float = 1.0) -> list[float]:
    """Draw lognormal values."""
    return [factor * rng.lognormvariate(0, spread / IQR_OF_SIGMA) for _ in range(number)]


def by_rounds(rounds: int, rng: random.Random, spread: float, factor: float) -> str:
    """Return the verdict of `Ratio` after so many rounds."""
    base, other = values(rng, rounds, spread), values(rng, rounds, spread, factor)
    return ratio_of([b / a for a, b in zip(base, other, strict=True)]).word


def by_ranks(runs: int, rng: random.Random, spread: float, factor: float) -> str:
    """Return the verdict of `jaxperf compare` on one row of so many runs a side."""
    base, other = values(rng, runs, spread), values(rng, runs, spread, factor)
    if ranks.p_value(base, other, least=LEAST) > ALPHA:
        return "undecided"
    return "slower" if ranks.ratio(base, other) > 1 else "faster"


def rounds_that_stop(rng: random.Random, spread: float, factor: float) -> str:
    """Return the verdict of `Ratio` after rounds that stop once they know the ratio."""
    base: list[float] = []
    other: list[float] = []
    more = 15
    while more and len(base) < MOST:
        base += values(rng, more, spread)
        other += values(rng, more, spread, factor)
        more = rounds_to_add(base, other)
    return ratio_of([b / a for a, b in zip(base, other, strict=True)]).word


def main(config: Config) -> int:
    """Print a row per spread: how often each rule is right, and wrong about equal programs."""
    slower = 1 + config.difference
    rows: dict[str, Rule] = {f"{n} runs": partial(by_ranks, n) for n in RUNS}
    rows["measure"] = rounds_that_stop
    rows |= {f"{n} rounds": partial(by_rounds, n) for n in ROUNDS}
    print("finds a true difference (is wrong about equal programs)")
    print(f"{'spread':>6}" + "".join(f"{name:>15}" for name in rows))
    for spread in SPREADS:
        rng = random.Random(0)
        cells = []
        for verdict in rows.values():
            found = sum(verdict(rng, spread, slower) == "slower" for _ in range(config.trials))
            wrong = sum(verdict(rng, spread, 1.0) in ("slower", "faster") for _ in range(config.trials))
            cells.append(f"{found / config.trials:.0%} ({wrong / config.trials:.1%})")
        print(f"{spread:6.0%}" + "".join(f"{cell:>15}" for cell in cells), flush=True)
    return 0


if __name__ == "__main__":
    from jaxperf import flags
    from jaxperf.process import ended

    raise SystemExit(ended(lambda: main(flags.parse_config(Config, __doc__))))
