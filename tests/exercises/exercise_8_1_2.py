"""A solution of exercise 8.1.2."""

import jax
import jax.numpy as jnp


def if_value(x):
    return jnp.where(x.sum() > 1, x / x.sum(), x)


def for_range(x, n):
    return jax.lax.fori_loop(0, n, lambda _, x: 2 * x, x)
