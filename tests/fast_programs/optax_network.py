"""A network of two layers trains with Optax under jit; the loss is printed every fifty steps."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


def loss_of(params, x, y):
    hidden = jax.nn.relu(x @ params["w1"] + params["b1"])
    scores = hidden @ params["w2"] + params["b2"]
    return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()


@jax.jit
def step(params, state, x, y):
    loss, gradient = jax.value_and_grad(loss_of)(params, x, y)
    updates, state = OPTIMIZER.update(gradient, state, params)
    return optax.apply_updates(params, updates), state, loss


def main(steps: int = 150, batch: int = 256) -> float:
    rng = np.random.default_rng(0)
    images, labels = rng.standard_normal((4096, 784), np.float32), rng.integers(0, 10, 4096)
    params = {
        "w1": jnp.asarray(rng.normal(0, 0.05, (784, 256)), jnp.float32),
        "b1": jnp.zeros(256),
        "w2": jnp.asarray(rng.normal(0, 0.05, (256, 10)), jnp.float32),
        "b2": jnp.zeros(10),
    }
    state = OPTIMIZER.init(params)
    for i in range(steps):
        chosen = rng.integers(0, len(images), batch)
        params, state, loss = step(params, state, images[chosen], labels[chosen])
        if i % 50 == 0:
            print(f"step {i}: loss {loss:.4f}")
    return float(loss)


if __name__ == "__main__":
    print(main())
