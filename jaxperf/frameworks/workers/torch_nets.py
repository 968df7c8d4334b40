"""The same networks in PyTorch; state dictionaries are Gluon's arrays with two names changed."""

from __future__ import annotations

from typing import Any

import numpy as np

RENAMED = {"gamma": "weight", "beta": "bias"}


def in_layout(arrays: Any, configuration: str) -> Any:
    """Return a network or images in the layout of the configuration."""
    import torch

    return arrays.to(memory_format=torch.channels_last) if configuration == "channels-last" else arrays


def as_configured(net: Any, configuration: str) -> Any:
    """Return the network in the layout of the configuration, compiled if the configuration says so."""
    import torch

    if configuration == "compiled":
        torch.compiler.reset()  # programs of earlier workloads count toward a limit
        return torch.compile(net, dynamic=False)
    return in_layout(net, configuration)


def build(settings: dict[str, Any], weights: dict[str, np.ndarray]) -> Any:
    """Return the network of `settings["net"]` with the common weights, on the host."""
    if settings["net"] == "mlp":
        net = mlp([(w.shape[1], w.shape[0]) for w in weights.values() if w.ndim == 2])
        return _fill(net, dict(zip(net.state_dict(), weights.values())))
    if settings["net"] == "lenet":
        return lenet(weights)
    net = resnet(settings["stages"])
    return _fill(net, {_renamed(name): a for name, a in weights.items()})


def _renamed(name: str) -> str:
    layer, _, kind = name.rpartition(".")
    return f"{layer}.{RENAMED.get(kind, kind)}"


def _fill(net: Any, arrays: dict[str, np.ndarray]) -> Any:
    import torch

    missing, left_over = net.load_state_dict(
        {k: torch.from_numpy(a) for k, a in arrays.items()}, strict=False
    )
    wrong = [name for name in missing if not name.endswith("num_batches_tracked")] + left_over
    if wrong:
        raise ValueError(f"no array for, or no parameter for: {wrong}")
    return net


def mlp(sizes: list[tuple[int, int]]) -> Any:
    """Return dense layers of (in, out), relu after each but the last."""
    from torch import nn

    layers = [layer for shape in sizes for layer in (nn.Linear(*shape), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def lenet(weights: dict[str, np.ndarray]) -> Any:
    """Return section 8.4's LeNet as a module that holds the book's list of parameters."""
    import torch
    from torch import nn
    from torch.nn import functional

    class LeNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, value in weights.items():
                self.register_parameter(name, nn.Parameter(torch.from_numpy(value.copy())))

        def forward(self, X: Any) -> Any:
            h1 = functional.avg_pool2d(functional.relu(functional.conv2d(X, self.W1, self.b1)), 2)
            h2 = functional.avg_pool2d(functional.relu(functional.conv2d(h1, self.W2, self.b2)), 2).flatten(1)
            h3 = functional.relu(torch.addmm(self.b3, h2, self.W3))
            return torch.addmm(self.b4, h3, self.W4)

    return LeNet()


def resnet(stages: list[list[int]]) -> Any:
    """Return section 8.5.1's ResNet with `stages` of (channels, blocks)."""
    from torch import nn

    channels = stages[0][0]
    layers: list[Any] = [nn.Conv2d(1, channels, 3, 1, 1), nn.BatchNorm2d(channels), nn.ReLU()]
    for i, (num_channels, num_residuals) in enumerate(stages):
        stage = []
        for j in range(num_residuals):
            stage.append(_residual()(channels, num_channels, halves=i > 0 and j == 0))
            channels = num_channels
        layers.append(nn.Sequential(*stage))
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*layers, pool, nn.Linear(channels, 10))


def _residual() -> Any:
    from torch import nn
    from torch.nn import functional

    class Residual(nn.Module):
        def __init__(self, in_channels: int, num_channels: int, *, halves: bool) -> None:
            super().__init__()
            strides = 2 if halves else 1
            self.conv1 = nn.Conv2d(in_channels, num_channels, 3, strides, 1)
            self.conv2 = nn.Conv2d(num_channels, num_channels, 3, 1, 1)
            self.conv3 = nn.Conv2d(in_channels, num_channels, 1, strides) if halves else None
            self.bn1 = nn.BatchNorm2d(num_channels)
            self.bn2 = nn.BatchNorm2d(num_channels)

        def forward(self, X: Any) -> Any:
            Y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(X)))))
            return functional.relu(Y + (X if self.conv3 is None else self.conv3(X)))

    return Residual
