"""Autotuning's share: measured on a GPU only, by compiling one step twice."""

from __future__ import annotations

import dataclasses

import jax
import optax
import pytest
from stories import begin

from jaxperf.chapter import autotuning
from jaxperf.measure.guards import witness
from jaxperf.models import lenet, lenet_params
from jaxperf.parallel import Model, Step, first_devices, make_step


@pytest.fixture
def step() -> Step:
    model = Model(
        lambda params, stats, X, **_: (lenet(X / 255.0, params), stats),
        lenet_params(jax.random.key(0), scale=0.05),
        {},
    )
    return make_step("jit", model, optax.sgd(0.1), first_devices(1, platform="cpu"))


def test_on_a_cpu_it_is_not_measured(step: Step) -> None:
    story = begin("8.5")
    autotuning.autotuning(story, step, batch=7)
    assert not story.facts


def test_a_step_is_compiled_without_and_with_trying_kernels(step: Step, compiles_anew: None) -> None:
    with witness() as seen:
        untried, tried = autotuning.compile_seconds(step, 7)
    assert untried > 0 < tried and seen.count("jit(step) was compiled") == 2


def test_on_a_gpu_the_share_is_what_trying_adds(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotuning, "compile_seconds", lambda step, batch: (1.0, 4.0))
    story = begin("8.5")
    story.environment = dataclasses.replace(story.environment, backend="gpu")
    autotuning.autotuning(story, step, batch=7)
    assert story.facts == {"compile_s_untried": 1.0, "compile_s_tried": 4.0, "autotuning_share": 0.75}
