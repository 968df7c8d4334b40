"""Arithmetic of time intervals. This module uses the standard library only.

An interval is a pair (start, end) with start <= end; intervals of zero length are ignored.
"""

import itertools
import math
from collections.abc import Iterable

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union as disjoint intervals in order; intervals that touch are joined."""
    merged: list[Interval] = []
    for start, end in sorted(i for i in intervals if i[0] < i[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def intersection(a: Iterable[Interval], b: Iterable[Interval]) -> list[Interval]:
    """Return the intersection as disjoint intervals in order."""
    first, second = union(a), union(b)
    shared: list[Interval] = []
    i = j = 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if start < end:
            shared.append((start, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return shared


def difference(a: Iterable[Interval], b: Iterable[Interval]) -> list[Interval]:
    """Return the parts of `a` that no interval of `b` covers, as disjoint intervals in order."""
    edges = [-math.inf, *itertools.chain.from_iterable(union(b)), math.inf]
    return intersection(a, zip(edges[::2], edges[1::2]))  # with the gaps between those of `b`


def total_length(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in union(intervals))


def clip(intervals: Iterable[Interval], start: float, end: float) -> list[Interval]:
    cut = ((max(a, start), min(b, end)) for a, b in intervals)
    return [(a, b) for a, b in cut if a < b]


def most_at_once(intervals: Iterable[Interval]) -> int:
    """Return the largest number of intervals that overlap at any time; touching ends do not overlap."""
    edges = [edge for a, b in intervals if a < b for edge in ((a, 1), (b, -1))]
    most = now = 0
    for _, step in sorted(edges):  # at equal times, -1 comes before +1
        now += step
        most = max(most, now)
    return most


def overlap_fraction(a: Iterable[Interval], b: Iterable[Interval]) -> float:
    """Return the fraction of the shorter union that is inside the other one; 0 if one is empty."""
    first, second = union(a), union(b)
    shorter = min(total_length(first), total_length(second))
    return total_length(intersection(first, second)) / shorter if shorter else 0.0
