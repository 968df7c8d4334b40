"""The instruments' names: each is had from `jaxperf.measure`, whatever was imported before it."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from jaxperf import measure


@pytest.mark.parametrize("name", measure.__all__)
def test_every_name_is_the_one_at_its_home(name: str) -> None:
    found = getattr(measure, name)
    assert getattr(importlib.import_module(found.__module__), name) is found
    assert found.__module__.startswith("jaxperf.measure.")


def test_names_are_sorted_and_each_has_one_home() -> None:
    homes = [name for names in measure._HOMES.values() for name in names]
    assert len(homes) == len(set(homes))
    assert sorted(homes) == measure.__all__


def test_no_name_is_that_of_a_file_which_would_take_its_place_once_imported() -> None:
    files = {file.name for file in pkgutil.iter_modules(measure.__path__)}
    assert "run_ahead" in files
    assert not files & set(measure.__all__)


def test_a_name_that_is_not_there_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'waitall'"):
        _ = measure.waitall
