"""Arithmetic of time intervals. This module uses the standard library only.

An interval is a pair (start, end) with start <= end; intervals of zero length are ignored.
"""

import itertools
import math
from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def union(intervals: Iterable[Interval], gap: float = 0.0) -> list[Interval]:
    """Return the union as disjoint intervals in order; a gap of at most `gap` between two is closed."""
    merged: list[Interval] = []
    in_order = sorted([i for i in intervals if i[0] < i[1]])
    if not in_order:
        return merged
    begin, until = in_order[0]
    for start, end in in_order:
        if start > until + gap:
            merged.append((begin, until))
            begin, until = start, end
        elif end > until:
            until = end
    return [*merged, (begin, until)]


def intersection(a: Iterable[Interval], b: Iterable[Interval]) -> list[Interval]:
    """Return the intersection as disjoint intervals in order."""
    return _shared(union(a), union(b))


def difference(a: Iterable[Interval], b: Iterable[Interval]) -> list[Interval]:
    """Return the parts of `a` that no interval of `b` covers, as disjoint intervals in order."""
    edges = [-math.inf, *itertools.chain.from_iterable(union(b)), math.inf]
    return _shared(union(a), list(zip(edges[::2], edges[1::2])))  # with the gaps between those of `b`


def _shared(a: Sequence[Interval], b: Sequence[Interval]) -> list[Interval]:
    """Return the intersection of two lists of disjoint intervals in order."""
    pieces, i, j = list[Interval](), 0, 0
    while i < len(a) and j < len(b):
        (start, end), (other_start, other_end) = a[i], b[j]
        begin = start if start > other_start else other_start  # `max` takes three times as long
        if end < other_end:
            until = end
            i += 1
        else:
            until = other_end
            j += 1
        if begin < until:
            pieces.append((begin, until))
    return pieces


def total_length(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in union(intervals))


def clip(intervals: Iterable[Interval], start: float, end: float) -> list[Interval]:
    cut = ((max(a, start), min(b, end)) for a, b in intervals)
    return [(a, b) for a, b in cut if a < b]


def most_at_once(intervals: Iterable[Interval]) -> int:
    """Return the largest number of intervals that overlap at any time; touching ends do not overlap."""
    return max(itertools.accumulate(step for _, step in _edges(intervals)), default=0)


def _edges(intervals: Iterable[Interval]) -> list[tuple[float, int]]:
    """Return a time and 1 for each start, a time and -1 for each end, in order; ends first at equal times."""
    return sorted(edge for start, end in intervals if start < end for edge in ((start, 1), (end, -1)))
