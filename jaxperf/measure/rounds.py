"""Comparisons that noise treats alike: every part is timed once a round, and ratios are taken per round.

A machine that is busy for a second then slows all parts of that round, and the ratio stays what it was.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxperf.errors import JaxperfError
from jaxperf.measure.guards import nothing_compiles, refuse_debug_flags
from jaxperf.measure.record import Measurement
from jaxperf.measure.timing import block

Part = Callable[..., Any]


def interleaved(
    parts: Mapping[str, Part],
    *,
    count: int,
    before: Mapping[str, Callable[[], Any]] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Measurement]:
    """Seconds of each part, once a round for `count` rounds, all its outputs waited for.

    A round that is not counted comes first, so that nothing is compiled later. The order turns by one from
    round to round: no part is always the one that comes after another.

    Args:
      parts: what to time, by the name of its measurement; each returns a pytree of arrays.
      count: how many rounds; `values[i]` of every measurement is of round i.
      before: what to do, outside the clock, before a part; if it returns anything but None the part is called
        with that (an input that may be used once only).
      clock: reads seconds.

    Raises:
      RetraceError: something was traced or compiled while the clock ran.
      JaxperfError: `count` is not positive, `before` names no part, or a JAX debug flag is on.
    """
    prepare = before or {}
    if count < 1:
        raise JaxperfError(f"{count} rounds are too few; give at least 1")
    if unknown := prepare.keys() - parts.keys():
        raise JaxperfError(f"nothing is called {sorted(unknown)[0]!r} among {list(parts)}")
    refuse_debug_flags()
    names, values = list(parts), {name: [0.0] * (count + 1) for name in parts}
    for i in range(count + 1):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            values[name][i] = _once(name, parts[name], prepare.get(name), clock, warm=i > 0)
    return {n: Measurement(n, "s", tuple(v[1:]), warmup=(v[0],)) for n, v in values.items()}


def _once(
    name: str, part: Part, prepare: Callable[[], Any] | None, clock: Callable[[], float], *, warm: bool
) -> float:
    given = block(prepare()) if prepare else None
    args = () if given is None else (given,)
    if not warm:
        return _timed(part, args, clock)
    with nothing_compiles(name):
        return _timed(part, args, clock)


def _timed(part: Part, args: tuple[Any, ...], clock: Callable[[], float]) -> float:
    began = clock()
    outputs = block(part(*args))
    took = clock() - began
    del outputs  # not before the clock was read: giving memory back takes time too
    return took


def per_round(name: str, of: Callable[..., float], *measured: Measurement, unit: str = "s") -> Measurement:
    """A figure of each round from the figures of that round: a sum, the larger one, a ratio.

    Args:
      name: of the new measurement.
      of: from one value of each of `measured` to the new value.
      *measured: measurements of the same rounds.
      unit: of the new value.
    """
    rounds = zip(*(m.values for m in measured), strict=True)
    return Measurement(name, unit, tuple(float(of(*values)) for values in rounds))


@dataclass(frozen=True)
class Together:
    """Two parts, each alone and both together, in seconds of the same rounds."""

    tag: str
    first: Measurement
    second: Measurement
    both: Measurement

    @property
    def total(self) -> Measurement:
        """Sum of the two, which both together take at worst."""
        return per_round(f"{self.tag}: sum", lambda a, b: a + b, self.first, self.second)

    @property
    def best(self) -> Measurement:
        """The longer one, which both together take at best."""
        return per_round(f"{self.tag}: best possible", max, self.first, self.second)

    @property
    def ratio(self) -> Measurement:
        """How many times as fast together as one after the other."""
        return per_round(f"{self.tag}: sum / together", _ratio, self.total, self.both, unit="times")

    @property
    def possible(self) -> Measurement:
        """What `ratio` can be at best."""
        return per_round(f"{self.tag}: sum / best possible", _ratio, self.total, self.best, unit="times")

    @property
    def overlap(self) -> Measurement:
        """Share of what could be saved that was: 0 one after the other, 1 as good as the longer one alone.

        Noise can carry it below 0 and above 1, far where one part is short beside the other.
        """
        name = f"{self.tag}: overlap by the clock"
        parts = self.first, self.second, self.both
        return per_round(name, lambda a, b, both: (a + b - both) / min(a, b), *parts, unit="of the possible")

    def rows(self) -> tuple[Measurement, ...]:
        """What a table of it shows, overlap apart."""
        return self.first, self.second, self.total, self.both, self.best, self.ratio, self.possible


def together(
    tag: str, parts: Mapping[str, Part], *, count: int, before: Mapping[str, Callable[[], Any]] | None = None
) -> Together:
    """Time three parts in rounds: one, another, and both together (section 8.3).

    Args:
      tag: of the comparison; begins the name of every measurement.
      parts: the three, in this order, by name.
      count, before: as for `interleaved`.

    Raises:
      JaxperfError: as `interleaved`.
    """
    named = {f"{tag}: {name}": part for name, part in parts.items()}
    prepare = {f"{tag}: {name}": make for name, make in (before or {}).items()}
    first, second, both = interleaved(named, count=count, before=prepare).values()
    return Together(tag, first, second, both)


def quartiles(m: Measurement) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile; of one value, that value."""
    if len(m.values) < 2:
        return m.median, m.median, m.median
    low, middle, high = statistics.quantiles(m.values, n=4, method="inclusive")
    return low, middle, high


def spread(m: Measurement) -> str:
    """Median and quartiles in words, bare of the unit: "1.50 (1.42 to 1.61)"."""
    low, middle, high = quartiles(m)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def above_one(ratio: Measurement) -> bool | None:
    """Whether a ratio is above 1: yes or no where three quarters of the rounds agree, else None."""
    low, _, high = quartiles(ratio)
    return True if low > 1 else False if high <= 1 else None


def _ratio(a: float, b: float) -> float:
    return a / b
