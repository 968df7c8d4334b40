"""The loss is printed in every step, and the front end prepares the next batch only after that."""

import jax
import jax.numpy as jnp


@jax.jit
def step(w, x):
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    return w - 0.01 * gradient, loss


def prepare(i: int) -> float:
    """What comes before a step on the host: about a millisecond of Python."""
    return 1e-9 * sum(j % 7 for j in range(15_000)) + i


def main(steps: int = 500) -> jax.Array:
    w, x = jnp.ones((256, 256)), jnp.ones((512, 256))
    for i in range(steps):
        w, loss = step(w, x)
        print(f"step {i}: loss {loss:.3f}")  # - cause: logging
        # + if i % 50 == 0:
        # +     print(f"step {i}: loss {loss:.3f}")
        prepare(i)
    return w.sum()


if __name__ == "__main__":
    print(main())
