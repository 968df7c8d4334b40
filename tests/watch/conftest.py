"""What the tests of `jaxperf watch` share: functions that are watched, and programs in a file."""

import sys

import pytest

import jaxperf
from jaxperf import libraries
from jaxperf.watch.observe import source_location
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.report.analysis import Analysis


@pytest.fixture
def watched():
    """Call a function under a watch without the profiler, and return what its record shows."""

    def watch(function):
        with jaxperf.watch(show=False, profile=False) as outcome:
            function()
        analysis = Analysis(outcome.log)
        analysis.alone = 1.0  # however busy the machine is
        return analysis

    return watch


@pytest.fixture
def site_packages(tmp_path, monkeypatch):
    """A folder of installed libraries on the import path, whose modules are gone after the test."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    for cache in (source_location.library_of, libraries._installed_roots):
        cache.cache_clear()
    yield folder
    files = {name: str(getattr(module, "__file__", "")) for name, module in [*sys.modules.items()]}
    for name in (name for name, file in files.items() if file.startswith(str(folder))):
        del sys.modules[name]


@pytest.fixture
def program_file(tmp_path):
    def write(text):
        path = tmp_path / "program.py"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def places(program_file):
    """Write a program's text, and return a function: the place of a line, by its number or a part of it."""

    def write(text):
        path, rows = program_file(text), [*enumerate(map(str.strip, text.splitlines()), start=1)]

        def at(line, function="main"):
            if isinstance(line, str):
                begin = [number for number, row in rows if row.startswith(line.strip())]
                line = (begin or [number for number, row in rows if line in row])[0]
            return Place(path, line, function)

        return at

    return write
