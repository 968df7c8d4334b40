"""Read, or prepare and read, `fashion_mnist` with TensorFlow Datasets, in a separate process.

The process is separate because TensorFlow's threads, memory and GPU use would disturb one that measures JAX,
and because a process can be ended when it takes too long. `jaxperf.data.tfds` runs it as a plain file, and it
imports nothing from jaxperf. It never uses the network: what is not prepared is prepared from
`--manual-dir`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

NOT_PREPARED = 3  # exit status: there is nothing to read, and no files to prepare it from


def main() -> int:
    """Run `prepare_and_read` with the flags; a failure is one line, the last on standard error."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--manual-dir")
    parser.add_argument("--out", type=Path, required=True)
    flags = parser.parse_args()
    try:
        done = prepare_and_read(flags.data_dir, flags.manual_dir, flags.out)
    except Exception as error:  # whatever TensorFlow Datasets raises: the parent shows this line
        print(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}", file=sys.stderr)
        return 1
    return 0 if done else NOT_PREPARED


def prepare_and_read(data_dir: str, manual_dir: str | None, out: Path) -> bool:
    """Write the four arrays and the data set's version to `out`, an uncompressed .npz file.

    Args:
      data_dir: TFDS's data folder.
      manual_dir: folder of the origin's four files, to prepare from; None to read only.
      out: the file to write.

    Returns:
      False if the data set is not prepared and `manual_dir` is None.
    """
    import tensorflow_datasets as tfds

    tfds.disable_progress_bar()
    builder = tfds.builder("fashion_mnist", data_dir=data_dir)
    if not builder.is_prepared():
        if manual_dir is None:
            return False
        with tempfile.TemporaryDirectory() as unpacked:  # TFDS would keep 55 MB of unpacked files
            config = tfds.download.DownloadConfig(
                manual_dir=manual_dir, extract_dir=unpacked, try_download_gcs=False
            )
            builder.download_and_prepare(download_dir=unpacked, download_config=config)
    train, test = (
        tfds.as_numpy(builder.as_dataset(split=split, batch_size=-1, shuffle_files=False))
        for split in ("train", "test")
    )
    np.savez(
        out,
        version=np.array(str(builder.version)),
        train_images=train["image"],
        train_labels=train["label"],
        test_images=test["image"],
        test_labels=test["label"],
    )
    return True


if __name__ == "__main__":
    sys.exit(main())
