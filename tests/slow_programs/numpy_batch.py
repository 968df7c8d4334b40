"""Each batch is drawn and normalized by NumPy, in a function that the loop calls when the step needs it."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def step(w, x):
    return w - 0.01 * x.T @ (x @ w)


def get_batch(rng: np.random.Generator) -> np.ndarray:
    x = rng.standard_normal((256, 1024), np.float32)
    return (x - x.mean(axis=0)) / (30 * x.std(axis=0))


def main(steps: int = 60) -> jax.Array:
    rng, w = np.random.default_rng(0), jnp.ones((1024, 16))
    for _ in range(steps):
        x = get_batch(rng)  # cause: data
        w = step(w, x)
    return w.sum()


if __name__ == "__main__":
    print(main())
