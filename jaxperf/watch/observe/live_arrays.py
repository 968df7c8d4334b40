"""List the live arrays, their memory, and the lines that made them."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any, NamedTuple

from jaxperf.watch.grouping import group_by
from jaxperf.watch.observe import source_location
from jaxperf.watch.observe.source_location import NOWHERE, Place

_LISTED, _LOOKED_UP = 5, 20  # types of arrays, and arrays of each type whose line is looked up


class LiveArrays(NamedTuple):
    """The live arrays of one type, and the line that made most of them; NOWHERE if unknown."""

    kind: str
    number: int
    nbytes: int
    at: Place


def bytes_in_use(jax: Any) -> int:
    """Return the bytes allocated on this process's devices; 0 on platforms that do not count them."""
    return sum((d.memory_stats() or {}).get("bytes_in_use", 0) for d in jax.local_devices())


def live_arrays(jax: Any) -> list[LiveArrays]:
    """Return the live arrays by type, the type with the most bytes first."""
    try:
        by_type = group_by(jax.live_arrays(), lambda a: (a.dtype, a.shape))
        most = sorted(by_type.values(), key=lambda arrays: -_bytes_of(arrays))[:_LISTED]
        return [
            LiveArrays(_type_of(arrays[0]), len(arrays), _bytes_of(arrays), _made_at(arrays[:_LOOKED_UP]))
            for arrays in most
        ]
    except Exception:  # the program may delete arrays, or start its backend, meanwhile
        return []


def _type_of(array: Any) -> str:
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"


def _bytes_of(arrays: list[Any]) -> int:
    """Return the bytes of arrays that have the same type."""
    return len(arrays) * int(arrays[0].nbytes)


def _made_at(arrays: list[Any]) -> Place:
    """Return the reader's line that made most of some arrays; this takes 10 us per array."""
    lines: Counter[Place] = Counter()
    for array in arrays:
        frames = getattr(getattr(array, "traceback", None), "frames", ())
        reader = (f for f in frames if not source_location.library_of(f.file_name))
        lines.update(Place(f.file_name, f.line_num, f.function_name) for f in itertools.islice(reader, 1))
    return max(lines, key=lambda at: lines[at], default=NOWHERE)
