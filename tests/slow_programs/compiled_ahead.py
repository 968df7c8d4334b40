"""The step is compiled ahead of time; a batch comes from a slow disk (a pause of 20 ms) when it is needed."""

import time

# + from collections import deque
# + from concurrent.futures import ThreadPoolExecutor
import jax
import jax.numpy as jnp
import numpy as np

# + AHEAD = 16


def step(w, x):
    for _ in range(3):
        w = w - 0.01 * x.T @ (x @ w)
    return w


def get_batch(i: int) -> np.ndarray:
    time.sleep(0.02)
    return np.full((256, 256), 1e-3 * i, np.float32)


def main(steps: int = 40) -> jax.Array:
    w = jnp.ones((256, 256))
    compiled = jax.jit(step).lower(w, get_batch(0)).compile()
    for i in range(steps):  # -
        x = get_batch(i)  # - cause: data
        w = compiled(w, x)  # -
    # + with ThreadPoolExecutor(AHEAD) as pool:
    # +     coming = deque(pool.submit(get_batch, i) for i in range(min(AHEAD, steps)))
    # +     for i in range(steps):
    # +         if i + AHEAD < steps:
    # +             coming.append(pool.submit(get_batch, i + AHEAD))
    # +         w = compiled(w, coming.popleft().result())
    return w.sum()


if __name__ == "__main__":
    print(main())
