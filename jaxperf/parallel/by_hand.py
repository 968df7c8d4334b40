"""Section 8.4 as the book has it: a list of parameters on every device, and a step that keeps them equal.

JAX queues work and returns, so a plain Python loop over devices makes them all compute at the same time.
What the book reads from a parameter's `.grad` is here a value that `value_and_grad` returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxperf.data import to_float
from jaxperf.models import lenet, sgd
from jaxperf.parallel.collectives import allreduce
from jaxperf.parallel.split import split_and_load

Params = list[jax.Array]


def get_params(params: Sequence[jax.Array], device: jax.Device) -> Params:
    """A copy of `params` on `device`; the copy is never the original's own memory."""
    return [jax.device_put(p, device, may_alias=False) for p in params]


def train_batch(
    X: Any, y: Any, device_params: Sequence[Params], devices: Sequence[jax.Device], lr: float
) -> tuple[list[Params], list[jax.Array]]:
    """One minibatch on all devices.

    Args:
        X: images, (n, 28, 28, 1), float32, or uint8 which the devices scale to 0..1.
        y: labels, (n,), integers.
        device_params: LeNet's parameter list on each device, all equal.
        devices: where those lie, in order.
        lr: learning rate.

    Returns:
        The new parameters of each device, equal again, and each share's summed loss, on its device. All of
        it is queued, nothing waited for.

    Raises:
        JaxperfError: a batch that does not divide among the devices.
    """
    X_shards, y_shards = split_and_load(X, devices), split_and_load(y, devices)
    losses, grads = [], []
    for X_shard, y_shard, params in zip(X_shards, y_shards, device_params):  # no device waits for another
        share_loss, share_grads = _loss_and_grads(params, X_shard, y_shard)
        losses.append(share_loss)
        grads.append(share_grads)
    sums = allreduce(grads)
    return [_sgd(p, g, lr, len(X)) for p, g in zip(device_params, sums)], losses  # the full batch's size


@jax.jit
@jax.value_and_grad
def _loss_and_grads(params: Params, X: jax.Array, y: jax.Array) -> jax.Array:
    X = to_float(X) if X.dtype == jnp.uint8 else X
    return optax.softmax_cross_entropy_with_integer_labels(lenet(X, params), y).sum()


_sgd = partial(jax.jit, static_argnums=3)(sgd)
