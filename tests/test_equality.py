"""Several devices beside one: what is equal is called equal, what is not is found, in every way."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
import optax
import pytest
from stories import begin

from jaxperf.chapter import equality
from jaxperf.models import lenet, lenet_params
from jaxperf.parallel import WAYS, Step, Way, first_devices, make_step, model_of_function

RNG = np.random.default_rng(0)
BATCHES = [
    (RNG.random((8, 28, 28, 1), dtype=np.float32), RNG.integers(0, 10, 8, dtype=np.int32)) for _ in range(2)
]


def lenet_step(way: Way, devices: Sequence[jax.Device], *, lr: float = 0.1) -> Step:
    model = model_of_function(lenet, lenet_params(jax.random.key(0), scale=0.05))
    return make_step(way, model, optax.sgd(lr), devices)


def test_each_way_is_compared_on_each_number_of_devices_that_divides_the_batch() -> None:
    story = begin("8.4")
    worst = equality.against_one_device(story, lenet_step, BATCHES, devices=6)
    found = {tuple(name.split("/")[1:]): value for name, value in story.facts.items()}
    assert set(found) == {(way, k) for way in WAYS for k in ("1", "2", "4")}
    assert worst == max(found.values()) <= 2e-7
    assert found["jit", "1"] == 0


def test_one_way_that_differs_is_found() -> None:
    def wrong(way: Way, devices: Sequence[jax.Device]) -> Step:
        return lenet_step(way, devices, lr=0.11 if way == "pmap" and len(devices) == 2 else 0.1)

    story = begin("8.4")
    worst = equality.against_one_device(story, wrong, BATCHES, devices=2)
    assert worst == story.facts["max_param_diff_vs_one_device/pmap/2"] > 1e-4
    assert story.facts["max_param_diff_vs_one_device/shard_map/2"] <= 2e-7


def test_distance_is_the_largest_difference_and_wants_one_structure() -> None:
    a = {"W": np.zeros((2, 2)), "b": np.zeros(3)}
    assert equality.distance(a, {"W": np.zeros((2, 2)), "b": np.array([0, -3, 2])}) == 3
    with pytest.raises(ValueError, match="shorter"):
        equality.distance(a, {"W": np.zeros((2, 2))})


@pytest.mark.parametrize(("devices", "sums"), [(1, 0), (2, 1)])
def test_sums_over_devices_are_counted_in_the_compiled_step(devices: int, sums: int) -> None:
    story = begin("8.4")
    equality.collectives_of(story, lenet_step("pmap", first_devices(devices)), BATCHES[0])
    assert story.facts == {"allreduce_count": sums, "allgather_count": 0}
