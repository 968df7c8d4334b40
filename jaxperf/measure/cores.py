"""Give this process fewer cores for a while, whatever the thread pools in it think they have.

XLA's CPU devices share one pool of threads, one thread per core. No flag of JAX 0.10.2 or 0.12 gives a
device threads of its own: with `--xla_cpu_multi_thread_eigen=false`, and with NPROC=1, a matrix product still
runs on two threads. What can be set is the cores on which the threads may run: one core while one device
works alone, two while two work together.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxperf.errors import JaxperfError

_THREADS = Path("/proc/self/task")


def available() -> tuple[int, ...]:
    """Return the cores this process may use; () where the system has no way to choose among them."""
    if not hasattr(os, "sched_setaffinity") or not _THREADS.is_dir():
        return ()
    return tuple(sorted(os.sched_getaffinity(0)))


@contextmanager
def on_cores(cores: Iterable[int]) -> Iterator[None]:
    """Let every thread of this process run on `cores` alone; afterwards, on those it had before.

    Threads that start inside inherit the limit of the thread that starts them, and get the process's cores
    back with the others.

    Args:
      cores: numbers from `available()`.

    Raises:
      JaxperfError: a core is not available to this process, `cores` is empty, or the system cannot choose.
    """
    wanted, choices = set(cores), available()
    if not wanted or not wanted <= set(choices):
        raise JaxperfError(
            f"cannot run on cores {sorted(wanted)}; this process may choose from {list(choices)}"
        )
    before: dict[int, set[int]] = {}
    for thread in _threads():
        with contextlib.suppress(ProcessLookupError):  # it has ended since it was listed
            before[thread] = os.sched_getaffinity(thread)
    _limit(dict.fromkeys(before, wanted))
    try:
        yield
    finally:
        _limit({thread: before.get(thread, set(choices)) for thread in _threads()})


def _threads() -> list[int]:
    return [int(entry.name) for entry in _THREADS.iterdir()]


def _limit(wanted: dict[int, set[int]]) -> None:
    for thread, cores in wanted.items():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread, cores)
