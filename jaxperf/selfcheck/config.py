"""What `jaxperf selfcheck` checks, quickly and in full."""

from __future__ import annotations

from dataclasses import dataclass

from jaxperf.user_function.options import Measure


@dataclass(frozen=True)
class Config:
    """What is checked.

    Attributes:
      known_s: durations of the known work.
      trials: how many trials the rules get.
      rounds, values: how many values of each program a trial takes, for each of the rules.
      numbers: the numbers of values with which the rules are asked.
      least, budget_s: the least rounds and the seconds of a trial that stops as `jaxperf measure` does.
      loaded: whether to repeat everything while a busy program runs on each core.
    """

    known_s: tuple[float, ...]
    trials: int
    rounds: int
    values: int
    numbers: tuple[int, ...]
    least: int = Measure.rounds
    budget_s: float = Measure.budget_s
    loaded: bool = True


_UP_TO_100_MS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1)
QUICK = Config(known_s=_UP_TO_100_MS, trials=10, rounds=20, values=12, numbers=(6, 8, 12, 20))
FULL = Config(known_s=(*_UP_TO_100_MS, 1.0), trials=400, rounds=40, values=40, numbers=(6, 8, 12, 20, 30, 40))
