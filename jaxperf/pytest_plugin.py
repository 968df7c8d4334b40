"""A pytest fixture that fails a test whose function became slower on this machine.

    def test_step(jaxperf):
        jaxperf.measure(step, state, batch)

The first run on a machine keeps its values as the baseline, and passes. A later run compares with it by the
rule of `jaxperf compare`. "Slower" fails the test. A difference that cannot be decided does not; the end of
pytest's output says so. `--jaxperf-update` keeps this run's values as the new baseline.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from jaxperf.compare.results import Compared
    from jaxperf.result import Measurement, Result

PROPERTY = "jaxperf"  # of a test's report, which pytest-xdist's workers send


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flags of the fixture."""
    group = parser.getgroup("jaxperf")
    group.addoption(
        "--jaxperf-baselines", metavar="DIR", default=".jaxperf/tests",
        help="folder of the baselines, one per machine; .jaxperf/tests in pytest's root folder by default",
    )  # fmt: skip
    group.addoption("--jaxperf-update", action="store_true", help="keep this run's values as the baseline")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what was stored, what is as fast as before, and what could not be decided."""
    reports = [report for some in terminalreporter.stats.values() for report in some]
    ends = [report for report in reports if getattr(report, "when", "") == "teardown"]
    lines = [value for report in ends for name, value in report.user_properties if name == PROPERTY]
    if lines:
        terminalreporter.section("jaxperf")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture
def jaxperf(request: pytest.FixtureRequest) -> Baselines:
    """Measure functions, and fail if one became slower than this machine's baseline."""
    return Baselines(request.node, request.config)


class Baselines:
    """The measurements of one test, and their baselines."""

    def __init__(self, test: pytest.Item, config: pytest.Config) -> None:
        self._test, self._properties = test.nodeid, test.user_properties
        self._names: set[str] = set()
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
          Failed: it is slower than the baseline, or cannot be measured, or its name is not its own.
        """
        from jaxperf.errors import JaxperfError
        from jaxperf.measure import measure

        try:
            measurement = measure(fn, *args, name=name, **options)
            if measurement.name in self._names:
                raise JaxperfError(f"{self._test} measures {measurement.name!r} twice; give each a name=")
            self._names.add(measurement.name)
            row = self._compared(measurement)
        except JaxperfError as e:
            raise pytest.fail.Exception(f"error: {e}", pytrace=False) from None
        if row and row.verdict == "slower":
            pytest.fail(f"{row.key.title} became slower: {describe(row)}", pytrace=False)
        if row:
            self._say(f"{row.verdict}: {row.key.title}, {describe(row)}")
        return measurement

    def _compared(self, measurement: Measurement) -> Compared | None:
        """Compare with the baseline; if there is none yet, or an update is asked for, store it."""
        from jaxperf.compare.results import compare
        from jaxperf.measure import current_environment
        from jaxperf.result import Result, Table, load_result, save_result

        label = f"{self._test}: {measurement.name}"
        result = Result("pytest", "", label, "", {}, current_environment(), (Table(label, (measurement,)),))
        path = self._path(result, measurement.name)
        if not self._update and os.path.exists(path):  # noqa: PTH110  Path.exists raises if a name is too long
            return compare([load_result(path)], [result]).rows[0]
        save_result(result, path)
        self._say(f"baseline stored: {label}, {path}")
        return None

    def _say(self, line: str) -> None:
        self._properties.append((PROPERTY, line))

    def _path(self, result: Result, name: str) -> Path:
        stem = re.sub(r"[^\w.-]+", "-", f"{self._test}-{name}").strip("-")
        return self._folder / result.environment.fingerprint / f"{stem}.json"


def describe(row: Compared) -> str:
    """Return a comparison in words: both medians, the ratio and its interval, and a remark."""
    from jaxperf.result.formatting import format_on_page

    now, before = format_on_page(row.b, row.unit), format_on_page(row.a, row.unit)
    times = f", {row.ratio:.2f} times ({row.low:.2f} to {row.high:.2f})" if math.isfinite(row.ratio) else ""
    return f"{now} a call, {before} before{times}" + (f"; {row.remark}" if row.remark else "")
