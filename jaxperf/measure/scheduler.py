"""Find values during which another program had the core, by Linux's scheduler statistics of threads.

Linux counts for each thread how long it ran, and how long it was ready to run and waited for a core. It does
not tell for whom a thread waited, and XLA's threads wait for each other, too. But a thread waits for threads
of its own process no longer than these run. So another program had the core at least for the time that a
thread ran and waited, less the time that all threads of the process ran.

The method is conservative. Threads on several cores at once may have waited for each other, so some disturbed
values are not found. Without statistics, none is found. A container's CPU limit looks like another program.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import compress, islice
from pathlib import Path
from typing import Self

from jaxperf.result import Measurement

THREADS = Path("/proc/self/task")
MOST = 256  # threads that are read; each needs an open file, and a process may often have only 1024
LOST = 0.01  # lost share of a value's time that makes it disturbed, so that values are right within 1 %


@dataclass(frozen=True)
class Account:
    """Scheduler statistics of this process so far, in seconds."""

    used: float  # by all threads, including those that have ended
    threads: dict[str, tuple[float, float]]  # by thread: how long it ran, and waited for a core


class Scheduler:
    """Reads the statistics of the threads that exist when the `with` begins; takes 2 us per thread."""

    def __init__(self, threads: Path = THREADS, used: Callable[[], float] = time.process_time) -> None:
        self._threads, self._used, self._files = threads, used, dict[str, int]()

    def __enter__(self) -> Self:
        threads = self._threads.iterdir() if self._threads.is_dir() else iter(())
        for folder in islice(threads, MOST):
            with suppress(OSError):  # the thread has ended, or this Linux has no statistics
                self._files[folder.name] = os.open(folder / "schedstat", os.O_RDONLY)
        return self

    def __exit__(self, *_: object) -> None:
        while self._files:
            os.close(self._files.popitem()[1])

    def account(self) -> Account:
        used = self._used()  # first, because it updates the calling thread's own statistics
        threads = {}
        for thread, file in self._files.items():
            try:
                ran, waited, _ = os.pread(file, 100, 0).split()
            except ProcessLookupError:  # the thread has ended
                continue
            threads[thread] = int(ran) / 1e9, int(waited) / 1e9
        return Account(used, threads)


def lost_s(before: Account, after: Account) -> float:
    """Return a lower bound of the seconds in which a thread waited while another program had its core."""
    used, most = after.used - before.used, 0.0
    for thread, (ran, waited) in after.threads.items():
        ran_before, waited_before = before.threads[thread]
        by_own_threads = max(0.0, used - (ran - ran_before))
        most = max(most, waited - waited_before - by_own_threads)
    return most


def set_aside(m: Measurement, disturbed: Sequence[bool], least: int) -> Measurement:
    """Return `m` with its disturbed values set aside, or kept if fewer than `least` others are left.

    A note tells which. If at most a tenth of the values are disturbed, all are kept, without a note.
    """
    aside = tuple(compress(m.values, disturbed))
    marked = replace(m, disturbed=len(aside))
    remark = marked.disturbance
    if not remark:
        return marked
    left = tuple(value for value, lost in zip(m.values, disturbed) if not lost)
    if len(left) >= least:
        remark = f"{len(aside)} of {len(m.values)} values set aside: another program had the core"
        marked = replace(m, values=left, set_aside=aside)
    elif not marked.trusted:
        remark = f"not to be trusted: {remark}"
    return replace(marked, note=f"{m.note}; {remark}" if m.note else remark)
