"""How often the two rules are wrong about equal programs, and how often they find a true difference.

The program is one compiled loop. How many steps it takes is an argument, so 1050 steps instead of 1000 are a
true difference of 5 % in the same machine code. A trial measures every program once. Each rule is then asked
about the first values of a trial, for several numbers of values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxperf.compare.results import compare
from jaxperf.measure import interleaved, measure
from jaxperf.result import Decision, Environment, Measurement, Result, Table, ratio_of

STEPS = 1000  # a millisecond; a call costs 40 us besides, so 5 % more steps than 100 take 3.5 % more time
BASE = "base"
PROGRAMS = {BASE: 0.0, "equal": 0.0, "2 %": 0.02, "5 %": 0.05, "10 %": 0.10, "20 %": 0.20}
WRONG = 0.05  # both rules state this chance of a wrong verdict
FOUND = 0.90

Trial = Mapping[str, Measurement]  # every program's values, by the program's name


@dataclass(frozen=True)
class Counts:
    """What a rule said about one program compared with the base, in all trials.

    Attributes:
      difference: the true one, as a fraction of the base's work.
      values: how many values each side had; None for the number that `measure` took.
      slower, faster, neither: how many trials had this verdict.
    """

    difference: float
    values: int | None
    slower: int
    faster: int
    neither: int

    @property
    def trials(self) -> int:
        """The number of trials."""
        return self.slower + self.faster + self.neither

    @property
    def told_apart(self) -> float:
        """Share of the trials in which the rule said that the two differ."""
        return (self.slower + self.faster) / self.trials


@dataclass(frozen=True)
class Share:
    """How many of how many trials, and the 95 % interval of the true share (exact binomial)."""

    count: int
    trials: int

    def at_least(self, share: float) -> Decision:
        """Return whether it is; undecided if it falls short by no more than chance allows."""
        if self.count >= share * self.trials:
            return True
        return False if self._ends()[1] < share else None

    def below(self, share: float) -> Decision:
        """Return whether it is; undecided if it exceeds `share` by no more than chance allows."""
        if self.count < share * self.trials:
            return True
        return False if self._ends()[0] >= share else None

    def __str__(self) -> str:
        low, high = self._ends()
        return f"{self.count} of {self.trials} ({low:.1%} to {high:.1%})"

    def _ends(self) -> tuple[float, float]:
        from scipy.stats import binomtest

        ends = binomtest(self.count, self.trials).proportion_ci(0.95)
        return float(ends.low), float(ends.high)


def programs() -> dict[str, Callable[[], jax.Array]]:
    """Return every program by name; calls take about a millisecond."""
    x = jnp.eye(32)

    @jax.jit
    def loop(x: jax.Array, steps: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, steps, lambda _, y: jnp.tanh(y @ x), x)

    return {
        name: partial(loop, x, jax.device_put(jnp.int32(round(STEPS * (1 + more)))))
        for name, more in PROGRAMS.items()
    }


def in_rounds(parts: Mapping[str, Callable[[], Any]], *, rounds: int, budget_s: float = 0.0) -> Trial:
    """Take one trial for `Ratio`: all programs in the same rounds, as many as `interleaved` takes."""
    return interleaved(parts, count=rounds, budget_s=budget_s)


def in_runs(parts: Mapping[str, Callable[[], Any]], **options: Any) -> Trial:
    """Take one trial for `compare`: every program measured by itself, one after the other."""
    return {name: measure(part, name=name, **options) for name, part in parts.items()}


def by_ratio(base: Measurement, other: Measurement) -> str:
    """Return the verdict of `Ratio`, the one rule for paired values."""
    return ratio_of([b / a for a, b in zip(base.values, other.values, strict=True)]).word


def by_ranks(base: Measurement, other: Measurement) -> str:
    """Return the verdict of `jaxperf compare` about two runs."""
    (row,) = compare([_result(base)], [_result(other)]).rows
    return row.verdict


def _result(m: Measurement) -> Result:
    return Result("selfcheck", "", "", "", {}, Environment(), (Table("", (replace(m, name="program"),)),))


def count(
    trials: Sequence[Trial],
    verdict: Callable[[Measurement, Measurement], str],
    numbers: Iterable[int | None],
) -> list[Counts]:
    """Ask a rule about every program but the base, with the first values of each side."""
    counts = []
    for number in numbers:
        for name in trials[0]:
            if name == BASE:
                continue
            verdicts = [verdict(_first(t[BASE], number), _first(t[name], number)) for t in trials]
            slower, faster = verdicts.count("slower"), verdicts.count("faster")
            counts.append(Counts(PROGRAMS[name], number, slower, faster, len(verdicts) - slower - faster))
    return counts


def _first(m: Measurement, number: int | None) -> Measurement:
    return m if number is None else Measurement(m.name, m.unit, m.values[:number])
