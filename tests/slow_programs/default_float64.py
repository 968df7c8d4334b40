"""With 64-bit types allowed, NumPy's random numbers and what is computed from them stay 64 bits wide."""

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)


@jax.jit
def step(w, x):
    return w - 1e-3 * x.T @ jnp.tanh(x @ w)


def main(steps: int = 60) -> jax.Array:
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((1024, 512)))  # - cause: all float64
    w = jnp.linspace(0, 1, 512 * 128).reshape(512, 128)  # -
    # + x = jnp.asarray(rng.standard_normal((1024, 512)), jnp.float32)
    # + w = jnp.linspace(0, 1, 512 * 128, dtype=jnp.float32).reshape(512, 128)
    for _ in range(steps):
        w = step(w, x)
    return w.sum()


if __name__ == "__main__":
    print(main())
