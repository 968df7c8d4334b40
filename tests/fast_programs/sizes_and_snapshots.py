"""A static length, small arrays in double precision, and old arrays that are read again: all is needed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)


@functools.partial(jax.jit, static_argnames="turns")
def orbit(position, velocity, turns):
    def turn(state, _):
        position, velocity = state
        velocity = velocity - 1e-3 * position / jnp.linalg.norm(position) ** 3
        return (position + 1e-3 * velocity, velocity), position[0]

    return jax.lax.scan(turn, (position, velocity), length=turns)[1]


@jax.jit
def fade(image):
    return 0.5 * image + 1


def main() -> float:
    start = np.array([1.0, 0.0, 0.0]), np.array([0.0, 1.0, 0.0])
    last = [orbit(*start, turns=turns)[-1] for turns in (100_000, 200_000, 400_000)]
    image, images = jnp.ones((4096, 4096), jnp.float32), []
    for _ in range(12):
        images = [*images[-2:], image]
        image = fade(image)
        last.append(orbit(*start, turns=400_000)[-1])
    return float(sum(last) + sum(image[0, 0] for image in images))


if __name__ == "__main__":
    print(main())
