"""Which devices to compute on.

A CPU is one device unless JAX is told otherwise before its backend starts. Then it is several devices, which
share the cores. That is enough to check equality and to count messages, but never to measure speed.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from jaxperf.errors import JaxperfError

AXIS = "devices"


def mesh_of(devices: Sequence[jax.Device]) -> Mesh:
    """Return the mesh of the devices, with the one axis `AXIS`."""
    return Mesh(np.array(devices), (AXIS,))


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
