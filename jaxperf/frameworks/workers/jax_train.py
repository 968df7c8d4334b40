"""JAX's networks with the common weights, and its training steps each way."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from . import files, turns
from .wire import Task


def build(settings: dict[str, Any], weights: dict[str, np.ndarray]) -> Any:
    """Return the module of `settings["net"]` with the common weights."""
    import jax.numpy as jnp
    from flax import nnx

    from jaxperf.models import MLP, LeNet, ResNet, from_gluon

    dtype = jnp.bfloat16 if settings.get("precision") == "bfloat16" else None
    if settings["net"] == "lenet":
        abstract = nnx.eval_shape(lambda: LeNet(dtype=dtype, rngs=nnx.Rngs(0)))
        return from_gluon(abstract, [w.T if w.ndim == 2 else w for w in weights.values()])
    if settings["net"] == "mlp":
        dense = [w.shape for w in weights.values() if w.ndim == 2]
        sizes = [dense[0][1], *(shape[0] for shape in dense)]
        return from_gluon(MLP(sizes, rngs=nnx.Rngs(0)), list(weights.values()))
    stages = [tuple(stage) for stage in settings["stages"]]
    net = nnx.eval_shape(lambda: ResNet(10, stages=stages, dtype=dtype, rngs=nnx.Rngs(0)))
    return from_gluon(net, list(weights.values()))


def train(settings: dict[str, Any], configuration: str) -> Task:
    """Take steps of stochastic gradient descent; the configuration is the way, the answers are the losses."""
    import jax
    import optax

    from jaxperf.parallel import first_devices, make_step

    devices = first_devices(settings["devices"], platform="cpu")
    step = make_step(configuration, _model(settings), optax.sgd(settings["lr"]), devices)  # type: ignore[arg-type]
    state, metrics = step.init(), None
    rounds = itertools.cycle(
        [(X.reshape(-1, 28, 28, 1), y) for X, y in files.batches(settings)]
    )  # a step begins with NumPy arrays on the host, in every system

    def take_step() -> Any:
        nonlocal state, metrics
        state, metrics = step(state, *next(rounds))
        return metrics["loss"]

    return turns.training(
        take_step, float, lambda: jax.block_until_ready((state, metrics)), settings["steps"]
    )


def _model(settings: dict[str, Any]) -> Any:
    """LeNet is the book's function of a list of arrays, which has the arrays' dtype; else a module."""
    import jax.numpy as jnp

    from jaxperf.models import lenet
    from jaxperf.parallel import model_of, model_of_function

    weights = files.arrays(settings["weights"])
    if settings["net"] == "lenet":
        return model_of_function(lenet, [jnp.asarray(w) for w in weights.values()])
    return model_of(build(settings, weights))
