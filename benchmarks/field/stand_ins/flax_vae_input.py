"""Batches of binary images at random, as the VAE of Flax reads them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

_DRAW = np.random.default_rng(0)


def build_train_set(batch_size: Any, ds_builder: Any) -> Any:
    """Yield batches of shape [batch_size, 784]."""
    images = (_DRAW.random((6400, 784)) > 0.8).astype(np.float32)
    while True:
        for i in range(0, len(images) - batch_size + 1, batch_size):
            yield images[i : i + batch_size]


def build_test_set(ds_builder: Any) -> Any:
    """Return test images of shape [2000, 784]."""
    return jax.device_put((_DRAW.random((2000, 784)) > 0.8).astype(np.float32))
