"""What a GPU is handed: every step and forward lowers for CUDA, without a call of the CPU's own libraries.

Lowering needs no GPU; what XLA makes of the program on one is not tested here.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import cases
from flax import nnx

from jaxperf.chapter import catalogue, cells
from jaxperf.models import MLP, SMALL_STAGES, LeNet, ResNet, lenet, lenet_params
from jaxperf.parallel import Model, first_devices, make_step, model_of, model_of_function

PARTITIONER = {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"}  # its marks, which it removes
X, y = np.zeros((4, 28, 28, 1), np.uint8), np.zeros(4, np.int32)


def custom_calls(fn: Callable[..., Any], *args: Any, on: str = "cuda") -> set[str]:
    """Names of what `fn` calls outside XLA, as it is lowered for a platform."""
    text = jax.jit(lambda *a: fn(*a)).trace(*args).lower(lowering_platforms=(on,)).as_text()
    return set(re.findall(r"custom_call @([\w$.]+)", text)) - PARTITIONER


def small_resnet(dtype: Any = None) -> ResNet:
    return ResNet(10, stages=SMALL_STAGES, dtype=dtype, rngs=nnx.Rngs(0))


def mlp() -> MLP:
    return MLP((512, 256, 128, 2), rngs=nnx.Rngs(0))


def flax_lenet() -> LeNet:
    return LeNet(rngs=nnx.Rngs(0))


def lenet_by_hand() -> Model:
    return model_of_function(lenet, lenet_params(jax.random.key(0)))


def lenet_of_flax() -> Model:
    return model_of(flax_lenet())


def mlp_of_flax() -> Model:
    return model_of(mlp())


def bfloat16_resnet() -> ResNet:
    return small_resnet(jnp.bfloat16)


def resnet() -> Model:
    return model_of(small_resnet())


def resnet_bfloat16() -> Model:
    return model_of(small_resnet(jnp.bfloat16))


STEPS = cases(
    itertools.chain(
        itertools.product((lenet_by_hand, resnet), ("jit", "shard_map", "pmap"), ("share",), (1, 2)),
        itertools.product((resnet,), ("jit", "shard_map", "pmap"), ("whole",), (2,)),
        itertools.product((lenet_of_flax, mlp_of_flax, resnet_bfloat16), ("jit",), ("share",), (1,)),
    ),
    quick=lambda model, way, batch_norm, devices: model is lenet_by_hand and devices == 1,
)


@pytest.mark.parametrize(("model", "way", "batch_norm", "devices"), STEPS)
def test_a_training_step_lowers_for_cuda(
    model: Callable[[], Model], way: Any, batch_norm: Any, devices: int
) -> None:
    sgd = optax.sgd(0.1, momentum=0.9)
    step = make_step(way, model(), sgd, first_devices(devices, platform="cpu"), batch_norm=batch_norm)
    images = np.zeros((4, 512), np.uint8) if model is mlp_of_flax else X
    assert custom_calls(step.run, step.init(), step.load(images, y)) == set()


@pytest.mark.thorough
@pytest.mark.parametrize("model", [lenet_by_hand, resnet])
def test_both_halves_of_a_step_lower_for_cuda(model: Callable[[], Model]) -> None:
    """The step "manual" runs them on each device and moves arrays between them by hand."""
    sgd = optax.sgd(0.1)
    net = model()
    step = make_step("manual", net, sgd, first_devices(1, platform="cpu"))
    [state], gradient, update = step.init(), step.programs["gradient"], step.programs["update"]
    assert custom_calls(gradient, state, X, y) == set()
    sums = jax.eval_shape(gradient, state, X, y)
    assert custom_calls(lambda state, sums: update(state, sums, len(y)), state, sums) == set()


def forward(net: nnx.Module) -> tuple[Callable[..., Any], Any, Any]:
    """A network in evaluation as a function of its state and an input, with both."""
    net.eval()
    graph, state = nnx.split(net)
    x = np.zeros((1, 512) if isinstance(net, MLP) else (4, 28, 28, 1), np.float32)
    return (lambda state, x: nnx.merge(graph, state)(x)), state, x


@pytest.mark.parametrize(
    ("net",),
    cases([(flax_lenet,), (mlp,), (small_resnet,), (bfloat16_resnet,)], quick=lambda net: net is flax_lenet),
)
def test_a_forward_lowers_for_cuda(net: Callable[[], nnx.Module]) -> None:
    assert custom_calls(*forward(net())) == set()


@pytest.mark.thorough
def test_the_steps_that_section_8_4_shows_lower_for_cuda() -> None:
    section = cells.load(catalogue.folder() / "multiple_gpus.py", "--smoke")
    params = section.init_params(jax.random.key(0))
    assert custom_calls(section.gradient, params, X, y) == set()
    assert custom_calls(section.step, params, X, y) == set()
    assert custom_calls(section.shard_map_step, params, X, y) == set()
    assert custom_calls(lambda *args: section.sgd(*args, 0.1, len(y)), params, params) == set()
