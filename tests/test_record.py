"""The record: raw values kept, statistics computed from them, blocks in order, nothing else imported."""

from __future__ import annotations

import dataclasses
import math
import random
import subprocess
import sys

import numpy as np
import pytest

from jaxperf.result import (
    Axis,
    Claim,
    Curve,
    Dots,
    Environment,
    Fact,
    Grid,
    Lines,
    Measurement,
    Note,
    Reference,
    Result,
    Span,
    Table,
    Timeline,
    Timelines,
)


def measured(*values: float, **more: object) -> Measurement:
    return Measurement("m", "s", tuple(values), **more)  # type: ignore[arg-type]


def test_median_and_quartiles_are_numpys() -> None:
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


def test_warm_up_values_enter_no_statistic_and_raw_values_keep_their_order() -> None:
    cold, warm = measured(3.0, 1.0, 2.0, warmup=(1000.0,)), measured(3.0, 1.0, 2.0)
    assert (cold.median, cold.iqr, cold.noise) == (warm.median, warm.iqr, warm.noise)
    assert cold.values == (3.0, 1.0, 2.0)


def test_the_noise_verdict_follows_the_spread() -> None:
    for values, verdict in {
        (1.0, 1.0, 1.0): "few",
        (1.0, 9.0, 5.0): "few",
        (1.0, 1.0, 1.0, 1.0): "quiet",
        (0.96, 0.98, 1.0, 1.02, 1.04): "quiet",
        (0.8, 0.9, 1.0, 1.1, 1.2): "noisy",
        (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 50.0): "quiet",  # one outlier does not make a run noisy
        (-1.2, -1.1, -1.0, -0.9, -0.8): "noisy",
        (0.0, 0.0, 0.0, 0.0): "quiet",
    }.items():
        assert measured(*values).noise == verdict, values


def test_items_per_s_is_items_over_the_median_and_none_where_it_means_nothing() -> None:
    assert measured(0.1, 0.2, 0.3, items=64).items_per_s == pytest.approx(320.0)
    for m in (measured(0.5), measured(0.0, items=64), Measurement("memory", "bytes", (1.0,), items=64)):
        assert m.items_per_s is None


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="'m' has no values"):
        measured()
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="'m' holds a value that is not finite"):
            measured(1.0, bad)
        with pytest.raises(ValueError, match="'m' holds a value that is not finite"):
            measured(1.0, warmup=(bad,))
    with pytest.raises(ValueError, match="'loss' has 2 x for 1 y"):
        Curve("loss", (1.0, 2.0), (0.5,))
    with pytest.raises(ValueError, match="runs from 2 to 1"):
        Span("cpu 0", "dot", 2, 1)
    with pytest.raises(ValueError, match="'g' has 2 columns, a row has 1"):
        Grid("g", ("a", "b"), (("x",),))
    with pytest.raises(dataclasses.FrozenInstanceError):
        measured(1.0).values = (2.0,)  # type: ignore[misc]


def test_a_result_gives_what_its_blocks_hold_in_their_order() -> None:
    first, second = measured(1.0), dataclasses.replace(measured(2.0), name="n")
    book = Reference("r", 1.0, "s", "MXNet", "8.1", beside="m")
    curve, run = Curve("loss", (1.0,), (None,)), Timeline("step", (), 1.0)
    claim = Claim("a", "holds", "b", "right", "c")
    blocks = (
        Table("t", (first,), references=(book,)),
        Note("one"),
        Fact("n", 3),
        claim,
        Lines("l", (curve,), Axis("x"), Axis("y")),
        Timelines("w", (run,)),
        Dots("d", (second,)),
        Fact("k", "x"),
    )
    result = Result("e", "8.1", "t", "q", {}, Environment(), blocks)
    assert result.measurements == (first, second)
    assert (result.references, result.curves, result.timelines) == ((book,), (curve,), (run,))
    assert (result.facts, result.claims, result.notes) == ({"n": 3, "k": "x"}, (claim,), ("one",))
    assert result.measurement("n") is second
    with pytest.raises(KeyError, match=r"no measurement 'x'; there are \['m', 'n'\]"):
        result.measurement("x")
    assert curve.known == []


def test_the_package_needs_only_the_standard_library() -> None:
    program = (
        "import sys; before = set(sys.modules)\n"
        "import jaxperf.result\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names) - {'jaxperf'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
