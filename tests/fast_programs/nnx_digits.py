"""A small convolutional network of Flax trains on batches of NumPy, and is tested every twenty steps."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.conv1 = nnx.Conv(1, 16, (3, 3), rngs=rngs)
        self.conv2 = nnx.Conv(16, 32, (3, 3), rngs=rngs)
        self.hidden = nnx.Linear(7 * 7 * 32, 64, rngs=rngs)
        self.scores = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        for conv in (self.conv1, self.conv2):
            x = nnx.avg_pool(nnx.relu(conv(x)), (2, 2), strides=(2, 2))
        return self.scores(nnx.relu(self.hidden(x.reshape(len(x), -1))))


def loss_of(net, images, labels):
    scores = net(images)
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean(), scores


@nnx.jit
def train_step(net, optimizer, metrics, images, labels):
    (loss, scores), gradient = nnx.value_and_grad(loss_of, has_aux=True)(net, images, labels)
    metrics.update(loss=loss, logits=scores, labels=labels)
    optimizer.update(net, gradient)


@nnx.jit
def test_step(net, metrics, images, labels):
    loss, scores = loss_of(net, images, labels)
    metrics.update(loss=loss, logits=scores, labels=labels)


def batches(images, labels, rng):
    order = rng.permutation(len(images))
    for start in range(0, len(order), 64):
        chosen = order[start : start + 64]
        yield images[chosen], labels[chosen]


def main(epochs: int = 1) -> jax.Array:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 64 * 40)
    images = rng.standard_normal((len(labels), 28, 28, 1), np.float32) + labels[:, None, None, None]
    images = images.astype(np.float32)
    net = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(net, optax.adamw(1e-3, 0.9), wrt=nnx.Param)
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
    history = []
    for _ in range(epochs):
        for step, batch in enumerate(batches(images, labels, rng), start=1):
            train_step(net, optimizer, metrics, *batch)
            if step % 20 == 0:
                history.append(metrics.compute())
                metrics.reset()
                test_step(net, metrics, images[:64], labels[:64])
                history.append(metrics.compute())
                metrics.reset()
    print({name: float(value) for name, value in history[-1].items()})
    return jnp.asarray(history[-1]["loss"])


if __name__ == "__main__":
    print(main())
