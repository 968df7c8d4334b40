"""Compare parts in rounds: every round times each part once, and ratios are formed per round.

A machine that is busy for a second then slows down all parts of a round, and their ratio does not change.
"""

import itertools
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxperf.errors import JaxperfError
from jaxperf.measure.compile_log import Checked, nothing_compiles, refuse_debug_flags
from jaxperf.measure.timing import MIN_VALUE_S, Wait, block, calls_per_value, time_value
from jaxperf.result import Measurement, turns

Part = Callable[..., Any]
PRECISE = 0.0175  # half of an interval over the median, which finds 96 to 100 % of differences of 5 %
# For n normal values with an interquartile range of 1, half of the median's 95 % interval is 1.57 / sqrt(n).
# The range of their absolute values is 1 / 1.63 if the values lie around 0. It is 1 if they lie on one side
# of 0, which only takes more rounds.
HALF_INTERVAL, OF_SIZES = 1.57, 1.63
NEEDED = 6  # rounds, for an interval
TRIED_CALLS, TRIED_S = 5, 0.05  # calls timed to choose the calls per value; fewer if they take this long
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
      parts: the functions to time, by the name of the measurement; each returns a pytree of arrays.
      count: number of rounds; `values[i]` of every measurement is of round i. A `Ratio` needs at least 6.
      budget_s: seconds after which no more rounds follow; until then, rounds follow the first `count` until
        every part's ratio to the first (a single part's median) is known within about 2 %.
      before: untimed functions to call before parts; a result other than None becomes the part's argument (an
        input that may be used only once). Such a part is called once per round.
      wait: "each" waits after every call (latency); "end" queues the calls of one value and then waits for
        all their outputs (throughput).
      loops: calls per value; chosen for each part if None.
      items: work items per call, such as images.
      seed: of the random order of the parts in each round; None for any.
      clock: returns the time in seconds.

    Raises:
      RetraceError: something was traced or compiled while the clock ran.
      JaxperfError: `count` is not positive, `budget_s` is negative or not finite, `before` names an unknown
        part, a JAX debug flag is on, or a part returns before what it calls has finished.
    """
    prepare = before or {}
    if count < 1:
        raise JaxperfError(f"{count} rounds are too few; give at least 1")
    if not 0 <= budget_s < math.inf:
        raise JaxperfError(f"a budget of {budget_s} s is none; give seconds, or 0 for `count` rounds")
    for name in prepare:
        if name not in parts:
            raise JaxperfError(f"nothing is called {name!r} among {list(parts)}")
    refuse_debug_flags()
    rounds = f"rounds {next(_numbers)}"
    first_s, calls = dict[str, float](), dict[str, int]()
    for name, part in parts.items():
        first_s[name], calls[name] = _warm_up(Checked(name, part), prepare.get(name), wait, loops, clock)
    values: dict[str, list[float]] = {name: [] for name in parts}
    draw, ends, more = random.Random(seed), clock() + budget_s, count
    while more:
        for _ in range(more):
            for name in turns(list(parts), draw):
                args = _prepared(prepare.get(name))
                with nothing_compiles(name):
                    values[name].append(time_value(parts[name], args, calls[name], wait, clock))
        more = rounds_to_add(*values.values()) if values and clock() < ends else 0
    return {
        name: Measurement(name, "s", tuple(v), (first_s[name],), calls[name], items, rounds=rounds)
        for name, v in values.items()
    }


def rounds_to_add(first: Sequence[float], *others: Sequence[float]) -> int:
    """Return how many rounds to add before the next check: 0 if ratios to the first are known to 2 %.

    If there is only one part, its median must be known as well.

    The check uses only the absolute values of the ratios' logarithms. For equal programs, the random order in
    each round makes the signs independent of these, so stopping here favors no verdict. A check of the
    interval's width would do so: it found differences between more than 5 % of equal programs.
    """
    more = max(1, len(first) // 4)
    if len(first) < NEEDED:
        return more
    if others:
        sizes = [tuple(abs(math.log(b / a)) for a, b in zip(first, other)) for other in others]
        spread = OF_SIZES * max(Measurement("sizes", "", of_part).iqr for of_part in sizes)
    else:
        spread = Measurement("alone", "s", tuple(first)).rel_iqr
    return 0 if spread * HALF_INTERVAL / math.sqrt(len(first)) <= PRECISE else more


def _warm_up(
    part: Part, prepare: Callable[[], Any] | None, wait: Wait, loops: int | None, clock: Callable[[], float]
) -> tuple[float, int]:
    """Return the seconds of the first call, which compiles, and the number of calls per value.

    The fastest of the next few calls decides that number, since the scheduler may delay a single one. Parts
    that must not be called twice with one input get one call per value.
    """
    first_s = time_value(part, _prepared(prepare), 1, wait, clock)
    if loops or prepare:
        return first_s, loops or 1
    tried = [time_value(part, (), 1, wait, clock)]
    while len(tried) < TRIED_CALLS and sum(tried) < TRIED_S:
        tried.append(time_value(part, (), 1, wait, clock))
    calls = calls_per_value(min(tried), MIN_VALUE_S)
    if wait == "end":  # calls that nobody waits for overlap, so one of many takes less time than one alone
        calls = calls_per_value(min(*tried, time_value(part, (), calls, wait, clock)), MIN_VALUE_S)
    return first_s, calls


def _prepared(prepare: Callable[[], Any] | None) -> tuple[Any, ...]:
    prepared = block(prepare()) if prepare else None
    return () if prepared is None else (prepared,)


def per_round(name: str, of: Callable[..., float], *measured: Measurement, unit: str = "s") -> Measurement:
    """Return a measurement computed per round from others, such as a sum or a share.

    Args:
      name: of the new measurement.
      of: maps one value of each of `measured` to the new value.
      *measured: measurements of the same rounds.
      unit: of the new measurement.
    """
    rounds = zip(*(m.values for m in measured), strict=True)
    return Measurement(name, unit, tuple(float(of(*values)) for values in rounds), rounds=measured[0].rounds)
