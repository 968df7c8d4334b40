"""The table of weights is computed once, and is an argument."""

import jax
import jax.numpy as jnp


@jax.jit
def table():
    return jnp.sort(jnp.arange(400_000) * 7919 % 99_991)[:1000] / 1000


@jax.jit
def weighted(x, weights):
    return x * weights


def main(steps: int = 40) -> jax.Array:
    x, weights = jnp.ones(1000), table()
    for _ in range(steps):
        x = weighted(x, weights) / 2
    return x.sum()


if __name__ == "__main__":
    print(main())
