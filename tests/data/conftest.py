import pytest
from idx_files import isolate


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """The cache folder of a machine that has no source but the network and the package."""
    return isolate(monkeypatch, tmp_path)
