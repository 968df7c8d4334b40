"""Tell whether JAX has started its backend, without starting it.

A program may choose its platform, or call `jax.distributed.initialize`, only before the backend starts.
"""

from __future__ import annotations

from jaxperf import jax_internals


def is_running(*, otherwise: bool = False) -> bool:
    """Return whether a backend runs in this process; `otherwise` if this JAX version does not say.

    Public functions such as `jax.devices()` would start one.
    """
    backends_are_initialized = jax_internals.loaded(jax_internals.BACKEND_STARTED)
    return bool(backends_are_initialized()) if backends_are_initialized else otherwise
