"""A jitted function that is given the log's memory sets its row in place."""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.jit, donate_argnames="log")
def update_log(i, row, log):
    return log.at[i].set(row)


def main(steps: int = 200) -> jax.Array:
    log, row = jnp.zeros((2048, 2048)), jnp.ones(2048)
    for i in range(steps):
        log = update_log(i, row, log)
    return log.sum()


if __name__ == "__main__":
    print(main())
