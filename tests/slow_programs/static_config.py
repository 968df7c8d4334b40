"""A static configuration that compares by identity is made anew in each step."""

import dataclasses
import functools

import jax
import jax.numpy as jnp


@dataclasses.dataclass(eq=False)  # -
# + @dataclasses.dataclass(frozen=True)
class Config:
    rate: float = 0.1


@functools.partial(jax.jit, static_argnames="config")
def update(w, config):
    return w - config.rate * jnp.tanh(w)


def main() -> jax.Array:
    w = jnp.ones((64, 64))
    for _ in range(10):
        w = update(w, config=Config())  # cause: static object
    return w.sum()


if __name__ == "__main__":
    print(main())
