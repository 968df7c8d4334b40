"""What the tests of `jaxperf watch` share: functions that are watched, and programs in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import jaxperf
from jaxperf.watch.report.analysis import Analysis


@pytest.fixture
def watched() -> Callable[[Callable[[], object]], Analysis]:
    """Call a function under a watch without the profiler, and return what its record shows."""

    def watch(function: Callable[[], object]) -> Analysis:
        with jaxperf.watch(show=False, profile=False) as outcome:
            function()
        assert outcome.log is not None
        return Analysis(outcome.log)

    return watch


@pytest.fixture
def program_file(tmp_path: Path) -> Callable[[str], str]:
    """Write a program's text, and return its path."""

    def write(text: str) -> str:
        path = tmp_path / "program.py"
        path.write_text(text)
        return str(path)

    return write
