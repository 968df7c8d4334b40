"""How often the two rules are wrong about equal programs, and how often they find a true difference.

The program is one compiled loop. How many steps it takes is an argument, so 1050 steps instead of 1000 are a
true difference of 5 % in the same machine code. A trial measures every program once, and asks each rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
EQUAL = "equal"
WRONG = 0.05  # both rules state this chance of a wrong verdict
POWER = 0.90  # least share of trials in which a true difference is detected

Trial = Mapping[str, Measurement]  # every program's values, by the program's name


@dataclass(frozen=True)
class Counts:
    """What a rule said about one program compared with the base, in all trials.

    Attributes:
      difference: the program's name: "equal", or how much more work it does, as in "5 %".
      slower, faster, neither: how many trials had this verdict.
    """

    difference: str
    slower: int
    faster: int
    neither: int

    @property
    def trials(self) -> int:
        """Return the number of trials."""
        return self.slower + self.faster + self.neither


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


def programs(percent: int = 5) -> dict[str, Callable[[], jax.Array]]:
    """Return the base, an equal program, and one of `percent` more steps ("5 %"); a call takes about 1 ms."""
    x = jnp.eye(32)

    @jax.jit
    def loop(x: jax.Array, steps: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, steps, lambda _, y: jnp.tanh(y @ x), x)

    return {
        name: partial(loop, x, jax.device_put(jnp.int32(round(STEPS * (1 + more / 100)))))
        for name, more in ((BASE, 0), (EQUAL, 0), (f"{percent} %", percent))
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


def count(trials: Sequence[Trial], verdict: Callable[[Measurement, Measurement], str]) -> list[Counts]:
    """Count a rule's verdicts about every program but the base."""
    counts = []
    for name in [n for n in trials[0] if n != BASE]:
        verdicts = [verdict(t[BASE], t[name]) for t in trials]
        slower, faster = verdicts.count("slower"), verdicts.count("faster")
        counts.append(Counts(name, slower, faster, len(verdicts) - slower - faster))
    return counts
