"""A step small enough for many tests: one layer with statistics, and images of 2 x 2."""

import jax.numpy as jnp
import numpy as np
import optax

from jaxperf.parallel import Model, first_devices, make_step


def apply(params, stats, X, *, train, axis_name=None):
    flat = X.reshape(len(X), -1).astype(np.float32) / 255
    mean = {"mean": 0.9 * stats["mean"] + 0.1 * flat.mean(0)} if train else stats
    return (flat - stats["mean"]) @ params["W"], mean


def step_of(way="jit", *, k=2):
    W = jnp.asarray(np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32))
    model = Model(apply, {"W": W}, {"mean": jnp.zeros(4)})
    return make_step(way, model, optax.adam(0.1), first_devices(k, platform="cpu"))


def images():
    rng = np.random.default_rng(2)
    return rng.integers(0, 256, (4, 2, 2, 1), dtype=np.uint8), rng.integers(0, 3, 4).astype(np.int32)
