"""Every step is waited for, though nobody reads what it computed."""

import jax
import jax.numpy as jnp


@jax.jit
def step(w, x):
    return w - 0.01 * x.T @ jnp.tanh(x @ w)


def bookkeeping(step: int) -> int:
    """What a training loop does beside training: about a millisecond of Python."""
    return sum(i * i for i in range(10_000)) + step


def main(steps: int = 500) -> jax.Array:
    w, x = jnp.ones((256, 256)), jnp.ones((1024, 256))
    for i in range(steps):
        w = step(w, x)
        w.block_until_ready()  # - cause: wait
        bookkeeping(i)
    return w.sum()


if __name__ == "__main__":
    print(main())
