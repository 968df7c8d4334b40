import gzip
import hashlib
import socket
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from idx_files import closed_port, generated, loopback, needs_debian, packed, pins, same, write_folder

from jaxperf import data as module
from jaxperf.data import DEBIAN_FOLDER, SOURCES, check_source, mini_folder
from jaxperf.errors import JaxperfError


@pytest.fixture
def files(monkeypatch):
    generated_files = packed(generated())
    monkeypatch.setattr("jaxperf.data.ORIGIN_FILES", pins(generated_files))
    return generated_files


@contextmanager
def talking(start, drip, *, pause_s=0.0):
    """The URL of a server that takes a connection, sends `start`, and then `drip` again and again."""
    over = threading.Event()

    def serve():
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.sendall(start)
            while not over.is_set():
                connection.sendall(drip)
                time.sleep(pause_s)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            over.set()
            thread.join()


def fashion_mnist(*, url="", **options):
    with pytest.MonkeyPatch.context() as patch:
        if url:
            patch.setenv("JAXPERF_FASHION_MNIST_URL", url)
        return module.fashion_mnist(**options)


def refusal(**options):
    with pytest.raises(JaxperfError) as caught:
        fashion_mnist(**options)
    text = str(caught.value)
    assert "\n" not in text and ";" in text  # one line: the fact, the way out
    return text


# --- the folder


def test_a_named_folder_is_read_packed_or_not(cache, tmp_path):
    files = packed(generated())
    raw = {name.removesuffix(".gz"): gzip.decompress(content) for name, content in files.items()}
    for name, written in (("packed", files), ("raw", raw)):
        folder = write_folder(tmp_path / name, written)
        for source in ("auto", "folder"):
            data = fashion_mnist(source=source, folder=folder)
            assert same(data, generated())
            assert data.source == f"folder {folder}" and not data.is_full


def test_the_environment_names_a_folder_and_the_argument_wins(cache, tmp_path, monkeypatch):
    first = write_folder(tmp_path / "first", packed(generated(20, 10)))
    second = write_folder(tmp_path / "second", packed(generated(30, 10)))
    monkeypatch.setenv("JAXPERF_DATA", str(first))
    assert len(fashion_mnist().train_images) == 20
    assert len(fashion_mnist(folder=second).train_images) == 30


def test_a_named_folder_that_is_wrong_is_never_skipped(cache, tmp_path, monkeypatch):
    lacking, damaged = (write_folder(tmp_path / n, packed(generated())) for n in ("lacking", "damaged"))
    lacking.joinpath("t10k-labels-idx1-ubyte.gz").unlink()
    damaged.joinpath("t10k-labels-idx1-ubyte.gz").write_bytes(b"nonsense")
    for folder in (tmp_path / "absent", lacking, damaged, "~nosuch/x", ""):
        assert str(folder) in refusal(folder=folder)
        monkeypatch.setenv("JAXPERF_DATA", str(folder))
        if folder:  # an empty variable names nothing
            assert str(folder) in refusal()
        monkeypatch.delenv("JAXPERF_DATA")


def test_a_folder_that_may_not_be_looked_into_is_refused(cache, tmp_path, monkeypatch):
    def forbidden(self):  # root may look everywhere
        raise PermissionError(13, "Permission denied", str(self))

    folder = write_folder(tmp_path / "shut", packed(generated()))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_file", forbidden)
        assert "has no train-images-idx3-ubyte.gz that can be read" in refusal(folder=folder)


def test_a_damaged_folder_that_nobody_named_is_skipped(cache, tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "debian", dict.fromkeys(packed(generated()), b"nonsense"))
    monkeypatch.setattr("jaxperf.data.DEBIAN_FOLDER", folder)
    assert fashion_mnist(url=closed_port()).source == "mini"


def test_a_source_without_a_folder_says_how_to_get_one_and_a_wrong_source_gets_the_nearest(cache):
    assert "apt install dataset-fashion-mnist" in refusal(source="folder")
    assert "did you mean mini?" in refusal(source="minni")
    assert "did you mean download?" in refusal(source="Download")
    assert "there are auto, folder" in refusal(source="")


def test_a_folder_that_cannot_serve_is_refused_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_load", pytest.fail)
    for source in ("auto", "folder"):
        assert refusal(source=source, folder="/no/such").startswith("/no/such: no such folder; ")
        with pytest.raises(JaxperfError, match=r"^/no/such: no such folder"):
            check_source(source, "/no/such")
    for source in ("tfds", "download", "mini"):
        assert f"{source!r} reads no folder; leave {tmp_path} out" in refusal(source=source, folder=tmp_path)
    for source in SOURCES:
        check_source(source)


# --- the download


def test_a_download_is_checked_kept_and_not_repeated(cache, files, monkeypatch):
    with loopback(files) as server:
        monkeypatch.setenv("JAXPERF_FASHION_MNIST_URL", server.url)
        for url in (server.url, ""):
            data = fashion_mnist(source="download", url=url)
            assert data.source == "download" and same(data, generated())
        assert server.gets == dict.fromkeys(files, 1)
        for path in cache.iterdir():
            path.unlink()
        fashion_mnist(source="download")  # from the server that the environment names
        assert server.gets == dict.fromkeys(files, 2)
    assert sorted(path.name for path in cache.iterdir()) == sorted(files)
    without_network = fashion_mnist(source="download", url=closed_port())
    assert same(without_network, generated())
    cache.joinpath(next(iter(files))).unlink()
    assert "Connection refused; connect" in refusal(source="download", url=closed_port())


def test_auto_downloads_where_no_folder_is_and_without_a_network_it_is_the_subset(cache, files, monkeypatch):
    monkeypatch.setattr("jaxperf.data.missing_from", list)
    data = fashion_mnist(url=closed_port())
    assert data.source == "mini" and not data.is_full and not cache.exists()
    with loopback(files) as server:
        assert fashion_mnist(url=server.url).source == "download"


def test_what_is_not_the_published_file_is_refused_and_nothing_is_kept(cache, files):
    name = "train-images-idx3-ubyte.gz"
    whole = files[name]
    with loopback(files) as server:
        for sent in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:-1], b"", whole + bytes(1 << 20)):
            server.files = {**files, name: sent}
            text = refusal(source="download", url=server.url)
            assert name in text and "SHA-256" in text and f"{len(whole)} bytes" in text
        server.files = {}
        assert ": Not Found; connect" in refusal(source="download", url=server.url)
    assert not cache.exists()


OK = b"HTTP/1.0 200 OK\r\n"


@pytest.mark.parametrize(
    ("limits", "start", "drip", "says"),
    [
        ({}, OK + b"\r\n", b"x" * 1000, "not the published file"),  # without an end
        ({"SILENCE_S": 0.2}, b"", b"", "timed out"),
        # each byte is in time for a socket's own limit
        ({"TOTAL_S": 0.3}, OK + b"\r\n", b"x", "not done after"),
    ],
    ids=["endless", "silent", "dripping"],
)
def test_a_server_that_never_ends_is_given_up(limits, start, drip, says, cache, files, monkeypatch):
    for name, seconds in limits.items():
        monkeypatch.setattr(module, name, seconds)
    with talking(start, drip, pause_s=0.05 if limits else 0.0) as url:
        assert says in refusal(source="download", url=url)
    assert not cache.exists()


def test_a_damaged_cached_file_is_fetched_again(cache, files):
    name = "t10k-labels-idx1-ubyte.gz"
    with loopback(files) as server:
        fashion_mnist(source="download", url=server.url)
        cache.joinpath(name).write_bytes(b"nonsense")
        assert same(fashion_mnist(source="download", url=server.url), generated())
        assert server.gets[name] == 2 and sum(server.gets.values()) == 5


def test_what_is_not_a_web_address_is_refused(cache):
    for url in ("ftp://127.0.0.1/", "file:///tmp", "127.0.0.1:80"):
        for source in ("auto", "download"):
            assert "is not an http or https URL" in refusal(source=source, url=url)
    for url in ("http:///x", "http://[::1", "http://127.0.0.1:port/"):
        assert url in refusal(source="download", url=url)


# --- the subset


def test_the_subset_is_balanced_and_typed_as_promised_whatever_the_environment_names(monkeypatch):
    monkeypatch.setenv("JAXPERF_DATA", "/no/such/folder")
    data = fashion_mnist(source="mini")
    assert data.source == "mini" and not data.is_full
    assert data.train_images.shape == (6_000, 28, 28, 1) and data.test_images.shape == (1_000, 28, 28, 1)
    assert data.train_images.dtype == data.test_images.dtype == np.uint8
    assert data.train_labels.dtype == data.test_labels.dtype == np.int32
    assert np.bincount(data.train_labels).tolist() == [600] * 10
    assert np.bincount(data.test_labels).tolist() == [100] * 10


def test_the_subset_has_its_checksums_and_its_licence():
    shipped = {path.name: path.read_bytes() for path in mini_folder().iterdir() if path.is_file()}
    notice = mini_folder().joinpath("NOTICE").read_text()
    assert "Zalando SE" in notice and "MIT" in notice and "without restriction" in notice
    for line in shipped["SHA256SUMS"].decode().splitlines():
        sha256, name = line.split(maxsplit=1)
        assert hashlib.sha256(shipped[name]).hexdigest() == sha256


# --- the real full data


@pytest.mark.real
@needs_debian
def test_debians_package_is_the_full_data():
    data = fashion_mnist(source="folder", folder=DEBIAN_FOLDER)
    assert data.is_full
    assert data.train_images.shape == (60_000, 28, 28, 1) and data.test_images.shape == (10_000, 28, 28, 1)
    assert np.bincount(data.train_labels).tolist() == [6_000] * 10
    assert np.bincount(data.test_labels).tolist() == [1_000] * 10
