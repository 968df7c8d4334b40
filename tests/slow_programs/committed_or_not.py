"""Some weights are committed to the device, others lie on it by default: the step compiles for both."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def step(w, x):
    for _ in range(12):
        w = w - 0.01 * x.T @ jnp.tanh(x @ w)
    return w


def restored() -> jax.Array:
    return jax.device_put(np.ones((64, 64), np.float32), jax.devices()[0])  # -
    # + return jax.device_put(np.ones((64, 64), np.float32))


def main(steps: int = 20) -> jax.Array:
    x, total = jnp.full((32, 64), 1e-2), 0.0
    for w in (jnp.zeros((64, 64)), restored()):
        for _ in range(steps):
            w = step(w, x)  # cause: placement
        total += w.sum()
    return total


if __name__ == "__main__":
    print(main())
