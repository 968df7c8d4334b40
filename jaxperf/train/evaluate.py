"""Accuracy on all devices, with every example counted once.

The last batch of an epoch is usually smaller. Evaluating it as it is would need another compilation, and
dropping it would not count its examples. So it is padded to the full size, and a mask leaves the padding out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxperf.data import padded_batches
from jaxperf.errors import JaxperfError
from jaxperf.parallel.multihost import load_rows, replicate, rows_of, total_count
from jaxperf.parallel.split import check_divisible

Tree = Any
Apply = Callable[[Tree, jax.Array], jax.Array]


class Evaluator:
    """The accuracy of a network on several devices; compiled once, for any number of calls.

    Args:
      apply: `apply(variables, X)` gives logits (n, classes) of images (n, ...).
      devices: each batch is split into equal shares over them, and `variables` are copied to all.
      batch_size: images at a time, on all devices together.

    Raises:
      JaxperfError: no devices, or a batch that does not divide among them.
    """

    def __init__(self, apply: Apply, devices: Sequence[jax.Device], *, batch_size: int = 512) -> None:
        if not devices:
            raise JaxperfError("no devices to evaluate on; give at least 1")
        check_divisible(batch_size, len(devices))
        self.batch_size, self._devices = batch_size, tuple(devices)
        self._mesh = Mesh(np.array(devices), ("devices",))

        def hits(variables: Tree, X: jax.Array, y: jax.Array, mask: jax.Array) -> jax.Array:
            right = (apply(variables, X).argmax(-1) == y) & mask
            return right.reshape(len(devices), -1).sum(1)

        # One count per device, added up on the host: several queued programs that each sum over devices can
        # deadlock where CPU devices share a few threads (seen with JAX 0.10.2 on 2 cores).
        self._hits = jax.jit(hits, out_shardings=NamedSharding(self._mesh, P("devices")))

    def accuracy(self, variables: Tree, images: Any, labels: Any) -> float:
        """Return the share of `images` (n, ...), uint8 or float32, whose largest logit is at `labels` (n,).

        With several processes, each predicts its own rows of every batch, and all return the same result.

        Raises:
          JaxperfError: no images, or a different number of labels.
        """
        variables = replicate(variables, self._mesh)
        rows = rows_of(self.batch_size, self._devices)
        counts = [
            self._hits(variables, *load_rows([a[rows] for a in batch], self._mesh))
            for batch in padded_batches(images, labels, batch_size=self.batch_size)
        ]
        here = sum(int(np.sum(part.data)) for count in counts for part in count.addressable_shards)
        return total_count(here, self._devices) / len(labels)


def evaluate_accuracy(
    apply: Apply,
    variables: Tree,
    images: Any,
    labels: Any,
    *,
    devices: Sequence[jax.Device],
    batch_size: int = 512,
) -> float:
    """Return the book's `evaluate_accuracy`, on all of `devices` (exercise of section 8.4); see `Evaluator`.

    Raises:
      JaxperfError: as `Evaluator` and `Evaluator.accuracy`.
    """
    return Evaluator(apply, devices, batch_size=batch_size).accuracy(variables, images, labels)
