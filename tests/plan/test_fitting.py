import dataclasses

import jax
import jax.numpy as jnp
import pytest

from jaxperf.plan import planning
from jaxperf.plan.cards import CARDS
from jaxperf.plan.memory import USABLE
from jaxperf.plan.planning import plan

pytestmark = pytest.mark.usefixtures("cpus_as_gpus", "several_devices")
LAYERS, WIDTH, EXAMPLES = 16, 64, 256


def step(*, loop=True):
    def layer(x, w):
        for _ in range(4):
            x = jnp.tanh(x @ w)
        return x, None

    def loss(ws, x):
        if loop:
            return (jax.lax.scan(layer, x, ws)[0] ** 2).mean()
        return (layer(layer(x, ws[0])[0], ws[1])[0] ** 2).mean()

    return jax.jit(lambda ws, x: ws - 0.1 * jax.grad(loss)(ws, x))


def arguments(examples=EXAMPLES):
    return jnp.zeros((LAYERS, WIDTH, WIDTH)), jnp.zeros((examples, WIDTH))


def peak(examples):
    return plan(step(), *arguments(examples), devices=(8,)).sizes[0].peak_bytes


def with_memory(monkeypatch, memory):
    card = dataclasses.replace(CARDS["h100"], memory_bytes=memory / USABLE)
    monkeypatch.setattr(planning, "find_card", lambda name: card)


def test_the_largest_batch_that_fits(monkeypatch):
    with_memory(monkeypatch, peak(3 * EXAMPLES))
    told = []
    step_plan = plan(step(), *arguments(), devices=(8,), fit=True, told=told.append)
    assert step_plan.fit.largest == 3 * EXAMPLES
    assert not any(change for change, _ in step_plan.fit.tries)
    text = str(step_plan).replace("\n", " ")
    assert "What fits, on 8 devices" in text and f"{3 * EXAMPLES} examples on each device fit" in text
    assert f"{len(step_plan.fit.tries)} compilations in" in text
    assert any("does not fit" in line for line in told)
    assert step_plan.to_json()["fit"][0]["examples"] == EXAMPLES


@pytest.mark.parametrize("given", [None, EXAMPLES])
def test_what_makes_a_batch_fit(given, monkeypatch):
    with_memory(monkeypatch, peak(EXAMPLES) - 1)
    of_arguments = 8 if given else EXAMPLES
    step_plan = plan(step(), *arguments(of_arguments), devices=(8,), fit=True, per_device=given)
    assert not step_plan.sizes[0].fits
    assert step_plan.fit.largest < EXAMPLES
    good = {change: size for change, size in step_plan.fit.tries if change and size.fits}
    assert "jax.checkpoint around the body of each lax.scan" in good
    assert {size.examples for size in good.values()} == {EXAMPLES}
    assert any("sharded over all devices" in change for change, _ in step_plan.fit.tries)


def test_a_step_without_a_loop_has_nothing_to_rematerialize(monkeypatch):
    with_memory(monkeypatch, 1)
    step_plan = plan(step(loop=False), *arguments(4), devices=(8,), fit=True)
    assert not any("lax.scan" in change for change, _ in step_plan.fit.tries)
    assert step_plan.fit.largest == 0 and "no number of examples fits" in str(step_plan)
