"""Shares by strength: the update is one device's, and the weak device gets the smaller share."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from stories import begin

from jaxperf.chapter import unequal_devices as part

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 255, (64, 28, 28, 1), dtype=np.uint8)
LABELS = RNG.integers(0, 10, 64, dtype=np.int32)


def told(monkeypatch: pytest.MonkeyPatch, strengths: list[float]) -> dict[str, object]:
    story = begin("8.5")
    monkeypatch.setattr(part, "_strengths", lambda *_, **__: strengths)
    part.unequal_devices(story, IMAGES, LABELS, rounds=1, seed=0)
    return {"facts": story.facts, "notes": story.notes, "claims": story.claims, "rows": story.measurements}


@pytest.mark.parametrize("strengths", [[3.0, 1.0], [1.0, 30.0], [1.0, 1.0]])
def test_any_shares_give_one_devices_update(strengths: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(monkeypatch, strengths)
    assert 0 < found["facts"]["max_param_diff_vs_one_device/uneven_shares"] <= 1e-6
    assert [row.name for row in found["rows"]] == ["equal", "by strength"]
    assert found["facts"]["uneven_over_equal_step_time"] > 0


def test_the_difference_would_show_a_missing_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "allreduce", lambda grads: grads)  # each device goes its own way
    assert told(monkeypatch, [3.0, 1.0])["facts"]["max_param_diff_vs_one_device/uneven_shares"] > 1e-5


def test_a_device_too_weak_for_one_image_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(monkeypatch, [1e6, 1.0])
    [note] = found["notes"]
    assert note.startswith(
        "no uneven shares: device 1 of weight 1 gets no example of a batch of 64; leave it"
    )
    assert found["claims"] == []


def test_the_weak_device_is_measured_to_be_weak() -> None:
    story = begin("8.5")
    pair = part._two_devices(story)
    assert pair is not None
    devices, repeats = pair
    gradients = [part._gradient(r) for r in repeats]
    params = part.lenet_params(part.jax.random.key(0))
    assert [len(g(params, IMAGES, LABELS)) for g in gradients] == [1, part.WEAK]
    assert len(set(devices)) == 2


def test_one_device_has_nothing_to_divide(monkeypatch: pytest.MonkeyPatch) -> None:
    story = begin("8.5")
    story.flags = dataclasses.replace(story.flags, devices=1)
    part.unequal_devices(story, IMAGES, LABELS, rounds=1, seed=0)
    assert story.notes == ["one device: nothing to divide unequally"]
