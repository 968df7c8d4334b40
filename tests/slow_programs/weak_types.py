"""The scale begins as a Python number and comes back as an array: the second call compiles again."""

import jax
import jax.numpy as jnp


@jax.jit
def step(w, scale):
    for _ in range(48):  # layers enough that a second compilation takes a while
        w = w - scale * jnp.tanh(w @ w)
    return w, scale * jnp.float32(0.9)


def main(steps: int = 20) -> jax.Array:
    w, scale = jnp.ones((64, 64)), 0.1  # -
    # + w, scale = jnp.ones((64, 64)), jnp.float32(0.1)
    for _ in range(steps):
        w, scale = step(w, scale)  # cause: weak type
    return w.sum()


if __name__ == "__main__":
    print(main())
