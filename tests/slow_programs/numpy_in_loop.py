"""The gradient is clipped and applied by NumPy, while the device has nothing to do."""

import jax
import jax.numpy as jnp
import numpy as np  # -


@jax.jit
def gradient(w, x):  # -
    return x.T @ (x @ w) / len(x)  # -


# + def step(w, x):
# +     g = x.T @ (x @ w) / len(x)
# +     return w - 1e-4 * (jnp.clip(g, -0.1, 0.1) / (abs(g) + 1e-3) + w * jnp.sqrt(w * w + 1))


def main(steps: int = 400) -> float:
    w, x = np.ones((512, 512), np.float32), jnp.full((64, 512), 0.01)  # -
    # + w, x = jnp.ones((512, 512), jnp.float32), jnp.full((64, 512), 0.01)
    for _ in range(steps):
        g = np.asarray(gradient(w, x))  # -
        w = w - 1e-4 * (np.clip(g, -0.1, 0.1) / (abs(g) + 1e-3) + w * np.sqrt(w * w + 1))  # - cause: numpy
        # + w = step(w, x)
    return float(w.sum())


if __name__ == "__main__":
    print(main())
