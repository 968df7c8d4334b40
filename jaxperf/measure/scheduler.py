"""In which values another program had the core, by the scheduler's account of this process's threads.

Linux counts for each thread how long it ran, and how long it was ready to run and waited for a core. It does
not say for whom a thread waited, and XLA's threads wait for each other too. But a thread waits for threads of
its own process no longer than these run. So another program had the core for as long as a thread ran and
waited, less what all threads of the process ran. On an idle machine with two cores this came to 1 % of none
of 400 values.

The number of involuntary switches (ru_nivcsw) cannot tell. The threads of four devices preempt each other:
on the idle machine it grew in each of 200 values. And a thread that waits after it was woken was not
preempted. Beside four busy programs, 156 of 200 values that last 2.80 ms on an idle machine had no switch,
and their median was 7.87 ms. By this account 49 were undisturbed, and their median was 2.75 ms.

The account errs on one side. Where threads run on several cores at once, they may have waited for each other,
so some values that others disturbed are not found. Where the system keeps no account, nothing is found. A
container's limit of CPU time looks like another program.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Self

from jaxperf.result import Measurement

THREADS = Path("/proc/self/task")
MOST = 256  # threads that are read; each is an open file, and a process may often open no more than 1024
LOST = 0.01  # of a value's time; the promise is that durations are right within 1 %


@dataclass(frozen=True)
class Account:
    """What the scheduler has counted so far, in seconds.

    Attributes:
      used: what all threads of this process ran, those that have ended too.
      threads: what each thread ran, and how long it was ready to run and waited; by the thread's number.
    """

    used: float
    threads: dict[str, tuple[float, float]]


class Scheduler:
    """Reads the account of the threads that exist when the `with` begins; 2 us per thread and reading."""

    def __init__(self, threads: Path = THREADS, used: Callable[[], float] = time.process_time) -> None:
        self._threads, self._used, self._files = threads, used, dict[str, int]()

    def __enter__(self) -> Self:
        threads = self._threads.iterdir() if self._threads.is_dir() else iter(())
        for folder in islice(threads, MOST):
            try:
                self._files[folder.name] = os.open(folder / "schedstat", os.O_RDONLY)
            except OSError:  # the thread has ended, or this Linux keeps no account
                continue
        return self

    def __exit__(self, *_: object) -> None:
        while self._files:
            os.close(self._files.popitem()[1])

    def account(self) -> Account:
        """Read it now."""
        used = self._used()  # first: this brings the calling thread's own figures up to date
        threads = {}
        for thread, file in self._files.items():
            try:
                ran, waited, _ = os.pread(file, 100, 0).split()
            except ProcessLookupError:  # it has ended
                continue
            threads[thread] = int(ran) / 1e9, int(waited) / 1e9
        return Account(used, threads)


def lost_s(before: Account, after: Account) -> float:
    """Return seconds, at least, in which a thread waited while another program had its core."""
    used, most = after.used - before.used, 0.0
    for thread, (ran, waited) in after.threads.items():
        ran_before, waited_before = before.threads[thread]
        by_own_threads = max(0.0, used - (ran - ran_before))
        most = max(most, waited - waited_before - by_own_threads)
    return most


def set_aside(m: Measurement, disturbed: Sequence[bool], least: int) -> Measurement:
    """Set the disturbed values of `m` aside, or keep them where fewer than `least` others are left.

    A note says which. Where at most a tenth of the values were disturbed, all stay and there is no note.

    Args:
      m: as it was measured.
      disturbed: for each value, whether another program had the core.
      least: how many values a measurement must keep.
    """
    left = tuple(v for v, lost in zip(m.values, disturbed, strict=True) if not lost)
    aside = tuple(v for v, lost in zip(m.values, disturbed) if lost)
    marked = replace(m, disturbed=len(aside))
    if not marked.disturbance:
        return marked
    if len(left) >= least:
        remark = f"{len(aside)} of {len(m.values)} values set aside: another program had the core"
        return replace(m, values=left, set_aside=aside, note=_joined(m.note, remark))
    warning = "" if marked.trusted else "not to be trusted: "
    return replace(marked, note=_joined(m.note, warning + marked.disturbance))


def _joined(*remarks: str) -> str:
    return "; ".join(filter(None, remarks))
