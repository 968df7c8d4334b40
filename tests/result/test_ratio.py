import math
import random

import numpy as np
import pytest

from jaxperf.result import Measurement, Ratio, both, ratio, ratio_of, turns


def rounds(values, of="r"):
    return Measurement("m", "s", tuple(values), rounds=of)


def test_the_ratio_is_formed_within_each_round_and_not_of_medians():
    noisy = [1.0, 10.0, 100.0, 1.0, 10.0, 100.0, 1.0]  # the machine; both programs suffer alike
    measured = ratio(rounds([2 * x for x in noisy]), rounds(noisy))
    assert (measured.median, measured.low, measured.high, measured.rounds) == (2.0, 2.0, 2.0, 7)
    assert measured.word == "slower"


def test_order_statistics_of_known_coverage():
    """Tables of the sign test: n = 6 gives 1 - 2/64 for the extremes, n = 10 gives 0.9785 for the second."""
    assert ratio_of([1, 2, 3, 4, 5, 6]) == Ratio(3.5, 1, 6, 6)
    assert ratio_of(list(range(1, 11))) == Ratio(5.5, 2, 9, 10)


def test_too_few_rounds_decide_nothing():
    for n in (1, 2, 3, 5):
        measured = ratio_of([9.0] * n)
        assert math.isnan(measured.low) and math.isnan(measured.high)
        assert measured.above() is measured.below() is measured.within(0.1) is None
        assert measured.at_least(2) is measured.at_most(2) is None
        assert (measured.word, str(measured)) == ("undecided", f"9 ({n} rounds are too few for an interval)")


def skewed(rng, n):
    """What noise on a machine is like: always upwards, and now and then by much."""
    return rng.lognormal(0, 1, n) * rng.choice([1, 20], n, p=[0.8, 0.2])


def test_the_interval_holds_its_error_rate_whatever_the_distribution():
    rng, misses, trials = np.random.default_rng(0), 0, 200
    true_median = float(np.median(skewed(rng, 400_000)))
    for _ in range(trials):
        measured = ratio_of((skewed(rng, 9) / true_median).tolist())
        misses += not measured.low <= 1 <= measured.high
    assert misses / trials <= 0.05 + 0.04  # 2.6 standard deviations


def test_turned_round_it_is_the_inverse_and_order_does_not_matter():
    rng = np.random.default_rng(3)
    a, b = rng.lognormal(size=8).tolist(), rng.lognormal(size=8).tolist()
    there, back = ratio(rounds(a), rounds(b)), ratio(rounds(b), rounds(a))
    assert there.low == pytest.approx(1 / back.high)
    assert there.high == pytest.approx(1 / back.low)
    assert {there.word, back.word} in ({"undecided"}, {"slower", "faster"})
    assert ratio(rounds(a[::-1]), rounds(b[::-1])) == there


def test_an_interval_decides_about_bounds_outside_of_it():
    measured = Ratio(0.5, 0.4, 0.6, 9)
    for bound, above, below in ((0.3, True, False), (0.5, None, None), (0.7, False, True)):
        assert (measured.above(bound), measured.below(bound)) == (above, below)
        assert (measured.at_least(bound), measured.at_most(bound)) == (above, below)
    assert (measured.word, str(measured)) == ("faster", "0.5 (0.4 to 0.6)")
    assert Ratio(1.0, 0.98, 1.02, 9).within(0.05) is True
    assert Ratio(1.2, 1.1, 1.3, 9).within(0.05) is False
    assert Ratio(1.0, 0.9, 1.02, 9).within(0.05) is None
    assert Ratio(1.0, 0.9, 1.1, 9).word == "undecided"
    assert Ratio(1.0, 1.0, 1.0, 9).word == "undecided"  # equal to the last digit, as a coarse clock has it
    # together: no before undecided before yes
    assert (both(True, True), both(True, None), both(None, False), both()) == (True, None, False, True)


@pytest.mark.parametrize("bound", [1.0, 0.1, 1.5, 10.0])
def test_a_verdict_about_any_bound_needs_a_margin_of_1_percent_and_of_an_eighth_of_the_interval(bound):
    """The layout of code and memory makes equal programs differ by as much (Mytkowicz et al., 2009)."""
    for low, high, decision in (
        (1.005, 1.03, None), (1.011, 1.03, True), (1.03, 1.4, None), (1.05, 1.4, True),
        (0.0, 0.9, None), (0.9, 1.2, None),
    ):  # fmt: skip
        over = Ratio(bound, low * bound, high * bound, 9)
        under = Ratio(bound, bound / high, bound / low if low else math.inf, 9)
        opposite = None if decision is None else not decision
        for measured, above in ((over, decision), (under, opposite)):
            below = None if above is None else not above
            assert (measured.above(bound), measured.at_least(bound)) == (above, above)
            assert (measured.below(bound), measured.at_most(bound)) == (below, below)


def test_the_words_of_a_ratio_show_the_digits_on_which_its_verdict_rests():
    close, apart = Ratio(1.271, 1.0043, 1.3162, 20), Ratio(1.271, 1.0512, 1.3162, 20)
    assert (str(close), close.word) == ("1.27 (1.004 to 1.32)", "undecided")
    assert (str(apart), apart.word) == ("1.27 (1.051 to 1.32)", "slower")
    assert str(Ratio(0.00351, 0.0028, 31.04, 20)) == "0.00351 (0.0028 to 31)"


@pytest.mark.parametrize("lasts", [3, *(pytest.param(n, marks=pytest.mark.thorough) for n in (1, 2, 7, 60))])
def test_equal_programs_on_a_machine_with_busy_moments_differ_in_at_most_5_percent(lasts):
    """Busy moments that last for so many values, which is what made fixed orders wrong too often."""
    draw, wrong, trials = random.Random(lasts), 0, 200
    for _ in range(trials):
        slow = [draw.choice((1.0, 1.5)) for _ in range(81 // lasts + 2)]
        start = draw.randrange(lasts)
        machine = iter(slow[(i + start) // lasts] + draw.random() / 10 for i in range(80))
        elapsed_s = [{name: next(machine) for name in turns("ab", draw)} for _ in range(40)]
        wrong += ratio_of([each["a"] / each["b"] for each in elapsed_s]).word != "undecided"
    assert wrong / trials < 0.04  # 5 % promised, and 1 to 2 % left by the margin of a verdict
