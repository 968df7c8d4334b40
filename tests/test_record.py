"""The record of a measurement: raw values kept, statistics computed from them, nothing else imported."""

from __future__ import annotations

import dataclasses
import math
import random
import subprocess
import sys

import numpy as np
import pytest

from jaxperf.measure.record import Environment, Measurement, Result, Series


def measured(*values: float, **more: object) -> Measurement:
    return Measurement("m", "s", tuple(values), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [2, 3, 4, 7, 50])
def test_median_and_iqr_are_numpys(count: int) -> None:
    random.seed(count)
    values = [random.lognormvariate(0, 1) for _ in range(count)]
    m = measured(*values)
    low, high = np.percentile(values, [25, 75])
    assert m.median == pytest.approx(np.median(values), rel=1e-12)
    assert m.iqr == pytest.approx(high - low, rel=1e-12)
    assert m.rel_iqr == pytest.approx((high - low) / np.median(values), rel=1e-12)


def test_one_value_has_no_spread() -> None:
    assert measured(3.0).median == 3.0
    assert measured(3.0).iqr == 0.0


def test_warm_up_values_enter_no_statistic() -> None:
    cold, warm = measured(1.0, 2.0, 3.0, warmup=(1000.0,)), measured(1.0, 2.0, 3.0)
    assert (cold.median, cold.iqr, cold.noise) == (warm.median, warm.iqr, warm.noise)
    assert cold.warmup == (1000.0,)


def test_raw_values_are_kept_in_their_order() -> None:
    assert measured(3.0, 1.0, 2.0).values == (3.0, 1.0, 2.0)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((1.0, 1.0, 1.0), "few"),
        ((1.0, 9.0, 5.0), "few"),
        ((1.0, 1.0, 1.0, 1.0), "quiet"),
        ((0.96, 0.98, 1.0, 1.02, 1.04), "quiet"),
        ((0.8, 0.9, 1.0, 1.1, 1.2), "noisy"),
        ((1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 50.0), "quiet"),  # one outlier does not make a run noisy
        ((-1.2, -1.1, -1.0, -0.9, -0.8), "noisy"),
        ((0.0, 0.0, 0.0, 0.0), "quiet"),
    ],
)
def test_the_noise_verdict_follows_the_spread(values: tuple[float, ...], verdict: str) -> None:
    assert measured(*values).noise == verdict


def test_items_per_s_is_items_over_the_median() -> None:
    assert measured(0.1, 0.2, 0.3, items=64).items_per_s == pytest.approx(320.0)


@pytest.mark.parametrize(
    "m",
    [
        measured(0.5),
        measured(0.0, items=64),
        Measurement("memory", "bytes", (1.0,), items=64),
    ],
    ids=["no items", "no time", "not a time"],
)
def test_items_per_s_is_none_where_it_means_nothing(m: Measurement) -> None:
    assert m.items_per_s is None


def test_a_measurement_without_values_is_refused() -> None:
    with pytest.raises(ValueError, match="'m' has no values"):
        measured()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="'m' holds a value that is not finite"):
        measured(1.0, bad)
    with pytest.raises(ValueError, match="'m' holds a value that is not finite"):
        measured(1.0, warmup=(bad,))


def test_a_series_of_unequal_lengths_is_refused() -> None:
    with pytest.raises(ValueError, match="'loss' has 2 x for 1 y"):
        Series("loss", (1.0, 2.0), (0.5,), "epoch", "")


def test_records_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        measured(1.0).values = (2.0,)  # type: ignore[misc]


def test_a_result_finds_its_measurements_by_name() -> None:
    ours = measured(1.0)
    result = Result("e", "8.1", "t", "q", {}, Environment(), measurements=(ours,))
    assert result.measurement("m") is ours
    with pytest.raises(KeyError, match=r"no measurement 'x'; there are \['m'\]"):
        result.measurement("x")


def test_record_and_store_need_only_the_standard_library() -> None:
    program = (
        "import sys; before = set(sys.modules)\n"
        "import jaxperf.measure.record, jaxperf.measure.store\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names) - {'jaxperf'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
