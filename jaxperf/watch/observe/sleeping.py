"""How long a thread has slept, by the account that Linux keeps for each thread.

A call into JAX that sleeps waits for a device. A thread that other programs keep from a core does not sleep:
it is ready to run. The scheduler adds such a wait to its account only when the wait is over, so the thread's
state counts, too.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

THREADS = Path("/proc/self/task")
AWAKE = 0.1  # of the time between two looks; a thread that runs or is ready to run for less has slept


class Sleep:
    """The sleep of the thread that makes this object; none where the system keeps no account."""

    def __init__(self, threads: Path = THREADS) -> None:
        folder, self._files = threads / str(threading.get_native_id()), list[int]()
        with contextlib.suppress(OSError):
            for name in ("schedstat", "stat"):
                self._files.append(os.open(folder / name, os.O_RDONLY))
        self._awake = self._last = time.perf_counter()
        self._occupied_s = self._read_s() if len(self._files) == 2 else 0.0

    def until(self, now: float) -> float:
        """Return for how many seconds the thread has slept at the moment `now` of `time.perf_counter`."""
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
        """Close the files of the account."""
        while self._files:
            os.close(self._files.pop())

    def _read_s(self) -> float:
        """Return the seconds in which the thread has run or waited for a core."""
        ran, waited, _ = os.pread(self._files[0], 100, 0).split()
        return (int(ran) + int(waited)) / 1e9

    def _state(self) -> bytes:
        """Return the thread's state, as `proc_pid_stat(5)` names it: b"R" if it runs or is ready to."""
        return os.pread(self._files[1], 200, 0).rpartition(b")")[2].split()[0]
