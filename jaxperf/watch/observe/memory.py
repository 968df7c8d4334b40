"""Record how much memory the process and its devices use, and which arrays fill it.

The arrays are listed where memory has grown: their types, the lines that made them, and the variable of the
program whose list or dictionary holds them. Nothing of the program runs for that.
"""

import contextlib
import itertools
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from types import FrameType
from typing import Any

import psutil

from jaxperf.watch.grouping import group_by
from jaxperf.watch.log import LiveArrays, Log, Memory
from jaxperf.watch.observe import source_location
from jaxperf.watch.observe.frame_arguments import describe_value
from jaxperf.watch.observe.sampler import undisturbed
from jaxperf.watch.observe.source_location import NOWHERE, Place

CLOSE_S, WIDE_S = 0.05, 0.25  # between readings; one costs as much as a sample
WIDER = 0.05  # this interval over the time since the first reading
READINGS = 2000  # that are kept: of more, every second one
STEP = 1.05  # growth of memory after which live arrays are listed again
LISTING_PAUSE = 100.0  # times the seconds of the last listing, before the next one
_LISTED, _LOOKED_UP = 5, 20  # types of arrays, and arrays of each type whose line is looked up
MANY = 8  # elements of a container that may grow
_ENDS = 4  # elements at each end of a container that are looked at
_DEPTH = 3  # containers inside containers


class MemoryReadings:
    """Reads the memory in the sampler's thread: call `look` after each sample."""

    # `started` returns whether JAX's backend runs, since listing arrays would start it
    def __init__(self, log: Log, started: Callable[[], bool]) -> None:
        self.log, self._started = log, started
        self._process = psutil.Process()
        self._first = self._last = time.perf_counter()
        self._listed_at = self._list_after = 0.0
        self._holders: dict[str, tuple[str, Place]] = {}

    def look(self) -> None:
        now = time.perf_counter()
        if now - self._last >= min(WIDE_S, max(CLOSE_S, WIDER * (now - self._first))):
            self._last = now
            self.read()

    def close(self) -> None:
        self._list_after = 0.0
        self.read()

    def read(self) -> None:
        resident, device = self._process.memory_info().rss, 0
        jax: Any = sys.modules.get("jax")
        lists = hasattr(jax, "live_arrays") and self._started()
        if lists:
            device = sum((d.memory_stats() or {}).get("bytes_in_use", 0) for d in jax.local_devices())
        for kind, nbytes in (("resident", resident), ("device", device)):
            if nbytes:
                self.log.peaks[kind] = max(nbytes, self.log.peaks.get(kind, 0))
        used, began = device or resident, time.perf_counter()
        reading = Memory(began, resident, device)
        if lists and used > self._listed_at * STEP and began > self._list_after:
            self._listed_at = used
            self.log.live_arrays = list_live_arrays(jax, self._holder)
            reading = reading._replace(arrays=tuple(self.log.live_arrays))
            ended = time.perf_counter()  # 100,000 small arrays take tens of milliseconds
            self._list_after = ended + LISTING_PAUSE * (ended - began)
        self.log.memory.append(reading)
        if len(self.log.memory) > READINGS:
            self.log.memory[:] = [m for i, m in enumerate(self.log.memory) if i % 2 == 0 or m.arrays]

    def _holder(self, kind: str, ids: set[int]) -> tuple[str, Place]:
        """Return the variable whose container holds most arrays of a type, as last seen, and where it is."""
        most = MANY - 1
        frame: FrameType | None = None
        with undisturbed():
            for frame in source_location.readers_frames(sys._current_frames().get(self.log.thread_id)):
                for name, value in source_location.variables(frame):
                    size = _holds(value, ids, _DEPTH)
                    if size > most:
                        most, self._holders[kind] = size, (name, source_location.place_of(frame))
            del frame  # which would live longer than its function
        return self._holders.get(kind, ("", NOWHERE))


def list_live_arrays(jax: Any, held_by: Callable[[str, set[int]], tuple[str, Place]]) -> list[LiveArrays]:
    """Return the live arrays by type, the type with the most bytes first, and what variable holds them."""
    listed = []
    with contextlib.suppress(Exception):  # the program may delete arrays, or start its backend, meanwhile
        alike = group_by(jax.live_arrays(), lambda a: (a.dtype, a.shape)).values()
        sizes = [(len(arrays) * int(arrays[0].nbytes), arrays) for arrays in alike]
        for nbytes, arrays in sorted(sizes, key=lambda pair: -pair[0])[:_LISTED]:
            kind = describe_value(arrays[0])
            held, at = held_by(kind, {id(a) for a in arrays}) if len(arrays) >= MANY else ("", NOWHERE)
            listed.append(LiveArrays(kind, len(arrays), nbytes, _made_at(arrays[-_LOOKED_UP:]), held, at))
    return listed


def _made_at(arrays: list[Any]) -> Place:
    """Return the reader's line that made most of some arrays; this takes 10 us per array."""
    lines: Counter[Place] = Counter()
    for array in arrays:
        for f in getattr(getattr(array, "traceback", None), "frames", ()):
            if not source_location.library_of(f.file_name):
                lines[Place(f.file_name, f.line_num, f.function_name)] += 1
                break
    return max(lines, key=lambda at: lines[at], default=NOWHERE)


def _holds(value: Any, ids: set[int], depth: int) -> int:
    """Return the size of the largest container in a value that holds one of some arrays; 0 for none."""
    if type(value) not in (dict, list, tuple, deque) or depth < 0:
        return 0
    elements = value.values() if type(value) is dict else value
    parts = [part for end in (elements, reversed(elements)) for part in itertools.islice(end, _ENDS)]
    most = max((id(part) in ids or _holds(part, ids, depth - 1) for part in parts), default=0)
    return max(most, len(value)) if most else 0
