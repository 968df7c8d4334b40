"""One size and flag for training, another for the test set: two programs, and both are needed."""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.jit, static_argnames="train")
def apply(w, x, train):
    y = jnp.tanh(x @ w)
    return y * 0.5 if train else y


@jax.jit
def total(y):
    return y.sum()


def main(steps: int = 60) -> jax.Array:
    w, batch, test = jnp.eye(64), jnp.ones((128, 64)), jnp.ones((1000, 64))
    for _ in range(steps):
        loss = total(apply(w, batch, train=True))
    return loss + total(apply(w, test, train=False))


if __name__ == "__main__":
    print(main())
