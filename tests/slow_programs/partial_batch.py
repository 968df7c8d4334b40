"""The last batch of the epoch is smaller than the others and compiles a second program."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
# + def step(w, x, real):
def step(w, x):  # -
    def loss(w):
        each = jnp.mean(jnp.tanh(x @ w) ** 2, axis=1)
        return jnp.mean(each)  # -
        # + return jnp.sum(each, where=real) / jnp.sum(real)

    return w - 0.01 * jax.grad(loss)(w)


def main(batch: int = 64) -> jax.Array:
    w, images = jnp.ones((32, 32)), np.ones((1000, 32), np.float32)
    for start in range(0, len(images), batch):
        x = images[start : start + batch]
        w = step(w, x)  # - cause: partial batch
        # + padded = np.pad(x, [(0, batch - len(x)), (0, 0)])
        # + w = step(w, padded, np.arange(batch) < len(x))
    return w.sum()


if __name__ == "__main__":
    print(main())
