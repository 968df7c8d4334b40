"""Rows of a table are taken by a product with one-hot rows, of which all elements but one are zero."""

import jax
import jax.numpy as jnp


@jax.jit
def score(table, tokens, w):
    rows = jax.nn.one_hot(tokens, len(table)) @ table  # - cause: one-hot product
    # + rows = table[tokens]
    return jnp.square(rows) @ w


def main(steps: int = 60) -> jax.Array:
    table = jnp.sin(jnp.arange(4096 * 64.0)).reshape(4096, 64)
    w, total = jnp.ones(64), jnp.zeros(512)
    for turn in range(steps):
        total += score(table, jnp.arange(512) * 7 + turn, w)
    return total


if __name__ == "__main__":
    print(main().sum())
