"""Run by `probe` as a process of its own: start JAX, run one small program, print what was seen as JSON."""

from __future__ import annotations

import json
import sys


def seen() -> dict[str, object]:
    """The backend, the devices and the debug settings that are on."""
    import jax
    import jax.numpy as jnp

    from jaxperf.measure.guards import DEBUG_FLAGS

    total = float(jax.jit(jnp.sum)(jnp.arange(4.0)))
    if total != 6.0:
        raise ArithmeticError(f"0 + 1 + 2 + 3 is {total} on {jax.devices()[0]}")
    return {
        "backend": jax.default_backend(),
        "devices": [f"{d.platform}:{d.id} {d.device_kind}" for d in jax.devices()],
        "debug_flags": [flag for flag in DEBUG_FLAGS if getattr(jax.config, flag, False)],
    }


def main() -> int:
    """Print the answer on standard output, or why there is none as the last line of standard error."""
    try:
        print(json.dumps(seen()))
    except Exception as e:  # whatever a broken installation raises is the answer
        print(": ".join(filter(None, (type(e).__name__, " ".join(str(e).split())))), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
