"""A pytest fixture that fails a test whose function became slower on this machine.

    def test_step(jaxperf):
        jaxperf.measure(step, state, batch)

The first run on a machine keeps its values as the baseline, and passes. A later run compares with it by the
rule of `jaxperf compare`. "Slower" fails the test. A difference that cannot be decided does not; the end of
pytest's output says so. `--jaxperf-update` keeps this run's values as the new baseline.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from jaxperf.compare.results import Compared
    from jaxperf.result import Measurement, Result

LINES = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flags of the fixture."""
    group = parser.getgroup("jaxperf")
    group.addoption(
        "--jaxperf-baselines", metavar="DIR", default=".jaxperf",
        help="folder of the baselines, one per machine; .jaxperf in pytest's root folder by default",
    )  # fmt: skip
    group.addoption("--jaxperf-update", action="store_true", help="keep this run's values as the baseline")


def pytest_configure(config: pytest.Config) -> None:
    """Begin the list of what is said at the end."""
    config.stash[LINES] = []


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say what was stored, what is as fast as before, and what could not be decided."""
    if lines := config.stash[LINES]:
        terminalreporter.section("jaxperf")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture
def jaxperf(request: pytest.FixtureRequest) -> Baselines:
    """Measure functions, and fail if one became slower than this machine's baseline."""
    return Baselines(request.node.nodeid, request.config)


class Baselines:
    """The measurements of one test, and their baselines."""

    def __init__(self, test: str, config: pytest.Config) -> None:
        self._test, self._lines = test, config.stash[LINES]
        self._folder = config.rootpath / config.getoption("--jaxperf-baselines")
        self._update = config.getoption("--jaxperf-update")

    def measure(
        self, fn: Callable[..., Any], *args: Any, name: str | None = None, **options: Any
    ) -> Measurement:
        """Measure `fn(*args)` as `jaxperf.measure.measure` does, and compare with the baseline.

        Args:
          fn: what to time; all its outputs are waited for.
          *args: its arguments.
          name: of the measurement, if a test has several; the function's name by default.
          **options: as of `jaxperf.measure.measure`.

        Returns:
          The measurement, in seconds per call.

        Raises:
          Failed: it is slower than the baseline.
        """
        from jaxperf.compare.results import compare
        from jaxperf.errors import JaxperfError
        from jaxperf.measure import current_environment, measure
        from jaxperf.result import Result, Table, load_result, save_result

        measurement = measure(fn, *args, name=name, **options)
        label = f"{self._test}: {measurement.name}"
        result = Result("pytest", "", label, "", {}, current_environment(), (Table(label, (measurement,)),))
        path = self._path(result, measurement.name)
        try:
            if self._update or not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                save_result(result, path)
                self._lines.append(f"baseline stored: {label}, {path}")
                return measurement
            row = compare([load_result(path)], [result]).rows[0]
        except (OSError, JaxperfError) as e:
            pytest.fail(f"error: {e}", pytrace=False)
        if row.verdict == "slower":
            pytest.fail(f"{label} became slower: {describe(row)}", pytrace=False)
        self._lines.append(f"{row.verdict}: {label}, {describe(row)}")
        return measurement

    def _path(self, result: Result, name: str) -> Path:
        stem = re.sub(r"[^\w.-]+", "-", f"{self._test}-{name}").strip("-")
        return self._folder / result.environment.fingerprint / f"{stem}.json"


def describe(row: Compared) -> str:
    """Return a comparison in words: both medians, the ratio and its interval, and a remark."""
    from jaxperf.report.formatting import format_on_page

    now, before = format_on_page(row.b, row.unit), format_on_page(row.a, row.unit)
    text = f"{now} a call, {before} before, {row.ratio:.2f} times ({row.low:.2f} to {row.high:.2f})"
    return f"{text}; {row.remark}" if row.remark else text
