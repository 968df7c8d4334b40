"""Columns of a table have the types that their files had, and each type compiles."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def spread(column):
    x = jnp.sort(column.astype(jnp.float32).reshape(64, 64), axis=0) / 1000
    return jnp.std(jnp.tanh(x @ x.T))


def main() -> float:
    numbers = np.random.default_rng(0).integers(0, 100, 4096)
    types = (np.float32, np.int32, np.int16, np.uint8, np.int8, np.float16)
    columns = [numbers.astype(dtype) for dtype in types]
    return sum(float(spread(column)) for column in columns)  # - cause: dtype
    # + return sum(float(spread(column.astype(np.float32))) for column in columns)


if __name__ == "__main__":
    print(main())
