import pytest

from jaxperf.process import cache_folder


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """The cache folder of a machine that has no source but the network and the package."""
    for variable in ("JAXPERF_DATA", "JAXPERF_FASHION_MNIST_URL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tensorflow_datasets"))
    monkeypatch.setattr("jaxperf.data.DEBIAN_FOLDER", tmp_path / "no-such-folder")
    monkeypatch.setattr("jaxperf.data.SILENCE_S", 600.0)  # however slow this machine is
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_folder() / "fashion-mnist"
