"""What more devices are worth: each number of devices gets the same images, as many cores, and its turn."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import nullcontext

import jax
import numpy as np
import optax
import pytest
from stories import begin

from jaxperf.chapter import scaling as part
from jaxperf.models import lenet, lenet_params
from jaxperf.parallel import Step, make_step, model_of_function
from jaxperf.script import Story

IMAGES, LABELS = np.zeros((9, 28, 28, 1), np.float32), np.zeros(9, np.int32)


def with_devices(k: int) -> Story:
    story = begin("8.4")
    story.flags = dataclasses.replace(story.flags, devices=k)
    return story


def test_the_same_batch_runs_on_one_device_and_on_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "available", lambda: (0, 1, 2, 3))
    given: list[tuple[int, ...]] = []
    monkeypatch.setattr(part, "on_cores", lambda cores: given.append(tuple(cores)) or nullcontext())
    made: list[int] = []

    def make(devices: Sequence[jax.Device]) -> Step:
        made.append(len(devices))
        model = model_of_function(lenet, lenet_params(jax.random.key(0)))
        return make_step("pmap", model, optax.sgd(0.1), devices)

    story = with_devices(4)
    part.scaling(story, make, IMAGES, LABELS, rounds=1)
    assert made == [1, 2, 4]
    assert set(given) == {(0,), (0, 1), (0, 1, 2, 3)}
    [curve] = story.series
    assert (curve.name, curve.x) == ("scaling/measured", (1.0, 2.0, 4.0))
    assert curve.y == tuple(story.facts[f"images_per_s/scaling/{k}"] for k in (1, 2, 4))
    assert story.facts["scaling_efficiency"] == pytest.approx(curve.y[2] / curve.y[0] / 4)  # of one round
    assert any("devices are fake" in note for note in story.notes)


@pytest.mark.parametrize(("devices", "cores"), [(1, 4), (4, 1)])
def test_without_devices_or_cores_to_compare_it_says_so(
    devices: int, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, "available", lambda: tuple(range(cores)))
    story = with_devices(devices)
    part.scaling(story, _never, IMAGES, LABELS, rounds=1)
    assert story.facts == {}
    assert story.notes == [f"scaling not measured: devices {devices}, cores to give them {cores}"]


def _never(devices: Sequence[jax.Device]) -> Step:
    raise AssertionError("nothing is to be made")
