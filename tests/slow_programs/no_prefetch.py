"""Each batch is read from a slow disk (a pause of 20 ms) when the device asks for it."""

import time

# + from collections import deque
from collections.abc import Iterator

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


def read(i: int) -> np.ndarray:
    time.sleep(0.02)
    return np.full((256, 256), 1e-3 * i, np.float32)


def batches(count: int) -> Iterator[np.ndarray]:
    for i in range(count):  # -
        yield read(i)  # -
    # + with ThreadPoolExecutor(AHEAD) as pool:
    # +     coming = deque(pool.submit(read, i) for i in range(min(AHEAD, count)))
    # +     for i in range(count):
    # +         if i + AHEAD < count:
    # +             coming.append(pool.submit(read, i + AHEAD))
    # +         yield coming.popleft().result()


def main(steps: int = 40) -> jax.Array:
    w = jnp.ones((256, 256))
    for x in batches(steps):  # cause: data
        w = step(w, x)
    return w.sum()


if __name__ == "__main__":
    print(main())
