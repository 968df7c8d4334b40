"""The sum over devices by hand: add to the first device, copy back to the others (section 8.4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp

from jaxperf.errors import JaxperfError

Tree = TypeVar("Tree")


def allreduce(data: Sequence[Tree]) -> list[Tree]:
    """Add `data[1:]` to `data[0]`, on its device, and copy the sum to every other device.

    The book overwrites its arrays; JAX's are immutable, so the sums are returned, without waiting for them.

    Args:
      data: for each device an array, or a tree of arrays such as a list of gradients, all of the same
        structure and shapes; each is on a device of its own.

    Returns:
      The sum, once per device, in the order of `data`.

    Raises:
      JaxperfError: nothing to add, or structures or shapes that differ.
    """
    if not data:
        raise JaxperfError("allreduce of an empty list; give one array per device")
    shapes = [jax.tree.map(jnp.shape, tree) for tree in data]
    for i, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise JaxperfError(f"allreduce of shape {shapes[0]} on device 0 and {shape} on device {i}")
    total = data[0]
    for other in data[1:]:
        total = _add(total, _copy_to(other, data[0]))
    return [total] + [_copy_to(total, other) for other in data[1:]]


def compile_sum(tree: Tree) -> None:
    """Compile what `allreduce` runs for arrays of these shapes, dtypes and shardings, without running it."""
    _add.lower(tree, tree).compile()


def _copy_to(tree: Tree, there: Tree) -> Tree:
    """Return `tree` copied to where `there`, a tree of the same structure, is."""
    return jax.device_put(tree, jax.tree.map(lambda a: a.sharding, there))


@jax.jit
def _add(a: Tree, b: Tree) -> Tree:
    return jax.tree.map(jnp.add, a, b)
