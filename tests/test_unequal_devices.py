"""Shares by strength: the update is one device's, and the weak device gets the smaller share."""

from __future__ import annotations

from unittest import mock

import jax
import numpy as np
import pytest
from cases import cases
from stories import begin, medians

from jaxperf.chapter import unequal_devices as part
from jaxperf.chapter.tolerance import tolerance
from jaxperf.parallel import first_devices, share_sizes, train_batch
from jaxperf.result import Note, ratio_of
from jaxperf.story import Story

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 255, (64, 28, 28, 1), dtype=np.uint8)
LABELS = RNG.integers(0, 10, 64, dtype=np.int32)


def told(monkeypatch: pytest.MonkeyPatch, strengths: list[float]) -> Story:
    story = begin("8.5")
    monkeypatch.setattr(part, "_strengths", lambda *_, **__: strengths)
    part.unequal_devices(story, IMAGES, LABELS, rounds=1, seed=0)
    return story


@pytest.mark.thorough
@pytest.mark.parametrize(("strong", "weak"), cases([(3, 1), (1, 30)], quick=lambda *case: case == (3, 1)))
def test_any_shares_give_one_devices_update(
    monkeypatch: pytest.MonkeyPatch, strong: float, weak: float
) -> None:
    monkeypatch.setattr(part, "WEAK", 1)  # compiled sooner; what it is for shows below
    story = told(monkeypatch, [float(strong), float(weak)])
    assert 0 < story.facts["max_param_diff_uneven_shares"] <= tolerance(jax.default_backend(), 1e-6)
    assert [row.name for row in story.result().measurements] == ["equal shares", "shares by strength"]
    assert story.facts["uneven_over_equal_step_time"] > 0
    equal, faster = story.result().claims
    assert (equal.holds, faster.holds) == ("holds", "undecided")  # one round decides no time


@pytest.mark.thorough
def test_the_difference_would_show_a_missing_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    def alone(X: list, y: list, copies: list, *, gradient, update):  # each device goes its own way
        n = sum(map(len, y))
        return [update(p, gradient(p, a, b), n) for p, a, b in zip(copies, X, y)]

    assert train_batch is part.train_batch  # the step is section 8.4's own
    monkeypatch.setattr(part, "train_batch", alone)
    story = told(monkeypatch, [3.0, 1.0])
    assert story.facts["max_param_diff_uneven_shares"] > 1e-5
    assert story.result().claims[0].holds == "does not hold"


def test_a_shorter_step_is_decided_by_the_rounds() -> None:
    for values, verdict in (
        ([0.8] * 9, "holds"),
        ([1.2] * 9, "does not hold"),
        ([0.9, 1.1] * 5, "undecided"),
    ):
        story = begin("8.5")
        part._judge(story, ratio_of([v + i * 1e-3 for i, v in enumerate(values)]), 0.0)
        assert story.result().claims[1].holds == verdict


def test_a_device_too_weak_for_one_image_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    story = told(monkeypatch, [1e6, 1.0])
    [note] = story.result().of(Note)
    assert note.text.startswith(
        "no uneven shares: device 1 of weight 1 gets no example of a batch of 64; leave it"
    )
    assert not story.result().claims


def test_the_weak_device_is_measured_to_be_weak() -> None:
    story = begin("8.5")
    pair = part._two_devices(story)
    assert pair is not None
    devices, repeats = pair
    gradients = [part._gradient(r) for r in repeats]
    params = part.lenet_params(part.jax.random.key(0))
    assert [len(g(params, IMAGES, LABELS)) for g in gradients] == list(repeats)
    assert repeats == ((1, part.WEAK) if jax.default_backend() == "cpu" else (1, 1))  # a GPU's CPU is weak
    assert len(set(devices)) == 2


def test_strengths_are_images_per_second_and_shares_follow_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds, shares in (((1.0, 20.0), [61, 3]), ((20.0, 1.0), [3, 61]), ((1.0, 1.0), [32, 32])):
        monkeypatch.setattr(part, "interleaved", medians(*seconds))
        gradients = dict.fromkeys(first_devices(2, platform="cpu"), mock.Mock())
        found = part._strengths(gradients, [np.ones(2)], IMAGES, LABELS, rounds=3)
        assert found == [64 / s for s in seconds]
        assert share_sizes(64, 2, weights=found) == shares


def test_one_device_has_nothing_to_divide() -> None:
    story = begin("8.5", devices=1)
    part.unequal_devices(story, IMAGES, LABELS, rounds=1, seed=0)
    assert [n.text for n in story.result().of(Note)] == ["one device: nothing to divide unequally"]
