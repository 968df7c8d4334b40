"""Fashion-MNIST's sources: which one is taken, that it is checked, that no network costs little."""

from __future__ import annotations

import gzip
import importlib
import os
import socket
import subprocess
import sys
import threading
import zipfile
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from idx_files import (
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

from jaxperf.data import FashionMNIST, download, fashion_mnist
from jaxperf.data.folder import DEBIAN_FOLDER, read_folder
from jaxperf.data.idx import Splits
from jaxperf.data.mini import mini_folder, read_mini
from jaxperf.data.origin import ORIGIN_FILES, adopt, published_bytes
from jaxperf.errors import JaxperfError

ROOT = Path(__file__).parents[1]


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The cache folder of a machine that has no source but the network and the package."""
    return isolate(monkeypatch, tmp_path)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Four generated files that pass for the published ones."""
    generated_files = packed(generated())
    monkeypatch.setattr("jaxperf.data.origin.ORIGIN_FILES", pins(generated_files))
    return generated_files


def arrays(data: FashionMNIST) -> Splits:
    return Splits(data.train_images, data.train_labels, data.test_images, data.test_labels)


def refusal(**options: object) -> str:
    with pytest.raises(JaxperfError) as caught:
        fashion_mnist(**options)
    text = str(caught.value)
    assert "\n" not in text and ";" in text  # one line: the fact, the way out
    return text


# --- the folder


@pytest.mark.parametrize("source", ["auto", "folder"])
@pytest.mark.parametrize("unpacked", [False, True])
def test_a_named_folder_is_read(cache: Path, tmp_path: Path, source: str, unpacked: bool) -> None:
    files = packed(generated())
    if unpacked:
        files = {name.removesuffix(".gz"): gzip.decompress(data) for name, data in files.items()}
    folder = write_folder(tmp_path / "mine", files)
    data = fashion_mnist(source=source, folder=folder)
    assert same(arrays(data), generated())
    assert data.source == f"folder {folder}" and data.skipped == () and not data.is_full


def test_the_environment_names_a_folder_and_the_argument_wins(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write_folder(tmp_path / "first", packed(generated(20, 10)))
    second = write_folder(tmp_path / "second", packed(generated(30, 10)))
    monkeypatch.setenv("JAXPERF_DATA", str(first))
    assert len(fashion_mnist().train_images) == 20
    assert len(fashion_mnist(folder=second).train_images) == 30


def test_debians_folder_is_found_without_being_named(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path / "debian", packed(generated()))
    monkeypatch.setattr("jaxperf.data.folder.DEBIAN_FOLDER", folder)
    assert fashion_mnist().source == f"folder {folder}"


@pytest.mark.parametrize("by", ["argument", "environment"])
@pytest.mark.parametrize("wrong", ["absent", "lacking", "damaged"])
def test_a_named_folder_that_is_wrong_is_never_passed_over(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, wrong: str
) -> None:
    folder = tmp_path / "mine"
    if wrong != "absent":
        write_folder(folder, packed(generated()))
    if wrong == "lacking":
        folder.joinpath("t10k-labels-idx1-ubyte.gz").unlink()
    if wrong == "damaged":
        folder.joinpath("t10k-labels-idx1-ubyte.gz").write_bytes(b"nonsense")
    if by == "environment":
        monkeypatch.setenv("JAXPERF_DATA", str(folder))
    assert str(folder) in refusal(folder=folder if by == "argument" else None)


def test_a_damaged_folder_that_nobody_named_is_passed_over_with_its_reason(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path / "debian", dict.fromkeys(packed(generated()), b"nonsense"))
    monkeypatch.setattr("jaxperf.data.folder.DEBIAN_FOLDER", folder)
    data = fashion_mnist(url=closed_port())
    assert data.source == "mini"
    assert "not gzip" in data.skipped[0]


def test_source_folder_without_any_folder_says_how_to_get_one(cache: Path) -> None:
    assert "apt install dataset-fashion-mnist" in refusal(source="folder")


def test_a_wrong_source_gets_the_nearest_right_one() -> None:
    assert "did you mean 'mini'?" in refusal(source="minni")
    assert "did you mean 'download'?" in refusal(source="Download")
    assert "did you mean" in refusal(source="")


@pytest.mark.parametrize("source", ["download", "mini"])
def test_a_folder_given_to_a_source_that_reads_none_is_refused(tmp_path: Path, source: str) -> None:
    assert "does not use the folder" in refusal(source=source, folder=tmp_path)


# --- the download


@pytest.mark.parametrize("by", ["argument", "environment"])
def test_a_download_is_checked_kept_and_not_repeated(
    cache: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    with loopback(files) as server:
        url = server.url if by == "argument" else None
        if by == "environment":
            monkeypatch.setenv("JAXPERF_FASHION_MNIST_URL", server.url)
        for _ in range(2):
            data = fashion_mnist(source="download", url=url)
            assert data.source == "download" and same(arrays(data), generated())
        assert server.gets == dict.fromkeys(files, 1)
    assert sorted(path.name for path in cache.iterdir()) == sorted(files)
    assert same(
        arrays(fashion_mnist(source="download", url=closed_port())), generated()
    )  # no network needed now


def test_auto_downloads_where_there_is_no_folder(
    cache: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxperf.data.tfds.find_spec", lambda name: None)
    with loopback(files) as server:
        data = fashion_mnist(url=server.url)
    assert data.source == "download"
    assert [reason.split(":")[0] for reason in data.skipped] == ["folder", "tfds"]


def test_a_wrong_checksum_is_refused_and_nothing_is_kept(cache: Path, files: dict[str, bytes]) -> None:
    name = "train-images-idx3-ubyte.gz"
    changed = files[name][:-1] + bytes([files[name][-1] ^ 1])
    with loopback({**files, name: changed}) as server:
        text = refusal(source="download", url=server.url)
    assert name in text and "SHA-256" in text
    assert list(cache.iterdir()) == []


def test_a_server_that_sends_too_much_is_cut_off_and_nothing_is_kept(
    cache: Path, files: dict[str, bytes]
) -> None:
    name = "train-images-idx3-ubyte.gz"
    with loopback({**files, name: files[name] + bytes(1 << 20)}) as server:
        assert f"more than the file's {len(files[name])} bytes" in refusal(source="download", url=server.url)
    assert list(cache.iterdir()) == []


def test_a_server_without_the_files_is_named_with_its_answer(cache: Path, files: dict[str, bytes]) -> None:
    with loopback({}) as server:
        assert "answers 404" in refusal(source="download", url=server.url)
    assert list(cache.iterdir()) == []


def test_a_damaged_cached_file_is_fetched_again(cache: Path, files: dict[str, bytes]) -> None:
    name = "t10k-labels-idx1-ubyte.gz"
    with loopback(files) as server:
        fashion_mnist(source="download", url=server.url)
        cache.joinpath(name).write_bytes(b"nonsense")
        assert same(arrays(fashion_mnist(source="download", url=server.url)), generated())
        assert server.gets[name] == 2 and sum(server.gets.values()) == 5


def test_a_closed_port_is_unreachable(cache: Path) -> None:
    assert "127.0.0.1 cannot be reached" in refusal(source="download", url=closed_port())


def test_a_server_that_never_answers_is_given_up(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PROBE_S", 0.2)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # takes connections, answers nothing
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        assert "no answer in" in refusal(source="download", url=url)


def test_a_name_look_up_that_hangs_is_given_up(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, release = threading.Event(), threading.Event()

    def hang(*_: object, **__: object) -> None:
        asked.set()
        release.wait(30)
        raise OSError("no such name")

    monkeypatch.setattr(download, "PROBE_S", 0.2)
    monkeypatch.setattr(socket, "getaddrinfo", hang)
    try:
        assert "no answer in" in refusal(source="download", url="http://fashion.invalid/")
        assert asked.is_set()
    finally:
        release.set()


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "file:///tmp", "127.0.0.1:80", "http:///x"])
@pytest.mark.parametrize("source", ["auto", "download"])
def test_what_is_no_web_address_is_refused(cache: Path, url: str, source: str) -> None:
    assert "is no http or https URL" in refusal(source=source, url=url)


def test_a_cache_that_cannot_be_written_is_named(cache: Path, files: dict[str, bytes]) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("in the way")
    with loopback(files) as server:
        assert str(cache) in refusal(source="download", url=server.url)


# --- auto without anything


def test_auto_without_folder_and_network_ends_in_the_subset_with_its_reasons(cache: Path) -> None:
    data = fashion_mnist(url=closed_port())
    assert data.source == "mini" and not data.is_full
    assert [reason.split(":")[0] for reason in data.skipped] == ["folder", "tfds", "download"]
    assert all("\n" not in reason for reason in data.skipped)
    assert "cannot be reached" in data.skipped[2]
    assert not cache.exists() or list(cache.iterdir()) == []


def test_auto_asks_a_missing_network_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def probe(base: str) -> None:
        asked.append(base)
        raise download.DownloadError(f"{base} cannot be reached; connect")

    def read_tfds(*, folder: object, url: str | None) -> None:
        download.fetch(url=url)

    monkeypatch.setattr(download, "_probe", probe)
    monkeypatch.setattr(importlib.import_module("jaxperf.data.fashion_mnist"), "read_tfds", read_tfds)
    data = fashion_mnist(url="http://fashion.invalid/")
    assert data.source == "mini" and len(asked) == 1
    assert "cannot be reached" in data.skipped[1] and "cannot be reached" in data.skipped[2]


# --- the subset


def test_the_subset_is_balanced_and_typed_as_promised() -> None:
    data = fashion_mnist(source="mini")
    assert data.source == "mini" and not data.is_full
    assert data.train_images.shape == (6_000, 28, 28, 1) and data.test_images.shape == (1_000, 28, 28, 1)
    assert data.train_images.dtype == data.test_images.dtype == np.uint8
    assert data.train_labels.dtype == data.test_labels.dtype == np.int32
    assert np.bincount(data.train_labels).tolist() == [600] * 10
    assert np.bincount(data.test_labels).tolist() == [100] * 10


def test_the_subset_is_chosen_whatever_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXPERF_DATA", "/no/such/folder")
    assert fashion_mnist(source="mini").source == "mini"


def shipped() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in mini_folder().iterdir() if path.is_file()}


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz", "SHA256SUMS"])
@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_a_damaged_subset_is_refused_in_one_line(tmp_path: Path, name: str, damage: str) -> None:
    folder = write_folder(tmp_path / "mini", shipped())
    data = bytearray(folder.joinpath(name).read_bytes())
    data[20] ^= 1
    folder.joinpath(name).unlink() if damage == "missing" else folder.joinpath(name).write_bytes(data)
    with pytest.raises(JaxperfError, match="reinstall jaxperf") as caught:
        read_mini(folder)
    assert "\n" not in str(caught.value)


def test_the_subset_is_readable_from_inside_an_archive(tmp_path: Path) -> None:
    archive = tmp_path / "jaxperf.zip"
    with zipfile.ZipFile(archive, "w") as packed_wheel:
        for name, data in shipped().items():
            packed_wheel.writestr(f"mini/{name}", data)
    assert same(read_mini(zipfile.Path(archive, "mini/")), read_mini())


def test_the_subset_ships_with_its_licence() -> None:
    notice = resources.files("jaxperf.data").joinpath("mini/NOTICE").read_text()
    assert "Zalando SE" in notice and "MIT" in notice and "without restriction" in notice


@pytest.mark.real
def test_the_script_makes_the_shipped_subset_from_the_full_data(tmp_path: Path) -> None:
    require_real(DEBIAN_FOLDER.is_dir(), f"Debian's {DEBIAN_FOLDER}")
    script = ROOT / "scripts" / "make_mini_fashion_mnist.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), "--folder", str(DEBIAN_FOLDER), "--out", str(tmp_path)]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert same(read_mini(tmp_path), read_mini())


# --- the real full data


@pytest.mark.real
def test_debians_package_is_the_full_data() -> None:
    require_real(DEBIAN_FOLDER.is_dir(), f"Debian's {DEBIAN_FOLDER}")
    data = fashion_mnist(source="folder", folder=DEBIAN_FOLDER)
    assert data.is_full
    assert data.train_images.shape == (60_000, 28, 28, 1) and data.test_images.shape == (10_000, 28, 28, 1)
    assert np.bincount(data.train_labels).tolist() == [6_000] * 10
    assert np.bincount(data.test_labels).tolist() == [1_000] * 10


@pytest.mark.real
def test_debians_files_become_the_published_ones_and_pass_the_pinned_checksums(
    cache: Path, tmp_path: Path
) -> None:
    require_real(DEBIAN_FOLDER.is_dir(), f"Debian's {DEBIAN_FOLDER}")
    names = [file.name for file in ORIGIN_FILES]
    assert adopt(DEBIAN_FOLDER, tmp_path / "published") == tuple(names)
    assert adopt(DEBIAN_FOLDER, tmp_path / "published") == ()  # all there, nothing left to copy
    with loopback({name: (tmp_path / "published" / name).read_bytes() for name in names}) as server:
        data = fashion_mnist(source="download", url=server.url)
    assert data.is_full and same(arrays(data), read_folder(DEBIAN_FOLDER))


def test_files_that_are_not_the_published_ones_are_not_adopted(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "mine", packed(generated()))
    assert adopt(folder, tmp_path / "cache") == ()
    assert published_bytes(folder / "absent.gz", ORIGIN_FILES[0]) is None
    assert not (tmp_path / "cache").exists()


def test_importing_the_data_part_starts_no_jax_and_no_network_library() -> None:
    code = (
        "import sys, jaxperf.data\n"
        "heavy = {'jax', 'pooch', 'requests', 'tensorflow', 'tensorflow_datasets'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
