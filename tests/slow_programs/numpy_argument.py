"""The jitted function is an attribute; 38 MB of a NumPy table that never change are copied in each call."""

import jax
import jax.numpy as jnp
import numpy as np


class Trainer:
    def __init__(self):
        self.table = np.ones((3072, 3073), np.float32)[:, 1:]  # without the labels  # -
        # + self.table = jax.device_put(np.ones((3072, 3073), np.float32)[:, 1:])
        self.step = jax.jit(lambda w, table: w - 1e-6 * (table @ w))

    def run(self, steps):
        w = jnp.ones(3072)
        for _ in range(steps):
            w = self.step(w, self.table)  # cause: transfer
        return w


def main(steps: int = 100) -> jax.Array:
    return Trainer().run(steps).sum()


if __name__ == "__main__":
    print(main())
