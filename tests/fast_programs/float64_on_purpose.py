"""The program asks for 64-bit floats, so they are meant."""

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)


@jax.jit
def step(w, x):
    return w - 1e-3 * x.T @ jnp.tanh(x @ w)


def main(steps: int = 60) -> jax.Array:
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1024, 512)))
    w = jnp.ones((512, 128), jnp.float64)
    for _ in range(steps):
        w = step(w, x)
    return w.sum()


if __name__ == "__main__":
    print(main())
