"""Whether JAX has started its backend, asked without starting it.

A program may still choose its platform, or call `jax.distributed.initialize`, until then.
"""

from __future__ import annotations

import sys


def started(*, otherwise: bool = False) -> bool:
    """Whether a backend runs in this process; `otherwise` if this JAX version does not say.

    JAX has no public way to ask: `jax.devices()` and `jax.live_arrays()` start one.
    """
    bridge = sys.modules.get("jax._src.xla_bridge")
    asked = getattr(bridge, "backends_are_initialized", None)
    return bool(asked()) if asked else otherwise
