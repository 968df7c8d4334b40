import dataclasses
import math
import random

import numpy as np
import pytest

from jaxperf.result import Grid, Measurement, Span


def measured(*values, **more):
    return Measurement("m", "s", tuple(values), **more)


def test_median_and_quartiles_are_numpys():
    for count in (2, 3, 4, 7, 50):
        random.seed(count)
        values = [random.lognormvariate(0, 1) for _ in range(count)]
        m = measured(*values)
        low, high = np.percentile(values, [25, 75])
        assert m.median == pytest.approx(np.median(values), rel=1e-12)
        assert m.quartiles == pytest.approx((low, high), rel=1e-12)
        assert m.iqr == pytest.approx(high - low, rel=1e-12)
        assert m.rel_iqr == pytest.approx((high - low) / np.median(values), rel=1e-12)
    assert measured(3.0).quartiles == (3.0, 3.0)
    assert measured(3.0).iqr == 0.0


def test_warm_up_values_and_those_set_aside_enter_no_statistic_and_raw_values_keep_their_order():
    plain = measured(3.0, 1.0, 2.0)
    for m in (measured(*plain.values, warmup=(1000.0,)), measured(*plain.values, set_aside=(1000.0,))):
        assert (m.median, m.iqr, m.noise, m.values) == (plain.median, plain.iqr, plain.noise, (3.0, 1.0, 2.0))


def test_a_row_is_noisy_if_its_median_may_be_off_by_more_than_10_percent():
    for values, verdict in {
        (1.0, 9.0, 5.0, 1.0, 1.0): "few",  # five values enclose no median with 95 %
        (1.0,) * 6: "quiet",
        (0.91, 0.98, 1.0, 1.0, 1.02, 1.09): "quiet",
        (0.89, 0.98, 1.0, 1.0, 1.02, 1.04): "noisy",
        (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 50.0): "quiet",  # one outlier does not move a median
        (-1.2, -1.1, -1.0, -1.0, -0.9, -0.8): "noisy",
        (0.0,) * 6: "quiet",
        (0.0,) * 6 + (1.0,): "noisy",
        (0.7, 0.95, 1.0, 1.05, 1.3) * 20: "quiet",  # values far apart, but many
        (0.6, 1.4) * 50: "noisy",  # however many, if they are of two kinds
    }.items():
        assert measured(*values).noise == verdict, values


def test_what_a_quiet_row_promises_is_kept_for_medians_of_skewed_noise():
    """Of the rows that are called quiet, at most one in twenty is off by more than its interval says."""
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(200):
        m = measured(*rng.lognormal(0, 0.1, 30).tolist())
        wrong += abs(m.median - 1) > m.off_by
    assert wrong / 200 <= 0.05 + 0.04  # 2.6 standard deviations


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="'m' has no values"):
        measured()
    for bad in (math.nan, math.inf, -math.inf):
        for make in (measured, lambda v: measured(1.0, warmup=(v,)), lambda v: measured(1.0, set_aside=(v,))):
            with pytest.raises(ValueError, match="'m' holds a value that is not finite"):
                make(bad)
    with pytest.raises(ValueError, match="runs from 2 to 1"):
        Span("cpu 0", "dot", 2, 1)
    with pytest.raises(ValueError, match="'g' has 2 columns, a row has 1"):
        Grid("g", ("a", "b"), (("x",),))
    with pytest.raises(dataclasses.FrozenInstanceError):
        measured(1.0).values = (2.0,)
