"""JAX's networks with the common weights, and its training steps each way."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np

from . import files
from .wire import Task


def build(settings: dict[str, Any], weights: dict[str, np.ndarray]) -> Any:
    """Return the module of `settings["net"]` with the common weights."""
    import jax.numpy as jnp
    from flax import nnx

    from jaxperf.models import MLP, LeNet, ResNet, from_gluon

    dtype = jnp.bfloat16 if settings.get("precision") == "bfloat16" else None
    if settings["net"] == "lenet":
        return LeNet.from_params([jnp.asarray(w) for w in weights.values()], dtype=dtype)
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
    state = step.init()
    rounds = itertools.cycle(
        [(X.reshape(-1, 28, 28, 1), y) for X, y in files.batches(settings)]
    )  # a step begins with NumPy arrays on the host, in every system

    began, history, first_s = time.perf_counter(), [], 0.0
    for _ in range(settings["steps"]):
        state, metrics = step(state, *next(rounds))
        history.append(float(metrics["loss"]))
        jax.block_until_ready(state)
        first_s = first_s or time.perf_counter() - began

    def turn(calls: int) -> dict[str, float]:
        nonlocal state
        began = time.perf_counter()
        for _ in range(calls):
            state, metrics = step(state, *next(rounds))
        jax.block_until_ready((state, metrics))
        return {"": (time.perf_counter() - began) / calls}

    return Task(first_s, {"loss": np.array(history)}, turn)


def _model(settings: dict[str, Any]) -> Any:
    """LeNet is the book's function of a list of arrays, which has the arrays' dtype; else a module."""
    import jax.numpy as jnp

    from jaxperf.models import lenet
    from jaxperf.parallel import model_of, model_of_function

    weights = files.arrays(settings["weights"])
    if settings["net"] == "lenet":
        return model_of_function(lenet, [jnp.asarray(w) for w in weights.values()])
    return model_of(build(settings, weights))
