"""Sizes that follow a device's speed.

A product of 2000 x 2000 matrices keeps two cores busy for a third of a second and a large GPU for a tenth of
a millisecond, which is less than the call itself takes. So a size grows until its work lasts long enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxperf.measure.run_ahead import probe


def size_that_lasts(size: int, make: Callable[[int], Callable[[], Any]], *, seconds: float, most: int) -> int:
    """Return the first of `size`, twice `size`, ... whose work lasts `seconds`; `most` ends the search.

    Args:
      size: the smallest to try, in whatever unit `make` takes: rows, elements, images.
      make: makes the work for a size, a function that returns a pytree of arrays.
      seconds: from the call until the outputs are ready, for the quickest of three calls.
      most: no larger size is tried; this limits the memory that the work takes.
    """
    while size < most and min(probe(make(size), calls=3).finished_s) < seconds:
        size *= 2
    return size


def size_for(
    platform: str, size: int, make: Callable[[int], Callable[[], Any]], *, seconds: float, most: int
) -> int:
    """Return `size` itself on a CPU, for which it was chosen, and otherwise that of `size_that_lasts`.

    Args:
      platform: of the device, such as "cpu" or "gpu".
      size, make, seconds, most: as for `size_that_lasts`.
    """
    return size if platform == "cpu" else size_that_lasts(size, make, seconds=seconds, most=most)
