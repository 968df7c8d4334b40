"""Report a batch that does not fit into a device's memory, together with one that does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax

from jaxperf.errors import JaxperfError
from jaxperf.measure.timing import block

# A jitted function that was called before raises what its program raised as a ValueError (JAX 0.10 and 0.12).
FAILURES = (jax.errors.JaxRuntimeError, ValueError)
_LONGEST = 160  # characters of XLA's first line; a table of allocations may follow it


@contextmanager
def fitting(batch_size: int, step: Callable[[int], Any], devices: Sequence[jax.Device]) -> Iterator[None]:
    """Run a step inside; if memory runs out, try half the batch, a quarter, ... and report what fits.

    Args:
      batch_size: images of the step inside.
      step: `step(n)` runs it with n images and returns its outputs; called only after a failure.
      devices: those that share the batch, so n is a multiple of their number.

    Raises:
      JaxperfError: the batch does not fit; the message names it and the largest one tried that does.
    """
    try:
        yield
        return
    except FAILURES as e:
        if not no_memory(e):
            raise
        reason = str(e).splitlines()[0][:_LONGEST]
    # At this point nothing holds the arrays of the failed step any more.
    smaller, k = [batch_size], len(devices)
    while smaller[-1] // 2 >= k:
        smaller.append(smaller[-1] // 2 // k * k)
    fits = next((n for n in smaller[1:] if _fits(step, n)), 0)
    way_out = (
        f"{fits} fit, so give --batch-size {fits}" if fits else f"nor do {smaller[-1]}; use more devices"
    )
    raise JaxperfError(f"a batch of {batch_size} images does not fit into memory ({reason}); {way_out}")


def _fits(step: Callable[[int], Any], n: int) -> bool:
    try:
        block(step(n))
    except FAILURES as e:
        if not no_memory(e):
            raise
        return False
    return True


def no_memory(error: Exception) -> bool:
    """Return whether an XLA error says that a device is out of memory."""
    return "RESOURCE_EXHAUSTED" in str(error)
