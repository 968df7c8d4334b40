"""Weights and inputs as the host wrote them for all systems, float32 unless stated otherwise.

Networks keep Gluon's names and layout, which is PyTorch's too: convolutions (out, in, height, width), dense
(out, in), images (n, 1, 28, 28). LeNet is the book's list W1, b1, ..., W4, b4, with dense weights (in, out).
"""

from __future__ import annotations

from typing import Any

import numpy as np


def arrays(path: str) -> dict[str, np.ndarray]:
    """Return all arrays of an .npz file by name, in the order written."""
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def batches(settings: dict[str, Any]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the batches that training cycles through: X (n, 1, 28, 28) in 0..1, y (n,) int32."""
    dataset, n = arrays(settings["images"]), settings["batch"]
    X = dataset["X"].astype(np.float32).reshape(-1, 1, 28, 28) / 255
    y = dataset["y"].astype(np.int32)
    return [(X[i : i + n], y[i : i + n]) for i in range(0, len(X) - n + 1, n)]


def rows(settings: dict[str, Any]) -> np.ndarray:
    """Return the rows of the images in each batch, in random order: (batches, batch) int32."""
    order, n = arrays(settings["images"])["order"], settings["batch"]
    return order[: len(order) // n * n].reshape(-1, n)
