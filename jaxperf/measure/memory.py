"""Measure a program's memory while it runs: resident memory sampled by a thread, and device memory.

Two readings, before and after, would miss what is allocated and freed in between, as section 8.2.4's
`get_mem` does.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

import jax
import psutil


@dataclass
class MemorySampler:
    """Context manager that reads this process's resident memory every `interval_s` seconds.

    A thread takes the samples, so they show what happens while the program waits for a result::

        with MemorySampler() as memory:
            train()
        print(memory.increase_bytes)

    Resident memory may be more than the arrays need, because the C library keeps freed blocks.
    """

    interval_s: float = 0.005  #: between samples; what is allocated and freed in between is missed
    read: Callable[[], int] | None = None  #: returns a sample, as a device's bytes; None for resident memory
    trim: bool = False  #: whether to give freed memory back to the system before the first sample (glibc)
    seconds: list[float] = field(default_factory=list)  #: when each sample was taken, since the first
    resident_bytes: list[int] = field(default_factory=list)  #: samples: first before the body, last after it

    @property
    def base_bytes(self) -> int:
        """Return the sample from before the body."""
        return self.resident_bytes[0]

    @property
    def peak_bytes(self) -> int:
        """Return the largest sample."""
        return max(self.resident_bytes)

    @property
    def increase_bytes(self) -> int:
        """Return the peak minus the sample from before the body."""
        return self.peak_bytes - self.base_bytes

    def __enter__(self) -> Self:
        self.seconds.clear()
        self.resident_bytes.clear()
        if self.trim and os.name == "posix":
            give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
            if give_back:
                give_back(0)
        self._process, self._stop, self._began = psutil.Process(), threading.Event(), time.perf_counter()
        self._sample()
        self._thread = threading.Thread(target=self._keep_sampling, name="jaxperf-memory", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()

    def _keep_sampling(self) -> None:
        while not self._stop.wait(self.interval_s):
            self._sample()

    def _sample(self) -> None:
        self.resident_bytes.append(self.read() if self.read else self._process.memory_info().rss)
        self.seconds.append(time.perf_counter() - self._began)


def device_memory(device: jax.Device | None = None) -> dict[str, int]:
    """Return the memory statistics of a device, or of the first one ("bytes_in_use", ...); empty on a CPU."""
    stats = (device or jax.devices()[0]).memory_stats()
    return {key: int(value) for key, value in (stats or {}).items()}
