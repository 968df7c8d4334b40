"""Fashion-MNIST as arrays, from whatever source this machine has, and batches of it in one fixed shape.

The data set is by Xiao et al. (2017, arXiv:1708.07747). Files are read strictly: a header says what follows
(a magic number, then one 32-bit size per axis), so a damaged or hostile file is refused before it costs
memory. From a gzip stream exactly the announced bytes are unpacked, plus one that must not exist. Images stay
uint8 until they are on the device, which is a quarter of the bytes to gather and to copy.

Letters: N examples, 28 x 28 pixels, 1 channel, B batch size.
"""

import contextlib
import hashlib
import math
import os
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxperf.errors import JaxperfError
from jaxperf.flags import did_you_mean
from jaxperf.libraries import missing_from
from jaxperf.process import cache_folder
from jaxperf.result.store import write_whole

Array = npt.NDArray[Any]
Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int32]
SOURCES = ("auto", "folder", "tfds", "download", "mini")
FOLDER_VARIABLE, URL_VARIABLE = "JAXPERF_DATA", "JAXPERF_FASHION_MNIST_URL"
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")  # of the package dataset-fashion-mnist
ORIGIN_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"  # the one TFDS uses
SILENCE_S, TOTAL_S = 5.0, 900.0  # until a server answers, and between two packets; for all files
TFDS_S = 900.0  # reading takes about 10 s, preparing 20 and the download
MOST = 100_000  # examples in a file
_LARGEST = MOST * 28 * 28 + 2**16  # bytes of a file; a gzip stream may be a little longer than its contents
_IMAGES, _LABELS = 0x0803, 0x0801  # magic numbers: unsigned bytes of rank 3 and 1
# Size and SHA-256 of each file as Zalando published it
ORIGIN_FILES = {
    "train-images-idx3-ubyte.gz":
        (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
    "train-labels-idx1-ubyte.gz":
        (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
    "t10k-images-idx3-ubyte.gz":
        (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
    "t10k-labels-idx1-ubyte.gz":
        (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class FashionMNIST:
    """The data set's arrays, and where they come from.

    Attributes:
      train_images: uint8 (N, 28, 28, 1), N = 60,000 where `is_full`.
      train_labels: int32 (N,), 0..9.
      test_images: uint8 (M, 28, 28, 1), M = 10,000 where `is_full`.
      test_labels: int32 (M,), 0..9.
      source: what was read: "folder PATH", "tfds VERSION", "download" or "mini".
    """

    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels
    source: str

    @property
    def is_full(self) -> bool:
        """Return whether these are all 60,000 + 10,000 examples."""
        return (len(self.train_images), len(self.test_images)) == (60_000, 10_000)

    @property
    def fingerprint(self) -> str:
        """Return the training images' number and a digest of their labels, to tell sets of images apart."""
        digest = hashlib.sha256(self.train_labels.tobytes()).hexdigest()
        return f"{len(self.train_labels):,} images, SHA-256 of their labels {digest[:12]}"


# --- Where it comes from


def fashion_mnist(*, source: str = "auto", folder: str | os.PathLike[str] | None = None) -> FashionMNIST:
    """Load Fashion-MNIST (section 8.4 trains on it).

    "auto" takes the first source that works:
      "folder": the four IDX files in `folder`, else in JAXPERF_DATA, else where Debian's package puts them;
      "tfds": TensorFlow Datasets, where it has prepared the data set; if it is named, it prepares it;
      "download": the origin's files, or those of the mirror JAXPERF_FASHION_MNIST_URL, kept in a cache;
      "mini": the balanced subset of 6,000 + 1,000 images in this package.
    A folder that was named, by argument or JAXPERF_DATA, must be valid: it is never silently skipped. A
    missing network costs "auto" a few seconds.

    Args:
      source: one of `SOURCES`.
      folder: a folder of the four IDX files, each NAME or NAME.gz.

    Returns:
      The arrays with their source.

    Raises:
      JaxperfError: no such source, or the one that was named does not work.
    """
    check_source(source, folder)
    named = named_folder(folder)
    if source != "auto" or named:
        return _load("folder" if source == "auto" else source, named, prepare=True)
    _base_url()  # a wrong URL is the user's mistake, not a reason to continue without it
    for name in ("folder", "tfds", "download"):
        with contextlib.suppress(JaxperfError):
            return _load(name, None, prepare=False)
    return _load("mini", None, prepare=False)


def check_source(source: str, folder: str | os.PathLike[str] | None = None) -> None:
    """Reject what `fashion_mnist` would reject, without reading a file; scripts call it before JAX starts.

    Raises:
      JaxperfError: no such source or folder, or a source that does not read the folder.
    """
    if source not in SOURCES:
        nearest = did_you_mean(source, SOURCES)
        raise JaxperfError(f"no data source {source!r}{nearest}; there are {', '.join(SOURCES)}")
    reads_folder = source in ("auto", "folder")
    if folder is not None and not reads_folder:
        raise JaxperfError(f"the data source {source!r} reads no folder; leave {folder} out")
    named = named_folder(folder) if reads_folder else None
    if named is not None and not os.path.isdir(named):  # noqa: PTH112  # False, too, if it may not be seen
        raise JaxperfError(f"{named}: no such folder; name one that holds the four IDX files")


def named_folder(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the folder that the user named: the argument, else JAXPERF_DATA; None if neither is set."""
    value = folder if folder is not None else os.environ.get(FOLDER_VARIABLE) or None
    return None if value is None else _expanded(value)


def _expanded(path: str | os.PathLike[str]) -> Path:
    return Path(os.path.expanduser(path))  # noqa: PTH111  # Path.expanduser raises if the user is unknown


def _load(source: str, named: Path | None, *, prepare: bool) -> FashionMNIST:
    if source == "folder":
        return read_folder(named or DEBIAN_FOLDER)
    if source == "tfds":
        return _read_tfds(prepare)
    return read_folder(fetch() if source == "download" else mini_folder(), source)


def mini_folder() -> Traversable:
    """Return the folder of the subset: 6,000 + 1,000 real images, 600 + 100 of each class.

    Its four IDX files were made by `tools/make_mini_fashion_mnist.py` from the first images of each class.
    `sha256sum -c SHA256SUMS` works there.
    """
    return resources.files("jaxperf").joinpath("fashion_mnist_mini")


# --- IDX files


def read_folder(folder: Traversable, source: str = "") -> FashionMNIST:
    """Read the four files from `folder`, each as NAME.gz or unpacked as NAME.

    Args:
      folder: where they are.
      source: what to call it; "folder PATH" by default.

    Raises:
      JaxperfError: a file is missing, or is not what it should be.
    """
    arrays: list[Any] = []
    for part in ("train", "t10k"):
        images, labels = (_find(folder, f"{part}-{name}-ubyte") for name in ("images-idx3", "labels-idx1"))
        X, y = read_images(images), read_labels(labels)
        if len(X) != len(y):
            raise _not_right(labels, f"{len(y)} labels for {len(X)} images")
        arrays += [X, y]
    X, y, test_X, test_y = arrays
    return FashionMNIST(X, y, test_X, test_y, source or f"folder {folder}")


def _find(folder: Traversable, name: str) -> Traversable:
    with contextlib.suppress(OSError):  # a folder that may not be looked into
        for path in (folder.joinpath(f"{name}.gz"), folder.joinpath(name)):
            if path.is_file():
                return path
    raise JaxperfError(
        f"{folder} has no {name}.gz that can be read; name a folder of the four IDX files ({FOLDER_VARIABLE} "
        "or --data-folder), or apt install dataset-fashion-mnist"
    )


def read_images(path: Traversable) -> Images:
    """Read an IDX file of 28 x 28 images, raw or gzip, as uint8 (N, 28, 28, 1).

    Raises:
      JaxperfError: the file cannot be read, or is anything else.
    """
    return _read(path, _IMAGES, 28, 28)[..., np.newaxis]


def read_labels(path: Traversable) -> Labels:
    """Read an IDX file of labels, raw or gzip, as int32 (N,), each in 0..9.

    Raises:
      JaxperfError: as `read_images`.
    """
    labels = _read(path, _LABELS)
    wrong = np.flatnonzero(labels > 9)
    if wrong.size:
        raise _not_right(path, f"label {labels[wrong[0]]} at index {wrong[0]}")
    return labels.astype(np.int32)


def _read(path: Traversable, magic: int, *sides: int) -> npt.NDArray[np.uint8]:
    """Return the bytes after the header, exactly as many as it announces, as (N, *sides)."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(0)
            data = stream.read(min(size, _LARGEST + 1))
    except OSError as e:
        raise JaxperfError(
            f"{path}: cannot be read ({e.strerror or e}); check the path and its permissions"
        ) from None
    if len(data) > _LARGEST:
        raise _not_right(path, f"more than {_LARGEST:,} bytes")
    begin = 8 + 4 * len(sides)
    try:
        number, count, *others = struct.unpack(f">{begin // 4}I", _unpacked(data, begin)[0])
        if (number, *others) != (magic, *sides) or not 1 <= count <= MOST:
            sizes = " x ".join(map(str, (count, *others)))
            raise _not_right(path, f"a header of 0x{number:08x} and {sizes}")
        end = begin + count * math.prod(sides)
        contents, complete = _unpacked(data, end + 1)
    except struct.error:
        raise _not_right(path, "shorter than a header") from None
    except zlib.error as e:
        raise _not_right(path, f"damaged gzip data: {e}") from None
    if len(contents) != end or not complete:
        raise _not_right(path, f"not the {end} bytes that its header announces")
    return np.frombuffer(contents, np.uint8, offset=begin).reshape(count, *sides).copy()


def _unpacked(data: bytes, most: int) -> tuple[bytes, bool]:
    """Return up to `most` bytes of a raw file or gzip stream, and whether that is exactly all of it.

    `gzip.GzipFile` would go on to the next stream in the file, and skip zeros in between.
    """
    if data[:2] != b"\x1f\x8b":
        return data[:most], len(data) < most
    inflate = zlib.decompressobj(wbits=31)
    contents = inflate.decompress(data, most)
    return contents, inflate.eof and not inflate.unused_data


def _not_right(path: Traversable, content: str) -> JaxperfError:
    return JaxperfError(f"{path}: not such a file of Fashion-MNIST ({content}); fetch it again, or another")


# --- The download


def fetch(cache: Path | None = None) -> Path:
    """Bring the origin's four files into a folder, and return it; those that are there already stay.

    Args:
      cache: the folder; "fashion-mnist" in the user's cache folder by default. Proxies are those that
        `urllib` takes from the environment.

    Raises:
      JaxperfError: no server answers in seconds, or it sends something else; or the cache cannot be written.
    """
    base, cache = _base_url(), cache or cache_folder() / "fashion-mnist"
    deadline = time.monotonic() + TOTAL_S
    for name, (size, sha256) in ORIGIN_FILES.items():
        path = cache / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
            write_whole(path, _download(f"{base}{name}", size, sha256, deadline))
    return cache


def _base_url() -> str:
    base = os.environ.get(URL_VARIABLE) or ORIGIN_URL
    if not base.startswith(("http://", "https://")):
        raise JaxperfError(f"{base!r} is not an http or https URL; give one such as {ORIGIN_URL}")
    return base.rstrip("/") + "/"


def _download(url: str, size: int, sha256: str, deadline: float) -> bytes:
    from urllib.request import urlopen

    data, problem = bytearray(), ""
    try:
        with urlopen(url, timeout=SILENCE_S) as response:
            # A server may send more than the file, even without end: stop at the first extra byte
            piece = response.read1(1 << 16)
            while piece and len(data) <= size:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"not done after {TOTAL_S:.0f} s")
                data.extend(piece)
                piece = response.read1(1 << 16)
    except Exception as e:  # whatever the network library raises
        problem = " ".join(str(getattr(e, "reason", "") or e or type(e).__name__).split())
    if not problem and hashlib.sha256(data).hexdigest() != sha256:
        problem = f"not the published file of {size} bytes and SHA-256 {sha256[:12]}..."
    if problem:
        raise JaxperfError(
            f"{url}: {problem}; connect, set {URL_VARIABLE} to a mirror, or name a folder with the files"
        )
    return bytes(data)


# --- TensorFlow Datasets, in a process of its own: its threads, memory and GPU use would disturb measurements

# Writes the four files, as the folders of other sources have them, and prints the version
_TFDS_PROGRAM = """
import pathlib, struct, sys
sys.excepthook = lambda kind, e, trace: print(kind.__name__, *str(e).splitlines()[:1], file=sys.stderr)
import tensorflow_datasets as tfds
data_dir, out = sys.argv[1:]
builder = tfds.builder("fashion_mnist", data_dir=data_dir)
builder.download_and_prepare()  # returns at once if it is prepared
for split, part in (("train", "train"), ("test", "t10k")):
    examples = tfds.as_numpy(builder.as_dataset(split=split, batch_size=-1, shuffle_files=False))
    images, labels = examples["image"].squeeze(-1), examples["label"].astype("uint8")
    for name, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
        header = struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape)
        pathlib.Path(out, name).write_bytes(header + array.tobytes())
print(builder.version)
"""


def _read_tfds(prepare: bool) -> FashionMNIST:
    """Read the data set, which TFDS may prepare; it has an order of its own, so batches differ."""
    missing = missing_from(("tensorflow_datasets", "tensorflow"))
    if missing:
        raise JaxperfError(f"package {missing[0]} is not installed; pip install 'jaxperf[tfds]'")
    folder = _expanded(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")
    if not prepare and not any(folder.joinpath("fashion_mnist").glob("*/dataset_info.json")):
        raise JaxperfError(f"{folder} has no fashion_mnist; the source 'tfds' prepares it")
    with tempfile.TemporaryDirectory(prefix="tfds-") as scratch:
        # -P keeps the working directory off its import path
        command = [sys.executable, "-P", "-c", _TFDS_PROGRAM, str(folder), scratch]
        quiet = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}  # and off the GPU
        options: Any = {"capture_output": True, "text": True, "errors": "replace", "timeout": TFDS_S}
        try:
            done = subprocess.run(command, env=os.environ | quiet, **options)
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            problem = lines[-1].strip() if done.returncode else ""
        except subprocess.TimeoutExpired:
            problem = f"not done after {TFDS_S:.0f} s"
        if problem:
            raise JaxperfError(f"TensorFlow Datasets failed: {problem}; choose another source")
        return read_folder(Path(scratch), f"tfds {done.stdout.split()[-1]}")


# --- Batches of one fixed shape: for a compiled step, a new shape means a new compilation


def epoch_batches(
    images: Array, labels: Array, *, batch_size: int, seed: int, epoch: int, updates: int | None = None
) -> Iterator[tuple[Array, Array]]:
    """Yield shuffled full batches of one epoch; the same (seed, epoch) gives the same batches.

    Args:
      images: (N, ...).
      labels: (N,).
      batch_size: B.
      seed: chooses the order together with `epoch`; 0 or more.
      epoch: 0 or more.
      updates: number of batches; default one pass, N // B. With more than that the data is used again, in a
        new order each time, so that the subset of 6,000 makes the book's 234 updates.

    Yields:
      images (B, ...) and labels (B,), copies in the dtypes given.

    Raises:
      JaxperfError: at the first batch: lengths differ, or a batch is larger than the data.
    """
    _check(images, labels, batch_size)
    n, full = len(images), len(images) // batch_size
    if not full:
        raise JaxperfError(f"batch size {batch_size} is larger than the data, {n} examples; use {n} or fewer")
    rng = np.random.default_rng((seed, epoch))
    for update in range(full if updates is None else updates):
        position = update % full
        if position == 0:
            order = rng.permutation(n)
        chosen = order[position * batch_size : (position + 1) * batch_size]
        yield images[chosen], labels[chosen]


def padded_batches(
    images: Array, labels: Array, *, batch_size: int
) -> Iterator[tuple[Array, Array, npt.NDArray[np.bool_]]]:
    """Yield every example once, in order, in batches of one shape; for evaluation.

    Args:
      images: (N, ...).
      labels: (N,).
      batch_size: B; may exceed N.

    Yields:
      images (B, ...), labels (B,) and a mask bool (B,) that is False on the zeros that fill the last batch.

    Raises:
      JaxperfError: at the first batch: lengths differ or `batch_size` is not positive.
    """
    _check(images, labels, batch_size)
    for start in range(0, len(images), batch_size):
        x, y = images[start : start + batch_size], labels[start : start + batch_size]
        missing, rest = batch_size - len(x), [(0, 0)] * (x.ndim - 1)
        is_real = np.arange(batch_size) < len(x)
        yield np.pad(x, [(0, missing), *rest]), np.pad(y, (0, missing)), is_real


def _check(images: Array, labels: Array, batch_size: int) -> None:
    if batch_size < 1:
        raise JaxperfError(f"batch size {batch_size} is not positive; use 1 or more")
    if len(images) != len(labels) or not len(images):
        raise JaxperfError(f"{len(images)} images and {len(labels)} labels; give one label per image")
