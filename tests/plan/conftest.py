"""What tests of plans share: the CPU's devices in place of GPUs, and skips where no compiler is here."""

from pathlib import Path

import jax
import pytest

from jaxperf import hlo
from jaxperf.errors import JaxperfError
from jaxperf.plan import deviceless
from jaxperf.plan.cards import find_card


@pytest.fixture
def recorded():
    """Return a program of the folder by its name."""
    return lambda name: hlo.parse((Path(__file__).parent / "programs" / f"{name}.hlo").read_text())


@pytest.fixture
def cpus_as_gpus(monkeypatch):
    """Compile for the CPU's devices, whose programs have the same form."""
    monkeypatch.setattr(deviceless, "check_plugin", lambda card: None)
    monkeypatch.setattr(deviceless, "devices_of", lambda card, count: jax.devices("cpu")[:count])
    monkeypatch.setattr(deviceless, "compile_for", lambda card, lowered, *_, **__: lowered.compile())


def _needs(card):
    try:
        deviceless.check_plugin(find_card(card))
    except JaxperfError as e:
        pytest.skip(str(e))


@pytest.fixture
def cuda_plugin():
    _needs("h100")


@pytest.fixture
def libtpu():
    _needs("v5e")
