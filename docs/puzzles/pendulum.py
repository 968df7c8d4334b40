"""A pendulum swings for 300,000 small steps, and the device is nearly idle."""

import jax
import jax.numpy as jnp

TIMES = 4  # how many times as fast a solution must be


@jax.jit
def step(angle, speed):
    speed = speed - 0.001 * jnp.sin(angle)
    return angle + 0.001 * speed, speed


def main(seed: int = 0) -> jax.Array:
    angle, speed = jax.random.uniform(jax.random.key(seed)), jnp.zeros(())
    for _ in range(300_000):
        angle, speed = step(angle, speed)
    return jnp.stack([angle, speed])


if __name__ == "__main__":
    print(main().sum())
