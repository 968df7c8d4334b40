"""The step number is a static argument, so each step compiles."""

import functools  # -

import jax
import jax.numpy as jnp


@functools.partial(jax.jit, static_argnames="step")  # -
# + @jax.jit
def update(w, step):
    return w - 0.1 / (1 + step) * jnp.tanh(w)


def main() -> jax.Array:
    w = jnp.ones((64, 64))
    for step in range(10):
        w = update(w, step=step)  # - cause: static value
        # + w = update(w, step)
    return w.sum()


if __name__ == "__main__":
    print(main())
