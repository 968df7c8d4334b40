"""Outside of jit, a log of 16 MB is copied whenever a row of it is set."""

# + import functools

import jax
import jax.numpy as jnp

# + @functools.partial(jax.jit, donate_argnames="log")
# + def update_log(i, row, log):
# +     return log.at[i].set(row)


def main(steps: int = 200) -> jax.Array:
    log, row = jnp.zeros((2048, 2048)), jnp.ones(2048)
    for i in range(steps):
        log = log.at[i].set(row)  # - cause: eager copy
        # + log = update_log(i, row, log)
    return log.sum()


if __name__ == "__main__":
    print(main())
