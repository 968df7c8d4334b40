"""Measure how much of the machine other programs and its host use."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

IDLE = 0.05  # cores used by others; the system's own services use less
BUSY = 0.25  # cores used by others that make times noisy
_NOT_BUSY = ("idle", "iowait", "guest", "guest_nice", "steal")  # "user" includes "guest"


@dataclass
class OtherLoad:
    """The average number of cores that others used, set when `other_load` ends."""

    others: float = 0.0
    stolen: float = 0.0

    @property
    def idle(self) -> bool:
        return self.others + self.stolen <= IDLE

    @property
    def busy(self) -> bool:
        return self.others + self.stolen >= BUSY

    def __str__(self) -> str:
        host = f", and its host took {self.stolen:.2f}" if self.stolen >= 0.005 else ""
        return f"other programs used {self.others:.2f} of {psutil.cpu_count()} cores{host}"


@contextmanager
def other_load() -> Iterator[OtherLoad]:
    """Measure how much of the machine others use during the block; running children count as others."""
    load, before, cpu_s, began = OtherLoad(), _spent_s(), _process_s(), time.perf_counter()
    try:
        yield load
    finally:
        wall_s = time.perf_counter() - began
        busy_s, stolen_s = (b - a for a, b in zip(before, _spent_s()))
        if wall_s > 0:
            load.others = max(0.0, (busy_s - (_process_s() - cpu_s)) / wall_s)
            load.stolen = max(0.0, stolen_s / wall_s)


def _process_s() -> float:
    """Return CPU seconds of this process and of its children that have ended."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def _spent_s() -> tuple[float, float]:
    """Return CPU seconds that all programs on this machine have used, and those that its host took."""
    times = psutil.cpu_times()._asdict()
    return sum(s for kind, s in times.items() if kind not in _NOT_BUSY), times.get("steal", 0.0)
