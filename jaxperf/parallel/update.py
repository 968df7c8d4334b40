"""The two halves of a training step: the gradient of a share of the batch, and the update with the total.

All ways to train on several devices share these halves; they differ in how they sum between them. The first
half gives sums over the share's examples, and the second divides by the full batch's size (as the book does),
so the result does not depend on how the batch is cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxperf.parallel.model import Model

Tree = Any
Loss = Callable[[jax.Array, jax.Array], jax.Array]
Metrics = dict[str, jax.Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """What a training step takes and returns; no array in it has an axis for devices.

    Attributes:
      params: the trained arrays.
      stats: BatchNorm's running statistics.
      opt_state: the optimizer's state.
    """

    params: Tree
    stats: Tree
    opt_state: Tree


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Sums:
    """Sums over the examples of one share; added over devices, they are the full batch's.

    Attributes:
      grads: gradients of the summed loss, like `TrainState.params`.
      stats: BatchNorm's new running statistics times the number of examples, so that the total divided by the
        full batch's size averages the shares with their sizes as weights. Gluon keeps separate statistics for
        each device.
      loss: a scalar.
      hits: how many examples have their largest logit at the label; a scalar of the loss's dtype, because
        sums with one dtype can share one collective.
    """

    grads: Tree
    stats: Tree
    loss: jax.Array
    hits: jax.Array


Gradient = Callable[[TrainState, jax.Array, jax.Array], Sums]
Update = Callable[[TrainState, Sums, int], tuple[TrainState, Metrics]]


def softmax_cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Return each example's loss, (n,), float32 or wider, of logits (n, classes) and integer labels (n,)."""
    wide = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    return optax.softmax_cross_entropy_with_integer_labels(wide, labels)


def gradient_of(model: Model, loss: Loss = softmax_cross_entropy) -> Gradient:
    """Return `gradient(state, X, y)`, the first half: images (m, ...) and labels (m,) give `Sums`."""

    def gradient(state: TrainState, X: jax.Array, y: jax.Array) -> Sums:
        def total(params: Tree) -> tuple[jax.Array, tuple[Tree, jax.Array, jax.Array]]:
            logits, stats = model.apply(params, state.stats, X, train=True)
            value = loss(logits, y).sum()
            return value, (stats, value, (logits.argmax(-1) == y).sum(dtype=value.dtype))

        grads, (stats, value, hits) = jax.grad(total, has_aux=True)(state.params)
        return Sums(grads, jax.tree.map(lambda s: s * len(y), stats), value, hits)

    return gradient


def update_of(optimizer: optax.GradientTransformation) -> Update:
    """Return `update(state, total, n)`, the second half: the new state and {"loss", "accuracy"}.

    `total` are the sums over a full batch of `n` examples; the metrics are its means before the update.
    """

    def update(state: TrainState, total: Sums, n: int) -> tuple[TrainState, Metrics]:
        mean = jax.tree.map(lambda a: a / n, total)
        updates, opt_state = optimizer.update(mean.grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, mean.stats, opt_state), {"loss": mean.loss, "accuracy": mean.hits}

    return update
