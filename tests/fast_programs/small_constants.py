"""A small table is part of the program, and the large one is computed in it: both cost nothing to compile."""

import jax
import jax.numpy as jnp
import numpy as np

TABLE = np.hanning(1024).astype(np.float32)


@jax.jit
def step(w):
    return jnp.tanh(w * TABLE + jnp.ones((2048, 1)) * jnp.arange(1024.0))


def main(steps: int = 60) -> jax.Array:
    w = jnp.ones((2048, 1024))
    for _ in range(steps):
        w = step(w)
    return w[0, 0]


if __name__ == "__main__":
    print(main())
