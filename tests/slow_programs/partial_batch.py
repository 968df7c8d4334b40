"""The last batch of the epoch is smaller than the others and compiles a second program."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def step(w, x):
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
    return w - 0.01 * gradient, loss


def main(batch: int = 64) -> jax.Array:
    w, images = jnp.ones((32, 32)), np.ones((1000, 32), np.float32)
    # + for start in range(0, len(images) - batch + 1, batch):
    for start in range(0, len(images), batch):  # -
        w, _ = step(w, images[start : start + batch])  # cause: partial batch
    return w.sum()


if __name__ == "__main__":
    print(main())
