"""Each batch comes from a call, which reads it from a slow disk (a pause of 20 ms) when the step needs it."""

import time

# + from collections import deque
# + from concurrent.futures import ThreadPoolExecutor
import jax
import jax.numpy as jnp
import numpy as np

# + AHEAD = 16


@jax.jit
def step(w, x):
    for _ in range(3):
        w = w - 0.01 * x.T @ (x @ w)
    return w


def get_batch(i: int) -> np.ndarray:
    time.sleep(0.02)
    return np.full((256, 256), 1e-3 * i, np.float32)


def main(steps: int = 40) -> jax.Array:
    w = jnp.ones((256, 256))
    for i in range(steps):  # -
        x = get_batch(i)  # - cause: data
        w = step(w, x)  # -
    # + with ThreadPoolExecutor(AHEAD) as pool:
    # +     coming = deque(pool.submit(get_batch, i) for i in range(min(AHEAD, steps)))
    # +     for i in range(steps):
    # +         if i + AHEAD < steps:
    # +             coming.append(pool.submit(get_batch, i + AHEAD))
    # +         w = step(w, coming.popleft().result())
    return w.sum()


if __name__ == "__main__":
    print(main())
