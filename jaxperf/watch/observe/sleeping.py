"""Measure how long a thread has slept, by Linux's scheduler statistics for each thread.

A call into JAX that sleeps waits for a device. A thread that only waits for a core does not sleep: it is
ready to run. The scheduler adds that wait to its statistics only when the wait is over, so the thread's state
is read, too.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

THREADS = Path("/proc/self/task")
AWAKE = 0.1  # a thread that ran or was ready for a smaller share of the time between two calls has slept


class Sleep:
    """The sleep of the thread that creates this object; 0 on systems without these statistics."""

    def __init__(self, threads: Path = THREADS) -> None:
        folder, self._files = threads / str(threading.get_native_id()), list[int]()
        with contextlib.suppress(OSError):
            for name in ("schedstat", "stat"):
                self._files.append(os.open(folder / name, os.O_RDONLY))
        self._awake = self._last = time.perf_counter()
        self._occupied_s = self._read_s() if len(self._files) == 2 else 0.0

    def until(self, now: float) -> float:
        """Return the seconds that the thread has slept until `now`, a time of `time.perf_counter`."""
        if len(self._files) < 2:
            return 0.0
        try:
            occupied_s, asleep = self._read_s(), self._state() in b"SD"
        except OSError:  # the thread has ended
            return 0.0
        if not asleep or occupied_s - self._occupied_s > AWAKE * (now - self._last):
            self._awake = now
        self._last, self._occupied_s = now, occupied_s
        return now - self._awake

    def close(self) -> None:
        """Close the files."""
        while self._files:
            os.close(self._files.pop())

    def _read_s(self) -> float:
        """Return the seconds in which the thread has run or waited for a core."""
        ran, waited, _ = os.pread(self._files[0], 100, 0).split()
        return (int(ran) + int(waited)) / 1e9

    def _state(self) -> bytes:
        """Return the thread's state as in `proc_pid_stat(5)`: b"R" if it runs or is ready to run."""
        return os.pread(self._files[1], 200, 0).rpartition(b")")[2].split()[0]
