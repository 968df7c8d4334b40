"""Compare two samples by ranks: p-value, interval, and the correction for multiple comparisons.

The ratio of two samples is the median of all ratios of a value of one to a value of the other (Hodges and
Lehmann, 1963, on logarithms). Its p-value and interval come from the Mann-Whitney rank test, which is exact
for few values, assumes no distribution, and is robust to outliers. A t test would need roughly normal times,
and a bootstrap of a median of seven values misses its level.
"""

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


def ratio(a: Sequence[float], b: Sequence[float]) -> float:
    """Return `b` as a multiple of `a`: the median of all ratios of their values, which are positive."""
    return statistics.median(v / u for u in a for v in b)


def p_value(a: Sequence[float], b: Sequence[float], *, least: float) -> float:
    """Return the two-sided p-value of the hypothesis that the ratio is within `least` of 1."""
    from scipy.stats import mannwhitneyu

    more = mannwhitneyu([v * (1 + least) for v in a], b, alternative="less").pvalue
    less = mannwhitneyu([v / (1 + least) for v in a], b, alternative="greater").pvalue
    chance = 2 * float(min(more, less))
    return min(1.0, chance) if math.isfinite(chance) else 1.0  # not finite if all values are equal


def interval(a: Sequence[float], b: Sequence[float], *, alpha: float) -> tuple[float, float]:
    """Return the range of ratios of `b` to `a` that the test does not reject; NaN for too few values."""
    import numpy as np
    from scipy.stats import mannwhitneyu

    if smallest_p(len(a), len(b)) > alpha:
        return math.nan, math.nan
    x, y = np.asarray(a), np.asarray(b)
    ratios = np.unique(np.divide.outer(y, x))
    if len(ratios) == 1:
        return float(ratios[0]), float(ratios[0])
    between = np.sqrt(ratios[1:] * ratios[:-1])  # the ranks change only at the ratios
    accepted = np.flatnonzero(mannwhitneyu(x[:, None] * between, y[:, None], axis=0).pvalue > alpha)
    if not len(accepted):
        return ratio(a, b), ratio(a, b)
    return float(ratios[accepted[0]]), float(ratios[accepted[-1] + 1])


def smallest_p(n: int, m: int) -> float:
    """Return the smallest possible two-sided p-value for samples of `n` and `m` values."""
    return 2 / math.comb(n + m, n)


def decidable(smallest: Mapping[K, float], alpha: float) -> set[K]:
    """Return the rows that could be significant at all, given their number (Tarone's rule)."""
    for count in range(1, len(smallest) + 1):
        possible = {i for i, p in smallest.items() if p <= alpha / count}
        if len(possible) <= count:
            return possible
    return set()


def holm(p_values: Mapping[K, float]) -> dict[K, float]:
    """Return p-values with Holm's correction, which bounds the chance of any wrong rejection."""
    adjusted, largest = {}, 0.0
    for smaller, i in enumerate(sorted(p_values, key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, p_values[i] * (len(p_values) - smaller)))
        adjusted[i] = largest
    return adjusted
