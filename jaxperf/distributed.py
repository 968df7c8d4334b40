"""One program in several processes: how they meet, agree and end; alone, a program runs as ever.

SLURM, MPI and Kubernetes tell JAX how many processes there are, which one this is, and where process 0 is.
Otherwise three variables do: JAX_COORDINATOR_ADDRESS (HOST:PORT of process 0), JAX_NUM_PROCESSES and
JAX_PROCESS_ID.

    leave(ended(lambda: together(train_all)))
"""

import hashlib
import itertools
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jaxperf.errors import JaxperfError, first_line
from jaxperf.process import FAILED, forced_end, say

# Seconds without a heartbeat until the others give up on a process. JAX's own 100 s are for clusters of
# thousands of machines; a C++ thread sends the heartbeat, so it is on time even if Python is busy.
HEARTBEAT_S = 30
BY_HAND = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


@forced_end()
def together(work: Callable[[], int]) -> int:
    """Run `work` as one of several processes, or alone, and return the exit status; JAX starts after this.

    Only process 0 prints to standard output; errors of all are printed. After an unexpected error in one of
    several, end the process with this status at once, by `exit_status.leave`: Python's own end would wait for
    all processes, JAX's up to 300 s, and they for this one.
    """
    if not join():
        return work()
    import jax

    try:
        is_first = jax.process_index() == 0
        with Path(os.devnull).open("w") as null, redirect_stdout(sys.stdout if is_first else null):
            return work()
    except JaxperfError:
        raise
    except Exception as e:
        if "Gloo" in str(e):
            say(f"error: another process left the run, its log says why: {first_line(e)}")
        else:
            traceback.print_exc()
        return FAILED


def join() -> bool:
    """Meet the other processes, if there are any, and return whether there are; call it before JAX starts."""
    arguments = _by_hand() if {*BY_HAND[1:]} & os.environ.keys() else _by_cluster()
    if arguments is None:
        return False
    package = arguments.pop("package", "jax")
    if find_spec(package) is None:
        raise JaxperfError(f"JAX asks the package {package} about the other processes; pip install {package}")
    import jax

    try:
        jax.distributed.initialize(heartbeat_timeout_seconds=HEARTBEAT_S, **arguments)
    except (RuntimeError, ValueError, OSError) as e:
        raise JaxperfError(f"the processes did not meet: {first_line(e)}; look at their variables") from None
    return True


def _by_hand() -> dict[str, Any]:
    address, count, number = (os.environ.get(name, "") for name in BY_HAND)
    host, _, port = address.rpartition(":")
    numbers = port.isdecimal() and count.isdecimal() and number.isdecimal()
    if not host or not numbers or int(number) >= int(count):
        raise JaxperfError(
            f"{', '.join(BY_HAND)} are {address!r}, {count!r} and {number!r}; several processes need all "
            "three, e.g. 10.0.0.1:8476, 2, and 0 or 1"
        )
    return {
        "coordinator_address": address,
        "num_processes": int(count),
        "process_id": int(number),
        "cluster_detection_method": "deactivate",
    }


def _by_cluster() -> dict[str, Any] | None:
    """Return how JAX finds the others, or None without any.

    A shell on a cluster's node has many of its variables, too, so the number of tasks decides.
    """
    if _number("SLURM_STEP_NUM_TASKS") > 1:
        return {"cluster_detection_method": "slurm"}
    if max(_number("OMPI_COMM_WORLD_SIZE"), _number("PMI_SIZE")) > 1:  # Open MPI; MPICH and Intel MPI
        return {"cluster_detection_method": "mpi4py", "package": "mpi4py"}
    if {"KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"} <= os.environ.keys():
        return {"cluster_detection_method": None, "package": "kubernetes"}  # its detection has no name
    return None


def _number(variable: str) -> int:
    value = os.environ.get(variable, "")
    return int(value) if value.isdecimal() else 0


def check_same(data: Any) -> None:
    """Compare plain data, such as flags, between all processes; all of them wait for each other."""
    import jax

    if jax.process_count() == 1:
        return
    import numpy as np
    from jax.experimental import multihost_utils

    digest = np.frombuffer(hashlib.sha256(repr(data).encode()).digest(), np.uint32)
    rows = multihost_utils.process_allgather(digest)
    others = ", ".join(str(i) for i, row in enumerate(rows) if (row != rows[0]).any())
    if others:
        raise JaxperfError(f"process {others} has other flags or versions than process 0; start all alike")


def stop_signal(*, saves: bool) -> Callable[[], bool]:
    """Return a function that says whether SIGTERM asks the program to stop at this point.

    Several processes agree on the point through JAX's preemption service, which receives their signals, so
    they must ask equally often. A single process that saves nothing ends at once instead.
    """
    import jax

    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        calls = itertools.count(1)
        return lambda: bool(multihost_utils.reached_preemption_sync_point(next(calls)))
    received: list[int] = []
    if saves:
        signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    return lambda: bool(received)
