"""The book's networks in MXNet, as the book writes them; Gluon's are hybrid, so that they run either way."""

from __future__ import annotations

from typing import Any

import numpy as np


def build(settings: dict[str, Any], weights: dict[str, np.ndarray], ctx: list[Any]) -> Any:
    """Return the network of `settings["net"]` with the common weights on every context."""
    from mxnet import nd

    example: tuple[int, ...] = (1, 1, 28, 28)
    if settings["net"] == "mlp":
        net = mlp([w.shape[0] for w in weights.values() if w.ndim == 2])
        example = (1, next(iter(weights.values())).shape[1])
    elif settings["net"] == "lenet":
        net, weights = lenet_gluon(), as_gluon(weights)
    else:
        net = resnet(settings["stages"])
    net.initialize(ctx=ctx)
    net(nd.zeros(example, ctx=ctx[0])).wait_to_read()  # Gluon learns the shapes only from a batch
    params = list(net.collect_params().values())
    if len(params) != len(weights):
        raise ValueError(f"{len(weights)} arrays for {len(params)} parameters")
    for param, value in zip(params, weights.values()):
        param.set_data(nd.array(value))
    return net


def mlp(sizes: list[int]) -> Any:
    """Return section 8.1.2's network: dense layers, relu after each but the last."""
    from mxnet.gluon import nn

    net = nn.HybridSequential()
    net.add(*[nn.Dense(n, activation="relu") for n in sizes[:-1]], nn.Dense(sizes[-1]))
    return net


def as_gluon(params: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return LeNet's list of arrays with its dense weights in Gluon's layout."""
    return {name: a.T if name in ("W3", "W4") else a for name, a in params.items()}


def lenet_gluon() -> Any:
    """Return section 8.4's LeNet, built from layers."""
    from mxnet.gluon import nn

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
    from mxnet import nd

    W1, b1, W2, b2, W3, b3, W4, b4 = params
    pool = {"pool_type": "avg", "kernel": (2, 2), "stride": (2, 2)}
    h1 = nd.Convolution(data=X, weight=W1, bias=b1, kernel=(3, 3), num_filter=20)
    h1 = nd.Pooling(data=nd.relu(h1), **pool)
    h2 = nd.Convolution(data=h1, weight=W2, bias=b2, kernel=(5, 5), num_filter=50)
    h2 = nd.flatten(nd.Pooling(data=nd.relu(h2), **pool))
    return nd.dot(nd.relu(nd.dot(h2, W3) + b3), W4) + b4


def resnet(stages: list[list[int]]) -> Any:
    """Return section 8.5.1's ResNet with `stages` of (channels, blocks), in hybrid blocks."""
    from mxnet.gluon import nn

    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(stages[0][0], kernel_size=3, strides=1, padding=1), nn.BatchNorm(), nn.Activation("relu")
    )
    for i, (num_channels, num_residuals) in enumerate(stages):
        stage = nn.HybridSequential()
        for j in range(num_residuals):
            stage.add(_residual()(num_channels, halves=i > 0 and j == 0))
        net.add(stage)
    net.add(nn.GlobalAvgPool2D(), nn.Dense(10))
    return net


def _residual() -> Any:
    from mxnet.gluon import nn

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

    return Residual


def hybridize(net: Any, configuration: str) -> Any:
    """Return `net`, hybridized as the configuration's name says."""
    if configuration == "hybridized":
        net.hybridize()
    elif configuration == "static":
        net.hybridize(static_alloc=True, static_shape=True)
    return net
