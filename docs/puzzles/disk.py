"""Files come from a slow disk, and the device works for a tenth of the time."""

import time

import jax
import jax.numpy as jnp
import numpy as np

TIMES = 3  # how many times as fast a solution must be


def read(seed: int, number: int) -> np.ndarray:
    time.sleep(0.01)  # the disk, which a solution must read in this way
    return np.random.default_rng((seed, number)).standard_normal((64, 64), np.float32)


@jax.jit
def update(w, x):
    return w - 0.01 * x.T @ jnp.tanh(x @ w)


def main(seed: int = 0) -> jax.Array:
    w = jnp.ones((64, 64))
    for number in range(120):
        w = update(w, read(seed, number))
    return w


if __name__ == "__main__":
    print(main().sum())
