"""Names and points of series, and how to sort them into families."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from jaxperf.measure.record import Result, Series

K = TypeVar("K", bound=Hashable)


def points(s: Series) -> list[tuple[float, float]]:
    """The points that could be had."""
    return [(x, y) for x, y in zip(s.x, s.y) if y is not None]


def family(s: Series) -> str:
    """What comes before the slash of "memory/asynchronous", or the underscore of "inflight_donated"."""
    return s.name.partition("/")[0] if "/" in s.name else s.name.partition("_")[0]


def member(s: Series) -> str:
    """What comes after the slash; the whole name where there is none."""
    return s.name.partition("/")[2] or s.name.replace("_", " ")


def head(s: Series) -> str:
    """What comes before the comma of "eager, batch 8"."""
    return s.name.partition(", ")[0]


def tail(s: Series) -> str:
    """What comes after the comma."""
    return s.name.partition(", ")[2]


def unique(words: Iterable[str]) -> list[str]:
    """Each once, in the order of the first."""
    return list(dict.fromkeys(words))


def by(series: Iterable[Series], key: Callable[[Series], K]) -> list[tuple[K, list[Series]]]:
    """Series with the same key together, in the order of the first."""
    found: dict[K, list[Series]] = {}
    for s in series:
        found.setdefault(key(s), []).append(s)
    return list(found.items())


def middle(series: Sequence[Series]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Every x of any of them, and the median of their y there."""
    at: dict[float, list[float]] = {}
    for s in series:
        for x, y in points(s):
            at.setdefault(x, []).append(y)
    across = tuple(sorted(at))
    return across, tuple(statistics.median(at[x]) for x in across)


def listed(words: Sequence[str]) -> str:
    """Words as a list in a sentence: "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def number(result: Result, name: str) -> float | None:
    """A fact that is a number; None where there is none of that name."""
    value = result.facts.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def seconds(result: Result, name: str) -> float | None:
    """Median of the timing of that name; None where there is none."""
    return next((m.median for m in result.measurements if m.name == name and m.unit == "s"), None)
