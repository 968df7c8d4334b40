"""A function without a loop decodes a text in Python and then makes the step; a loop calls it."""

import jax
import jax.numpy as jnp
import numpy as np

LETTERS = "abcdefghijklmnopqrstuvwxyz "
NUMBERS = {letter: i for i, letter in enumerate(LETTERS)}  # -
# + NUMBERS = np.zeros(128, np.uint8)
# + NUMBERS[np.frombuffer(LETTERS.encode(), np.uint8)] = np.arange(len(LETTERS))


@jax.jit
def step(w: jax.Array, codes: jax.Array) -> jax.Array:
    x = codes.reshape(1024, 256) / len(LETTERS)
    return w - 0.01 * x.T @ jnp.tanh(x @ w) / len(x)


def encoded(text: str) -> np.ndarray:
    return np.frombuffer(bytes(NUMBERS[letter] for letter in text), np.uint8)  # -
    # + return NUMBERS[np.frombuffer(text.encode(), np.uint8)]


def train_step(w: jax.Array, text: str) -> jax.Array:
    codes = encoded(text)  # cause: python
    return step(w, codes)


def main(steps: int = 50) -> jax.Array:
    w, text = jnp.ones((256, 256)), LETTERS * 10_000
    for _ in range(steps):
        w = train_step(w, text[:262_144])
    return w.sum()


if __name__ == "__main__":
    print(main())
