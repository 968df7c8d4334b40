"""Each step is followed by an evaluation of all rows, which takes far longer than the step on a few."""

import jax
import jax.numpy as jnp


def loss(w, x):
    return jnp.mean((jnp.tanh(x @ w) @ w - x) ** 2)


@jax.jit
def step(w, x):
    return w - 0.1 * jax.grad(loss)(w, x)


evaluate = jax.jit(loss)


def main(steps: int = 60) -> jax.Array:
    w, x = jnp.eye(128), jnp.sin(jnp.arange(16_384 * 128.0)).reshape(-1, 128)
    for i in range(steps):
        w = step(w, x[64 * i : 64 * (i + 1)])
        print(f"step {i}: loss {evaluate(w, x):.3f}")  # - cause: evaluation
        # + if i % 20 == 0:
        # +     print(f"step {i}: loss {evaluate(w, x):.3f}")
    return w.sum()


if __name__ == "__main__":
    print(main())
