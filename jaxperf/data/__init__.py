"""Data: Fashion-MNIST from whatever source is available, and batches of it in one fixed shape."""

from jaxperf.data.batches import epoch_batches, padded_batches, to_float, updates_per_epoch
from jaxperf.data.fashion_mnist import SOURCES, FashionMNIST, check_source, fashion_mnist

__all__ = [
    "SOURCES",
    "FashionMNIST",
    "check_source",
    "epoch_batches",
    "fashion_mnist",
    "padded_batches",
    "to_float",
    "updates_per_epoch",
]
