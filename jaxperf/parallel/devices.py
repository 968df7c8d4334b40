"""Which devices to compute on, and how many a CPU pretends to be.

A CPU is one device unless JAX is told otherwise before its backend starts. Then it is several devices, which
share the cores. That is enough to check equality and to count messages, but never to measure speed.
"""

from __future__ import annotations

import jax

from jaxperf.errors import JaxperfError


def try_gpu(i: int = 0) -> jax.Device:
    """Return GPU number `i` if there is one, else the first CPU device (the book's helper of this name).

    Raises:
      JaxperfError: `i` is negative.
    """
    if i < 0:
        raise JaxperfError(f"no GPU has number {i}; they count from 0")
    gpus = _gpus()
    return gpus[i] if i < len(gpus) else jax.devices("cpu")[0]


def try_all_gpus() -> list[jax.Device]:
    """Return all GPUs, or only the first CPU device if there is none (the book's helper of this name)."""
    return _gpus() or [jax.devices("cpu")[0]]


def _gpus() -> list[jax.Device]:
    try:
        return jax.devices("gpu")
    except RuntimeError:  # no such platform, or it was not requested
        return []


def first_devices(count: int | None = None, *, platform: str | None = None) -> list[jax.Device]:
    """Return the first `count` devices of a platform; all of them for None.

    Args:
      count: how many.
      platform: "cpu" or "gpu"; JAX's default platform for None.

    Raises:
      JaxperfError: there are fewer, or `count` is not positive.
    """
    devices = jax.devices(platform)
    if count is None:
        return devices
    if count < 1:
        raise JaxperfError(f"{count} devices asked for; a program needs at least 1")
    if count > len(devices):
        kind = devices[0].platform
        more = "; set JAX_NUM_CPU_DEVICES before JAX starts for more" if kind == "cpu" else ""
        raise JaxperfError(
            f"{count} devices asked for, {len(devices)} {kind} there; use {len(devices)}{more}"
        )
    return devices[:count]


def set_cpu_devices(count: int) -> None:
    """Split the CPU into `count` devices: possible only before anything has started JAX's backend.

    Raises:
      JaxperfError: `count` is not positive, or the backend already runs with another number.
    """
    if count < 1:
        raise JaxperfError(f"{count} CPU devices asked for; a program needs at least 1")
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        there = len(jax.devices("cpu"))
        if there != count:
            raise JaxperfError(
                f"too late for {count} CPU devices: JAX has started with {there}; call set_cpu_devices first "
                f"or set JAX_NUM_CPU_DEVICES={count} in the environment"
            ) from None
