"""What the tests of `jaxperf watch` share: functions that are watched, and programs in a file."""

import pytest

import jaxperf
from jaxperf.watch.report.analysis import Analysis


@pytest.fixture
def watched():
    """Call a function under a watch without the profiler, and return what its record shows."""

    def watch(function):
        with jaxperf.watch(show=False, profile=False) as outcome:
            function()
        assert outcome.log is not None
        return Analysis(outcome.log)

    return watch


@pytest.fixture
def program_file(tmp_path):
    """Write a program's text, and return its path."""

    def write(text):
        path = tmp_path / "program.py"
        path.write_text(text)
        return str(path)

    return write
