"""What changes when the devices belong to several processes; with one process nothing changes.

The processes make the same calls in the same order. An array over all devices is global: each process holds
the parts on its own devices, and sees all values only if every device has a copy.
"""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxperf import jax_internals
from jaxperf.errors import JaxperfError
from jaxperf.parallel.split import check_divisible

Tree = Any
# JAX's preemption service waits until its coordinator has this key (its value is a time), and then lets the
# processes agree on a step. It sets the key itself after SIGTERM, but only while its own signal handler is
# installed.
_NOTICE, _LONG_AGO = "RECEIVED_PREEMPTION_NOTICE", "1970-01-01T00:00:00+00:00"
_SIGNAL = "jaxperf/signal"


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


def gather_numbers(numbers: Sequence[int]) -> list[list[int]]:
    """Return what each process gives, in the order of the processes; all wait for each other."""
    rows = jax_internals.get(jax_internals.ALL_GATHER)(np.array(numbers, np.uint32))
    return np.asarray(rows).tolist()


def any_process(flag: bool) -> bool:
    """Return whether the flag is set in any process; all wait for each other."""
    return flag if jax.process_count() == 1 else max(gather_numbers([flag])) == [1]


def digest_of(what: Any) -> list[int]:
    """Return 256 bits for a value of plain data, as numbers for `gather_numbers`."""
    return np.frombuffer(hashlib.sha256(repr(what).encode()).digest(), np.uint32).tolist()


def check_same(what: Any) -> int:
    """Return the number of processes; `what` each was started with must be the same in all of them.

    Raises:
      JaxperfError: a process differs from process 0.
    """
    digests = gather_numbers(digest_of(what))
    others = [str(i) for i, digest in enumerate(digests) if digest != digests[0]]
    if others:
        raise JaxperfError(
            f"process {', '.join(others)} has other flags or versions than process 0; start all alike"
        )
    return len(digests)


def can_agree_to_stop() -> bool:
    """Return whether JAX's preemption service runs, without which `stop_after` cannot be asked."""
    return jax_internals.get(jax_internals.COORDINATOR).preemption_sync_manager is not None


def ask_all_to_stop(number: int) -> None:
    """Have all processes stop after the same step, because this one has received signal `number`."""
    coordinator = jax_internals.get(jax_internals.COORDINATOR).client  # the key-value store that all share
    coordinator.key_value_set(_SIGNAL, str(number), allow_overwrite=True)
    coordinator.key_value_set(_NOTICE, _LONG_AGO, allow_overwrite=True)


def stop_after(call: int) -> int:
    """Return the signal for which all processes stop here, or 0: the same in all.

    Args:
      call: how often this was asked before; all processes ask equally often.
    """
    if not jax_internals.get(jax_internals.SYNC_POINT)(call):
        return 0
    try:
        return int(jax_internals.get(jax_internals.COORDINATOR).client.key_value_try_get(_SIGNAL))
    except jax.errors.JaxRuntimeError as e:
        if "NOT_FOUND" not in str(e):
            raise
        return int(signal.SIGTERM)  # without a number, JAX's own handler received the signal
