"""TensorFlow Datasets: the real builder prepares and reads, and whatever it does is bounded."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from idx_files import (
    Loopback,
    closed_port,
    generated,
    isolate,
    loopback,
    packed,
    pins,
    require_real,
    same,
    write_folder,
)

from jaxperf.data import fashion_mnist, tfds
from jaxperf.data.download import ORIGIN_FILES, DownloadError
from jaxperf.data.idx import Splits
from jaxperf.data.idx_folder import DEBIAN_FOLDER, read_folder
from jaxperf.errors import JaxperfError

REAL_WORKER = tfds.WORKER

# Runs the real worker with the real builder class, on other files than the origin's and without any network.
ON_GENERATED_FILES = """
import json, runpy, socket, sys
from tensorflow_datasets.core.download import checksums
from tensorflow_datasets.image_classification import mnist

def no_network(*_, **__):
    raise AssertionError("the worker asked the network")

socket.socket.connect = socket.getaddrinfo = no_network
changes = json.loads({changes!r})
if changes:
    mnist._TRAIN_EXAMPLES, mnist._TEST_EXAMPLES = changes["counts"]
    mnist.FashionMNIST.url_infos = {{
        mnist.FashionMNIST.URL + name: checksums.UrlInfo(size=size, checksum=sha256, filename=name)
        for name, size, sha256 in changes["files"]
    }}
runpy.run_path({worker!r}, run_name="__main__")
"""

STAND_IN = """
import argparse, numpy as np, sys, time
parser = argparse.ArgumentParser()
for flag in ("--data-dir", "--manual-dir", "--out"):
    parser.add_argument(flag)
flags = parser.parse_args()
"""


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The cache folder of a machine without folder, prepared data or downloads."""
    return isolate(monkeypatch, tmp_path)


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A folder that looks as if the data set were prepared."""
    info = tmp_path / "tensorflow_datasets" / "fashion_mnist" / "3.0.1" / "dataset_info.json"
    info.parent.mkdir(parents=True)
    info.write_text("{}")
    return info


def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> None:
    """Puts a worker of a few lines in the real one's place, and lets the extra pass for installed."""
    path = tmp_path / "stand_in.py"
    path.write_text(STAND_IN + code)
    monkeypatch.setattr(tfds, "WORKER", path)
    monkeypatch.setattr(tfds, "find_spec", lambda name: object())


def real_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: dict[str, object]) -> None:
    path = tmp_path / "offline_worker.py"
    path.write_text(ON_GENERATED_FILES.format(changes=json.dumps(changes), worker=str(REAL_WORKER)))
    monkeypatch.setattr(tfds, "WORKER", path)


def pairs(images: np.ndarray, labels: np.ndarray) -> list[tuple[bytes, int]]:
    """What TFDS keeps while it changes the order: the set of (image, label)."""
    return sorted((image.tobytes(), int(label)) for image, label in zip(images, labels, strict=True))


def same_up_to_order(a: Splits, b: Splits) -> bool:
    return pairs(*a[:2]) == pairs(*b[:2]) and pairs(*a[2:]) == pairs(*b[2:])


def read(server: Loopback) -> Splits:
    data = fashion_mnist(source="tfds", url=server.url)
    assert data.source == "tfds 3.0.1"
    assert data.train_images.dtype == np.uint8 and data.train_labels.dtype == np.int32
    return Splits(data.train_images, data.train_labels, data.test_images, data.test_labels)


def require_tfds() -> None:
    require_real(all(map(find_spec, ("tensorflow_datasets", "tensorflow"))), "extra tfds")


@pytest.mark.real
def test_the_real_builder_prepares_downloaded_files_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_tfds()
    files = packed(generated())
    origin = pins(files)
    monkeypatch.setattr("jaxperf.data.download.ORIGIN_FILES", origin)
    changes = {"counts": [40, 20], "files": [(f.name, f.size_bytes, f.sha256) for f in origin]}
    real_worker(monkeypatch, tmp_path, changes)
    with loopback(files) as server:
        first = read(server)
        assert same_up_to_order(first, generated())
        for path in cache.iterdir():
            path.unlink()
        assert same(read(server), first)  # prepared by now: neither files nor network needed
        assert server.gets == dict.fromkeys(files, 1)


@pytest.mark.real
def test_the_real_builder_refuses_files_with_other_checksums(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_tfds()
    files = packed(generated())
    monkeypatch.setattr("jaxperf.data.download.ORIGIN_FILES", pins(files))
    real_worker(monkeypatch, tmp_path, {})  # the builder's own checksums
    with loopback(files) as server, pytest.raises(JaxperfError, match="NonMatchingChecksumError") as caught:
        read(server)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "tensorflow_datasets").glob("fashion_mnist/3*"))


@pytest.mark.real
def test_the_real_builder_takes_the_full_data_from_debians_package_without_network(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_tfds()
    require_real(DEBIAN_FOLDER.is_dir(), f"Debian's {DEBIAN_FOLDER}")
    real_worker(monkeypatch, tmp_path, {})
    monkeypatch.setenv("JAXPERF_DATA", str(DEBIAN_FOLDER))
    with loopback({}) as server:
        got = read(server)
        assert not server.gets
    assert same_up_to_order(got, read_folder(DEBIAN_FOLDER))
    assert sorted(path.name for path in cache.iterdir()) == sorted(file.name for file in ORIGIN_FILES)


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for missing in ("tensorflow_datasets", "tensorflow"):
        monkeypatch.setattr(tfds, "find_spec", lambda name, missing=missing: name != missing or None)
        line = rf"package {missing} is not installed; python -m pip install tensorflow-datasets"
        with pytest.raises(JaxperfError, match=line):
            fashion_mnist(source="tfds")


def test_without_network_and_folder_nothing_is_started(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, tmp_path, "sys.exit('started')")
    with pytest.raises(DownloadError, match="cannot be reached"):
        fashion_mnist(source="tfds", url=closed_port())


def test_a_worker_that_fails_is_quoted_in_one_line(
    cache: Path, tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, tmp_path, "print('noise', file=sys.stderr); sys.exit('ValueError: torn record')")
    with pytest.raises(JaxperfError, match="failed: ValueError: torn record; ") as caught:
        fashion_mnist(source="tfds")
    assert "\n" not in str(caught.value) and "noise" not in str(caught.value)


def test_a_worker_that_hangs_is_ended(
    cache: Path, tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, tmp_path, "time.sleep(60)")
    monkeypatch.setattr(tfds, "READ_LIMIT_S", 0.5)
    with pytest.raises(JaxperfError, match="took more than"):
        fashion_mnist(source="tfds")


def test_data_prepared_by_another_version_is_prepared_again(
    cache: Path, tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = packed(generated())
    monkeypatch.setattr("jaxperf.data.download.ORIGIN_FILES", pins(files))
    answer = """
if not flags.manual_dir:
    sys.exit(3)
x, y = np.zeros((1, 28, 28, 1), np.uint8), np.array([9])
np.savez(flags.out, version="9.9", train_images=x, train_labels=y, test_images=x, test_labels=y)
"""
    stand_in(monkeypatch, tmp_path, answer)
    with loopback(files) as server:
        data = fashion_mnist(source="tfds", url=server.url)
    assert data.source == "tfds 9.9" and data.train_labels.tolist() == [9]
    assert sorted(path.name for path in cache.iterdir()) == sorted(files)


def test_arrays_that_are_not_fashion_mnist_are_refused(tmp_path: Path) -> None:
    stored = tmp_path / "fashion_mnist.npz"
    for shape, label, says in (
        ((1, 28, 28), 9, "images are uint8"),
        ((2, 28, 28, 1), 9, "images are"),
        ((1, 28, 28, 1), -1, "label -1"),
    ):
        x, y = np.zeros(shape, np.uint8), np.array([label])
        parts = {"train_images": x, "train_labels": y, "test_images": x, "test_labels": y}
        np.savez(stored, version="3.0.1", **parts)
        with pytest.raises(JaxperfError, match=f"tfds 3.0.1: {says}"):
            tfds.load_arrays(stored)


def test_a_home_that_nobody_has_is_a_folder_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFDS_DATA_DIR", "~nosuch/x")
    assert tfds.data_folder() == Path("~nosuch/x") and not tfds.is_prepared()


def test_a_folder_of_other_files_is_not_taken_for_the_origins(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path / "mine", packed(generated()))
    stand_in(monkeypatch, tmp_path, "sys.exit('started')")
    with pytest.raises(DownloadError):
        fashion_mnist(source="tfds", folder=folder, url=closed_port())
