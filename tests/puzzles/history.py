"""The simulation is a scan, which stacks the states."""

import jax
import jax.numpy as jnp


def step(x, _):
    new = x + 0.1 * jnp.sin(jnp.roll(x, 1) - x)
    return new, x


@jax.jit
def run(x):
    last, states = jax.lax.scan(step, x, length=150)
    return jnp.concatenate([states[:, 0], last])


def main(seed: int = 0) -> jax.Array:
    x = jax.random.normal(jax.random.key(seed), (1, 64))
    return run(x)


if __name__ == "__main__":
    print(main().sum())
