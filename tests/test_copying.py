"""Copies beside computing: where results go, that NumPy's are copies, and what is told of every way."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stories import begin

from jaxperf.chapter import copying
from jaxperf.measure import Measurement, timeline
from jaxperf.measure.rounds import Together


def test_copies_to_a_device_lie_there_with_the_same_values():
    source, target = jax.devices()[:2]
    ys = [jax.device_put(jnp.full((4, 4), 1.0 + i), source) for i in range(3)]
    for y, copy in zip(ys, copying.to_device(ys, target), strict=True):
        assert copy.devices() == {target} and y.devices() == {source}
        np.testing.assert_array_equal(copy, y)


def test_copies_to_numpy_are_copies():
    ys = [jnp.ones((4, 4)) + i for i in range(3)]
    copies = copying.to_host(ys)
    for i, copy in enumerate(copies):
        assert isinstance(copy, np.ndarray)
        np.testing.assert_array_equal(copy, np.full((4, 4), 1.0 + i))
    if jax.default_backend() == "cpu":
        assert not any(np.shares_memory(copy, np.asarray(y)) for copy, y in zip(copies, ys))


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What is told of copies from the second device to the first."""
    target, source = jax.devices()[:2]
    story = begin("auto_parallelism", json=tmp_path_factory.mktemp("copying") / "r.json")
    x = jax.device_put(jnp.ones((64, 64)), source)
    copying.compute_and_copy(story, x=x, target=target, thin_size=96, products=3, rounds=2)
    return story.result()


def test_both_kinds_of_products_are_copied_to_both_places(told):
    first = timeline.lane_of(jax.devices()[0])
    ways = [f"{what} to {where}" for what in ("square", "thin") for where in (first, "NumPy")]
    assert [t.name for t in told.timelines] == ways
    assert list(dict.fromkeys(m.name.split(": ")[0] for m in told.measurements)) == ways
    assert all(Path(t.trace).is_file() for t in told.timelines)


def test_the_best_way_is_a_fact_and_the_claim_names_only_ways_that_were_timed(told):
    ratios = [m.median for m in told.measurements if m.name.endswith(": sum / together")]
    assert told.facts["copy_sum_over_together"] in ratios
    [claim] = told.claims
    assert any(t.name in claim.observed for t in told.timelines)


@pytest.mark.parametrize(
    ("possible", "together", "held"),
    [
        ((1.5, 1.5), (1.2, 1.3), True),  # every way whose copies count gains
        ((1.5, 1.5), (1.2, 0.9), False),  # one loses
        ((1.5, 1.01), (1.2, 0.9), True),  # one loses whose copies take next to no time
        ((1.01, 1.01), (1.2, 1.2), None),  # no copy takes long enough to tell
    ],
)
def test_the_claim_asks_all_ways_whose_copies_take_a_tenth(possible, together, held):
    story = begin("auto_parallelism")
    copying._claim_faster_together(story, [made_up(*of) for of in zip(possible, together)])
    [claim] = story.result().claims
    assert claim.held is held


def made_up(possible, ratio):
    """A comparison with `possible` at best and `ratio` in fact, in every round."""
    seconds = {"first": 1.0, "second": possible - 1.0, "both": possible / ratio}
    parts = {name: Measurement(name, "s", (value,) * 3) for name, value in seconds.items()}
    return Together("made up", **parts)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="there is a GPU")
def test_without_a_gpu_all_at_once_is_said_not_to_be_measured():
    story = begin("auto_parallelism")
    x, y = (jax.device_put(jnp.ones((8, 8)), device) for device in jax.devices()[:2])
    copying.everything_at_once(story, on_cpu=x, on_gpu=y, products=2, rounds=1)
    told = story.result()
    assert any("not measured" in note for note in told.notes)
    assert not (told.measurements or told.timelines or told.claims)
