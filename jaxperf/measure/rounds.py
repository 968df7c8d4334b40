"""Comparisons in which noise affects all parts alike: the parts take turns, and ratios are formed per round.

A machine that is busy for a second then slows all parts of that round, and the ratio does not change.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxperf.errors import JaxperfError
from jaxperf.measure.compile_log import nothing_compiles, refuse_debug_flags
from jaxperf.measure.timing import MIN_VALUE_S, Wait, block, calls_per_value, time_value
from jaxperf.result import Measurement, Ratio, ratio, turns

Part = Callable[..., Any]
PRECISE = 0.0175  # half of an interval over the median; 96 to 100 % of differences of 5 % are then found
# Of n normal values with an interquartile range of 1: half of the 95 % interval of the median is
# 1.57 / sqrt(n), and the range of their sizes is 1 / 1.63, if they lie around 0. It is 1 if they lie on one
# side, which only takes more rounds.
HALF_INTERVAL, OF_SIZES = 1.57, 1.63
LEAST = 6  # rounds of an interval
TRIED_CALLS, TRIED_S = 5, 0.05  # calls to choose the calls per value; fewer once they have taken this long
_numbers = itertools.count(1)


def interleaved(
    parts: Mapping[str, Part],
    *,
    count: int,
    budget_s: float = 0.0,
    before: Mapping[str, Callable[[], Any]] | None = None,
    wait: Wait = "each",
    loops: int | None = None,
    items: float = 0,
    seed: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Measurement]:
    """Time each part once per round, and return its seconds per call, waiting for all its outputs.

    A warm-up round comes first: it compiles, and it shows how many calls make a value of 2 ms.

    Args:
      parts: what to time, by the name of its measurement; each returns a pytree of arrays.
      count: how many rounds; `values[i]` of every measurement is of round i. A `Ratio` needs at least 6.
      budget_s: go on after `count` rounds, until every part's ratio to the first (a lone part's median) is
        known within about 2 %, or so many seconds are over.
      before: what to do before a part, untimed; if it returns anything but None, the part is called with that
        (an input that may be used only once). Such a part is called once per round.
      wait: "each" waits after every call (latency); "end" queues the calls of one value and then waits for
        all their outputs (throughput).
      loops: calls per value; chosen for each part if None.
      items: work items per call, e.g. images.
      seed: of the order in which the parts take turns, which every round draws anew; None for any.
      clock: reads seconds.

    Raises:
      RetraceError: something was traced or compiled while the clock ran.
      JaxperfError: `count` is not positive, `budget_s` is negative or not finite, `before` names an unknown
        part, or a JAX debug flag is on.
    """
    prepare = before or {}
    if count < 1:
        raise JaxperfError(f"{count} rounds are too few; give at least 1")
    if not 0 <= budget_s < math.inf:
        raise JaxperfError(f"a budget of {budget_s} s is none; give seconds, or 0 for `count` rounds")
    if unknown := prepare.keys() - parts.keys():
        raise JaxperfError(f"nothing is called {sorted(unknown)[0]!r} among {list(parts)}")
    refuse_debug_flags()
    rounds = f"rounds {next(_numbers)}"
    chosen = {name: _warm_up(parts[name], prepare.get(name), wait, loops, clock) for name in parts}
    values: dict[str, list[float]] = {name: [] for name in parts}
    draw, ends, more = random.Random(seed), clock() + budget_s, count
    while more:
        for _ in range(more):
            for name in turns(list(parts), draw):
                args = _prepared(prepare.get(name))
                with nothing_compiles(name):
                    values[name].append(time_value(parts[name], args, chosen[name][1], wait, clock))
        more = rounds_to_add(*values.values()) if values and clock() < ends else 0
    return {
        name: Measurement(name, "s", tuple(v), (chosen[name][0],), chosen[name][1], items, rounds=rounds)
        for name, v in values.items()
    }


def rounds_to_add(first: Sequence[float], *others: Sequence[float]) -> int:
    """Return how many rounds to add before asking again: none once ratios to the first are known to 2 %.

    For a lone part, its median must be known as well.

    Only the sizes of the ratios' logarithms count, not their signs. The drawn order of a round makes the
    signs of equal programs coin tosses that do not depend on the sizes, so no verdict is favored when this
    stops. Where it asked how wide the interval was, it told up to 6.6 % of equal programs apart, not 5 %.
    """
    more = max(1, len(first) // 4)
    if len(first) < LEAST:
        return more
    if others:
        sizes = [tuple(abs(math.log(b / a)) for a, b in zip(first, other)) for other in others]
        spread = OF_SIZES * max(Measurement("sizes", "", each).iqr for each in sizes)
    else:
        spread = Measurement("alone", "s", tuple(first)).rel_iqr
    return 0 if spread * HALF_INTERVAL / math.sqrt(len(first)) <= PRECISE else more


def _warm_up(
    part: Part, prepare: Callable[[], Any] | None, wait: Wait, loops: int | None, clock: Callable[[], float]
) -> tuple[float, int]:
    """Return the seconds of the first call, which compiles, and how many calls make a value.

    The quickest of the next few calls decides how many. If only one were timed and the scheduler delayed it
    by 2 ms, every value would be a single short call. Parts that must not be called twice on one input get
    one call per value.
    """
    first_s = time_value(part, _prepared(prepare), 1, wait, clock)
    if loops or prepare:
        return first_s, loops or 1
    tried = [time_value(part, (), 1, wait, clock)]
    while len(tried) < TRIED_CALLS and sum(tried) < TRIED_S:
        tried.append(time_value(part, (), 1, wait, clock))
    return first_s, calls_per_value(min(tried), MIN_VALUE_S)


def _prepared(prepare: Callable[[], Any] | None) -> tuple[Any, ...]:
    prepared = block(prepare()) if prepare else None
    return () if prepared is None else (prepared,)


def per_round(name: str, of: Callable[..., float], *measured: Measurement, unit: str = "s") -> Measurement:
    """Return one figure per round, computed from others of that round: a sum, the larger one, a share.

    Args:
      name: of the new measurement.
      of: from one value of each of `measured` to the new value.
      *measured: measurements of the same rounds.
      unit: of the new value.
    """
    rounds = zip(*(m.values for m in measured), strict=True)
    return Measurement(name, unit, tuple(float(of(*values)) for values in rounds), rounds=measured[0].rounds)


@dataclass(frozen=True)
class Overlap:
    """Two parts, each alone and both together, in seconds, from the same rounds."""

    tag: str
    first: Measurement
    second: Measurement
    both: Measurement

    @property
    def total(self) -> Measurement:
        """Sum of the two: the worst possible time for both."""
        return per_round(f"{self.tag}: sum", lambda a, b: a + b, self.first, self.second)

    @property
    def best(self) -> Measurement:
        """Return the longer of the two: the best possible time for both."""
        return per_round(f"{self.tag}: best possible", max, self.first, self.second)

    @property
    def ratio(self) -> Ratio:
        """Return how many times as fast the two are together as one after the other."""
        return ratio(self.total, self.both)

    @property
    def possible(self) -> Ratio:
        """Return what `ratio` can be at best."""
        return ratio(self.total, self.best)

    @property
    def overlap(self) -> Measurement:
        """Fraction of the possible saving that was achieved: 0 one after the other, 1 the longer part alone.

        Noise can push it below 0 or above 1, by a lot if one part is much shorter than the other.
        """
        name = f"{self.tag}: overlap by the clock"
        parts = self.first, self.second, self.both
        return per_round(name, lambda a, b, both: (a + b - both) / min(a, b), *parts, unit="")

    def rows(self) -> tuple[Measurement, ...]:
        """Return the rows of a table of this comparison."""
        return self.first, self.second, self.total, self.both, self.best


def together(
    tag: str, parts: Mapping[str, Part], *, count: int, before: Mapping[str, Callable[[], Any]] | None = None
) -> Overlap:
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
    return Overlap(tag, first, second, both)
