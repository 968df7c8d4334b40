"""The learning rate falls from step to step. Every step takes as long as the first."""

import functools
import math

import jax
import jax.numpy as jnp

TIMES = 4  # how many times as fast a solution must be


@functools.partial(jax.jit, static_argnames="rate")
def update(w, x, rate):
    gradient = x.T @ jnp.tanh(x @ w) / len(x)
    if rate < 0.01:
        gradient = jnp.clip(gradient, -0.1, 0.1)
    return w - rate * gradient


def main(seed: int = 0) -> jax.Array:
    x = jax.random.normal(jax.random.key(seed), (128, 64))
    w = jnp.ones((64, 64))
    for step in range(40):
        w = update(w, x, rate=0.05 * (1 + math.cos(math.pi * step / 40)))
    return w


if __name__ == "__main__":
    print(main().sum())
