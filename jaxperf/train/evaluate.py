"""The test accuracy on all devices, with every example counted once.

The last batch is usually smaller. It is padded to the full size, and the padding has a label that no network
can predict. The images stay on the devices, and nothing but the number of hits comes back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxperf.data import padded_batches
from jaxperf.errors import JaxperfError
from jaxperf.parallel.devices import mesh_of
from jaxperf.parallel.multihost import load_rows, replicate, rows_of

Tree = Any
Apply = Callable[[Tree, jax.Array], jax.Array]
NO_LABEL = -1


class Evaluator:
    """The accuracy of a network on images that stay on the devices; one program for any number of calls.

    Args:
      apply: `apply(variables, X)` gives logits (n, classes) of images (n, ...).
      devices: each batch is split into equal shares over them, and `variables` are copied to all.
      images: (N, ...), uint8 or float32; with several processes, each holds all.
      labels: (N,).
      batch_size: images at a time, on all devices together.
      scan: go through all batches in one program, or call a program for each; None scans on all devices but
        CPUs, where XLA computes a convolution inside a loop without its fast kernels.

    Raises:
      JaxperfError: no devices, no images, a different number of labels, or a batch that does not divide.
    """

    def __init__(
        self,
        apply: Apply,
        devices: Sequence[jax.Device],
        images: Any,
        labels: Any,
        *,
        batch_size: int = 512,
        scan: bool | None = None,
    ) -> None:
        if not devices:
            raise JaxperfError("no devices to evaluate on; give at least 1")
        rows, batches = rows_of(batch_size, devices), []
        for X, y, real in padded_batches(images, labels, batch_size=batch_size):
            batches.append((X[rows], np.where(real, y, NO_LABEL)[rows]))
        self._mesh, self._count = mesh_of(devices), len(labels)
        self._batches = load_rows([np.stack(each) for each in zip(*batches)], self._mesh, axis=1)
        self._scan = devices[0].platform != "cpu" if scan is None else scan
        self._calls = 1 if self._scan else len(batches)
        self._program = _program(apply, tuple(devices), self._scan)
        self._start = replicate((np.int32(0), np.int32(0)), self._mesh)

    def lower(self, variables: Tree) -> Any:
        """Return the lowered program for such variables, to compile it before it is needed."""
        return self._program.lower(replicate(variables, self._mesh), self._batches, *self._start)

    def accuracy(self, variables: Tree) -> float:
        """Return the share of the images whose largest logit is at their label; the same in all processes."""
        variables, (i, total) = replicate(variables, self._mesh), self._start
        for _ in range(self._calls):
            i, total = self._program(variables, self._batches, i, total)
            # On CPU devices that share a few threads, queued programs that each sum over devices can deadlock
            jax.block_until_ready(total)
        return int(total) / self._count


@functools.lru_cache(8)
def _program(apply: Apply, devices: tuple[jax.Device, ...], scan: bool) -> Any:
    """Return the jitted evaluation of all batches, or of one; evaluators of the same network share it."""

    def count(variables: Tree, total: jax.Array, batch: Any) -> jax.Array:
        X, y = batch
        return total + (apply(variables, X).argmax(-1) == y).sum(dtype=jnp.int32)

    def evaluate(variables: Tree, batches: Any, i: jax.Array, total: jax.Array) -> Any:
        return i, lax.scan(lambda n, batch: (count(variables, n, batch), None), total, batches)[0]

    def evaluate_batch(variables: Tree, batches: Any, i: jax.Array, total: jax.Array) -> Any:
        batch = jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, i, keepdims=False), batches)
        return i + 1, count(variables, total, batch)

    everywhere = NamedSharding(mesh_of(devices), P())
    return jax.jit(evaluate if scan else evaluate_batch, out_shardings=everywhere)
