"""Measure and fit the stages of a dispatch, section 8.2's t1, t2 and t3, and predict times from them.

    t1  the front end enqueues one computation
    t2  the back end computes it
    t3  the front end learns that the result is ready, and the idle back end wakes for the next one
        (far longer if its core has gone to sleep in the meantime, see `keep_awake.py`)

A loop that waits after each of n calls takes n (t1 + t2 + t3). A loop that waits once is a pipeline of two
stages whose slower stage sets the pace: t1 + t2 + t3 + (n - 1) max(t1, t2). If t2 is larger, that is the
book's t1 + n t2 + t3; if t1 is larger, the front end is the bottleneck.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from jaxperf.errors import JaxperfError
from jaxperf.measure.rounds import interleaved
from jaxperf.measure.timing import block
from jaxperf.result import Ratio, ratio_of


@dataclass(frozen=True)
class DispatchSample:
    """Seconds of the two loops over one size of an operation, for all `calls`, one value per round.

    Attributes:
      size: of the operation, in any unit: elements, bytes, steps.
      calls: computations in one loop.
      sync_s: times when waiting for each result before the next call.
      async_s: times when waiting for all results at the end.
    """

    size: float
    calls: int
    sync_s: tuple[float, ...]
    async_s: tuple[float, ...]

    @property
    def gain(self) -> Ratio:
        """Return the synchronous loop's time over the asynchronous one's, from ratios per round."""
        return ratio_of([a / b for a, b in zip(self.sync_s, self.async_s, strict=True)])

    @property
    def synchronous_s(self) -> float:
        """Return the lower quartile of the synchronous loop's seconds."""
        return _lower_quartile(self.sync_s)

    @property
    def asynchronous_s(self) -> float:
        """Return the lower quartile of the asynchronous loop's seconds."""
        return _lower_quartile(self.async_s)


def _lower_quartile(values: Sequence[float]) -> float:
    """Return the lower quartile, which other programs disturb less than the median: they only add time."""
    return float(np.quantile(values, 0.25))


@dataclass(frozen=True)
class DispatchTimes:
    """Whether calls returned before their results were ready; each field has one entry per call.

    Attributes:
      queued_s: seconds until the call returned.
      finished_s: seconds until its whole result was ready, including the call.
      ready: whether the result was ready when the call returned.
    """

    queued_s: tuple[float, ...]
    finished_s: tuple[float, ...]
    ready: tuple[bool, ...]

    @property
    def queued_share(self) -> Ratio:
        """Return `queued_s` as a fraction of `finished_s`."""
        return ratio_of([q / f for q, f in zip(self.queued_s, self.finished_s, strict=True)])

    @property
    def asynchronous(self) -> bool:
        """Return whether most calls returned before their results were ready."""
        return 2 * sum(self.ready) < len(self.ready)


def probe(fn: Callable[..., Any], *args: Any, calls: int = 5) -> DispatchTimes:
    """Call `fn(*args)` and return whether this backend ran it asynchronously; a first call is not counted.

    Args:
      fn: returns a pytree of arrays; may be a NumPy function.
      *args: its arguments.
      calls: number of calls.
    """
    block(fn(*block(args)))
    rows: list[tuple[float, float, bool]] = []
    for _ in range(calls):
        began = time.perf_counter()
        out = fn(*args)
        queued = time.perf_counter() - began
        ready = pending(out) == 0
        block(out)
        rows.append((queued, time.perf_counter() - began, ready))
    queued_s, finished_s, were_ready = zip(*rows)
    return DispatchTimes(queued_s, finished_s, were_ready)


def pending(tree: Any) -> int:
    """Return the number of arrays in `tree` that are not ready yet; a failed one counts as ready."""
    leaves = (leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array))
    return sum(not leaf.is_ready() for leaf in leaves)  # type: ignore[attr-defined]  # not in the stub


def synchronous_loop(fn: Callable[[Any], Any], x: Any, calls: int) -> Any:
    """Compute `y = fn(x)` `calls` times and wait for each (section 8.2.3)."""
    for _ in range(calls):
        y = fn(x)
        block(y)
    return y


def asynchronous_loop(fn: Callable[[Any], Any], x: Any, calls: int) -> Any:
    """Compute `y = fn(x)` `calls` times and wait once, at the end (section 8.2.3).

    Waiting for the last `y` is enough because one device runs the programs of one thread in their order.
    """
    for _ in range(calls):
        y = fn(x)
    return block(y)


def queueing_s(fn: Callable[[Any], Any], x: Any, *, calls: int = 16, rounds: int = 51) -> float:
    """Return t1: the median seconds that the front end takes to queue one call of `fn(x)`.

    Args:
      fn: returns arrays on one device.
      x: its argument, small enough that the back end is no slower than the front end.
      calls: number of queued calls, far fewer than fill the queue.
      rounds: number of values of which the median is taken.
    """
    values = []
    for _ in range(rounds):
        outputs = [fn(x)]  # wakes the back end
        began = time.perf_counter()
        for _ in range(calls):
            outputs.append(fn(x))
        values.append((time.perf_counter() - began) / calls)
        block(outputs)
    return statistics.median(values)


def sweep(
    fn: Callable[[Any], Any],
    inputs: Sequence[tuple[float, Any]],
    *,
    calls: int = 200,
    rounds: int = 15,
) -> tuple[DispatchSample, ...]:
    """Time both loops over each input; every round times each loop with each size once.

    Args:
      fn: returns arrays on one device.
      inputs: pairs of a size and the argument of that size; sizes are distinct.
      calls: computations in one loop.
      rounds: number of values for each loop.

    Raises:
      JaxperfError: `calls` or `rounds` is below 1.
    """
    if calls < 1 or rounds < 1:
        raise JaxperfError(f"sweep needs calls and rounds of at least 1, not {calls} and {rounds}")
    parts = {}
    for size, x in inputs:
        parts[f"{size} sync"] = partial(synchronous_loop, fn, x, calls)
        parts[f"{size} async"] = partial(asynchronous_loop, fn, x, calls)
    measurements = interleaved(parts, count=rounds, loops=1)
    return tuple(
        DispatchSample(size, calls, measurements[f"{size} sync"].values, measurements[f"{size} async"].values)
        for size, _ in inputs
    )


@dataclass(frozen=True)
class Costs:
    """t1 and t3 in seconds, and t2 as a linear function of size, steeper beyond a knee (a cache's size).

    t2 = t2_fixed_s + t2_per_unit_s * size + t2_per_unit_beyond_s * max(0, size - knee)
    """

    t1_s: float
    t3_s: float
    t2_fixed_s: float
    t2_per_unit_s: float
    t2_per_unit_beyond_s: float = 0.0
    knee: float = math.inf

    def t2_s(self, size: float) -> float:
        """Return the seconds that the back end computes for one operation of this size."""
        beyond = max(0.0, size - self.knee)
        return self.t2_fixed_s + self.t2_per_unit_s * size + self.t2_per_unit_beyond_s * beyond

    def synchronous_s(self, size: float, calls: int) -> float:
        """Return the seconds of the loop that waits after each call: n (t1 + t2 + t3)."""
        return calls * (self.t1_s + self.t2_s(size) + self.t3_s)

    def asynchronous_s(self, size: float, calls: int) -> float:
        """Return the seconds of the loop that waits once: t1 + t2 + t3 + (n - 1) max(t1, t2)."""
        t2_s = self.t2_s(size)
        return self.t1_s + t2_s + self.t3_s + (calls - 1) * max(self.t1_s, t2_s)

    def book_s(self, size: float, calls: int) -> float:
        """Return the book's formula for the loop that waits once: t1 + n t2 + t3."""
        return self.t1_s + calls * self.t2_s(size) + self.t3_s

    def gain(self, size: float) -> float:
        """Return the synchronous loop's time over the asynchronous one's: (t1 + t2 + t3) / max(t1, t2)."""
        t2_s = self.t2_s(size)
        return (self.t1_s + t2_s + self.t3_s) / max(self.t1_s, t2_s)

    @property
    def crossover(self) -> float:
        """Return the size at which t2 equals t1: an asynchronous loop's bottleneck is the front end below it.

        0 if the bottleneck always is the back end, inf if it always is the front end.
        """
        short = self.t1_s - self.t2_fixed_s
        if short <= 0:
            return 0.0
        if short <= self.t2_per_unit_s * self.knee:
            return short / self.t2_per_unit_s if self.t2_per_unit_s else math.inf
        slope = self.t2_per_unit_s + self.t2_per_unit_beyond_s
        return self.knee + (self.t1_s - self.t2_s(self.knee)) / slope if slope else math.inf


def fit(samples: Sequence[DispatchSample], *, t1_s: float | None = None) -> Costs:
    """Return the costs that fit both loops over all sizes best.

    The fit is least squares on relative errors, so that small sizes count as much as large ones, with a loss
    that tolerates single outliers. The knee is the size in `samples` that gives the best fit.

    Args:
      samples: of at least six sizes; the front end should be the bottleneck for some of them only.
      t1_s: seconds per call from `queueing_s`, as one more observation. It tells t1 from t2's fixed part:
        each alone could explain why all small operations cost the same.

    Raises:
      JaxperfError: there are fewer than six sizes.
    """
    sizes = sorted({s.size for s in samples})
    if len(sizes) < 6:
        raise JaxperfError(f"a fit of t1, t2 and t3 needs at least 6 sizes, not {len(sizes)}")
    fits = (_least_squares(samples, knee, t1_s) for knee in sizes[1:-1])
    return min(fits, key=lambda candidate: candidate[0])[1]


def _least_squares(samples: Sequence[DispatchSample], knee: float, t1_s: float | None) -> tuple[float, Costs]:
    """Return the loss of the best fit with this knee, and the fit."""
    from scipy.optimize import least_squares

    size = np.array([s.size for s in samples])
    calls = np.array([s.calls for s in samples])
    measured = np.log([[s.synchronous_s for s in samples], [s.asynchronous_s for s in samples]])
    scale = _guess(samples)

    def residuals(parameters: Any) -> Any:
        t1, t3, fixed, slope, beyond = parameters * scale
        t2 = fixed + slope * size + beyond * np.maximum(0, size - knee)
        synchronous = calls * (t1 + t2 + t3)
        asynchronous = t1 + t2 + t3 + (calls - 1) * np.maximum(t1, t2)
        errors = (np.log([synchronous, asynchronous]) - measured).ravel()
        return np.append(errors, np.log(t1 / t1_s)) if t1_s else errors

    start, lowest = [1.0, 1.0, 0.1, 0.5, 0.5], [1e-6, 0.0, 0.0, 0.0, 0.0]
    solution = least_squares(residuals, start, bounds=(lowest, np.inf), loss="soft_l1", f_scale=0.1)
    nonzero = np.where(solution.x < 1e-9, 0, solution.x)  # a parameter at its bound
    t1, t3, fixed, slope, beyond = map(float, nonzero * scale)
    return float(solution.cost), Costs(t1, t3, fixed, slope, beyond, knee)


def _guess(samples: Sequence[DispatchSample]) -> Any:
    """Return rough costs as scales of the parameters: t1, t3, t2's fixed part, and its two slopes."""
    ordered = sorted(samples, key=lambda s: s.size)
    each = [s.asynchronous_s / s.calls for s in ordered]
    slope = (each[-1] - each[0]) / (ordered[-1].size - ordered[0].size)
    gap = statistics.median((s.synchronous_s - s.asynchronous_s) / s.calls for s in ordered)
    t1 = min(each)
    slope = max(slope, 1e-3 * t1 / ordered[-1].size)
    return np.array([t1, max(gap, 0.1 * t1), t1, slope, slope])


def prediction_errors(costs: Costs, samples: Sequence[DispatchSample]) -> tuple[tuple[float, float], ...]:
    """Return prediction errors, (synchronous, asynchronous) per sample, as fractions of measured times."""
    return tuple(
        (
            costs.synchronous_s(s.size, s.calls) / s.synchronous_s - 1,
            costs.asynchronous_s(s.size, s.calls) / s.asynchronous_s - 1,
        )
        for s in samples
    )
