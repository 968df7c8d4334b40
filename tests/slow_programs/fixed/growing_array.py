"""The array has its final length from the start."""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.jit, donate_argnums=1)
def score(x, rows, i):
    x = jnp.tanh(x) * 2
    return x, jax.lax.dynamic_update_slice_in_dim(rows, x, i, 0)


def main(steps: int = 24) -> jax.Array:
    x = jnp.ones((1, 64))
    rows = jnp.zeros((steps, 64))
    for i in range(steps):
        x, rows = score(x, rows, i)
    return rows.sum()


if __name__ == "__main__":
    print(main())
