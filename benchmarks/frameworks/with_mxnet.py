# /// script
# requires-python = ">=3.8,<3.12"
# dependencies = ["mxnet==1.9.1", "numpy==1.23.5"]
# ///
"""MXNet 1.9.1's side of the comparison, as the book writes it: `uv run --script` makes its environment."""

from __future__ import annotations

import itertools
import platform
from collections.abc import Callable
from functools import partial
from typing import Any

import mxnet as mx
import numpy as np
import worker
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from worker import Task, timed_first

# --- networks; Gluon's are hybrid, so that they run either way


def build(settings: dict[str, Any], configuration: str, ctx: list[Any]) -> Any:
    """Return the network of `settings["net"]` with the common weights on every context, hybridized or not."""
    weights = worker.arrays(settings["weights"])
    example: tuple[int, ...] = (1, 1, 28, 28)
    if settings["net"] == "mlp":
        *hidden, last = [w for w in weights.values() if w.ndim == 2]
        net, example = nn.HybridSequential(), (1, 512)
        net.add(*[nn.Dense(len(w), activation="relu") for w in hidden], nn.Dense(len(last)))
    elif settings["net"] == "lenet":
        net = lenet_gluon()
        weights = {name: w.T if name in ("W3", "W4") else w for name, w in weights.items()}
    else:
        net = resnet(settings["stages"])
    net.initialize(ctx=ctx)
    net(nd.zeros(example, ctx=ctx[0])).wait_to_read()  # Gluon learns the shapes only from a batch
    params = list(net.collect_params().values())
    if len(params) != len(weights):
        raise ValueError(f"{len(weights)} arrays for {len(params)} parameters")
    for param, value in zip(params, weights.values()):
        param.set_data(nd.array(value))
    if configuration == "hybridized":
        net.hybridize()
    elif configuration == "static":
        net.hybridize(static_alloc=True, static_shape=True)
    return net


def lenet_gluon() -> Any:
    """Return section 8.4's LeNet, built from layers."""
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(20, kernel_size=3, activation="relu"),
        nn.AvgPool2D(pool_size=2, strides=2),
        nn.Conv2D(50, kernel_size=5, activation="relu"),
        nn.AvgPool2D(pool_size=2, strides=2),
        nn.Dense(128, activation="relu"),
        nn.Dense(10),
    )
    return net


def lenet(X: Any, params: list[Any]) -> Any:
    """Compute section 8.4.2's LeNet from scratch."""
    W1, b1, W2, b2, W3, b3, W4, b4 = params
    pool = {"pool_type": "avg", "kernel": (2, 2), "stride": (2, 2)}
    h1 = nd.Convolution(data=X, weight=W1, bias=b1, kernel=(3, 3), num_filter=20)
    h1 = nd.Pooling(data=nd.relu(h1), **pool)
    h2 = nd.Convolution(data=h1, weight=W2, bias=b2, kernel=(5, 5), num_filter=50)
    h2 = nd.flatten(nd.Pooling(data=nd.relu(h2), **pool))
    return nd.dot(nd.relu(nd.dot(h2, W3) + b3), W4) + b4


class Residual(nn.HybridBlock):
    def __init__(self, num_channels: int, *, halves: bool) -> None:
        super().__init__()
        strides = 2 if halves else 1
        self.conv1 = nn.Conv2D(num_channels, kernel_size=3, padding=1, strides=strides)
        self.conv2 = nn.Conv2D(num_channels, kernel_size=3, padding=1)
        self.conv3 = nn.Conv2D(num_channels, kernel_size=1, strides=strides) if halves else None
        self.bn1 = nn.BatchNorm()
        self.bn2 = nn.BatchNorm()

    def hybrid_forward(self, F: Any, X: Any) -> Any:
        Y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(X)))))
        return F.relu(Y + (self.conv3(X) if self.conv3 else X))


def resnet(stages: list[list[int]]) -> Any:
    """Return section 8.5.1's ResNet with `stages` of (channels, blocks), in hybrid blocks."""
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(stages[0][0], kernel_size=3, strides=1, padding=1), nn.BatchNorm(), nn.Activation("relu")
    )
    for i, (num_channels, num_residuals) in enumerate(stages):
        stage = nn.HybridSequential()
        for j in range(num_residuals):
            stage.add(Residual(num_channels, halves=i > 0 and j == 0))
        net.add(stage)
    net.add(nn.GlobalAvgPool2D(), nn.Dense(10))
    return net


# --- sections 8.1 to 8.3


def forward(settings: dict[str, Any], configuration: str) -> Task:
    """Call `net(x)` many times, then `waitall` (section 8.1.2's benchmark)."""
    net = build(settings, configuration, [mx.cpu()])
    x = nd.array(worker.arrays(settings["input"])["xs"][0])
    nd.waitall()
    first_s, y = timed_first(lambda: net(x).asnumpy())
    return Task(first_s, {"output": y}, worker.waiting_once(partial(net, x), lambda _: nd.waitall()))


def dot(settings: dict[str, Any], configuration: str) -> Task:
    """Time section 8.2.1's product until it is queued and until it is finished, both from the start."""
    x = nd.array(worker.arrays(settings["square"])["x"])
    nd.waitall()
    first_s, total = timed_first(lambda: nd.dot(x, x).sum().asscalar())
    turn = worker.queued_and_finished(lambda: nd.dot(x, x).sum(), nd.NDArray.wait_to_read)
    return Task(first_s, {"sum": total, "corner": nd.dot(x, x)[:8, :8].asnumpy()}, turn)


def loop(settings: dict[str, Any], configuration: str) -> Task:
    """Time section 8.2.3's `y = x + 1`, waiting each time or once."""
    x = nd.array(worker.arrays(settings["square"])["x"])
    nd.waitall()
    first_s, y = timed_first(lambda: (x + 1).asnumpy())
    turn = worker.synchronous_and_asynchronous(lambda: x + 1, nd.NDArray.wait_to_read, lambda _: nd.waitall())
    return Task(first_s, {"corner": y[:8, :8]}, turn)


def together(settings: dict[str, Any], configuration: str) -> Task:
    """Time section 8.3.1's `run` on every context, one after the other or all at once."""
    x = worker.arrays(settings["square"])["x"]
    xs = [nd.array(x, ctx=mx.cpu(i)) for i in range(settings["devices"])]
    nd.waitall()

    def run(x: Any) -> list[Any]:
        return [nd.dot(x, x) for _ in range(settings["dots"])]

    def run_and_wait(*xs: Any) -> None:
        for x in xs:
            run(x)
        nd.waitall()

    first_s, outputs = timed_first(lambda: [run(x)[-1].asnumpy() for x in xs])
    turn = worker.apart_and_together(
        settings["shares"], alone=lambda i: run_and_wait(xs[i]), at_once=lambda: run_and_wait(*xs)
    )
    return Task(first_s, {f"device{i}": y[:8, :8] for i, y in enumerate(outputs)}, turn)


# --- sections 8.4 and 8.5


def train(settings: dict[str, Any], configuration: str) -> Task:
    """Take steps of stochastic gradient descent on one or more CPU contexts; the answers are the losses."""
    ctx = [mx.cpu(i) for i in range(settings["devices"])]
    by = by_hand if configuration == "scratch" else by_trainer
    step = by(settings, configuration, ctx)
    rounds = itertools.cycle(worker.batches(settings))

    def loss_of(losses: list[Any]) -> float:
        return float(np.concatenate([one.asnumpy() for one in losses]).mean())

    return worker.training(lambda: step(*next(rounds)), loss_of, nd.waitall, settings["steps"])


def by_hand(settings: dict[str, Any], configuration: str, ctx: list[Any]) -> Callable[..., list[Any]]:
    """Section 8.4: parameters copied to every context, gradients summed by `allreduce`."""

    def get_params(ctx: Any) -> list[Any]:
        copies = [nd.array(w).copyto(ctx) for w in worker.arrays(settings["weights"]).values()]
        for p in copies:
            p.attach_grad()
        return copies

    def allreduce(data: list[Any]) -> None:
        for other in data[1:]:
            data[0][:] += other.copyto(data[0].context)
        for other in data[1:]:
            data[0].copyto(other)

    replicas = [get_params(c) for c in ctx]
    loss, lr = gluon.loss.SoftmaxCrossEntropyLoss(), settings["lr"]

    def train_batch(X: np.ndarray, y: np.ndarray) -> list[Any]:
        shares = zip(split_and_load(X, ctx), split_and_load(y, ctx), replicas)
        with autograd.record():
            losses = [loss(lenet(a, params), b) for a, b, params in shares]
        for one in losses:
            one.backward()
        for same in zip(*replicas):
            allreduce([p.grad for p in same])
        for params in replicas:
            for p in params:
                p[:] = p - lr * p.grad / len(X)
        return losses

    return train_batch


def by_trainer(settings: dict[str, Any], configuration: str, ctx: list[Any]) -> Callable[..., list[Any]]:
    """Section 8.5: `gluon.Trainer` sums the gradients of all contexts."""
    net = build(settings, configuration, ctx)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": settings["lr"]})
    loss = gluon.loss.SoftmaxCrossEntropyLoss()

    def step(X: np.ndarray, y: np.ndarray) -> list[Any]:
        with autograd.record():
            shares = zip(split_and_load(X, ctx), split_and_load(y, ctx))
            losses = [loss(net(a), b) for a, b in shares]
        for one in losses:
            one.backward()
        trainer.step(len(X))
        return losses

    return step


def split_and_load(data: np.ndarray, ctx: list[Any]) -> list[Any]:
    return gluon.utils.split_and_load(nd.array(data), ctx)


if __name__ == "__main__":
    tasks = {"forward": forward, "dot": dot, "loop": loop, "together": together, "train": train}
    versions = {"mxnet": mx.__version__, "numpy": np.__version__, "python": platform.python_version()}
    worker.serve(versions, tasks)
