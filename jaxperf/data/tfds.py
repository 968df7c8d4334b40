"""Fashion-MNIST through the `fashion_mnist` builder of TensorFlow Datasets (extra `tfds`).

Data that is prepared already is read. Otherwise the builder prepares it from the origin's four files, which
this module lays ready: taken from a folder where there is one, else downloaded with our own limits. The
builder's own download would try a network that is not there eleven times, with growing pauses.

TFDS stores the examples in an order of its own, so batches differ from those of the other sources.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from jaxperf.data import folder as folders
from jaxperf.data.download import cache_folder, fetch
from jaxperf.data.idx import SIDE, Splits, check_labels
from jaxperf.data.origin import adopt
from jaxperf.data.tfds_worker import NOT_PREPARED
from jaxperf.errors import JaxperfError

TFDS_VARIABLE = "TFDS_DATA_DIR"  # TensorFlow Datasets' own
WORKER = Path(__file__).with_name("tfds_worker.py")
READ_LIMIT_S = 300.0  # takes about 10 s, most of it importing TensorFlow
PREPARE_LIMIT_S = 900.0  # takes about 20 s
_MEND = "python -m pip install tensorflow-datasets tensorflow-cpu importlib_resources pillow"


def read_tfds(*, folder: str | os.PathLike[str] | None = None, url: str | None = None) -> tuple[Splits, str]:
    """Reads the data set, preparing it first where that was never done.

    Args:
      folder: where the origin's files may lie, if it has to be prepared; default JAXPERF_DATA, else Debian's.
      url: base URL to download them from if they do not lie there.

    Returns:
      The arrays, and the data set's version such as "3.0.1".

    Raises:
      DownloadError: not prepared, and the files could be had neither from the folder nor from the network.
      JaxperfError: the extra is not installed, or TensorFlow Datasets failed; its own line is given.
    """
    for package in ("tensorflow_datasets", "tensorflow"):
        if find_spec(package) is None:
            raise JaxperfError(f"package {package} is not installed; {_MEND}")
    data_dir = Path(os.environ.get(TFDS_VARIABLE) or "~/tensorflow_datasets").expanduser()
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "fashion_mnist.npz")
        # Asking TensorFlow costs seconds; a data set that has no folder at all is not prepared.
        seen = any(data_dir.joinpath("fashion_mnist").glob("*/dataset_info.json"))
        if not (seen and _run(data_dir, out)):
            manual_dir = _lay_ready(folder, url)
            print(f"preparing fashion_mnist in {data_dir} (once, under a minute)", file=sys.stderr)
            _run(data_dir, out, manual_dir=manual_dir)
        return _load(out)


def _lay_ready(folder: str | os.PathLike[str] | None, url: str | None) -> Path:
    """The cache folder, completed with the origin's four files."""
    cache = cache_folder()
    try:
        adopt(folders.named_folder(folder) or folders.DEBIAN_FOLDER, cache)
    except OSError as error:
        raise JaxperfError(
            f"{cache}: cannot be written ({error.strerror or error}); make it writable"
        ) from error
    return fetch(url=url, cache=cache)


def _run(data_dir: Path, out: Path, *, manual_dir: Path | None = None) -> bool:
    """Runs the worker; False where the data is not prepared and there is no `manual_dir` to do so from."""
    limit_s = READ_LIMIT_S if manual_dir is None else PREPARE_LIMIT_S
    # -P keeps this folder off the worker's import path, where `tfds` and `download` could shadow others.
    command = [sys.executable, "-P", str(WORKER), "--data-dir", str(data_dir), "--out", str(out)]
    if manual_dir is not None:
        command += ["--manual-dir", str(manual_dir)]
    quiet = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}  # and off the GPU
    try:
        done = subprocess.run(
            command, env=os.environ | quiet, capture_output=True, text=True, errors="replace", timeout=limit_s
        )
    except subprocess.TimeoutExpired as error:
        raise JaxperfError(
            f"TensorFlow Datasets was not done after {limit_s:.0f} s in {data_dir}; choose another source"
        ) from error
    if done.returncode == NOT_PREPARED:
        return False
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [
            f"exit status {done.returncode}"
        ]  # the worker's comes last
        raise JaxperfError(
            f"TensorFlow Datasets failed: {lines[-1].strip()}; {_MEND}, or choose another source"
        )
    return True


def _load(path: Path) -> tuple[Splits, str]:
    with np.load(path, allow_pickle=False) as stored:
        train_labels, test_labels = (stored[f"{part}_labels"].astype(np.int32) for part in ("train", "test"))
        splits = Splits(stored["train_images"], train_labels, stored["test_images"], test_labels)
        version = str(stored["version"])
    for images, labels in (splits[:2], splits[2:]):
        if images.dtype != np.uint8 or images.shape != (len(labels), SIDE, SIDE, 1):
            raise JaxperfError(
                f"tfds {version}: images are {images.dtype} {images.shape}, not uint8 "
                f"({len(labels)}, {SIDE}, {SIDE}, 1); prepare fashion_mnist again"
            )
        check_labels(labels, f"tfds {version}")
    return splits, version
