"""Data sets at random with the shapes of the real ones, behind the few functions that examples call."""

from __future__ import annotations

import types
from typing import Any

import numpy as np

SIZES = {"train": 6400, "test": 2000, "validation": 2000}
_SHAPES = {"cifar10": (32, 32, 3)}
TEXT = "to be or not to be, that is the question: whether it is nobler in the mind to suffer\n"


class Split:
    """Names of parts."""

    TRAIN, TEST, VALIDATION = "train", "test", "validation"


class Dataset:
    """Examples in NumPy arrays, which come in batches."""

    def __init__(self, arrays: dict[str, np.ndarray], size: int = 0, endless: bool = False) -> None:
        self.arrays, self.size, self.endless = arrays, size, endless

    def batch(self, size: int, **_: Any) -> Dataset:
        return Dataset(self.arrays, size, self.endless)

    def repeat(self, *_: Any) -> Dataset:
        return Dataset(self.arrays, self.size, True)

    def shuffle(self, *_: Any, **__: Any) -> Dataset:
        return self

    prefetch = cache = shuffle

    def concatenate(self, other: Dataset) -> Dataset:
        both = {name: np.concatenate((a, other.arrays[name])) for name, a in self.arrays.items()}
        return Dataset(both, self.size, self.endless)

    def as_numpy_iterator(self) -> Any:
        count = len(next(iter(self.arrays.values())))
        step = self.size or 1
        while True:
            for i in range(0, count - step + 1, step):
                part = slice(i, i + step)
                yield {name: a[part] if self.size else a[i] for name, a in self.arrays.items()}
            if not self.endless:
                return

    __iter__ = as_numpy_iterator


def load(name: str, split: Any = None, **_: Any) -> Any:
    """Return one part of a data set, or all parts."""
    if split is None:
        return {part: load(name, part) for part in SIZES}
    part = str(split).split("[")[0]
    draw = np.random.default_rng(len(part))
    if name == "tiny_shakespeare":
        words = np.array(TEXT.split(" "))
        text = " ".join(draw.choice(words, 4000))
        return Dataset({"text": np.array([text.encode()], object)})
    shape = (SIZES[part], *_SHAPES.get(name, (28, 28, 1)))
    images = draw.integers(0, 256, shape).astype(np.uint8)
    if name == "binarized_mnist":
        images = (images > 127).astype(np.uint8)
    return Dataset({"image": images, "label": draw.integers(0, 10, shape[0])})


def as_numpy(dataset: Any) -> Any:
    """Return a data set as it is: it has NumPy arrays."""
    return dataset


def builder(name: str) -> Any:
    """Return what knows the sizes of a data set's parts."""
    splits = {part: types.SimpleNamespace(num_examples=size) for part, size in SIZES.items()}
    return types.SimpleNamespace(
        info=types.SimpleNamespace(splits=splits), download_and_prepare=lambda: None, name=name
    )
