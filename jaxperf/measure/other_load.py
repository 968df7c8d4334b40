"""Measure how much of the machine other programs and its host use."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

BUSY = 0.25  # cores used by others that make times noisy
_NOT_BUSY = ("idle", "iowait", "guest", "guest_nice", "steal")  # "user" includes "guest"


@dataclass
class OtherLoad:
    """The average number of cores that others used, set when `other_load` ends."""

    others: float = 0.0
    stolen: float = 0.0

    @property
    def busy(self) -> bool:
        return self.others + self.stolen >= BUSY

    def __str__(self) -> str:
        host = f", and its host took {self.stolen:.2f}" if self.stolen >= 0.005 else ""
        return f"other programs used {self.others:.2f} of {psutil.cpu_count()} cores{host}"


@contextmanager
def other_load() -> Iterator[OtherLoad]:
    """Measure how much of the machine others use during the block; running children count as others."""
    load, before, began = OtherLoad(), _others_s(), time.perf_counter()
    try:
        yield load
    finally:
        wall_s = time.perf_counter() - began
        if wall_s > 0:
            spent_s = [now - then for now, then in zip(_others_s(), before)]
            load.others, load.stolen = (max(0.0, s / wall_s) for s in spent_s)


def _others_s() -> tuple[float, float]:
    """Return the CPU seconds of other programs so far, running children among them, and the host's."""
    times, own = psutil.cpu_times()._asdict(), os.times()
    busy_s = sum(s for state, s in times.items() if state not in _NOT_BUSY)
    own_s = time.process_time() + own.children_user + own.children_system
    return busy_s - own_s, times.get("steal", 0.0)
