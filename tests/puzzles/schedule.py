"""The rate is an ordinary argument, and the branch is part of the program."""

import math

import jax
import jax.numpy as jnp


@jax.jit
def update(w, x, rate):
    gradient = x.T @ jnp.tanh(x @ w) / len(x)
    gradient = jnp.where(rate < 0.01, jnp.clip(gradient, -0.1, 0.1), gradient)
    return w - rate * gradient


def main(seed: int = 0) -> jax.Array:
    x = jax.random.normal(jax.random.key(seed), (128, 64))
    w = jnp.ones((64, 64))
    for step in range(40):
        w = update(w, x, rate=0.05 * (1 + math.cos(math.pi * step / 40)))
    return w


if __name__ == "__main__":
    print(main().sum())
