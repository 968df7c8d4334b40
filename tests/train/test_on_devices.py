"""Images that lie on the devices: the same training as from the host, and only numbers are sent."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import trainings

from jaxperf.errors import JaxperfError
from jaxperf.measure.compile_log import nothing_compiles
from jaxperf.parallel import WAYS
from jaxperf.train import train
from jaxperf.train.on_devices import OnDevices, lie_on_devices


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.thorough
def test_a_training_from_the_devices_has_the_bits_of_one_from_the_host(way: Any) -> None:
    for k in (1, 2):
        there, here = (
            trainings.trained(trainings.step_of(way, k=k), data_on=data_on) for data_on in ("devices", "host")
        )
        trainings.assert_same(there, here)


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_is_the_one_from_the_host_and_nothing_compiles_for_a_second_one(way: Any) -> None:
    step, data = trainings.step_of(way), trainings.pictures(n=12)
    there = OnDevices(step, data.train_images, data.train_labels)
    rows = np.array([3, 0, 11, 5], np.int32)
    shares, expected = there.load(rows), step.load(data.train_images[rows], data.train_labels[rows])
    for actual, desired in zip(jax.tree.leaves(shares), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(actual, desired)
        assert (actual.dtype, actual.sharding) == (desired.dtype, desired.sharding)
    state, _ = step.run(step.init(), expected)
    with nothing_compiles("a step on images from the devices"):
        step.run(state, there.load(rows[::-1]))


def test_each_step_sends_numbers_and_no_images() -> None:
    step, data = trainings.step_of(), trainings.pictures(n=12)
    sent: list[int] = []

    def load(X: Any, y: Any) -> Any:
        sent.append(X.nbytes + y.nbytes)
        return step.load(X, y)

    recording = dataclasses.replace(step, load=load)
    for data_on, bytes_of_one in (("devices", 4 + 4), ("host", 2 * 2 + 4)):
        sent.clear()
        list(train(recording, data, epochs=1, batch_size=4, updates=3, data_on=data_on))
        assert sent[1:] == 3 * [4 * bytes_of_one]  # the first is what the step was compiled for


def test_only_devices_with_memory_of_their_own_hold_the_images_unless_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = trainings.step_of()
    assert [lie_on_devices(word, step) for word in ("auto", "host", "devices")] == [False, False, True]

    class Gpu:
        platform = "gpu"

    elsewhere = dataclasses.replace(step, devices=(Gpu(),))
    assert [lie_on_devices(word, elsewhere) for word in ("auto", "host", "devices")] == [True, False, True]
    with pytest.raises(JaxperfError, match="'disk' is none of auto, host, devices"):
        next(train(step, trainings.pictures(), epochs=1, batch_size=4, updates=1, data_on="disk"))


def test_images_that_do_not_fit_are_told_with_their_bytes_and_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step, data = trainings.step_of(), trainings.pictures()

    def place(state: Any) -> Any:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate")

    monkeypatch.setattr(type(step), "place", lambda self, state: place(state))
    with pytest.raises(
        JaxperfError, match=r'9 images, 36 bytes, do not fit .*; keep them on the host .*"host"'
    ):
        OnDevices(step, data.train_images, data.train_labels)


def test_gathering_lowers_for_a_gpu_without_a_call_of_a_library() -> None:
    from jaxperf.train.on_devices import _take

    sharding = trainings.step_of(k=1).load(np.zeros(4), np.zeros(4, np.int32))[0].sharding
    data = jnp.zeros((12, 2, 2, 1), jnp.uint8), jnp.zeros(12, jnp.int32)
    lowered = _take(sharding).trace(data, jnp.zeros(4, jnp.int32)).lower(lowering_platforms=("cuda",))
    assert "custom_call" not in lowered.as_text().replace("custom_call @Sharding", "")
