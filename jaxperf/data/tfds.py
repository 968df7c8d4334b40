"""Fashion-MNIST through the `fashion_mnist` builder of TensorFlow Datasets (extra `tfds`).

Data that is already prepared is read. Otherwise the builder prepares it from the origin's four files, which
this module puts into the cache first: copied from a folder if there is one, else downloaded with our own
limits. The builder's own download would try a missing network eleven times, with growing pauses.

TFDS stores the examples in its own order, so batches differ from those of the other sources.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from jaxperf.data import idx_folder as folders
from jaxperf.data.download import fetch
from jaxperf.data.idx import SIDE, Splits, check_labels
from jaxperf.data.tfds_worker import NOT_PREPARED
from jaxperf.errors import JaxperfError

TFDS_VARIABLE = "TFDS_DATA_DIR"  # TensorFlow Datasets' own
WORKER = Path(__file__).with_name("tfds_worker.py")
READ_LIMIT_S = 300.0  # takes about 10 s, most of it importing TensorFlow
PREPARE_LIMIT_S = 900.0  # takes about 20 s
_TENSORFLOW = "tensorflow-cpu" if platform.machine() in ("x86_64", "AMD64") else "tensorflow"
_INSTALL = f"python -m pip install tensorflow-datasets {_TENSORFLOW} importlib_resources pillow"


def missing_package() -> str:
    """Return the first package that this source lacks, "" if all are installed."""
    wanted = ("tensorflow_datasets", "tensorflow")
    return next((name for name in wanted if find_spec(name) is None), "")


def data_folder() -> Path:
    """Return the folder of TensorFlow Datasets' data: TFDS_DATA_DIR, else below the user's home."""
    return folders.expanded(os.environ.get(TFDS_VARIABLE) or "~/tensorflow_datasets")


def is_prepared() -> bool:
    """Return whether some version of the data set has been prepared, judging by its files."""
    return any(data_folder().joinpath("fashion_mnist").glob("*/dataset_info.json"))


def read_tfds(*, folder: str | os.PathLike[str] | None = None, url: str | None = None) -> tuple[Splits, str]:
    """Read the data set, after preparing it if that was never done.

    Args:
      folder: may hold the origin's files, if it has to be prepared; default JAXPERF_DATA, else Debian's.
      url: base URL to download them from if they are not there.

    Returns:
      The arrays, and the data set's version such as "3.0.1".

    Raises:
      DownloadError: not prepared, and neither the folder nor the network has the files.
      JaxperfError: the extra is not installed, or TensorFlow Datasets failed; its own line is given.
    """
    if missing := missing_package():
        raise JaxperfError(f"package {missing} is not installed; {_INSTALL}")
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "fashion_mnist.npz")
        # Asking TensorFlow costs seconds; a data set that has no folder at all is not prepared.
        if not (is_prepared() and _run(out)):
            manual_dir = fetch(url=url, folder=folders.named_folder(folder) or folders.DEBIAN_FOLDER)
            print(f"preparing fashion_mnist in {data_folder()} (once, under a minute)", file=sys.stderr)
            _run(out, manual_dir=manual_dir)
        return load_arrays(out)


def _run(out: Path, *, manual_dir: Path | None = None) -> bool:
    """Run the worker; False if the data is not prepared and no `manual_dir` is given."""
    limit_s = READ_LIMIT_S if manual_dir is None else PREPARE_LIMIT_S
    # -P keeps this folder off the worker's import path, where `tfds` and `download` could shadow others.
    command = [sys.executable, "-P", str(WORKER), "--data-dir", str(data_folder()), "--out", str(out)]
    if manual_dir is not None:
        command += ["--manual-dir", str(manual_dir)]
    quiet = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}  # and off the GPU
    try:
        done = subprocess.run(
            command, env=os.environ | quiet, capture_output=True, text=True, errors="replace", timeout=limit_s
        )
    except subprocess.TimeoutExpired as error:
        raise JaxperfError(
            f"TensorFlow Datasets took more than {limit_s:.0f} s in {data_folder()}; choose another source"
        ) from error
    if done.returncode not in (0, NOT_PREPARED):
        error_lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        # The worker's own message is the last line.
        raise JaxperfError(
            f"TensorFlow Datasets failed: {error_lines[-1].strip()}; {_INSTALL}, or choose another source"
        )
    return done.returncode == 0


def load_arrays(path: Path) -> tuple[Splits, str]:
    """Return the arrays that the worker wrote to `path`, and the data set's version.

    Raises:
      JaxperfError: they are not images of 28 x 28 with labels in 0..9.
    """
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
