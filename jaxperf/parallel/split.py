"""Dividing a batch among devices: in equal shares, or in shares that follow each device's strength."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax

from jaxperf.errors import JaxperfError


def split_and_load(
    data: Any, devices: Sequence[jax.Device], *, weights: Sequence[float] | None = None
) -> list[jax.Array]:
    """Cut `data` along its first axis and copy each share to its device (section 8.4.3).

    Args:
      data: (n, ...), a NumPy or JAX array; only the shares are copied, each once.
      devices: one per share, in order.
      weights: each device's strength, e.g. images per second; None for equal shares.

    Returns:
      One array per device, n examples in all, in order. The copies are queued; this does not wait for them.

    Raises:
      JaxperfError: as `share_sizes`.
    """
    sizes = share_sizes(len(data), len(devices), weights=weights)
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [jax.device_put(data[end - m : end], d) for d, m, end in zip(devices, sizes, ends)]


def share_sizes(n: int, devices: int, *, weights: Sequence[float] | None = None) -> list[int]:
    """Return how many of `n` examples each of `devices` devices gets.

    Args:
      n: examples in the batch.
      devices: how many devices share it.
      weights: each device's strength; shares are proportional up to rounding and sum to `n`.

    Raises:
      JaxperfError: `n` does not divide into equal shares (the message names sizes that do), a weight is
        negative, not finite or so small that its share is empty, or there is not one weight per device.
    """
    if devices < 1:
        raise JaxperfError("no devices to split the batch among; give at least 1")
    if weights is None:
        check_divisible(n, devices)
        return [n // devices] * devices
    if len(weights) != devices:
        raise JaxperfError(f"{len(weights)} weights for {devices} devices; give one per device")
    for i, weight in enumerate(weights):
        if not (math.isfinite(weight) and weight > 0):
            raise JaxperfError(
                f"weight {weight:g} of device {i} is not positive; leave the device out instead"
            )
    return _largest_remainders(n, weights)


def check_divisible(n: int, parts: int, *, name: str = "batch size", kind: str = "devices") -> None:
    """Reject a batch of `n` that cannot be cut into equal parts.

    Args:
      n: examples in the batch.
      parts: into how many it is cut.
      name: what the caller calls `n`, e.g. a flag.
      kind: what the parts are.

    Raises:
      JaxperfError: `parts` does not divide `n`, or `n` is 0; the message names sizes that fit.
    """
    if n % parts or not n:
        low = n // parts * parts
        fitting = f"{low} or {low + parts}" if low else f"{parts}"
        raise JaxperfError(f"{name} {n} is not divisible by {parts} {kind}; use {fitting}")


def _largest_remainders(n: int, weights: Sequence[float]) -> list[int]:
    """Return each share rounded down, with what is left given to the largest remainders."""
    exact = [n * weight / sum(weights) for weight in weights]
    sizes = [math.floor(share) for share in exact]
    by_remainder = sorted(range(len(sizes)), key=lambda i: sizes[i] - exact[i])
    for i in by_remainder[: n - sum(sizes)]:
        sizes[i] += 1
    if 0 in sizes:
        i = sizes.index(0)
        raise JaxperfError(
            f"device {i} of weight {weights[i]:g} gets no example of a batch of {n}; leave it out or use a "
            "larger batch"
        )
    return sizes
