"""Stacks of the program while JAX traces, lowers or compiles, taken by the watch's sampler.

Tracing runs the program's Python, or a library's, so its stacks say whose lines take the time. Frames of JAX,
of jaxperf and of Python's own library are left out: their time counts for the line that called them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple

from jaxperf.libraries import library_of
from jaxperf.watch.observe.source_location import Place, outside_of_jax

DEPTH = 40  # frames kept of a stack
_SKIPPED = frozenset({"jax", "jaxlib", "jaxperf", "python", *sys.stdlib_module_names})


def outside_jax(file: str) -> bool:
    """Return whether a file is the program's own, or that of a library on top of JAX."""
    return library_of(file) not in _SKIPPED


class Sample(NamedTuple):
    """The lines of a stack outside JAX, the innermost first, and the time that it stands for."""

    start: float
    end: float
    places: tuple[Place, ...]


class Stacks:
    """The stacks of the watched thread while a stage runs, which `running` tells."""

    def __init__(self, running: Callable[[], bool]) -> None:
        self.samples: list[Sample] = []
        self._running = running

    def note(self, frame: FrameType | None, start: float, end: float) -> None:
        """Record a sample, in the sampler's thread."""
        if self._running():
            places = (place for place in outside_of_jax(frame, DEPTH) if outside_jax(place.file))
            self.samples.append(Sample(start, end, tuple(places)))
