"""Rows are appended to an array outside of jit, and each length compiles."""

import jax
import jax.numpy as jnp


@jax.jit
def score(x):
    return jnp.tanh(x) * 2


def main(steps: int = 24) -> jax.Array:
    x = jnp.ones((1, 64))
    rows = jnp.zeros((0, 64))  # -
    # + rows = []
    for _ in range(steps):
        x = score(x)
        rows = jnp.concatenate([rows, x])  # - cause: eager shapes
        # + rows.append(x)
    return rows.sum()  # -
    # + return jnp.concatenate(rows).sum()


if __name__ == "__main__":
    print(main())
