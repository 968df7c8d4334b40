"""Dividing a batch among devices in equal shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jaxperf.errors import JaxperfError


def split_and_load(data: Any, devices: Sequence[jax.Device]) -> list[jax.Array]:
    """Cut `data` along its first axis and copy each share to its device (section 8.4.3).

    Args:
      data: (n, ...), a NumPy or JAX array; only the shares are copied, each once.
      devices: one per share, in order.

    Returns:
      One array (n / k, ...) for each of k devices. The copies are queued; this does not wait for them.

    Raises:
      JaxperfError: no devices, or as `check_divisible`.
    """
    if not devices:
        raise JaxperfError("no devices to split the batch among; give at least 1")
    check_divisible(len(data), len(devices))
    m = len(data) // len(devices)
    return [jax.device_put(data[i * m : (i + 1) * m], d) for i, d in enumerate(devices)]


def check_divisible(n: int, parts: int, *, name: str = "batch size") -> None:
    """Reject a batch of `n` that cannot be cut into equal parts.

    Args:
      n: examples in the batch.
      parts: the number of devices.
      name: what the caller calls `n`, e.g. a flag.

    Raises:
      JaxperfError: `parts` does not divide `n`, or `n` is 0; the message names sizes that fit.
    """
    if n % parts or not n:
        low = n // parts * parts
        sizes = f"{low} or {low + parts}" if low else f"{parts}"
        raise JaxperfError(f"{name} {n} is not divisible by {parts} devices; use {sizes}")
