"""What else the machine does: how many cores other programs use, and a load of our own making."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

IDLE = 0.05  # cores in use by others; the system's own services need less


@dataclass
class Watch:
    """How many cores other programs used on average, known when the watching ends."""

    others: float = 0.0

    @property
    def idle(self) -> bool:
        """Whether the machine did next to nothing else."""
        return self.others <= IDLE

    def __str__(self) -> str:
        return f"other programs used {self.others:.2f} of {psutil.cpu_count()} cores"


@contextmanager
def watching() -> Iterator[Watch]:
    """Measure what other programs use of the machine meanwhile; our own children count as others."""
    watch, before, ours, began = Watch(), _busy_s(), time.process_time(), time.perf_counter()
    with contextlib.ExitStack() as at_end:
        at_end.callback(lambda: _end(watch, before, ours, began))
        yield watch


def _end(watch: Watch, before: float, ours: float, began: float) -> None:
    took = time.perf_counter() - began
    theirs = _busy_s() - before - (time.process_time() - ours)
    watch.others = max(0.0, theirs / took) if took > 0 else 0.0


def _busy_s() -> float:
    """CPU seconds that all programs on this machine have used, and those that its host took from it."""
    times = psutil.cpu_times()._asdict()
    return sum(
        seconds for kind, seconds in times.items() if kind not in ("idle", "iowait", "guest", "guest_nice")
    )
