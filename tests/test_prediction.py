"""Predicting on all devices: the accuracy of one, on one device and on several."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from stories import begin

from jaxperf.chapter import prediction as part
from jaxperf.data import fashion_mnist
from jaxperf.result import Table

DATA = fashion_mnist(source="mini")
DATA = dataclasses.replace(DATA, test_images=DATA.test_images[:300], test_labels=DATA.test_labels[:300])
PARAMS = np.random.default_rng(0).standard_normal((784, 10)).astype(np.float32)


def apply(params: Any, X: jax.Array) -> jax.Array:
    return X.reshape(len(X), -1).astype("float32") @ params


@pytest.mark.usefixtures("several_devices")
def test_the_accuracy_is_that_of_one_device_and_both_are_timed_in_turns() -> None:
    story = begin("8.4", devices=4)
    part.predicting_on_all_devices(story, apply, {4: [(None, PARAMS)]}, DATA, rounds=6)
    right = int((DATA.test_images.reshape(300, -1) @ PARAMS).argmax(-1).__eq__(DATA.test_labels).sum())
    assert story.facts == {"test_accuracy_1": right / 300, "test_accuracy_4": right / 300}
    equal, time = story.result().claims
    assert equal.holds == "holds"
    assert time.holds == "cannot be measured here" or not story.environment.devices_are_fake
    [table] = story.result().of(Table)
    assert [m.name for m in table.rows] == ["1 device", "4 devices"]
    assert {m.items for m in table.rows} == {300}


def test_one_device_proves_nothing() -> None:
    story = begin("8.4", devices=1)
    part.predicting_on_all_devices(story, apply, {1: [(None, PARAMS)]}, DATA, rounds=2)
    assert [c.holds for c in story.result().claims] == ["cannot be measured here"]
