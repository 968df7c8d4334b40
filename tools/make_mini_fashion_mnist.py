"""Make the subset of Fashion-MNIST that ships in `jaxperf/fashion_mnist_mini`.

The first 600 training and the first 100 test images of each of the 10 classes, in the origin's order, as four
gzip-compressed IDX files of the usual names, and their SHA-256. The same input gives the same images always,
and the same files where zlib is the same.

    python tools/make_mini_fashion_mnist.py --folder /usr/share/datasets/fashion-mnist
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.process import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import gzip
import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxperf import flags
from jaxperf.data import DEBIAN_FOLDER, Images, Labels, read_folder
from jaxperf.errors import JaxperfError
from jaxperf.process import ended

OUT = Path(__file__).parents[1] / "jaxperf" / "fashion_mnist_mini"


@dataclass(frozen=True)
class Config:
    """Make the balanced subset of Fashion-MNIST."""

    folder: Path = DEBIAN_FOLDER
    """The four full IDX files."""
    out: Path = OUT
    """Where the four small ones and SHA256SUMS go."""
    train_per_class: int = 600
    """Training images of each class."""
    test_per_class: int = 100
    """Test images of each class."""


def main(config: Config) -> int:
    full = read_folder(config.folder)
    config.out.mkdir(parents=True, exist_ok=True)
    sums = []
    for part, images, labels, per_class in (
        ("train", full.train_images, full.train_labels, config.train_per_class),
        ("t10k", full.test_images, full.test_labels, config.test_per_class),
    ):
        chosen = first_of_each_class(labels, per_class)
        for name, content in (
            (f"{part}-images-idx3-ubyte.gz", idx_images(images[chosen])),
            (f"{part}-labels-idx1-ubyte.gz", idx_labels(labels[chosen])),
        ):
            packed = gzip.compress(content, compresslevel=9, mtime=0)
            config.out.joinpath(name).write_bytes(packed)
            sums.append(f"{hashlib.sha256(packed).hexdigest()}  {name}\n")
            print(f"{name}: {len(packed)} bytes")
    config.out.joinpath("SHA256SUMS").write_text("".join(sums), encoding="ascii")
    return 0


def first_of_each_class(labels: Labels, per_class: int) -> np.ndarray:
    """Return sorted indices of the first `per_class` examples of each class."""
    counts = np.bincount(labels, minlength=10).tolist()
    if not 1 <= per_class <= min(counts):
        raise JaxperfError(
            f"{per_class} images of each class asked for, there are {min(counts)}; ask for 1 to that"
        )
    return np.sort(np.concatenate([np.flatnonzero(labels == c)[:per_class] for c in range(10)]))


def idx_images(images: Images) -> bytes:
    return struct.pack(">IIII", 0x0803, *images.shape[:3]) + images.tobytes()


def idx_labels(labels: Labels) -> bytes:
    return struct.pack(">II", 0x0801, len(labels)) + labels.astype(np.uint8).tobytes()


if __name__ == "__main__":
    raise SystemExit(ended(lambda: main(flags.parse_config(Config, __doc__))))
