"""Whether JAX has started its backend, asked without starting it.

A program may still choose its platform, or call `jax.distributed.initialize`, until then.
"""

from __future__ import annotations

from jaxperf import jax_internals


def is_running(*, otherwise: bool = False) -> bool:
    """Return whether a backend runs in this process; `otherwise` if this JAX version does not say.

    JAX has no public way to ask: `jax.devices()` and `jax.live_arrays()` start one.
    """
    backends_are_initialized = jax_internals.loaded(jax_internals.BACKEND_STARTED)
    return bool(backends_are_initialized()) if backends_are_initialized else otherwise
