"""Weights and inputs that all systems read, drawn with NumPy and written once per run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

Shapes = dict[str, tuple[int, ...]]
MLP = (512, 256, 128, 2)


def mlp_shapes(sizes: Sequence[int]) -> Shapes:
    """Return the shapes of dense layers as Gluon keeps them: (out, in) and (out,)."""
    shapes: Shapes = {}
    for i, (n_in, n_out) in enumerate(itertools.pairwise(sizes)):
        shapes |= {f"{i}.weight": (n_out, n_in), f"{i}.bias": (n_out,)}
    return shapes


def resnet_shapes(stages: Sequence[tuple[int, int]]) -> Shapes:
    """Return the shapes of section 8.5.1's ResNet, in Gluon's order and with its names.

    Args:
      stages: channels and blocks of each stage.
    """
    channels = stages[0][0]
    shapes = _conv("0", 1, channels, 3) | _norm("1", channels)
    for i, (num_channels, num_residuals) in enumerate(stages):
        for j in range(num_residuals):
            block = f"{3 + i}.{j}."
            shapes |= _conv(f"{block}conv1", channels, num_channels, 3)
            shapes |= _conv(f"{block}conv2", num_channels, num_channels, 3)
            if i > 0 and j == 0:
                shapes |= _conv(f"{block}conv3", channels, num_channels, 1)
            shapes |= _norm(f"{block}bn1", num_channels) | _norm(f"{block}bn2", num_channels)
            channels = num_channels
    dense = 4 + len(stages)
    return shapes | {f"{dense}.weight": (10, channels), f"{dense}.bias": (10,)}


def _conv(name: str, n_in: int, n_out: int, size: int) -> Shapes:
    return {f"{name}.weight": (n_out, n_in, size, size), f"{name}.bias": (n_out,)}


def _norm(name: str, channels: int) -> Shapes:
    return {f"{name}.{kind}": (channels,) for kind in ("gamma", "beta", "running_mean", "running_var")}


def write_nets(
    folder: Path, lenet: Shapes, stages: Sequence[tuple[int, int]], rng: np.random.Generator
) -> dict[str, str]:
    """Write the weights of all networks, and return the files by network.

    Args:
      folder: where to write them.
      lenet: shapes of LeNet's parameters in the book's layout, by name.
      stages: channels and blocks of each of ResNet's stages.
      rng: draws the weights.
    """
    nets = {"mlp": mlp_shapes(MLP), "lenet": lenet, "resnet": resnet_shapes(stages)}
    return {name: write(folder / f"{name}.npz", **draw(shapes, rng)) for name, shapes in nets.items()}


def draw(shapes: Shapes, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw He's normal weights, and biases and BatchNorm with their initial values; float32.

    Not the book's weights of 0.01: with those, every network's output is almost zero, right or wrong.
    """
    return {name: _draw(name, shape, rng).astype(np.float32) for name, shape in shapes.items()}


def _draw(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if name.endswith(("gamma", "running_var")):
        return np.ones(shape)
    if name.endswith("weight") or name[0] == "W":
        fan_in = shape[0] if name in ("W3", "W4") else int(np.prod(shape[1:]))
        return rng.normal(0, np.sqrt(2 / fan_in), shape)
    return np.zeros(shape)


def write(path: Path, **arrays: np.ndarray) -> str:
    """Write an .npz and return its name, for a worker's settings."""
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return str(path)
