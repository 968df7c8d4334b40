"""Python of a few milliseconds follows each step, less than a thread waits by default before it asks."""

import jax
import jax.numpy as jnp


@jax.jit
def step(w, x):
    return w - 0.01 * x.T @ jnp.tanh(x @ w)


def describe(step: int) -> int:
    return sum(i * i for i in range(60_000)) + step


def main(steps: int = 250) -> jax.Array:
    w, x = jnp.ones((128, 128)), jnp.ones((128, 128))
    # + for _ in range(steps):
    for i in range(steps):  # -
        w = step(w, x)
        describe(i)  # - cause: python
    # + describe(steps)
    return w.sum()


if __name__ == "__main__":
    print(main())
