"""A training step outside of jit: every operation is dispatched on its own."""

import jax
import jax.numpy as jnp


# + @jax.jit
def step(w, v):  # cause: eager
    for _ in range(4):
        w, v = w - 0.01 * v, 0.9 * v + 0.1 * jnp.tanh(w)
    return w, v


def main(steps: int = 500) -> jax.Array:
    w, v = jnp.ones((16, 16)), jnp.zeros((16, 16))
    for _ in range(steps):
        w, v = step(w, v)
    return w.sum()


if __name__ == "__main__":
    print(main())
