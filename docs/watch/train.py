"""Train a small network on 28 x 28 images: slower than it should be, for three reasons."""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

EPOCHS, BATCH = 6, 128


def loss_of(params, images, labels):
    hidden = jax.nn.relu(images @ params["w1"] + params["b1"])
    scores = jax.nn.log_softmax(hidden @ params["w2"] + params["b2"])
    return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=1))


@functools.partial(jax.jit, static_argnames="rate")
def step(params, images, labels, rate):
    loss, gradient = jax.value_and_grad(loss_of)(params, images, labels)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradient), loss


def batches(images: np.ndarray, labels: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    order = rng.permutation(len(images))
    for start in range(0, len(images), BATCH):
        chosen = order[start : start + BATCH]
        x = images[chosen] / 255
        x = (x - x.mean(axis=1, keepdims=True)) / (x.std(axis=1, keepdims=True) + 1e-6)
        x = x + 0.1 * rng.standard_normal(x.shape)
        yield x.astype(np.float32), labels[chosen]


def main() -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (8192, 784)).astype(np.uint8), rng.integers(0, 10, 8192)
    params = {
        "w1": jnp.asarray(rng.normal(0, 0.05, (784, 256)), jnp.float32),
        "b1": jnp.zeros(256),
        "w2": jnp.asarray(rng.normal(0, 0.05, (256, 10)), jnp.float32),
        "b2": jnp.zeros(10),
    }
    for epoch in range(EPOCHS):
        losses = []
        for x, y in batches(images, labels):
            params, loss = step(params, x, y, rate=0.1 * 0.8**epoch)
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {np.mean(losses):.3f}")


if __name__ == "__main__":
    main()
