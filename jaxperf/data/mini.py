"""The subset of Fashion-MNIST that ships in the package: 6,000 + 1,000 real images, 600 + 100 of each class.

It is a folder of four ordinary IDX files beside their SHA-256 (`sha256sum -c SHA256SUMS` works there), made
by `scripts/make_mini_fashion_mnist.py` from the first images of each class, in the origin's order.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from importlib.resources.abc import Traversable

from jaxperf.data.folder import read_folder
from jaxperf.data.idx import Splits
from jaxperf.errors import JaxperfError

_MEND = "reinstall jaxperf"


def mini_folder() -> Traversable:
    """The folder inside the installed package."""
    return resources.files("jaxperf.data").joinpath("mini")


def read_mini(folder: Traversable | None = None) -> Splits:
    """Reads the subset, (6000, 28, 28, 1) and (1000, 28, 28, 1), after checking the files' SHA-256.

    Args:
      folder: default `mini_folder()`.

    Raises:
      JaxperfError: a file is missing or not the one that was shipped.
    """
    folder = folder or mini_folder()
    try:
        sums = folder.joinpath("SHA256SUMS").read_text(encoding="ascii")
        for line in sums.splitlines():
            sha256, name = line.split(maxsplit=1)
            if hashlib.sha256(folder.joinpath(name).read_bytes()).hexdigest() != sha256:
                raise JaxperfError(
                    f"{folder.joinpath(name)}: SHA-256 is not the shipped {sha256[:12]}...; {_MEND}"
                )
    except (OSError, ValueError) as error:
        raise JaxperfError(f"{folder}: the shipped subset cannot be checked ({error}); {_MEND}") from error
    return read_folder(folder)
