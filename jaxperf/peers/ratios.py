"""How two systems compare, from values of the same rounds: the median of their ratios, with an interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """Median of the rounds' ratios and an interval for it.

    Attributes:
      median: of the ratios.
      low, high: two of the ratios, between which the true median lies with probability `coverage`.
      coverage: at least 0.95 from 6 rounds on; what the whole range covers where there are fewer.
    """

    median: float
    low: float
    high: float
    coverage: float

    @property
    def verdict(self) -> str:
        """ "slower" or "faster" (than the base) where the interval at 95 % excludes 1, else "undecided"."""
        if not self.decides(1):
            return "undecided"
        return "slower" if self.low > 1 else "faster"

    def decides(self, bound: float) -> bool:
        """Whether the interval, at 95 %, says on which side of `bound` the ratio lies."""
        return self.coverage >= CONFIDENCE and not self.low <= bound <= self.high


def ratio(values: Sequence[float], base: Sequence[float]) -> Ratio:
    """`values[i] / base[i]` of every round i.

    The interval makes no assumption on how times are distributed: each ratio lies above the true median or
    below it like a coin's toss, so the k-th smallest and k-th largest of n enclose it but for 2 P(B < k), B
    binomial (n, 1/2). The largest k that keeps 95 % is taken.

    Raises:
      ValueError: no rounds, or not the same number for both.
    """
    if not values or len(values) != len(base):
        raise ValueError(f"{len(values)} rounds against {len(base)}")
    ratios = sorted(a / b for a, b in zip(values, base))
    n = len(ratios)
    k = max((k for k in range(1, n // 2 + 1) if _coverage(n, k) >= CONFIDENCE), default=1)
    return Ratio(statistics.median(ratios), ratios[k - 1], ratios[n - k], _coverage(n, k))


def _coverage(n: int, k: int) -> float:
    """Probability that the median lies between the k-th smallest and the k-th largest of n."""
    return max(0.0, 1 - 2 * sum(math.comb(n, i) for i in range(k)) / 2**n)
