"""A method calls the step, which the first line of `fit` compiles; 20 ms of Python follow each."""

import jax
import jax.numpy as jnp


class Trainer:
    def __init__(self):
        self.w = jnp.ones((256, 256))
        self.step = jax.jit(lambda w, x: w - 0.01 * x.T @ jnp.tanh(x @ w))

    def update(self, x):
        self.w = self.step(self.w, x)

    def describe(self, i):
        return sum(i * i for i in range(200_000)) + i

    def fit(self, x, steps):
        self.step(self.w, x).block_until_ready()  # compiles
        # + for _ in range(steps):
        for i in range(steps):  # -
            self.update(x)
            self.describe(i)  # - cause: python
        # + self.describe(steps)
        return self.w


def main(steps: int = 40) -> jax.Array:
    return Trainer().fit(jnp.ones((256, 256)), steps).sum()


if __name__ == "__main__":
    print(main())
