"""Clocks for asynchronous programs: `block`, `Benchmark`, `measure` and `probe`.

A JAX call returns before its value exists, so everything here waits for all outputs before it reads the
clock. `measure` also keeps the warm-up apart, and refuses to trace or compile while it times.
"""

import math
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar, get_args

import jax
import numpy as np
from jax.core import Tracer

from jaxperf.errors import JaxperfError
from jaxperf.measure.compile_log import (
    COPIES,
    Checked,
    arrays_of,
    nothing_compiles,
    refuse_debug_flags,
    refuse_donated,
    refuse_same_arrays,
    watch_compilation,
)
from jaxperf.measure.scheduler import LOST, Scheduler, lost_s, set_aside
from jaxperf.result import Measurement, Ratio, ratio_of

T = TypeVar("T")
Wait = Literal["each", "end"]

MIN_VALUE_S = 2e-3  # shorter values show the jitter of the scheduler and the clock
CLOCK_SHARE = 1e-3  # cost of reading the clock over a value, at most
QUICKEST_CALL_S = 5e-8  # no Python call takes less
WARMUP_CALLS = 100  # calls that end the warm-up even before `warmup_s`
_PLAIN = (np.ndarray, np.generic, int, float, complex, bool, str, bytes, type(None))  # always ready


def block(tree: T) -> T:
    """Wait until every array in `tree` has been computed, and return `tree`.

    It waits for every leaf, since independent results finish in any order (section 8.2.2).

    Args:
      tree: a pytree of `jax.Array`s, NumPy arrays and plain Python values, of any shapes and dtypes. It does
        not wait for what a function changes in place and does not return.

    Raises:
      TypeError: a leaf is a tracer, or neither an array nor a plain value, so it cannot be waited for.
      Exception: any error of an asynchronous computation in `tree`.
    """
    if isinstance(tree, jax.Array):  # the common case takes 0.2 us, not 1.7 us
        try:
            tree.block_until_ready()
        except AttributeError:  # a tracer
            raise TypeError(_cannot_wait(tree)) from None
        return tree
    if isinstance(tree, _PLAIN):  # the next common case
        return tree
    # newer JAX versions raise another error for an iterator, and `jax.block_until_ready` skips tracers
    if isinstance(tree, Iterator) or not all(map(_can_wait, jax.tree.leaves(tree))):
        raise TypeError(_cannot_wait(tree))
    return jax.block_until_ready(tree)


def _can_wait(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, *_PLAIN)) and not isinstance(leaf, Tracer)


def _cannot_wait(tree: Any) -> str:
    leaves = [((), tree)] if isinstance(tree, Iterator) else jax.tree_util.tree_leaves_with_path(tree)
    path, leaf = next((path, leaf) for path, leaf in leaves if not _can_wait(leaf))
    way_out = "return arrays, or register it as a pytree"
    if isinstance(leaf, Tracer):
        way_out = "time the function from outside of jit, grad, vmap and scan"
    where = jax.tree_util.keystr(path) or "the output"
    return f"cannot wait for {where}, a {type(leaf).__name__}: {way_out}"


class Benchmark:
    """Section 8.2.1's context manager: prints "LABEL time: 0.1234 sec" and sets `seconds`.

    For asynchronous work, it times only the dispatch, unless outputs are passed to `wait_for`::

        with Benchmark("Workloads are finished.") as bench:
            bench.wait_for(jnp.dot(x, x))
    """

    def __init__(self, label: str = "", *, show: Callable[[str], None] | None = print) -> None:
        self.label, self.show, self.seconds = label, show, math.nan
        self._pending: list[Any] = []

    def wait_for(self, tree: T) -> T:
        """Make the clock wait for `tree` at the end of the block, and return `tree` at once."""
        self._pending.append(tree)
        return tree

    def __enter__(self) -> Self:
        self._pending.clear()
        self._began = time.perf_counter()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            block(self._pending)
        self.seconds = time.perf_counter() - self._began
        self._pending.clear()
        if self.show and error is None:
            self.show(f"{self.label + ' ' if self.label else ''}time: {self.seconds:.4f} sec")


def measure(
    fn: Callable[..., Any],
    *args: Any,
    name: str | None = None,
    wait: Wait = "each",
    items: float = 0,
    warmup_calls: int = 2,
    warmup_s: float = 0.1,
    min_values: int = 7,
    max_values: int = 200,
    min_value_s: float = MIN_VALUE_S,
    target_rel_iqr: float = 0.02,
    least_s: float = 0.25,
    budget_s: float = 1.0,
    loops: int | None = None,
) -> Measurement:
    """Time `fn(*args)`, in seconds per call, until the values are stable or the budget is spent.

    After a warm-up, it chooses the calls per value so that reading the clock is under 0.1 % of a value. It
    takes values for at least `least_s`, because a few values of 2 ms may agree only because they are of one
    moment. It stops when the interquartile range is at most `target_rel_iqr` of the median, or when
    `budget_s` is spent. Then, on Linux, it sets aside the values in which another program had the core, if
    `min_values` others remain (see `scheduler.py`). Which values these are does not affect when it stops.
    Every value includes the call itself and the wait for it; `benchmarks/known_durations.py` measures both.

    Args:
      fn: the function to time; `measure` waits for all its outputs, any pytree of arrays, and at the end of
        each value for its effects (callbacks, prints).
      *args: its arguments, the same in every call (so no donated buffers).
      name: of the measurement; the function's own by default.
      wait: "each" waits after every call (latency); "end" queues the calls of one value and then waits for
        all their outputs, as section 8.1.2's benchmark does (throughput).
      items: work items per call, such as images.
      warmup_calls: least number of warm-up calls; up to 20 more follow while they still trace or compile.
      warmup_s: least seconds of warm-up, unless 100 calls take less.
      min_values, max_values: least and largest number of values.
      min_value_s: least seconds of a value, by the fastest warm-up call; short calls are repeated.
      target_rel_iqr: interquartile range that is small enough, as a fraction of the median.
      least_s: least seconds that the values take together, unless `max_values` or `budget_s` ends them.
      budget_s: seconds after which no further value begins, once there are `min_values`.
      loops: calls per value; chosen if None.

    Raises:
      RetraceError: something was traced or compiled in the timed part.
      JaxperfError: a JAX debug flag is on, an option is out of range, `fn` donates an argument, it returns
        the same arrays again instead of computing them, or it returns before what it calls has finished
        (because it returns nothing, only a shape, or a part of what it computes).
      TypeError: an output cannot be waited for (see `block`).
    """
    label = name or str(getattr(fn, "__name__", type(fn).__name__))
    if wait not in get_args(Wait):
        raise JaxperfError(f"measure({label}): wait is {wait!r}; it is one of {', '.join(get_args(Wait))}")
    if min_values < 1 or max_values < min_values or (loops is not None and loops < 1) or warmup_calls < 1:
        raise JaxperfError(f"measure({label}): values, loops and warm-up calls are counts of at least 1")
    if not all(0 <= x < math.inf for x in (items, warmup_s, min_value_s, target_rel_iqr, least_s, budget_s)):
        raise JaxperfError(f"measure({label}): items, seconds and target_rel_iqr are finite and at least 0")
    refuse_debug_flags()
    warmup, note = _warm_up(label, fn, args, calls=warmup_calls, seconds=warmup_s)
    values, disturbed = list[float](), list[bool]()
    with nothing_compiles(label) as log, Scheduler() as scheduler:
        loops = loops or calls_per_value(min(warmup), min_value_s)
        began = time.perf_counter()
        while len(values) < max_values:
            before = scheduler.account()
            values.append(time_value(fn, args, loops, wait))
            disturbed.append(lost_s(before, scheduler.account()) > LOST * loops * values[-1])
            log.refuse(label)  # at once, not after the whole budget
            if len(values) >= min_values:
                elapsed_s = time.perf_counter() - began
                steady = Measurement(label, "s", tuple(values)).rel_iqr <= target_rel_iqr
                if elapsed_s >= budget_s or (elapsed_s >= least_s and steady):
                    break
    measurement = Measurement(label, "s", tuple(values), tuple(warmup), loops, items, note)
    return set_aside(measurement, disturbed, min_values)


def time_value(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    loops: int,
    wait: Wait,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return seconds per call over `loops` calls, waiting for all their outputs and effects."""
    outputs: list[Any] = [None] * loops
    began = clock()
    if wait == "each":
        for _ in range(loops - 1):
            block(fn(*args))
        outputs[0] = block(fn(*args))  # blocking on the list would take 45 us
    else:
        for i in range(loops):
            outputs[i] = fn(*args)
        block(outputs)
    jax.effects_barrier()  # for callbacks of programs without outputs
    elapsed_s = clock() - began
    del outputs  # after reading the clock, since freeing memory takes time
    return elapsed_s / loops


def _warm_up(
    name: str, fn: Callable[..., Any], args: tuple[Any, ...], *, calls: int, seconds: float
) -> tuple[list[float], str]:
    """Return the seconds of warm-up calls, until there are enough and the last traced nothing; and a remark.

    A step whose output type differs from its input type is traced two or three times. One that is traced in
    every call raises an error in the timed part.
    """
    times: list[float] = []
    before: list[weakref.ref[jax.Array]] = []
    checked = Checked(name, fn)
    from_host = any(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(args))
    ends = time.perf_counter() + seconds
    with watch_compilation() as log:
        while True:
            log.clear()
            began = time.perf_counter()
            out = block(checked(*args))
            jax.effects_barrier()
            now = time.perf_counter()
            times.append(now - began)
            refuse_donated(name, args)
            if len(times) <= 2:
                before = refuse_same_arrays(name, out, before, args)
            note = COPIES if from_host and arrays_of(out) else ""
            del out
            settled = not log or len(times) >= calls + 20
            if settled and len(times) >= calls and (now >= ends or len(times) >= WARMUP_CALLS):
                return times, note


def calls_per_value(call_s: float, min_value_s: float) -> int:
    """Return the calls per value: it takes `min_value_s` at least, and clock reads are under 0.1 % of it.

    `call_s` includes one clock read. The fastest hundred of the clock reads counts, since other programs may
    take the core during the others.
    """
    reads = [time.perf_counter() for _ in range(1001)]
    read_s = min(b - a for a, b in zip(reads[::100], reads[100::100])) / 100
    value_s = max(2 * read_s / CLOCK_SHARE, min_value_s)
    return max(1, math.ceil(value_s / max(call_s - read_s, QUICKEST_CALL_S)))


@dataclass(frozen=True)
class DispatchTimes:
    """Whether calls returned before their results were ready; each field has one entry per call."""

    queued_s: tuple[float, ...]  # until the call returned
    finished_s: tuple[float, ...]  # until its whole result was ready, including the call
    ready: tuple[bool, ...]  # whether the result was ready when the call returned

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

    Raises:
      JaxperfError: `fn` returns before what it calls has finished.
    """
    block(Checked(str(getattr(fn, "__name__", "the function")), fn)(*block(args)))
    rows: list[tuple[float, float, bool]] = []
    for _ in range(calls):
        began = time.perf_counter()
        out = fn(*args)
        queued = time.perf_counter() - began
        ready = pending(out) == 0
        block(out)
        rows.append((queued, time.perf_counter() - began, ready))
    return DispatchTimes(*zip(*rows))


def pending(tree: Any) -> int:
    """Return the number of arrays in `tree` that are not ready yet; a failed one counts as ready."""
    leaves = (leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array))
    return sum(not leaf.is_ready() for leaf in leaves)  # type: ignore[attr-defined]  # not in the stub
