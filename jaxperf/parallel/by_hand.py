"""Section 8.4: a copy of the parameters on every device, and a step that keeps the copies equal.

JAX queues work and returns, so a plain Python loop over devices makes them all compute at the same time.
The book reads gradients from a parameter's `.grad`; here they are what `gradient` returns:

    X_shards, y_shards = split_and_load(X, devices), split_and_load(y, devices)
    device_params = train_batch(X_shards, y_shards, device_params, gradient=gradient, update=update)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import jax
from jax import lax

from jaxperf.parallel.collectives import allreduce
from jaxperf.parallel.devices import AXIS

Tree = TypeVar("Tree")
State = TypeVar("State")
Sums = TypeVar("Sums")
New = TypeVar("New")


def get_params(params: Tree, device: jax.Device) -> Tree:
    """Return a copy of `params`, any tree of arrays, on `device`.

    The copy never shares the original's memory (`may_alias=False`), which a step that donates it would free.
    """
    return jax.device_put(params, device, may_alias=False)


def train_batch(
    X_shards: Sequence[jax.Array],
    y_shards: Sequence[jax.Array],
    device_params: Sequence[State],
    *,
    gradient: Callable[[State, jax.Array, jax.Array], Sums],
    update: Callable[[State, Sums, int], New],
) -> list[New]:
    """Train one minibatch on all devices (section 8.4.5); all work is queued, without waiting for any of it.

    Args:
      X_shards: each device's images, from `split_and_load`.
      y_shards: each device's labels.
      device_params: what each device trains, all equal: the book's list of parameters, or a `TrainState`.
      gradient: `gradient(params, X, y)` gives sums over a share's examples, a tree of arrays.
      update: `update(params, total, n)` changes one device's parameters, given the sums over the full batch.

    Returns:
      What `update` returned for each device, equal again.
    """
    # The loss and its gradient are computed separately on each device; no device waits for another
    sums = [gradient(params, X, y) for params, X, y in zip(device_params, X_shards, y_shards, strict=True)]
    # Sum the gradients of all devices and copy the total to each of them
    totals = allreduce(sums)
    # The parameters are updated separately on each device, with the full batch's size
    n = sum(map(len, y_shards))
    return [update(params, total, n) for params, total in zip(device_params, totals)]


def pmap_train_batch(
    devices: Sequence[jax.Device],
    *,
    gradient: Callable[[State, jax.Array, jax.Array], Sums],
    update: Callable[[State, Sums, int], New],
) -> Callable[[State, jax.Array, jax.Array], New]:
    """Return the same step as one program per device: `train_batch(params, X, y)`, summed by `lax.psum`.

    Args:
      devices: k of them; X is (k, m, ...) and y (k, m), a share of m examples for each.
      gradient: as for `train_batch`.
      update: as for `train_batch`.
    """
    k = len(devices)

    @partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None, devices=devices, donate_argnums=0)
    def step(params: State, X: jax.Array, y: jax.Array) -> New:
        sums = gradient(params, X, y)
        total = lax.psum(sums, AXIS) if k > 1 else sums
        return update(params, total, k * len(y))

    return step
