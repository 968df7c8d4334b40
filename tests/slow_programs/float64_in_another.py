"""Two programs have one name, and the second one becomes float64."""

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)
WINDOW = np.hanning(512)  # -
# + WINDOW = np.hanning(512).astype(np.float32)


def jitted(function):
    @jax.jit
    def step(x):
        return function(x)

    return step


def spread(x):
    y = x * WINDOW  # cause: float64
    for _ in range(3):
        y = y @ y / 512
    return y


def main(steps: int = 24) -> jax.Array:
    x = jitted(lambda x: x * jnp.float32(2))(jnp.ones((512, 512), jnp.float32))
    spread_all = jitted(spread)
    for _ in range(steps):
        y = spread_all(x)
    return y.sum()


if __name__ == "__main__":
    print(main())
