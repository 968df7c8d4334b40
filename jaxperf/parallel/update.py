"""One training update as each device sees it: the function that all ways to run a step wrap.

Letters: k devices, n examples in the full batch, m in a device's share (n / k where shares are equal).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxperf.parallel.model import Model

Tree = Any
BatchNorm = Literal["share", "whole"]
Loss = Callable[[jax.Array, jax.Array], jax.Array]
Metrics = dict[str, jax.Array]

AXIS = "devices"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """What a step takes and returns; no array in it has an axis for devices.

    Attributes:
        params: the trained arrays.
        stats: BatchNorm's running statistics.
        opt_state: the optimiser's.
    """

    params: Tree
    stats: Tree
    opt_state: Tree


def softmax_cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Loss of each example, (n,), float32 or wider, of logits (n, classes) and integer labels (n,)."""
    wide = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    return optax.softmax_cross_entropy_with_integer_labels(wide, labels)


def share_update(
    model: Model, optimizer: optax.GradientTransformation, *, loss: Loss, batch_norm: BatchNorm, devices: int
) -> Callable[..., tuple[TrainState, Metrics]]:
    """`update(state, X, y, n=...)` for one device's share, to be run on all devices along the axis `AXIS`.

    Gradients, loss and hits are sums over the share divided by `n`, so their sum over devices is the full
    batch's mean however the shares are cut (the book: "the full batch size"). Running statistics of
    BatchNorm over shares are averaged with the shares' sizes as weights; Gluon keeps each device's own, whose
    average they equal. One device alone sums nothing.
    """
    axis_name = AXIS if batch_norm == "whole" and devices > 1 else None

    def update(state: TrainState, X: jax.Array, y: jax.Array, *, n: int) -> tuple[TrainState, Metrics]:
        def total_loss(params: Tree) -> tuple[jax.Array, tuple[Tree, Metrics]]:
            logits, stats = model.apply(params, state.stats, X, train=True, axis_name=axis_name)
            return _means(loss, logits, y, stats, n)

        grads, (stats, metrics) = jax.grad(total_loss, has_aux=True)(state.params)
        if devices == 1:
            pass
        elif batch_norm == "share":
            stats = jax.tree.map(lambda s: s * (len(y) / n), stats)
            grads, metrics, stats = lax.psum((grads, metrics, stats), AXIS)
        else:  # the statistics are the whole batch's already
            grads, metrics = lax.psum((grads, metrics), AXIS)
        return _apply(optimizer, state, grads, stats), metrics

    return update


def whole_update(
    model: Model, optimizer: optax.GradientTransformation, *, loss: Loss, batch_norm: BatchNorm, devices: int
) -> Callable[..., tuple[TrainState, Metrics]]:
    """`update(state, X, y, n=...)` for the whole batch at once, for the compiler to divide among devices.

    BatchNorm over shares is said by giving the shares an axis of their own: X (n, ...) becomes (k, m, ...)
    and the network is mapped over k.
    """

    def forward(params: Tree, stats: Tree, X: jax.Array) -> tuple[jax.Array, Tree]:
        if batch_norm == "whole" or not jax.tree.leaves(stats):
            return model.apply(params, stats, X, train=True)
        shares = X.reshape(devices, -1, *X.shape[1:])
        logits, stats = jax.vmap(lambda x: model.apply(params, stats, x, train=True))(shares)
        return logits.reshape(-1, logits.shape[-1]), jax.tree.map(lambda s: s.mean(0), stats)

    def update(state: TrainState, X: jax.Array, y: jax.Array, *, n: int) -> tuple[TrainState, Metrics]:
        def total_loss(params: Tree) -> tuple[jax.Array, tuple[Tree, Metrics]]:
            logits, stats = forward(params, state.stats, X)
            return _means(loss, logits, y, stats, n)

        grads, (stats, metrics) = jax.grad(total_loss, has_aux=True)(state.params)
        return _apply(optimizer, state, grads, stats), metrics

    return update


def _means(
    loss: Loss, logits: jax.Array, y: jax.Array, stats: Tree, n: int
) -> tuple[jax.Array, tuple[Tree, Metrics]]:
    mean = loss(logits, y).sum() / n
    hits = (logits.argmax(-1) == y).sum() / n
    return mean, (stats, {"loss": mean, "accuracy": hits})


def _apply(
    optimizer: optax.GradientTransformation, state: TrainState, grads: Tree, stats: Tree
) -> TrainState:
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    return TrainState(optax.apply_updates(state.params, updates), stats, opt_state)
