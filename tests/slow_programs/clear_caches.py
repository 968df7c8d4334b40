"""JAX is made to forget its programs after each epoch, so each epoch compiles them again."""

import jax
import jax.numpy as jnp


@jax.jit
def step(w, x):
    return w - 1e-3 * x.T @ jnp.tanh(x @ w)


def main(epochs: int = 8) -> jax.Array:
    w, x = jnp.eye(64), jnp.full((32, 64), 1e-2)
    for _ in range(epochs):
        for _ in range(10):
            w = step(w, x)
        jax.clear_caches()  # - cause: cleared
    return w.sum()


if __name__ == "__main__":
    print(main())
