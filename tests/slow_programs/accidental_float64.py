"""With 64-bit types allowed, NumPy's default makes float32 weights float64."""

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)
WINDOW = np.hanning(512)  # -
# + WINDOW = np.hanning(512).astype(np.float32)


@jax.jit
def spread(x):
    y = x * WINDOW  # cause: float64
    for _ in range(3):
        y = y @ y / 512
    return y


def main(steps: int = 24) -> jax.Array:
    x = jnp.ones((512, 512), jnp.float32)
    for _ in range(steps):
        y = spread(x)
    return y.sum()


if __name__ == "__main__":
    print(main())
