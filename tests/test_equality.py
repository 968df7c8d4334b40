"""Several devices beside one: what is equal is called equal, what is not is found, in every way."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import numpy as np
import optax
import pytest
from stories import begin

from jaxperf.chapter import equality
from jaxperf.data import fashion_mnist
from jaxperf.parallel import WAYS, Step, Way, first_devices, make_step, model_of_function
from jaxperf.result import Claim, Grid

RNG = np.random.default_rng(0)
BATCHES = [
    (RNG.random((8, 28, 28, 1), dtype=np.float32), RNG.integers(0, 10, 8, dtype=np.int32)) for _ in range(2)
]


def linear(X: jax.Array, W: jax.Array) -> jax.Array:
    return X.reshape(len(X), -1) @ W


def linear_step(way: Way, devices: Sequence[jax.Device], *, lr: float = 0.2) -> Step:
    """One layer: compiled ten times as fast as LeNet, and summed over devices like it."""
    W = np.random.default_rng(1).normal(scale=0.05, size=(784, 10)).astype(np.float32)
    return make_step(way, model_of_function(linear, W), optax.sgd(lr), devices)


@pytest.mark.thorough
@pytest.mark.usefixtures("several_devices")
def test_each_way_is_compared_on_each_number_of_devices_that_divides_the_batch() -> None:
    story = begin("8.4", devices=6)
    equality.against_one_device(story, linear_step, BATCHES, rounding=2e-7)
    found = {tuple(name.split("_")[3:]): value for name, value in story.facts.items()}
    assert {("_".join(words[:-1]), words[-1]) for words in found} == {(w, k) for w in WAYS for k in "24"}
    assert max(found.values()) <= 2e-7
    assert found["pmap", "2"] > 0  # sums in another order: one device's program was not run twice
    [claim] = story.result().claims
    assert (claim.holds, claim.prediction) == ("holds", "right")
    [grid] = story.result().of(Grid)
    assert grid.heads == ("way", "2 devices", "4 devices")


@pytest.mark.usefixtures("several_devices")
def test_one_way_that_differs_is_found() -> None:
    def wrong(way: Way, devices: Sequence[jax.Device]) -> Step:
        return linear_step(way, devices, lr=0.22 if way == "pmap" and len(devices) == 2 else 0.2)

    story = begin("8.4", devices=2)
    equality.against_one_device(story, wrong, BATCHES, ways=("pmap", "jit"), rounding=2e-7)
    assert story.facts["max_param_diff_pmap_2"] > 1e-4
    assert story.facts["max_param_diff_jit_2"] <= 2e-7
    [claim] = story.result().claims
    assert (claim.holds, claim.prediction) == ("does not hold", "wrong")


def test_one_device_proves_nothing() -> None:
    story = begin("8.4", devices=1)
    equality.against_one_device(story, linear_step, BATCHES, ways=("jit",), rounding=2e-7)
    assert story.facts == {"max_param_diff_jit_1": 0}
    [claim] = story.result().claims
    assert claim.holds == "cannot be measured here"


def test_distance_is_the_largest_difference_and_wants_one_structure() -> None:
    a = {"W": np.zeros((2, 2)), "b": np.zeros(3)}
    assert equality.distance(a, {"W": np.zeros((2, 2)), "b": np.array([0, -3, 2])}) == 3
    with pytest.raises(ValueError, match="shorter"):
        equality.distance(a, {"W": np.zeros((2, 2))})


@pytest.mark.usefixtures("several_devices")
def test_sums_over_devices_are_counted_in_the_compiled_step() -> None:
    story = begin("8.4", devices=2)
    equality.collectives_of(story, equality.lenet_step("pmap", first_devices(2)), BATCHES[0])
    assert story.facts == {"allreduce_count": 1, "allgather_count": 0}
    assert [c.holds for c in story.result().of(Claim)] == ["holds"]


def test_one_device_has_no_sums_to_count() -> None:
    story = begin("8.4", devices=1)
    equality.collectives_of(story, linear_step("pmap", first_devices(1)), BATCHES[0])
    assert story.facts == {"allreduce_count": 0, "allgather_count": 0}
    assert [c.holds for c in story.result().of(Claim)] == ["cannot be measured here"]


@pytest.mark.thorough
def test_neither_kind_of_batch_norm_is_judged_on_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = functools.cache(linear_step)  # compiled sooner than a ResNet, whose steps other tests compare
    monkeypatch.setattr(equality, "small_resnet_step", lambda seed, batch_norm, *where: quick(*where))
    story = begin("8.5", devices=1)
    equality.resnet_equal_to_one_device(story, fashion_mnist(source="mini"), seed=0)
    assert [c.holds for c in story.result().of(Claim)] == ["cannot be measured here"] * 3
    assert {name for name in story.facts if "shares" in name} == {f"max_param_diff_shares_{w}" for w in WAYS}
