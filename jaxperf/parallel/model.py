"""A network in the form that a step needs: pure functions and trees, from a module or from a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxperf.data import to_float
from jaxperf.errors import JaxperfError

Tree = Any


@dataclass(frozen=True)
class Model:
    """A network split into its function, its trained parameters and its running statistics.

    Attributes:
      apply: `apply(params, stats, X, train=...)` gives (logits, new stats). If there are statistics, it also
        takes `axis_name`: BatchNorm then averages its training statistics over that axis of devices.
      params: the trained arrays, float.
      stats: BatchNorm's running statistics, an empty tree if there are none.
    """

    apply: Callable[..., tuple[jax.Array, Tree]]
    params: Tree
    stats: Tree


def model_of(net: nnx.Module) -> Model:
    """Return a Flax module as a `Model`; the module itself is left alone.

    Raises:
      JaxperfError: parameters that cannot be trained (integers), or state other than parameters and BatchNorm
        statistics, such as dropout's keys.
    """
    parts: Any = nnx.split(net, nnx.Param, nnx.BatchStat, ...)
    graphdef, params, stats, rest = parts
    if jax.tree.leaves(rest):
        kinds = sorted({type(v).__name__ for _, v in nnx.to_flat_state(rest)})
        raise JaxperfError(
            f"state of kind {', '.join(kinds)} is not divided among devices; use a net without it"
        )
    check_trainable(params)

    def apply(
        params: Tree, stats: Tree, X: jax.Array, *, train: bool, axis_name: str | None = None
    ) -> tuple[jax.Array, Tree]:
        merged = nnx.merge(graphdef, params, stats, rest)
        merged.train() if train else merged.eval()
        for _, module in nnx.iter_modules(merged):
            if isinstance(module, nnx.BatchNorm):
                module.axis_name = axis_name
        logits = merged(scale_images(X))
        return logits, nnx.to_pure_dict(nnx.state(merged, nnx.BatchStat))

    return Model(apply, nnx.to_pure_dict(params), nnx.to_pure_dict(stats))


def model_of_function(net: Callable[[jax.Array, Tree], jax.Array], params: Tree) -> Model:
    """Return a function of images and parameters, such as `lenet(X, params)`, as a `Model`; it has no stats.

    Raises:
      JaxperfError: parameters that cannot be trained (integers).
    """
    check_trainable(params)

    def apply(params: Tree, stats: Tree, X: jax.Array, *, train: bool) -> tuple[jax.Array, Tree]:
        return net(scale_images(X), params), stats

    return Model(apply, params, {})


def scale_images(X: jax.Array) -> jax.Array:
    """Return uint8 images as float32 0..1 and others as they are: bytes are a quarter of the data to copy."""
    return to_float(X) if X.dtype == jnp.uint8 else X


def check_trainable(params: Tree) -> None:
    """Reject parameters that have no gradient.

    Raises:
      JaxperfError: a leaf whose dtype is not a real float.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        dtype = jnp.result_type(leaf)
        if not jnp.issubdtype(dtype, jnp.floating):
            name = jax.tree_util.keystr(path)
            raise JaxperfError(
                f"parameter {name} is {dtype}, which cannot be trained; pass .astype('float32')"
            )
