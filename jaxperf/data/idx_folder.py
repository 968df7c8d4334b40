"""Fashion-MNIST from a folder of the four IDX files: the user's, Debian's, or the subset in this package."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from jaxperf.data.download import ORIGIN_FILES
from jaxperf.data.idx import Splits, read_pair
from jaxperf.errors import JaxperfError

FOLDER_VARIABLE = "JAXPERF_DATA"
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")  # package dataset-fashion-mnist
_REINSTALL = "reinstall jaxperf"


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return `path` with its "~" replaced; an unknown "~user" stays, and is then not found."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  # Path.expanduser raises if the user is unknown


def named_folder(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the folder that the user named: the argument, else JAXPERF_DATA; None if neither is set."""
    value = folder if folder is not None else os.environ.get(FOLDER_VARIABLE) or None
    return None if value is None else expanded(value)


def folder_to_read(folder: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder that the user named, else Debian's.

    Raises:
      JaxperfError: none was named and Debian's package is not installed.
    """
    path = named_folder(folder) or DEBIAN_FOLDER
    if path == DEBIAN_FOLDER and not path.is_dir():
        raise JaxperfError(
            f"no folder was named and {DEBIAN_FOLDER} does not exist; set {FOLDER_VARIABLE} to a folder of "
            "the four IDX files, or apt install dataset-fashion-mnist"
        )
    return path


def check_folder(folder: Traversable) -> None:
    """Raise a JaxperfError unless `folder` is a folder that can be read."""
    if not _checked(folder.is_dir, folder):
        raise JaxperfError(
            f"{folder}: no such folder; name one that holds the four IDX files, or another source"
        )


def read_folder(folder: Traversable) -> Splits:
    """Read the four files from `folder`, each as NAME.gz or unpacked as NAME.

    Raises:
      JaxperfError: the folder or a file is missing, or a file is not what it should be (see
        `idx.read_images`).
    """
    check_folder(folder)
    train_images, train_labels, test_images, test_labels = (_find(folder, f.stem) for f in ORIGIN_FILES)
    return Splits(*read_pair(train_images, train_labels), *read_pair(test_images, test_labels))


def _find(folder: Traversable, stem: str) -> Traversable:
    for name in (f"{stem}.gz", stem):
        path = folder.joinpath(name)
        if _checked(path.is_file, path):
            return path
    raise JaxperfError(
        f"{folder} lacks {stem}.gz (or {stem}); name a folder of the four IDX files, or another source"
    )


def _checked(question: Callable[[], bool], path: Traversable) -> bool:
    """Return the answer to a question about a path; a JaxperfError if permissions do not allow it."""
    try:
        return question()
    except OSError as e:
        raise JaxperfError(f"{path}: {e.strerror}; check the path and its permissions") from None


def mini_folder() -> Traversable:
    """Return the folder of the subset: 6,000 + 1,000 real images, 600 + 100 of each class.

    Its four IDX files were made by `tools/make_mini_fashion_mnist.py` from the first images of each class.
    `sha256sum -c SHA256SUMS` works there.
    """
    return resources.files("jaxperf.data").joinpath("mini")


def read_mini(folder: Traversable | None = None) -> Splits:
    """Read the subset, (6000, 28, 28, 1) and (1000, 28, 28, 1), after checking its files' SHA-256.

    Args:
      folder: default `mini_folder()`.

    Raises:
      JaxperfError: a file is missing or not the one that was shipped.
    """
    folder = folder or mini_folder()
    try:
        for line in folder.joinpath("SHA256SUMS").read_text(encoding="ascii").splitlines():
            sha256, name = line.split(maxsplit=1)
            path = folder.joinpath(name)
            if hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
                raise JaxperfError(f"{path}: SHA-256 is not the shipped {sha256[:12]}...; {_REINSTALL}")
    except (OSError, ValueError) as e:
        raise JaxperfError(f"{folder}: the shipped subset cannot be checked ({e}); {_REINSTALL}") from e
    return read_folder(folder)
