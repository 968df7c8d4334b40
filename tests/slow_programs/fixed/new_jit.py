"""The function is jitted once."""

import jax
import jax.numpy as jnp


@jax.jit
def update(w):
    return w - 0.1 * jnp.tanh(w)


def main() -> jax.Array:
    w = jnp.ones((64, 64))
    for _ in range(10):
        w = update(w)
    return w.sum()


if __name__ == "__main__":
    print(main())
