"""A data loader over images at random, in place of PyTorch's."""

from __future__ import annotations

import types
from typing import Any

import numpy as np


class Array(np.ndarray):
    """An array with the two methods of a tensor that examples call."""

    def numpy(self) -> Any:
        return np.asarray(self)

    def permute(self, *axes: Any) -> Any:
        return self.transpose(axes)


class DataLoader:
    """Yield batches of images and labels."""

    def __init__(self, data: Any, batch_size: Any, **_: Any) -> None:
        self.data, self.batch_size = data, batch_size

    def __iter__(self) -> Any:
        images, labels = self.data
        for i in range(0, len(images) - self.batch_size + 1, self.batch_size):
            part = slice(i, i + self.batch_size)
            yield images[part].view(Array), labels[part].view(Array)


utils = types.SimpleNamespace(data=types.SimpleNamespace(DataLoader=DataLoader))
