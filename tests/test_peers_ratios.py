"""Ratios of rounds: the interval holds its error rate, and says so where there are too few rounds."""

from __future__ import annotations

import numpy as np
import pytest

from jaxperf.peers.ratios import CONFIDENCE, ratio


def test_the_ratio_is_formed_within_each_round_and_not_of_medians() -> None:
    noisy = [1.0, 10.0, 100.0, 1.0, 10.0, 100.0, 1.0]  # the machine; both systems suffer alike
    found = ratio([2 * x for x in noisy], noisy)
    assert (found.median, found.low, found.high) == (2.0, 2.0, 2.0)
    assert found.verdict == "slower"


def test_order_statistics_of_known_coverage() -> None:
    """Tables of the sign test: n = 6 gives 1 - 2/64 for the extremes, n = 10 gives 0.9785 for the second."""
    six = ratio([1, 2, 3, 4, 5, 6], [1] * 6)
    assert (six.low, six.high, six.coverage) == (1, 6, pytest.approx(1 - 2 / 64))
    ten = ratio(list(range(1, 11)), [1] * 10)
    assert (ten.low, ten.high, ten.coverage) == (2, 9, pytest.approx(1 - 2 * 11 / 1024))


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_too_few_rounds_decide_nothing(n: int) -> None:
    found = ratio([9.0] * n, [1.0] * n)
    assert found.coverage < CONFIDENCE
    assert found.verdict == "undecided"
    assert (found.low, found.median, found.high) == (9.0, 9.0, 9.0)


def skewed(rng: np.random.Generator, n: int) -> np.ndarray:
    """What noise on a machine is like: always upwards, and now and then by much."""
    return rng.lognormal(0, 1, n) * rng.choice([1, 20], n, p=[0.8, 0.2])


def test_the_interval_holds_its_error_rate_whatever_the_distribution() -> None:
    rng, misses, trials = np.random.default_rng(0), 0, 2000
    true_median = float(np.median(skewed(rng, 400_000)))
    for _ in range(trials):
        found = ratio(skewed(rng, 9).tolist(), [true_median] * 9)
        misses += not found.low <= 1 <= found.high
    assert misses / trials <= 1 - CONFIDENCE + 0.015


def test_turned_round_it_is_the_inverse() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.lognormal(size=8).tolist(), rng.lognormal(size=8).tolist()
    there, back = ratio(a, b), ratio(b, a)
    assert there.low == pytest.approx(1 / back.high)
    assert there.high == pytest.approx(1 / back.low)
    assert {there.verdict, back.verdict} in ({"undecided"}, {"slower", "faster"})


def test_the_order_of_rounds_and_the_unit_do_not_matter() -> None:
    a, b = [3.0, 1.0, 2.0, 5.0, 4.0, 7.0], [1.0, 2.0, 1.0, 2.0, 1.0, 2.0]
    assert ratio(a, b) == ratio(a[::-1], b[::-1]) == ratio([1e3 * x for x in a], [1e3 * x for x in b])


def test_one_is_neither_faster_nor_slower() -> None:
    assert ratio([1.0, 1.1, 0.9, 1.2, 0.8, 1.0], [1.0] * 6).verdict == "undecided"
    assert ratio([0.5] * 6, [1.0] * 6).verdict == "faster"


@pytest.mark.parametrize(("bound", "decided"), [(0.1, True), (0.45, False), (0.5, False), (0.6, True)])
def test_an_interval_decides_about_bounds_outside_of_it(bound: float, decided: bool) -> None:
    assert ratio([0.4, 0.5, 0.5, 0.5, 0.5, 0.5], [1.0] * 6).decides(bound) is decided
    assert not ratio([0.5] * 3, [1.0] * 3).decides(bound)  # too few rounds for 95 %


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0], [1.0, 2.0])])
def test_rounds_that_do_not_pair_are_refused(a: list[float], b: list[float]) -> None:
    with pytest.raises(ValueError, match="rounds against"):
        ratio(a, b)
