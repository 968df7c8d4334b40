"""Whether calls return before their results are ready, and the loop that waits once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from jaxperf.measure.timing import block
from jaxperf.measure.unfinished import Checked
from jaxperf.result import Ratio, ratio_of


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
    queued_s, finished_s, were_ready = zip(*rows)
    return DispatchTimes(queued_s, finished_s, were_ready)


def pending(tree: Any) -> int:
    """Return the number of arrays in `tree` that are not ready yet; a failed one counts as ready."""
    leaves = (leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array))
    return sum(not leaf.is_ready() for leaf in leaves)  # type: ignore[attr-defined]  # not in the stub
