"""Clipping and the update are part of the jitted step."""

import jax
import jax.numpy as jnp


@jax.jit
def step(w, x):
    g = x.T @ (x @ w) / len(x)
    return w - 1e-4 * jnp.clip(g, -0.1, 0.1) / (abs(g) + 1e-3) - 1e-4 * w * jnp.sqrt(w * w + 1)


def main(steps: int = 400) -> float:
    w, x = jnp.ones((512, 512), jnp.float32), jnp.full((64, 512), 0.01)
    for _ in range(steps):
        w = step(w, x)
    return float(w.sum())


if __name__ == "__main__":
    print(main())
