"""A folder of the four IDX files: which one is meant, and its arrays."""

from __future__ import annotations

import os
from importlib.resources.abc import Traversable
from pathlib import Path

from jaxperf.data.idx import Splits, read_pair
from jaxperf.errors import JaxperfError

FOLDER_VARIABLE = "JAXPERF_DATA"
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")  # package dataset-fashion-mnist
_STEMS = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def named_folder(folder: str | os.PathLike[str] | None) -> Path | None:
    """The folder that the user named: the argument, else JAXPERF_DATA; None where neither is set."""
    value = folder if folder is not None else os.environ.get(FOLDER_VARIABLE) or None
    return None if value is None else Path(value).expanduser()


def folder_to_read(folder: str | os.PathLike[str] | None) -> Path:
    """The folder that the user named, else Debian's.

    Raises:
      JaxperfError: none was named and Debian's package is not installed.
    """
    path = named_folder(folder) or DEBIAN_FOLDER
    if path == DEBIAN_FOLDER and not path.is_dir():
        raise JaxperfError(
            f"no folder named and {DEBIAN_FOLDER} is not there; set {FOLDER_VARIABLE} to a folder of the "
            "four IDX files, or apt install dataset-fashion-mnist"
        )
    return path


def read_folder(folder: Traversable) -> Splits:
    """Reads the four files from `folder`, each as NAME.gz or unpacked as NAME.

    Raises:
      JaxperfError: the folder or a file is missing, or a file is not what it should be (see
        `idx.read_images`).
    """
    if not folder.is_dir():
        raise JaxperfError(
            f"{folder}: no such folder; name one that holds the four IDX files, or another source"
        )
    train_images, train_labels, test_images, test_labels = (_find(folder, stem) for stem in _STEMS)
    return Splits(*read_pair(train_images, train_labels), *read_pair(test_images, test_labels))


def _find(folder: Traversable, stem: str) -> Traversable:
    for name in (f"{stem}.gz", stem):
        path = folder.joinpath(name)
        if path.is_file():
            return path
    raise JaxperfError(
        f"{folder} lacks {stem}.gz (or {stem}); name a folder of the four IDX files, or another source"
    )
