import json
import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from idx_files import arrays, closed_port, generated, packed, pins, write_folder

from jaxperf import data as module
from jaxperf.data import fashion_mnist
from jaxperf.errors import JaxperfError

# Prepares other files than the origin's, without any network.
PREPARE = """
import json, socket, sys
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import checksums
from tensorflow_datasets.image_classification import mnist

def no_network(*_, **__):
    raise AssertionError("the program asked the network")

socket.socket.connect = socket.getaddrinfo = no_network
mnist._TRAIN_EXAMPLES, mnist._TEST_EXAMPLES = 40, 20
mnist.FashionMNIST.url_infos = {
    mnist.FashionMNIST.URL + name: checksums.UrlInfo(size=size, checksum=sha256, filename=name)
    for name, size, sha256 in json.loads(sys.argv[3])
}
config = tfds.download.DownloadConfig(manual_dir=sys.argv[2], try_download_gcs=False)
tfds.builder("fashion_mnist", data_dir=sys.argv[1]).download_and_prepare(download_config=config)
"""


@pytest.fixture
def prepared(tmp_path):
    info = tmp_path / "tensorflow_datasets" / "fashion_mnist" / "3.0.1" / "dataset_info.json"
    info.parent.mkdir(parents=True)
    info.write_text("{}")
    return info


def stand_in(monkeypatch, code):
    """Puts a few lines in the real program's place, and lets the extra pass for installed."""
    monkeypatch.setattr(module, "_TFDS_PROGRAM", f"import sys, time\ndata_dir, out = sys.argv[1:]\n{code}")
    monkeypatch.setattr(module, "missing_from", lambda names: [])


def sorted_examples(data):
    X, y, test_X, test_y = arrays(data)
    parts = zip(X, y, strict=True), zip(test_X, test_y, strict=True)
    return [sorted((image.tobytes(), int(label)) for image, label in part) for part in parts]


has_tfds = all(map(find_spec, ("tensorflow_datasets", "tensorflow")))
needs_tfds = pytest.mark.skipif(not has_tfds, reason="needs the extra tfds")


@pytest.mark.real
@needs_tfds
def test_what_the_real_builder_has_prepared_is_read(cache, tmp_path):
    files = packed(generated())
    folder = write_folder(tmp_path / "files", files)
    origin = json.dumps([(name, *pin) for name, pin in pins(files).items()])
    command = [sys.executable, "-c", PREPARE, os.environ["TFDS_DATA_DIR"], str(folder), origin]
    subprocess.run(command, check=True, capture_output=True)
    data = fashion_mnist(source="tfds")
    assert data.source == "tfds 3.0.1"
    assert data.train_images.dtype == np.uint8 and data.train_labels.dtype == np.int32
    assert sorted_examples(data) == sorted_examples(generated())


def test_a_missing_package_is_named_with_the_command_that_installs_it(cache, monkeypatch):
    for missing in ("tensorflow_datasets", "tensorflow"):
        monkeypatch.setattr(module, "missing_from", lambda names, missing=missing: [missing])
        line = rf"package {missing} is not installed; pip install 'jaxperf\[tfds\]'"
        with pytest.raises(JaxperfError, match=line):
            fashion_mnist(source="tfds")


def test_what_is_not_prepared_is_prepared_only_if_tfds_is_named(cache, monkeypatch):
    stand_in(monkeypatch, "sys.exit('started')")
    monkeypatch.setenv("JAXPERF_FASHION_MNIST_URL", closed_port())
    assert fashion_mnist().source == "mini"
    with pytest.raises(JaxperfError, match="TensorFlow Datasets failed: started"):
        fashion_mnist(source="tfds")


def test_a_worker_that_fails_is_one_line_and_one_that_hangs_is_ended(cache, tmp_path, prepared, monkeypatch):
    stand_in(monkeypatch, "print('noise', file=sys.stderr); sys.exit('ValueError: torn record')")
    with pytest.raises(JaxperfError, match="failed: ValueError: torn record; ") as caught:
        fashion_mnist(source="tfds")
    assert "\n" not in str(caught.value) and "noise" not in str(caught.value)
    stand_in(monkeypatch, "time.sleep(60)")
    monkeypatch.setattr(module, "TFDS_S", 0.5)
    with pytest.raises(JaxperfError, match="not done after 0 s"):
        fashion_mnist(source="tfds")


def test_what_it_writes_is_read_as_strictly_as_any_folder(cache, tmp_path, prepared, monkeypatch):
    files = write_folder(tmp_path / "files", packed(generated()))
    answer = f"import shutil; shutil.copytree({str(files)!r}, out, dirs_exist_ok=True); print('noise\\n9.9')"
    stand_in(monkeypatch, answer)
    assert fashion_mnist(source="tfds").source == "tfds 9.9"
    files.joinpath("t10k-labels-idx1-ubyte.gz").write_bytes(b"nonsense")
    with pytest.raises(JaxperfError, match=r"t10k-labels-idx1-ubyte\.gz: not such a file of Fashion-MNIST"):
        fashion_mnist(source="tfds")
