"""Fashion-MNIST as arrays, from whatever source this machine has (Xiao et al. 2017, arXiv:1708.07747)."""

from __future__ import annotations

import difflib
import hashlib
import os
from dataclasses import dataclass

from jaxperf.data.download import DownloadError, base_url, fetch
from jaxperf.data.idx import Images, Labels, Splits
from jaxperf.data.idx_folder import check_folder, folder_to_read, named_folder, read_folder, read_mini
from jaxperf.data.tfds import read_tfds
from jaxperf.errors import JaxperfError

SOURCES = ("auto", "folder", "tfds", "download", "mini")
FULL_TRAIN = 60_000
FULL_TEST = 10_000


@dataclass(frozen=True, eq=False)
class FashionMNIST:
    """The data set's arrays, and where they come from.

    Attributes:
      train_images: uint8 (N, 28, 28, 1), N = 60,000 where `is_full`.
      train_labels: int32 (N,), 0..9.
      test_images: uint8 (M, 28, 28, 1), M = 10,000 where `is_full`.
      test_labels: int32 (M,), 0..9.
      source: what was read: "folder PATH", "tfds VERSION", "download" or "mini".
      skipped: under "auto", one line for each source tried before, with the reason why it was skipped.
    """

    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels
    source: str
    skipped: tuple[str, ...] = ()

    @property
    def is_full(self) -> bool:
        """Return whether these are all 60,000 + 10,000 examples."""
        return (len(self.train_images), len(self.test_images)) == (FULL_TRAIN, FULL_TEST)

    @property
    def fingerprint(self) -> str:
        """Return the training images' number and a digest of their labels, to tell sets of images apart."""
        digest = hashlib.sha256(self.train_labels.tobytes()).hexdigest()
        return f"{len(self.train_labels):,} images, SHA-256 of their labels {digest[:12]}"


def fashion_mnist(
    *, source: str = "auto", folder: str | os.PathLike[str] | None = None, url: str | None = None
) -> FashionMNIST:
    """Load Fashion-MNIST (section 8.4 trains on it).

    "auto" takes the first source that works:
      "folder": the four IDX files in `folder`, else in JAXPERF_DATA, else where Debian's package puts them;
      "tfds": TensorFlow Datasets, if it is installed; prepares the data set if necessary;
      "download": the origin's files, kept in the user's cache folder;
      "mini": the balanced subset of 6,000 + 1,000 images in this package.
    A folder that was named, by argument or JAXPERF_DATA, must be valid: it is never silently skipped. A
    missing network costs "auto" a few seconds, once.

    Args:
      source: one of `SOURCES`.
      folder: a folder of the four IDX files, each NAME or NAME.gz.
      url: base URL of the four files; default JAXPERF_FASHION_MNIST_URL, else the origin.

    Returns:
      The arrays with their source.

    Raises:
      JaxperfError: no such source, or the one that was named does not work.
    """
    check_source(source, folder)
    if source != "auto":
        return _load(source, folder, url)
    if named_folder(folder) is not None:
        return _load("folder", folder, url)
    return _first_that_works(url)


def check_source(source: str, folder: str | os.PathLike[str] | None = None) -> None:
    """Reject what `fashion_mnist` would reject, without reading a file; scripts call it before JAX starts.

    Raises:
      JaxperfError: no such source, no such folder, or a source that does not read the folder.
    """
    if source not in SOURCES:
        nearest = difflib.get_close_matches(source, SOURCES, n=1, cutoff=0.0)[0]
        raise JaxperfError(
            f"no data source {source!r}; did you mean {nearest!r}? There are {', '.join(SOURCES)}"
        )
    reads_folder = source in ("auto", "folder", "tfds")
    named = named_folder(folder) if folder is not None or reads_folder else None
    if named is not None:
        check_folder(named)
        if not reads_folder:
            raise JaxperfError(
                f"the data source {source!r} does not read the folder {named}; "
                "choose the source 'folder', or leave the folder out"
            )


def _first_that_works(url: str | None) -> FashionMNIST:
    skipped: list[str] = []
    base_url(url)  # a wrong URL is the user's mistake, not a reason to continue without it
    not_to_be_had: DownloadError | None = None
    for name in ("folder", "tfds", "download"):
        if name == "download" and not_to_be_had is not None:
            skipped.append(f"download: {not_to_be_had}")  # tried a moment ago, for TFDS
            continue
        try:
            return _load(name, None, url, skipped=tuple(skipped))
        except JaxperfError as error:
            skipped.append(f"{name}: {error}")
            not_to_be_had = error if isinstance(error, DownloadError) else None
    return _load("mini", None, url, skipped=tuple(skipped))


def _load(
    source: str, folder: str | os.PathLike[str] | None, url: str | None, *, skipped: tuple[str, ...] = ()
) -> FashionMNIST:
    splits: Splits
    match source:
        case "folder":
            path = folder_to_read(folder)
            splits, used = read_folder(path), f"folder {path}"
        case "tfds":
            splits, version = read_tfds(folder=folder, url=url)
            used = f"tfds {version}"
        case "download":
            splits, used = read_folder(fetch(url=url)), "download"
        case _:
            splits, used = read_mini(), "mini"
    return FashionMNIST(*splits, source=used, skipped=skipped)
