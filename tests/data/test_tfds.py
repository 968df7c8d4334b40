"""TensorFlow Datasets: the real builder prepares and reads, and whatever it does is bounded."""

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
    needs_debian,
    packed,
    pins,
    same,
    write_folder,
)

from jaxperf import data as module
from jaxperf.data import DEBIAN_FOLDER, ORIGIN_FILES, Splits, fashion_mnist, read_folder
from jaxperf.errors import JaxperfError

# Before the real program, which then reads other files than the origin's, without any network.
ON_GENERATED_FILES = """
import json, socket
from tensorflow_datasets.core.download import checksums
from tensorflow_datasets.image_classification import mnist

def no_network(*_, **__):
    raise AssertionError("the program asked the network")

socket.socket.connect = socket.getaddrinfo = no_network
changes = json.loads({changes!r})
if changes:
    mnist._TRAIN_EXAMPLES, mnist._TEST_EXAMPLES = changes["counts"]
    mnist.FashionMNIST.url_infos = {{
        mnist.FashionMNIST.URL + name: checksums.UrlInfo(size=size, checksum=sha256, filename=name)
        for name, size, sha256 in changes["files"]
    }}
"""

STAND_IN = """
import numpy as np, sys, time
data_dir, out, manual_dir = sys.argv[1:]
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


def stand_in(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Puts a few lines in the real program's place, and lets the extra pass for installed."""
    monkeypatch.setattr(module, "_TFDS_PROGRAM", STAND_IN + code)
    monkeypatch.setattr(module, "missing_from", lambda names: [])


def real_program(monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]) -> None:
    before = ON_GENERATED_FILES.format(changes=json.dumps(changes))
    monkeypatch.setattr(module, "_TFDS_PROGRAM", before + module._TFDS_PROGRAM)


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


needs_tfds = pytest.mark.skipif(
    not all(map(find_spec, ("tensorflow_datasets", "tensorflow"))), reason="needs the extra tfds"
)


@pytest.mark.real
@needs_tfds
def test_the_real_builder_prepares_downloaded_files_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = packed(generated())
    origin = pins(files)
    monkeypatch.setattr("jaxperf.data.ORIGIN_FILES", origin)
    changes = {"counts": [40, 20], "files": [(f.name, f.size_bytes, f.sha256) for f in origin]}
    real_program(monkeypatch, changes)
    with loopback(files) as server:
        first = read(server)
        assert same_up_to_order(first, generated())
        for path in cache.iterdir():
            path.unlink()
        assert same(read(server), first)  # prepared by now: neither files nor network needed
        assert server.gets == dict.fromkeys(files, 1)


@pytest.mark.real
@needs_tfds
def test_the_real_builder_refuses_files_with_other_checksums(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = packed(generated())
    monkeypatch.setattr("jaxperf.data.ORIGIN_FILES", pins(files))
    real_program(monkeypatch, {})  # the builder's own checksums
    with loopback(files) as server, pytest.raises(JaxperfError, match="NonMatchingChecksumError") as caught:
        read(server)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "tensorflow_datasets").glob("fashion_mnist/3*"))


@pytest.mark.real
@needs_tfds
@needs_debian
def test_the_real_builder_takes_the_full_data_from_debians_package_without_network(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_program(monkeypatch, {})
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
        monkeypatch.setattr(module, "missing_from", lambda names, missing=missing: [missing])
        line = rf"package {missing} is not installed; pip install 'jaxperf\[tfds\]'"
        with pytest.raises(JaxperfError, match=line):
            fashion_mnist(source="tfds")


def test_without_network_and_folder_nothing_is_started(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, "sys.exit('started')")
    with pytest.raises(JaxperfError, match="Connection refused"):
        fashion_mnist(source="tfds", url=closed_port())


def test_a_worker_that_fails_is_quoted_in_one_line(
    cache: Path, tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, "print('noise', file=sys.stderr); sys.exit('ValueError: torn record')")
    with pytest.raises(JaxperfError, match="failed: ValueError: torn record; ") as caught:
        fashion_mnist(source="tfds")
    assert "\n" not in str(caught.value) and "noise" not in str(caught.value)


def test_a_worker_that_hangs_is_ended(
    cache: Path, tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, "time.sleep(60)")
    monkeypatch.setattr(module, "TFDS_S", 0.5)
    with pytest.raises(JaxperfError, match="took over"):
        fashion_mnist(source="tfds")


def test_data_prepared_by_another_version_is_prepared_again(
    cache: Path, tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = packed(generated())
    monkeypatch.setattr("jaxperf.data.ORIGIN_FILES", pins(files))
    answer = """
if not manual_dir:
    sys.exit(3)
x, y = np.zeros((1, 28, 28, 1), np.uint8), np.array([9])
np.savez(out, version="9.9", train_images=x, train_labels=y, test_images=x, test_labels=y)
"""
    stand_in(monkeypatch, answer)
    with loopback(files) as server:
        data = fashion_mnist(source="tfds", url=server.url)
    assert data.source == "tfds 9.9" and data.train_labels.tolist() == [9]
    assert sorted(path.name for path in cache.iterdir()) == sorted(files)


def test_arrays_that_are_not_fashion_mnist_are_refused(
    cache: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shape, label in (((1, 28, 28), 9), ((2, 28, 28, 1), 9), ((1, 28, 28, 1), -1)):
        answer = f"""
x, y = np.zeros({shape}, np.uint8), np.array([{label}])
np.savez(out, version="9.9", train_images=x, train_labels=y, test_images=x, test_labels=y)
"""
        stand_in(monkeypatch, answer)
        with pytest.raises(
            JaxperfError, match=r"^tfds 9\.9: not the arrays of Fashion-MNIST; prepare fashion_mnist again$"
        ):
            fashion_mnist(source="tfds")


def test_a_home_that_nobody_has_is_a_folder_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFDS_DATA_DIR", "~nosuch/x")
    assert module.tfds_folder() == Path("~nosuch/x") and not module.tfds_is_prepared()


def test_a_folder_of_other_files_is_not_taken_for_the_origins(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path / "mine", packed(generated()))
    stand_in(monkeypatch, "sys.exit('started')")
    with pytest.raises(JaxperfError, match="Connection refused"):
        fashion_mnist(source="tfds", folder=folder, url=closed_port())
