"""Rows are appended to an array outside of jit, and each length compiles."""

# + import functools

import jax
import jax.numpy as jnp


@jax.jit  # -
def score(x):  # -
    return jnp.tanh(x) * 2  # -


# + @functools.partial(jax.jit, donate_argnums=1)
# + def score(x, rows, i):
# +     x = jnp.tanh(x) * 2
# +     return x, jax.lax.dynamic_update_slice_in_dim(rows, x, i, 0)


def main(steps: int = 24) -> jax.Array:
    x = jnp.ones((1, 64))
    rows = jnp.zeros((0, 64))  # -
    for _ in range(steps):  # -
        x = score(x)  # -
        rows = jnp.concatenate([rows, x])  # - cause: eager shapes
    # + rows = jnp.zeros((steps, 64))
    # + for i in range(steps):
    # +     x, rows = score(x, rows, i)
    return rows.sum()


if __name__ == "__main__":
    print(main())
