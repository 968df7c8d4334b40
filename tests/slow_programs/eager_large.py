"""Outside of jit, six operations go through arrays of 16 MB one after the other: devices are busy."""

import jax
import jax.numpy as jnp

# + @jax.jit
# + def step(w, v):
# +     return 0.9 * v + 0.1 * jnp.minimum(w, 1.0) - 0.01 * w


def main(steps: int = 60) -> jax.Array:
    w, v = jnp.ones((2048, 2048)), jnp.zeros((2048, 2048))
    for _ in range(steps):
        v = 0.9 * v + 0.1 * jnp.minimum(w, 1.0) - 0.01 * w  # - cause: eager
        # + v = step(w, v)
    return v.sum()


if __name__ == "__main__":
    print(main())
