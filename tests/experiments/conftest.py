import jax
import pytest

from jaxperf.chapter import catalogue, cells


@pytest.fixture(scope="session", autouse=True)
def all_devices():
    """Start JAX with the devices of tests/conftest.py: a section would start it with its own number."""
    jax.devices()


@pytest.fixture(scope="module")
def script(request):
    """The script of the section that a module `test_section_NAME` tests."""
    return catalogue.folder() / f"{request.module.__name__.rpartition('test_section_')[2]}.py"


@pytest.fixture(scope="module")
def section(script):
    """The names of the section at toy size, without answers and what takes long."""
    return cells.load(script, "--smoke")


@pytest.fixture(scope="module")
def page(script):
    """The same with the answers."""
    return cells.load(script, "--smoke", without=("slow",))
