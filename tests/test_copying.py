"""Copies while computing: where results go, that NumPy's are copies, and which ways are judged."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stories import begin
from test_devices_together import made_up

from experiments.auto_parallelism import run
from jaxperf.chapter import copying
from jaxperf.result import Grid, Table

SIZES = {"products": 3, "rounds": 6}


def matrices():
    return [jax.device_put(jnp.ones((64, 64)), d) for d in jax.devices("cpu")[:2]]


def test_copies_to_a_device_are_there_with_the_same_values():
    source, target = jax.devices("cpu")[:2]
    ys = [jax.device_put(jnp.full((4, 4), 1.0 + i), source) for i in range(3)]
    for y, copy in zip(ys, copying.copy_to_device(ys, target), strict=True):
        assert copy.devices() == {target} and y.devices() == {source}
        np.testing.assert_array_equal(copy, y)


def test_copies_to_numpy_are_copies():
    ys = [jax.device_put(jnp.ones((4, 4)) + i, jax.devices("cpu")[0]) for i in range(3)]
    copies = copying.copy_to_numpy(ys)
    for i, (y, copy) in enumerate(zip(ys, copies, strict=True)):
        assert isinstance(copy, np.ndarray)
        np.testing.assert_array_equal(copy, np.full((4, 4), 1.0 + i))
        assert not np.shares_memory(copy, np.asarray(y))


def test_moving_averages_need_the_row_before():
    x = np.random.default_rng(0).uniform(size=(5, 3)).astype(np.float32)
    average, rows = x[0], []
    for row in x:
        average = np.float32(0.9) * average + np.float32(0.1) * row
        rows.append(average)
    np.testing.assert_allclose(copying.moving_averages(x), rows, rtol=1e-6)


def test_products_in_a_row_are_powers_and_as_many_as_last_like_a_copy(monkeypatch):
    x = jax.device_put(
        np.random.default_rng(0).uniform(size=(8, 8)).astype(np.float32), jax.devices("cpu")[0]
    )
    monkeypatch.setattr(copying, "size_that_lasts", lambda size, make, *, seconds, most: 3 * size)
    ys = copying.as_long_as_a_copy(x)(2)
    expected = np.linalg.matrix_power(np.asarray(x, np.float64), 4) / 8**3
    assert len(ys) == 2
    for y in ys:
        np.testing.assert_allclose(y, expected, rtol=1e-5)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What is told of copies from the second device to NumPy and to the first."""
    story = begin("auto_parallelism", json=tmp_path_factory.mktemp("copying") / "r.json")
    story.environment = replace(story.environment, cores=2)
    copying.compute_and_copy(story, xs=matrices(), size=96, **SIZES)
    return story.result()


def test_work_on_one_core_and_on_all_is_copied_to_both_places(told):
    ways = [
        f"{what} to {to}"
        for what in ("averages (one core)", "products (all cores)")
        for to in ("NumPy", "cpu 0")
    ]
    assert [table.title for table in told.of(Table)] == ways
    [overview] = told.of(Grid)
    assert [row[0] for row in overview.rows] == ways
    assert [t.name for t in told.timelines] == [f"compute and copy to {to}" for to in ("NumPy", "cpu 0")]
    assert all(Path(t.trace).is_file() for t in told.timelines)
    assert {"copies_saved_numpy", "copies_saved_device"} <= set(told.facts)


def test_copies_within_one_host_decide_nothing_about_a_gpu(told):
    ours, book = told.claims
    assert ours.source == "jaxperf"
    assert "GPU" in book.statement and book.holds == "cannot be measured here"


def test_one_core_or_one_device_costs_no_more_than_their_part():
    story = begin("auto_parallelism")
    story.environment = replace(story.environment, cores=1)
    copying.compute_and_copy(story, xs=matrices()[:1], size=30, **SIZES)
    told = story.result()
    assert "copies_saved_device" not in told.facts and "copies_saved_numpy" in told.facts
    assert {claim.holds for claim in told.claims} == {"cannot be measured here"}


def test_every_way_whose_copies_take_a_tenth_is_judged_against_what_is_possible():
    for possible, together, holds, right in (
        ((1.5, 1.5), (1.2, 1.3), "holds", "right"),  # every way whose copies count gains
        ((1.5, 1.5), (1.4, 1.1), "holds", "right"),  # one gains little of what is possible
        ((1.5, 1.5), (1.2, 0.9), "does not hold", "wrong"),  # one loses
        ((1.5, 1.01), (1.2, 0.9), "holds", "right"),  # one loses whose copies take next to no time
        ((1.01, 1.01), (1.2, 1.2), "cannot be measured here", "undecided"),  # no copy takes long enough
    ):
        story = begin("auto_parallelism")
        ways = {str(i): made_up(*of) for i, of in enumerate(zip(possible, together))}
        copying._claim_hidden(story, ways, real=True)
        [claim] = story.result().claims
        assert (claim.holds, claim.prediction) == (holds, right)


def test_without_a_gpu_all_at_once_is_said_not_to_be_measured():
    story = begin("auto_parallelism")
    copying.everything_at_once(story, run, xs=matrices(), **SIZES)
    told = story.result()
    assert [claim.holds for claim in told.claims] == ["cannot be measured here"]
    assert not (told.measurements or told.timelines)
