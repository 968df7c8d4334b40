"""Section 8.5's network and training with `jit` on two CPU devices, as a script: 8 channels, 64 steps.

It is kept as it ran beside its report, whatever becomes of the section.
"""

import functools
import itertools
import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
from functools import partial

import jax
import numpy as np
import optax
from flax import nnx
from jax import P

devices = jax.devices()[:2]
mesh = jax.make_mesh((2,), ("data",), devices=devices)

normal = nnx.initializers.normal(0.01)
conv = partial(nnx.Conv, kernel_init=normal)
batch_norm = partial(nnx.BatchNorm, momentum=0.9)


class Residual(nnx.Module):
    def __init__(self, inputs, outputs, use_1x1conv=False, strides=1, *, relu=nnx.relu, rngs):
        self.conv1 = conv(inputs, outputs, (3, 3), strides=strides, padding=1, rngs=rngs)
        self.conv2 = conv(outputs, outputs, (3, 3), padding=1, rngs=rngs)
        self.conv3 = conv(inputs, outputs, (1, 1), strides=strides, rngs=rngs) if use_1x1conv else None
        self.bn1 = batch_norm(outputs, rngs=rngs)
        self.bn2 = batch_norm(outputs, rngs=rngs)
        self.relu = relu

    def __call__(self, X):
        Y = self.relu(self.bn1(self.conv1(X)))
        Y = self.bn2(self.conv2(Y))
        return self.relu(Y + (self.conv3(X) if self.conv3 else X))


# a network
def global_avg_pool(X):
    return X.mean((1, 2))


def resnet18(num_classes, channels=64, stages=4, relu=nnx.relu, *, rngs):
    def resnet_block(inputs, outputs, first_block=False):
        new = partial(Residual, relu=relu, rngs=rngs)
        shape = {} if first_block else {"use_1x1conv": True, "strides": 2}
        return [new(inputs, outputs, **shape), new(outputs, outputs)]

    widths = [channels * 2**i for i in range(stages)]
    blocks = resnet_block(channels, channels, first_block=True)
    for inputs, outputs in itertools.pairwise(widths):
        blocks += resnet_block(inputs, outputs)
    return nnx.Sequential(
        conv(1, channels, (3, 3), padding=1, rngs=rngs),
        batch_norm(channels, rngs=rngs),
        relu,
        *blocks,
        global_avg_pool,
        nnx.Linear(widths[-1], num_classes, kernel_init=normal, rngs=rngs),
    )


@partial(jax.jit, static_argnames=("channels", "stages", "relu"))
def draw(key, channels, stages=4, relu=nnx.relu):  # all weights in one program
    return resnet18(10, channels, stages, relu, rngs=nnx.Rngs(key))


def fresh_net(seed, channels, stages=4, relu=nnx.relu):
    # "rbg" keys compile faster than the default ones, for so many shapes
    return draw(jax.random.key(seed, impl="rbg"), channels, stages, relu)


def cross_entropy(net, X, y):
    losses = optax.softmax_cross_entropy_with_integer_labels(net(X / 255), y)
    return losses.mean()


@jax.jit
def train_step(net, optimizer, X, y):
    loss, grads = nnx.value_and_grad(cross_entropy)(net, X, y)
    optimizer.update(net, grads)
    return net, optimizer, loss


def make_jit_step(mesh):
    def step(net, optimizer, X, y):
        with jax.set_mesh(mesh):
            X, y = jax.device_put((X, y), P("data"))
            return train_step(net, optimizer, X, y)

    return step


sgd = functools.cache(optax.sgd)  # one object per rate: another one recompiles


def start_of(mesh, lr, seed, channels, rule=sgd, **kwargs):
    """A fresh network and its optimizer, copied to each device."""
    net = fresh_net(seed, channels, **kwargs)
    optimizer = nnx.Optimizer(net, rule(lr), wrt=nnx.Param)
    with jax.set_mesh(mesh):
        return jax.device_put((net, optimizer), P())


rng = np.random.default_rng(0)
X = rng.integers(0, 256, (1024, 28, 28, 1)).astype(np.float32)
y = rng.integers(0, 10, 1024)
net, optimizer = start_of(mesh, 0.1, 0, 8)
step = make_jit_step(mesh)
for epoch in range(2):
    for i in range(0, 1024, 32):
        net, optimizer, loss = step(net, optimizer, X[i : i + 32], y[i : i + 32])
        loss.block_until_ready()
    print(epoch, float(loss))
