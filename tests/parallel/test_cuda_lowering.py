"""What a GPU is handed: every step and forward lowers for CUDA, without a call of the CPU's own libraries.

Lowering needs no GPU; what XLA makes of the program on one is not tested here.
"""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import cases
from flax import nnx
from jax.sharding import PartitionSpec as P

from jaxperf.chapter import catalogue, cells
from jaxperf.models import MLP, SMALL_STAGES, LeNet, ResNet, lenet, lenet_params
from jaxperf.parallel import first_devices, make_step, model_of, model_of_function

PARTITIONER = {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"}  # its marks, which it removes
X, y = np.zeros((4, 28, 28, 1), np.uint8), np.zeros(4, np.int32)


def custom_calls(fn, *args, on="cuda"):
    """Names of what `fn` calls outside XLA, as it is lowered for a platform."""
    text = jax.jit(lambda *a: fn(*a)).trace(*args).lower(lowering_platforms=(on,)).as_text()
    return set(re.findall(r"custom_call @([\w$.]+)", text)) - PARTITIONER


def small_resnet(dtype=None):
    return ResNet(10, stages=SMALL_STAGES, dtype=dtype, rngs=nnx.Rngs(0))


MODELS = {
    "LeNet by hand": lambda: model_of_function(lenet, lenet_params(jax.random.key(0))),
    "LeNet": lambda: model_of(LeNet(rngs=nnx.Rngs(0))),
    "MLP": lambda: model_of(MLP((512, 256, 128, 2), rngs=nnx.Rngs(0))),
    "ResNet": lambda: model_of(small_resnet()),
    "ResNet in bfloat16": lambda: model_of(small_resnet(jnp.bfloat16)),
}


STEPS = cases(
    itertools.chain(
        itertools.product(("LeNet by hand", "ResNet"), ("jit", "shard_map", "pmap"), ("share",), (1, 2)),
        itertools.product(("ResNet",), ("jit", "shard_map", "pmap"), ("whole",), (2,)),
        itertools.product(("LeNet", "MLP", "ResNet in bfloat16"), ("jit",), ("share",), (1,)),
    ),
    quick=lambda model, way, batch_norm, devices: model == "LeNet by hand" and devices == 1,
)


@pytest.mark.parametrize(("model", "way", "batch_norm", "devices"), STEPS)
def test_a_training_step_lowers_for_cuda(model, way, batch_norm, devices):
    sgd, on = optax.sgd(0.1, momentum=0.9), first_devices(devices, platform="cpu")
    step = make_step(way, MODELS[model](), sgd, on, batch_norm=batch_norm)
    images = np.zeros((4, 512), np.uint8) if model == "MLP" else X
    assert custom_calls(step.run, step.init(), step.load(images, y)) == set()


@pytest.mark.thorough
def test_the_steps_that_section_8_4_shows_lower_for_cuda():
    section = cells.load(catalogue.folder() / "multiple_gpus.py", "--smoke")
    params = section.init_params(jax.random.key(0))
    assert custom_calls(section.gradient, params, X, y) == set()
    assert custom_calls(section.step, params, X, y, 0.1) == set()
    with jax.set_mesh(section.mesh):
        split = jax.device_put((params, X, y), (P(), P("data"), P("data")))
    assert custom_calls(section.shard_map_step, *split, 0.1) == set()
    assert custom_calls(lambda *args: section.sgd(*args, 0.1, len(y)), params, params) == set()
