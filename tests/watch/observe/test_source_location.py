import sys
import weakref
from typing import Any

import jax
import pytest

from jaxperf import libraries
from jaxperf.watch.observe import source_location
from jaxperf.watch.run_script import _roots, run_module


class Telling:
    def __init__(self, callees):
        self.callees = callees

    def __call__(self):
        self.callees.append(source_location.callee(sys._getframe(1)))


class Slots:
    __slots__ = ("step", "unset")


class Trainer:
    shared: Any = None

    def __init__(self, step):
        self.step = step
        self.inner = Slots()
        self.inner.step = step

    def __getattr__(self, name):
        raise AssertionError(f"{name} was asked for")

    @property
    def made(self):
        self.__dict__["asked"] = self.__dict__.get("asked", 0) + 1
        return self.step

    def run(self):
        self.step()
        self.inner.step()
        self.shared()

    def run_made(self):
        self.made()


def test_attributes_are_followed_to_what_is_called_and_a_property_is_not_asked_for_its_value():
    callees = []
    trainer = Trainer(Telling(callees))
    Trainer.shared = trainer.step
    trainer.run()
    assert callees == [trainer.step] * 3
    trainer.run_made()
    assert callees[3:] == [trainer] and vars(trainer)["asked"] == 1


INSTALLED = """\
import jax
def main(w=1.0):
    for rate in range(12):
        w = jax.jit(lambda w: w - rate)(w)
    return w
print(main())
"""


@pytest.fixture
def installed(site_packages, monkeypatch):
    folder = site_packages / "installed_37"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "train.py").write_text(INSTALLED)
    monkeypatch.setattr(sys, "argv", sys.argv)
    return folder


def test_the_package_that_is_run_is_the_readers_code_where_it_is_installed(installed):
    file = str(installed / "train.py")
    assert source_location.library_of(file) == "installed_37"
    with libraries.user_code(_roots("installed_37.train")):
        assert source_location.library_of(file) == ""
        assert source_location.library_of(str(installed.parent / "installed_38.py")) == "installed_38"
    assert source_location.library_of(file) == "installed_37"


def test_a_module_that_is_installed_has_findings(installed, compiles_anew, capfd):
    jax.block_until_ready(jax.numpy.ones(3) + 1)  # else the start of JAX is most of the run
    assert run_module("installed_37.train", [], profile=False) == 0
    err = capfd.readouterr().err
    assert "a new function is jitted on each call" in err and "installed_37/train.py:4" in err


@pytest.mark.parametrize("name", ["jax.nothing", "json.tool", "no_such_package_37.train", ""])
def test_what_watching_needs_itself_stays_a_library(name):
    assert _roots(name) == []


class Held:
    pass


def test_what_a_program_drops_is_not_kept_by_a_look_at_its_variables():
    def run():
        large = Held()
        dropped = weakref.ref(large)
        value = source_location.variable_value(sys._getframe(), "large")
        assert value is large
        del large, value
        return dropped(), dropped

    alive, _ = run()
    assert alive is None


def test_variables_that_a_program_has_from_locals_stay():
    number, other = 3, Held()
    variables = locals()
    assert source_location.variable_value(sys._getframe(), "other") is other
    assert variables["number"] == number and variables["other"] is other
    exec("added = 5", globals(), variables)
    assert source_location.variable_value(sys._getframe(), "nothing") is None and variables["added"] == 5
