"""All parameters are written to a file after every step."""

import pickle
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp


@jax.jit
def step(w, x):
    return w - 0.01 * x.T @ jnp.tanh(x @ w)


def main(steps: int = 60) -> jax.Array:
    w, x = jnp.ones((1024, 1024)), jnp.full((64, 1024), 1e-2)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(steps):
            w = step(w, x)
            with Path(folder, "w.pkl").open("wb") as file:  # - cause: write
                pickle.dump({"w": w}, file)  # -
        # + with Path(folder, "w.pkl").open("wb") as file:
        # +     pickle.dump({"w": w}, file)
    return w.sum()


if __name__ == "__main__":
    print(main())
