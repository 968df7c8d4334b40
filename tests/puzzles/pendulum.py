"""All steps are one program."""

import jax
import jax.numpy as jnp


def step(angle, speed):
    speed = speed - 0.001 * jnp.sin(angle)
    return angle + 0.001 * speed, speed


@jax.jit
def run(angle, speed):
    return jax.lax.fori_loop(0, 300_000, lambda _, state: step(*state), (angle, speed))


def main(seed: int = 0) -> jax.Array:
    angle, speed = jax.random.uniform(jax.random.key(seed)), jnp.zeros(())
    angle, speed = run(angle, speed)
    return jnp.stack([angle, speed])


if __name__ == "__main__":
    print(main().sum())
