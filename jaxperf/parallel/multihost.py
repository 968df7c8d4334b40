"""What changes when the devices belong to several processes; with one process nothing changes.

The processes make the same calls in the same order. An array over all devices is global: each process holds
the parts on its own devices, and sees all values only if every device has a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxperf.errors import JaxperfError
from jaxperf.parallel.split import check_divisible

Tree = Any


def processes_of(devices: Sequence[jax.Device]) -> int:
    """Return how many processes the devices belong to."""
    return len({d.process_index for d in devices})


def of_this_process(devices: Sequence[jax.Device]) -> list[jax.Device]:
    """Return those of the devices that belong to this process."""
    return [d for d in devices if d.process_index == jax.process_index()]


def rows_of(n: int, devices: Sequence[jax.Device]) -> slice:
    """Return which of a batch's `n` rows this process reads, when its devices are among `devices`.

    Raises:
      JaxperfError: a batch that does not divide among the devices, or different numbers of them per process.
    """
    check_divisible(n, len(devices))
    owners = sorted({d.process_index for d in devices})
    here = len(of_this_process(devices))
    if here * len(owners) != len(devices):
        raise JaxperfError(f"{len(devices)} devices of {len(owners)} processes; each needs the same number")
    first, size = owners.index(jax.process_index()), n // len(owners)
    return slice(first * size, (first + 1) * size)


def load_rows(tree: Tree, mesh: Mesh, *, axis: int = 0) -> Tree:
    """Start copying this process's rows of a batch to its devices.

    Args:
      tree: arrays whose axis of rows is cut over the mesh; each process gives its own rows.
      mesh: of one axis.
      axis: which of the arrays' axes has the rows.

    Returns:
      Global arrays of all processes' rows.
    """
    rows = NamedSharding(mesh, P(*axis * [None], mesh.axis_names[0]))
    return jax.make_array_from_process_local_data(rows, tree)


def replicate(tree: Tree, mesh: Mesh) -> Tree:
    """Return `tree`, equal in all processes, with a copy on every device; nothing is sent between them."""
    everywhere = NamedSharding(mesh, P())
    if processes_of(list(mesh.devices.flat)) > 1:
        tree = jax.tree.map(np.asarray, tree)
    return jax.make_array_from_process_local_data(everywhere, tree)
