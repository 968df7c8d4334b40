"""MXNet 1.9.1's training: by hand as in section 8.4, with gluon.Trainer as in 8.5."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from . import files, mxnet_nets, turns
from .wire import Task


def train(settings: dict[str, Any], configuration: str, start: dict[str, Any]) -> Task:
    """Take steps of stochastic gradient descent on one or more CPU contexts; the answers are the losses."""
    import mxnet as mx
    from mxnet import nd

    ctx = [mx.cpu(i) for i in range(settings["devices"])]
    maker = _scratch if configuration == "scratch" else _trainer
    step = maker(settings, configuration, ctx)
    rounds = itertools.cycle(files.batches(settings))

    def loss_of(losses: list[Any]) -> float:
        return float(np.concatenate([one.asnumpy() for one in losses]).mean())

    return turns.training(lambda: step(*next(rounds)), loss_of, nd.waitall, settings["steps"])


def _scratch(settings: dict[str, Any], configuration: str, ctx: list[Any]) -> Any:
    """Section 8.4: parameters copied to every context, gradients summed by `allreduce`."""
    from mxnet import autograd, gluon, nd

    host = [nd.array(w) for w in files.arrays(settings["weights"]).values()]
    replicas = [_get_params(host, c) for c in ctx]
    loss, lr = gluon.loss.SoftmaxCrossEntropyLoss(), settings["lr"]

    def train_batch(X: np.ndarray, y: np.ndarray) -> list[Any]:
        shares = zip(_split_and_load(X, ctx), _split_and_load(y, ctx), replicas)
        with autograd.record():
            losses = [loss(mxnet_nets.lenet(a, params), b) for a, b, params in shares]
        for one in losses:
            one.backward()
        for same in zip(*replicas):
            _allreduce([p.grad for p in same])
        for params in replicas:
            for p in params:
                p[:] = p - lr * p.grad / len(X)
        return losses

    return train_batch


def _get_params(params: list[Any], ctx: Any) -> list[Any]:
    copies = [p.copyto(ctx) for p in params]
    for p in copies:
        p.attach_grad()
    return copies


def _allreduce(data: list[Any]) -> None:
    for other in data[1:]:
        data[0][:] += other.copyto(data[0].context)
    for other in data[1:]:
        data[0].copyto(other)


def _split_and_load(data: np.ndarray, ctx: list[Any]) -> list[Any]:
    from mxnet import gluon, nd

    return gluon.utils.split_and_load(nd.array(data), ctx)


def _trainer(settings: dict[str, Any], configuration: str, ctx: list[Any]) -> Any:
    """Section 8.5: `gluon.Trainer` sums the gradients of all contexts."""
    from mxnet import autograd, gluon

    net = mxnet_nets.build(settings, files.arrays(settings["weights"]), ctx)
    mxnet_nets.hybridize(net, configuration)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": settings["lr"]})
    loss = gluon.loss.SoftmaxCrossEntropyLoss()

    def step(X: np.ndarray, y: np.ndarray) -> list[Any]:
        with autograd.record():
            shares = zip(_split_and_load(X, ctx), _split_and_load(y, ctx))
            losses = [loss(net(a), b) for a, b in shares]
        for one in losses:
            one.backward()
        trainer.step(len(X))
        return losses

    return step
