"""The one rule for paired values: the median of per-round ratios, its exact interval, and the decision.

Two programs that take turns are slowed by the same busy moments, so the ratio of two values from one round is
steadier than either value. Every "faster", "slower" and "as fast" about such values comes from here. Values
that were not interleaved are compared by ranks instead (`compare/ranks.py`).
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from jaxperf.result.values import Measurement

LEVEL = 0.95
LEAST = 0.01  # the layout of code and memory makes as much between equal programs (Mytkowicz et al., 2009)
Decision = bool | None  # yes, no, or the rounds cannot say
T = TypeVar("T")


@dataclass(frozen=True)
class Ratio:
    """The median of n per-round ratios; `low` and `high` enclose the true median with at least 95 %.

    Fewer than six rounds have no such interval: `low` and `high` are then NaN and nothing is decided.
    """

    median: float
    low: float
    high: float
    rounds: int

    def above(self, bound: float = 1.0) -> Decision:
        """Return whether the true ratio is above `bound`: decided where the interval excludes the bound."""
        return True if self.low > bound else False if self.high <= bound else None

    def below(self, bound: float = 1.0) -> Decision:
        """Return whether the true ratio is below `bound`."""
        return True if self.high < bound else False if self.low >= bound else None

    def at_least(self, bound: float) -> Decision:
        """Return whether the true ratio is `bound` or more."""
        return True if self.low >= bound else False if self.high < bound else None

    def at_most(self, bound: float) -> Decision:
        """Return whether the true ratio is `bound` or less."""
        return True if self.high <= bound else False if self.low > bound else None

    def within(self, least: float) -> Decision:
        """Return whether the true ratio differs from 1 by less than the fraction `least` (0.05: 5 %)."""
        return both(self.above(1 / (1 + least)), self.below(1 + least))

    @property
    def word(self) -> str:
        """Return what times say about speed: "slower" or "faster" (ratio below 1), or "undecided".

        The interval must lie beyond 1 by a margin of 1 %, and of an eighth of its own width where that is
        more. Without it the rule is wrong about equal programs in up to 5 % of cases, with it in 1 to 2 %.
        """
        margin = max(1 + LEAST, (self.high / self.low) ** (1 / 8)) if self.low > 0 else math.inf
        return "slower" if self.above(margin) else "faster" if self.below(1 / margin) else "undecided"

    def __str__(self) -> str:
        if not math.isfinite(self.low):
            return f"{self.median:.3g} ({self.rounds} rounds are too few for an interval)"
        return f"{self.median:.3g} ({self.low:.3g} to {self.high:.3g})"


def both(*decisions: Decision) -> Decision:
    """Return whether all hold: no if one does not, else undecided if one is undecided."""
    return False if False in decisions else None if None in decisions else True


def ratio(over: Measurement, under: Measurement) -> Ratio:
    """Return `over.values[i] / under.values[i]` of every round i.

    Raises:
      ValueError: the two are not from the same rounds, or a value of `under` is 0.
    """
    if not over.rounds or over.rounds != under.rounds:
        raise ValueError(f"{over.name!r} and {under.name!r} were not measured in the same rounds")
    return ratio_of([a / b for a, b in zip(over.values, under.values, strict=True)])


def ratio_of(ratios: Sequence[float]) -> Ratio:
    """Apply the rule to ratios of rounds whose orders were drawn independently."""
    return Ratio(statistics.median(ratios), *interval(ratios), len(ratios))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return an interval that holds the true median of independent values at 95 %; NaN for under six.

    It assumes nothing about the distribution: each value falls above or below the true median like a coin
    toss, so two order statistics enclose it (the sign test, by SciPy).
    """
    from scipy.stats import quantile_test  # takes a third of a second, which other renderers save

    bounds = quantile_test(list(values), q=0, p=0.5).confidence_interval(LEVEL)
    return float(bounds.low), float(bounds.high)


def turns(parts: Sequence[T], draw: random.Random) -> list[T]:
    """Return the order of the parts' turns in one round: each once, in an order drawn by chance.

    Chance makes the sign test exact, whatever the machine does (Fisher, The Design of Experiments, 1935). Of
    two equal programs, a coin decides which one gets the slower moment of a round, so rounds are independent
    even if the machine's moments are not. A fixed order promises this for no machine whose speed follows
    itself: on a shared host, consecutive values of 3 ms were correlated by 0.57.
    """
    return draw.sample(parts, len(parts))
