"""Run the book's networks in MXNet 1.9.1 and keep the small answers that jaxperf's must equal.

    python3.11 -m venv mx && mx/bin/pip install mxnet==1.9.1 numpy==1.23.5
    mx/bin/python tools/make_mxnet_fixtures.py                     # seed 2019, tests/fixtures/mxnet
    mx/bin/python tools/make_mxnet_fixtures.py --seed 7 --out DIR  # JAXPERF_MXNET_FIXTURES=DIR pytest

Weights and batches are not stored: both sides draw them from the seed, in tests/mxnet_fixtures.py. Weights
are "book" (normal 0.01, biases zero: the logits are almost nothing) or "sound" (He's width; biases, gammas,
betas and running statistics random). All is computed in float32, as the book does, and in float64, where no
relu falls on the other side of zero by rounding, so that gradients agree to 1e-10.

Files: mlp.npz (8.1), lenet.npz (8.4, from scratch), resnet18.npz (8.5) and resnet_small.npz (the same blocks,
SMALL_STAGES). Keys, where CASE is KIND/DTYPE (book/float32 ...), K a number of contexts mx.cpu(0) to
mx.cpu(K - 1), n the batch:

    seed, mxnet, numpy           what made the file
    names, shapes                parameters in Gluon's order; lenet.npz is in the order W1, b1, ..., W4, b4
    CASE/logits, CASE/loss       (n, classes) and (n,), first batch, BatchNorm in training mode
    CASE/eval_logits             ResNets: the same with the running statistics as drawn
    CASE/grad                    digest: gradients of the first batch's summed loss
    CASE/Kctx/loss               (steps, n): loss of each step's own batch, before the update
    CASE/Kctx/update             digest: parameters after all steps minus before, the same on every context
    CASE/Kctx/stats_first/C      ResNets, digest: running statistics of context C after the first step ...
    CASE/Kctx/stats/C            ... and after the last; each context normalises its own share, but the first
                                 Trainer.step, which starts the kvstore, copies context 0's to all others
    CASE/softmax, CASE/l2        mlp.npz: (n,) losses; CASE/softmax_grad, CASE/l2_grad: digests

A digest of a list of arrays is three entries: KEY/norm (a Euclidean norm for each array), KEY/dot (its
product with a fixed normal vector, which moves by about the norm of an error anywhere in the array) and
KEY/part (all of a small array, 32 evenly spaced values of a large one; one array after the other).
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS))

from mxnet_fixtures import (
    DTYPES,
    KINDS,
    LENET,
    LENET_SHAPES,
    MLP_SIZES,
    RESNET18,
    RESNET18_STAGES,
    RESNET_SMALL,
    SMALL_STAGES,
    Setting,
    batch,
    digest,
    mlp_batch,
    weights,
)

SEED = 2019
CASES = list(itertools.product(KINDS, DTYPES))
Answers = dict[str, np.ndarray]


def parameters(shapes: dict[str, tuple[int, ...]]) -> Answers:
    return {"names": np.array(list(shapes)), "shapes": np.array([str(shape) for shape in shapes.values()])}


def under(prefix: str, answers: Answers) -> Answers:
    return {f"{prefix}/{key}": value for key, value in answers.items()}


def contexts(k: int) -> list[Any]:
    import mxnet as mx

    return [mx.cpu(i) for i in range(k)]


def softmax_loss() -> Any:
    from mxnet import gluon

    return gluon.loss.SoftmaxCrossEntropyLoss()


def shares(data: np.ndarray, ctx: list[Any], dtype: str) -> list[Any]:
    from mxnet import gluon, nd

    return gluon.utils.split_and_load(nd.array(data, dtype=dtype), ctx)


# --- 8.1: the multilayer perceptron, with both losses


def run_mlp(seed: int) -> Answers:
    from mxnet import autograd, gluon, nd
    from mxnet.gluon import nn

    X, target, y = mlp_batch(seed)
    losses = {"softmax": (softmax_loss(), y), "l2": (gluon.loss.L2Loss(), target)}
    out: Answers = {}
    for kind, dtype in CASES:
        net = nn.HybridSequential()
        net.add(*[nn.Dense(n, activation="relu") for n in MLP_SIZES[1:-1]], nn.Dense(MLP_SIZES[-1]))
        out |= parameters(load(net, contexts(1), kind, dtype, seed, X))
        for name, (loss, truth) in losses.items():
            with autograd.record():
                logits = net(nd.array(X, dtype=dtype))
                values = loss(logits, nd.array(truth, dtype=dtype))
            values.backward()
            answers = {"logits": logits.asnumpy(), name: values.asnumpy()}
            answers |= digest(f"{name}_grad", [p.grad().asnumpy() for p in trained(net)])
            out |= under(f"{kind}/{dtype}", answers)
    return out


# --- 8.4: LeNet from scratch on one and on several contexts


def run_lenet(seed: int) -> Answers:
    from mxnet import nd

    out = parameters(LENET_SHAPES)
    for kind, dtype in CASES:
        host = [nd.array(w, dtype=dtype) for w in weights(LENET_SHAPES, kind, seed).values()]
        out |= under(f"{kind}/{dtype}", lenet_first_batch(host, dtype, seed))
        for k in LENET.contexts:
            out |= under(f"{kind}/{dtype}/{k}ctx", train_lenet(host, contexts(k), dtype, seed))
    return out


def lenet_first_batch(host: list[Any], dtype: str, seed: int) -> Answers:
    from mxnet import autograd, nd

    X, y = (nd.array(a, dtype=dtype) for a in batch(seed, 0, LENET.batch))
    params = get_params(host, contexts(1)[0])
    with autograd.record():
        logits = lenet(X, params)
        values = softmax_loss()(logits, y)
    values.backward()
    grads = digest("grad", [p.grad.asnumpy() for p in params])
    return {"logits": logits.asnumpy(), "loss": values.asnumpy()} | grads


def train_lenet(host: list[Any], ctx: list[Any], dtype: str, seed: int) -> Answers:
    replicas = [get_params(host, c) for c in ctx]
    batches = [batch(seed, step, LENET.batch) for step in range(LENET.steps)]
    losses = np.stack([train_batch(X, y, replicas, ctx, dtype) for X, y in batches])
    for same in zip(*replicas):
        assert all(np.array_equal(p.asnumpy(), same[0].asnumpy()) for p in same)
    return {"loss": losses} | digest("update", [(p - w).asnumpy() for p, w in zip(replicas[0], host)])


def lenet(X: Any, params: Sequence[Any]) -> Any:
    from mxnet import nd

    W1, b1, W2, b2, W3, b3, W4, b4 = params
    pool = {"pool_type": "avg", "kernel": (2, 2), "stride": (2, 2)}
    h1 = nd.Convolution(data=X, weight=W1, bias=b1, kernel=(3, 3), num_filter=20)
    h1 = nd.Pooling(data=nd.relu(h1), **pool)
    h2 = nd.Convolution(data=h1, weight=W2, bias=b2, kernel=(5, 5), num_filter=50)
    h2 = nd.flatten(nd.Pooling(data=nd.relu(h2), **pool))
    return nd.dot(nd.relu(nd.dot(h2, W3) + b3), W4) + b4


def get_params(params: Sequence[Any], ctx: Any) -> list[Any]:
    copies = [p.copyto(ctx) for p in params]
    for p in copies:
        p.attach_grad()
    return copies


def allreduce(data: Sequence[Any]) -> None:
    for other in data[1:]:
        data[0][:] += other.copyto(data[0].context)
    for other in data[1:]:
        data[0].copyto(other)


def train_batch(X: np.ndarray, y: np.ndarray, replicas: list[Any], ctx: list[Any], dtype: str) -> np.ndarray:
    from mxnet import autograd

    loss = softmax_loss()
    with autograd.record():
        losses = [
            loss(lenet(a, params), b)
            for a, b, params in zip(shares(X, ctx, dtype), shares(y, ctx, dtype), replicas)
        ]
    for one in losses:
        one.backward()
    for same in zip(*replicas):
        allreduce([p.grad for p in same])
    for params in replicas:
        for p in params:
            p[:] = p - LENET.lr * p.grad / len(X)
    return np.concatenate([one.asnumpy() for one in losses])


# --- 8.5: the ResNets with gluon.Trainer


def run_resnet(seed: int, stages: Sequence[tuple[int, int]], setting: Setting) -> Answers:
    out: Answers = {}
    X, _ = batch(seed, 0, setting.batch)
    for kind, dtype in CASES:
        net = build_resnet(stages)
        out |= parameters(load(net, contexts(1), kind, dtype, seed, X))
        out |= under(f"{kind}/{dtype}", resnet_first_batch(net, dtype, seed, setting))
        for k in setting.contexts:
            net = build_resnet(stages)
            load(net, contexts(k), kind, dtype, seed, X)
            out |= under(f"{kind}/{dtype}/{k}ctx", train_resnet(net, contexts(k), dtype, seed, setting))
    return out


def build_resnet(stages: Sequence[tuple[int, int]]) -> Any:
    from mxnet import nd
    from mxnet.gluon import nn

    class Residual(nn.Block):
        def __init__(self, num_channels: int, use_1x1conv: bool = False, strides: int = 1) -> None:
            super().__init__()
            self.conv1 = nn.Conv2D(num_channels, kernel_size=3, padding=1, strides=strides)
            self.conv2 = nn.Conv2D(num_channels, kernel_size=3, padding=1)
            self.conv3 = nn.Conv2D(num_channels, kernel_size=1, strides=strides) if use_1x1conv else None
            self.bn1 = nn.BatchNorm()
            self.bn2 = nn.BatchNorm()

        def forward(self, X: Any) -> Any:
            Y = self.bn2(self.conv2(nd.relu(self.bn1(self.conv1(X)))))
            return nd.relu(Y + (self.conv3(X) if self.conv3 else X))

    net = nn.Sequential()
    net.add(nn.Conv2D(stages[0][0], kernel_size=3, strides=1, padding=1))
    net.add(nn.BatchNorm(), nn.Activation("relu"))
    for i, (num_channels, num_blocks) in enumerate(stages):
        stage = nn.Sequential()
        for j in range(num_blocks):
            halves = i > 0 and j == 0
            stage.add(Residual(num_channels, use_1x1conv=halves, strides=2 if halves else 1))
        net.add(stage)
    net.add(nn.GlobalAvgPool2D(), nn.Dense(10))
    return net


def load(net: Any, ctx: list[Any], kind: str, dtype: str, seed: int, X: np.ndarray) -> dict[str, Any]:
    """Initialise `net` on `ctx`, then overwrite all of it with the seed's values; names and shapes."""
    from mxnet import nd

    net.cast(dtype)
    net.initialize(ctx=ctx)
    net(nd.array(X, ctx=ctx[0], dtype=dtype))  # only a batch tells Gluon the shapes
    params = net.collect_params()
    shapes = {name: p.shape for name, p in params.items()}
    for name, value in weights(shapes, kind, seed).items():
        params[name].set_data(nd.array(value, dtype=dtype))
    return shapes


def resnet_first_batch(net: Any, dtype: str, seed: int, setting: Setting) -> Answers:
    from mxnet import autograd, nd

    X, y = (nd.array(a, dtype=dtype) for a in batch(seed, 0, setting.batch))
    out = {"eval_logits": net(X).asnumpy()}
    with autograd.record():
        logits = net(X)
        values = softmax_loss()(logits, y)
    values.backward()
    out |= {"logits": logits.asnumpy(), "loss": values.asnumpy()}
    return out | digest("grad", [p.grad().asnumpy() for p in trained(net)])


def train_resnet(net: Any, ctx: list[Any], dtype: str, seed: int, setting: Setting) -> Answers:
    from mxnet import autograd, gluon

    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": setting.lr})
    loss, history = softmax_loss(), []
    before = [p.data(ctx[0]).asnumpy() for p in trained(net)]
    out: Answers = {}
    for step in range(setting.steps):
        X, y = batch(seed, step, setting.batch)
        with autograd.record():
            losses = [loss(net(a), b) for a, b in zip(shares(X, ctx, dtype), shares(y, ctx, dtype))]
        for one in losses:
            one.backward()
        trainer.step(setting.batch)
        history.append(np.concatenate([one.asnumpy() for one in losses]))
        if step == 0:
            out |= statistics(net, ctx, "stats_first")
    for p in trained(net):
        assert all(np.array_equal(p.data(c).asnumpy(), p.data(ctx[0]).asnumpy()) for c in ctx)
    updates = [p.data(ctx[0]).asnumpy() - old for p, old in zip(trained(net), before)]
    return out | statistics(net, ctx, "stats") | {"loss": np.stack(history)} | digest("update", updates)


def trained(net: Any) -> list[Any]:
    return [p for p in net.collect_params().values() if p.grad_req != "null"]


def statistics(net: Any, ctx: list[Any], key: str) -> Answers:
    running = [p for p in net.collect_params().values() if p.grad_req == "null"]
    out: Answers = {}
    for i, c in enumerate(ctx):
        out |= digest(f"{key}/{i}", [p.data(c).asnumpy() for p in running])
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, default=TESTS / "fixtures" / "mxnet")
    args = parser.parse_args()
    import mxnet as mx

    made_by = {
        "seed": np.array(args.seed),
        "mxnet": np.array(mx.__version__),
        "numpy": np.array(np.__version__),
    }
    runs: dict[str, Callable[[], Answers]] = {
        "mlp": lambda: run_mlp(args.seed),
        "lenet": lambda: run_lenet(args.seed),
        "resnet18": lambda: run_resnet(args.seed, RESNET18_STAGES, RESNET18),
        "resnet_small": lambda: run_resnet(args.seed, SMALL_STAGES, RESNET_SMALL),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    for name, run in runs.items():
        path = args.out / f"{name}.npz"
        np.savez_compressed(path, **(made_by | run()))  # type: ignore[arg-type]
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
