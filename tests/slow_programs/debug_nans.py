"""A setting for finding mistakes is on: each call reads its results on the host."""

import jax
import jax.numpy as jnp


@jax.jit
def step(w, x):
    return w - 1e-3 * x.T @ jnp.tanh(x @ w)


def main(steps: int = 300) -> jax.Array:
    w, x = jnp.full((1024, 1024), 1e-3), jnp.full((64, 1024), 1e-2)
    with jax.debug_nans(True):  # - cause: debug setting
        for _ in range(steps):  # -
            w = step(w, x)  # -
    # + for _ in range(steps):
    # +     w = step(w, x)
    return w.sum()


if __name__ == "__main__":
    print(main())
