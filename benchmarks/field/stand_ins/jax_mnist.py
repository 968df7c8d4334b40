"""Images and labels at random, as examples/datasets.py of JAX returns them."""

from __future__ import annotations

from typing import Any

import numpy as np


def mnist(permute_train: Any = False) -> Any:
    """Return images of shape [N, 784] and labels of shape [N, 10] for training and test."""
    draw = np.random.default_rng(0)
    parts = []
    for count in (TRAIN, TEST):
        parts.append(draw.random((count, 784), dtype=np.float32))
        parts.append(np.eye(10, dtype=np.float32)[draw.integers(0, 10, count)])
    return tuple(parts)


TRAIN, TEST = 6000, 1000
