"""An epoch is one program, a scan over its batches; the front end reads the losses once per epoch."""

import jax
import jax.numpy as jnp
import numpy as np


def loss_of(params, x, y):
    hidden = jnp.tanh(x @ params["w"] + params["b"])
    return jnp.mean((hidden @ params["v"] - y) ** 2)


@jax.jit
def epoch(params, xs, ys):
    def step(params, batch):
        loss, gradient = jax.value_and_grad(loss_of)(params, *batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), loss

    return jax.lax.scan(step, params, (xs, ys))


def main(epochs: int = 12) -> float:
    rng = np.random.default_rng(0)
    xs = jnp.asarray(rng.standard_normal((40, 256, 64)), jnp.float32)
    ys = jnp.sin(xs[..., :1])
    params = {"w": jnp.eye(64, 256), "b": jnp.zeros(256), "v": jnp.full((256, 1), 0.01, jnp.float32)}
    for i in range(epochs):
        params, losses = epoch(params, xs, ys)
        print(f"epoch {i}: loss {losses.mean():.4f}")
    return float(losses[-1])


if __name__ == "__main__":
    print(main())
