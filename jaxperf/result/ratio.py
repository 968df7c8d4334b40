"""Compare paired values: the median of per-round ratios, its exact interval, and the decision.

A busy machine slows down all programs of a round, so the ratio of two values from one round varies less than
either value. Values that were not interleaved are compared by ranks instead (`ranks.py`).
"""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from jaxperf.result.values import Measurement, interval

LAYOUT = 0.01  # difference between equal programs by code and memory layout (Mytkowicz et al., 2009)
Decision = bool | None  # None: undecided
T = TypeVar("T")


@dataclass(frozen=True)
class Ratio:
    """The median of per-round ratios; `low` and `high` enclose the true median with at least 95 %.

    A ratio is on one side of a bound if the whole interval is, by a margin of 1 % or of an eighth of the
    interval's own width, if that is more. The margin reduces wrong decisions about equal programs from up to
    5 % to 1 to 2 %.

    With fewer than six rounds, `low` and `high` are NaN, and all decisions are None.
    """

    median: float
    low: float
    high: float
    rounds: int

    @property
    def margin(self) -> float:
        """Return the factor by which the interval must be away from a bound."""
        return max(1 + LAYOUT, (self.high / self.low) ** (1 / 8)) if self.low > 0 else math.inf

    def above(self, bound: float = 1.0) -> Decision:
        """Return whether the true ratio is above `bound`; None if the interval is too close to tell."""
        return _decide(self.low > bound * self.margin, self.high < bound / self.margin)

    def below(self, bound: float = 1.0) -> Decision:
        """Return whether the true ratio is below `bound`; None if the interval is too close to tell."""
        return _decide(self.high < bound / self.margin, self.low > bound * self.margin)

    at_least, at_most = above, below  # with a margin, the bound itself makes no difference

    def within(self, least: float) -> Decision:
        """Return whether the true ratio differs from 1 by less than the fraction `least` (0.05: 5 %).

        The tolerance is the margin: the interval lies inside of it, or outside.
        """
        lowest, highest = 1 / (1 + least), 1 + least
        return _decide(lowest < self.low and self.high < highest, self.high <= lowest or self.low >= highest)

    @property
    def word(self) -> str:
        """Return "slower", "faster" or "undecided" for a ratio of times."""
        return {True: "slower", False: "faster", None: "undecided"}[self.above()]

    def __str__(self) -> str:
        if not math.isfinite(self.low):
            return f"{_digits(self.median)} ({self.rounds} rounds are too few for an interval)"
        return f"{_digits(self.median)} ({_digits(self.low)} to {_digits(self.high)})"


def _digits(ratio: float) -> str:
    """Return three digits, and three decimals near 1, where a verdict may rest on them."""
    return f"{ratio:.3f}" if 0.9 <= ratio < 1.1 else f"{ratio:.3g}"


def both(*decisions: Decision) -> Decision:
    """Return False if any decision is False, else None if any is None, else True."""
    return _decide(all(decisions), False in decisions)


def _decide(is_true: bool, is_false: bool) -> Decision:
    """Return what an interval shows: that something is true, that it is false, or neither."""
    if is_true:
        return True
    return False if is_false else None


def ratio(over: Measurement, under: Measurement) -> Ratio:
    """Return the ratio of two measurements, from `over.values[i] / under.values[i]` of every round i.

    Raises:
      ValueError: the two are not from the same rounds, or a value of `under` is 0.
    """
    if not over.rounds or over.rounds != under.rounds:
        raise ValueError(f"{over.name!r} and {under.name!r} were not measured in the same rounds")
    return ratio_of([a / b for a, b in zip(over.values, under.values, strict=True)])


def ratio_of(ratios: Sequence[float]) -> Ratio:
    """Return the median of per-round ratios with its interval; rounds must have independent random orders."""
    return Ratio(statistics.median(ratios), *interval(ratios), len(ratios))


def turns(parts: Sequence[T], draw: random.Random) -> list[T]:
    """Return the parts in a random order for one round.

    Randomization makes the sign test exact (Fisher, The Design of Experiments, 1935): of two equal programs,
    chance decides which one gets the slower time in a round. So rounds are independent, although consecutive
    times on a shared host are correlated.
    """
    return draw.sample(parts, len(parts))
