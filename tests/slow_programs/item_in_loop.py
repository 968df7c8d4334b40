"""The loss is read in every step, so the front end's own work and the device's never overlap."""

import jax
import jax.numpy as jnp


@jax.jit
def step(w, x):
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    return w - 0.01 * gradient, loss


def bookkeeping(history: list) -> int:
    """What a training loop does beside training: about a millisecond of Python."""
    return sum(i * i for i in range(10_000)) + len(history)


def main(steps: int = 500) -> float:
    w, x = jnp.ones((256, 256)), jnp.ones((512, 256))
    losses = []
    for _ in range(steps):
        w, loss = step(w, x)
        losses.append(loss.item())  # - cause: wait
        # + losses.append(loss)
        bookkeeping(losses)
    return sum(losses)  # -
    # + return sum(float(loss) for loss in jax.device_get(losses))


if __name__ == "__main__":
    print(main())
