"""How far the front end runs ahead of the back end: whether it does, how deep, and how to bound it (8.2)."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import jax

from jaxperf.errors import JaxperfError
from jaxperf.measure.timing import block
from jaxperf.result import Ratio, ratio_of

T = TypeVar("T")


@dataclass(frozen=True)
class DispatchTimes:
    """Whether calls returned before their results were ready; one entry per call in each field.

    Attributes:
      queued_s: seconds until the call returned.
      finished_s: seconds until its whole result was ready, the call included.
      ready: whether the result was ready when the call returned.
    """

    queued_s: tuple[float, ...]
    finished_s: tuple[float, ...]
    ready: tuple[bool, ...]

    @property
    def queued_share(self) -> Ratio:
        """Fraction of the time until the result was ready that had passed when the call returned."""
        return ratio_of([q / f for q, f in zip(self.queued_s, self.finished_s, strict=True)])

    @property
    def asynchronous(self) -> bool:
        """Whether most calls returned before their results were ready."""
        return 2 * sum(self.ready) < len(self.ready)


def probe(fn: Callable[..., Any], *args: Any, calls: int = 5) -> DispatchTimes:
    """Call `fn(*args)` and see whether this backend ran it asynchronously; a first call is not counted.

    Args:
      fn: returns a pytree of arrays; may be a NumPy function.
      *args: its arguments, already computed.
      calls: how often to call it.
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
    """Return how many of the arrays in `tree` are not ready yet; a failed one counts as ready."""
    leaves = (leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array))
    return sum(not leaf.is_ready() for leaf in leaves)  # type: ignore[attr-defined]  # not in the stub


def run_ahead_depth(enqueue: Callable[[], jax.Array], *, calls: int = 100) -> tuple[int, ...]:
    """Return how many computations are in flight after each of `calls` calls of `enqueue`.

    Where the numbers stop growing while the calls go on, the client holds the front end back.

    Args:
      enqueue: queues one computation, long enough that the front end is faster, and returns a result of it
        that is never donated.
      calls: how many to queue; a returned depth equal to this means that the limit was not reached.
    """
    handles: list[jax.Array] = []
    counts: list[int] = []
    for _ in range(calls):
        handles.append(enqueue())
        counts.append(pending(handles))
    block(handles)
    return tuple(counts)


def run_ahead(outputs: Iterable[T], *, depth: int = 1) -> Iterator[T]:
    """Yield each of `outputs` once it is ready, while at most `depth` later ones are already queued.

    The bounded window for a training loop: with a depth of 1, the metrics of step k - 1 are printed while
    step k runs, and no more than two batches are held::

        for metrics in run_ahead(train(state, batch) for batch in batches):
            print(metrics["loss"])

    Args:
      outputs: an iterator whose `next` queues one computation and returns its outputs, a pytree of arrays.
      depth: how many to queue beyond the one that is waited for; 0 waits after each.

    Raises:
      JaxperfError: `depth` is negative.
    """
    if depth < 0:
        raise JaxperfError(f"a run-ahead window of {depth} steps is impossible; give 0 or more")
    return _run_ahead(iter(outputs), depth)


def _run_ahead(outputs: Iterator[T], depth: int) -> Iterator[T]:
    window: deque[T] = deque(itertools.islice(outputs, depth))
    for out in outputs:
        window.append(out)
        yield block(window.popleft())
    yield from map(block, window)
