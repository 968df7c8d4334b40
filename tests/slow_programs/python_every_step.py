"""Python of twenty milliseconds follows each step, which takes a few: the device waits for the next one."""

import jax
import jax.numpy as jnp


@jax.jit
def step(w, x):
    return w - 0.01 * x.T @ jnp.tanh(x @ w)


def describe(step: int) -> int:
    return sum(i * i for i in range(200_000)) + step


def main(steps: int = 40) -> jax.Array:
    w, x = jnp.ones((256, 256)), jnp.ones((256, 256))
    # + for _ in range(steps):
    for i in range(steps):  # -
        w = step(w, x)
        describe(i)  # - cause: python
    # + describe(steps)
    return w.sum()


if __name__ == "__main__":
    print(main())
