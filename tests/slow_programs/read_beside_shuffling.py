"""NumPy shuffles in the function that reads the loss of every step, which has nothing to do with that."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def step(w, x):
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    return w - 0.01 * gradient, loss


def bookkeeping(history: list) -> int:
    """What a training loop does beside training: half a millisecond of Python."""
    return sum(i * i for i in range(5_000)) + len(history)


def main(steps: int = 500) -> float:
    rng, order = np.random.default_rng(0), np.arange(10_000)
    w, x = jnp.ones((256, 256)), jnp.ones((512, 256))
    losses = []
    for _ in range(steps):
        w, loss = step(w, x)
        losses.append(np.asarray(loss))  # - cause: wait
        # + losses.append(loss)
        rng.shuffle(order)
        bookkeeping(losses)
    return float(sum(losses))  # -
    # + return float(sum(jax.device_get(losses)))


if __name__ == "__main__":
    print(main())
