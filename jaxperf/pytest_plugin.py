"""A pytest fixture that fails a test whose function became slower on this machine.

    def test_step(jaxperf):
        jaxperf.measure(step, state, batch)

The first run on a machine keeps its values as the baseline, and passes. A later run fails the test if a call
takes more than 1.5 times as long: if three quarters of its values lie above three quarters of the baseline's
by that factor (`--jaxperf-slower`). Where another program had the core meanwhile, the factor is 4. Two
processes of one program differ, so a single one cannot find less; `jaxperf gate` starts several, and can.
`--jaxperf-update` keeps this run's values as the new baseline.

`--jaxperf-compiles` says how long JAX traces and compiles in each test, whether the test uses the fixture or
not, and which programs it compiles most often.
"""

import itertools
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from jaxperf.result import Measurement

SLOWER = 1.5
DISTURBED = 4.0  # where other programs had the core in many values
PROPERTY = "jaxperf"  # of a test's report, which pytest-xdist's workers send
COMPILES = "jaxperf_compiles"  # another one: [seconds of the test, {program: [times, seconds]}]
SLOWEST = 12  # tests, and programs, that are listed


def pytest_addoption(parser: pytest.Parser) -> None:
    add = parser.getgroup("jaxperf").addoption
    # A flag stands on two lines: what it takes, and what it means.
    # fmt: off
    add("--jaxperf-baselines", metavar="DIR", default=".jaxperf/tests",
        help="folder of the baselines, one per machine; .jaxperf/tests in pytest's root folder by default")
    add("--jaxperf-update", action="store_true", help="keep this run's values as the baseline")
    add("--jaxperf-slower", metavar="X", type=float, default=SLOWER,
        help=f"fail where a call takes more than X times as long as in the baseline; {SLOWER} by default")
    add("--jaxperf-compiles", action="store_true",
        help="say how long JAX traces and compiles in each test, and which programs it compiles most often")
    # fmt: on


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--jaxperf-compiles"):
        config.pluginmanager.register(Compiles())


class Compiles:
    """The programs that each test compiles, with its fixtures: for each, how many times, and the seconds."""

    def __init__(self) -> None:
        self._programs: dict[str, list[float]] = {}
        self._listens, self._began = False, 0.0

    def pytest_runtest_logstart(self) -> None:
        self._listen()
        self._programs, self._began = {}, time.perf_counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
        """Add to the last report of a test its seconds, and times and seconds of each program."""
        self._listen()  # the test, or its fixture, may have imported JAX
        if call.when == "teardown":
            item.user_properties.append((COMPILES, [time.perf_counter() - self._began, self._programs]))
        return (yield)

    def _listen(self) -> None:
        """Have JAX tell what it compiles, once the tests have imported it; they may set its flags first."""
        if not self._listens and "jax.monitoring" in sys.modules:
            self._listens = True
            sys.modules["jax.monitoring"].register_event_duration_secs_listener(self._note)

    def _note(self, event: str, duration_secs: float, **about: str | int) -> None:
        if event.startswith("/jax/core/compile/"):
            name = str(about.get("fun_name", "a program")).removeprefix("jit(").removesuffix(")")
            program = self._programs.setdefault(name, [0, 0.0])
            program[0] += event.endswith("backend_compile_duration")
            program[1] += duration_secs


def compile_lines(tests: list[tuple[str, list[Any]]]) -> Iterator[str]:
    rows: list[tuple[float, float, int, str]] = []  # of each test: seconds compiling, all seconds, programs
    times, seconds = Counter[str](), Counter[str]()
    for test, (test_s, programs) in tests:
        times.update({name: number for name, (number, _) in programs.items()})
        seconds.update({name: s for name, (_, s) in programs.items()})
        number, compile_s = (sum(program[i] for program in programs.values()) for i in (0, 1))
        rows.append((compile_s, test_s, number, test))
    total_s, whole_s = sum(row[0] for row in rows), sum(row[1] for row in rows)
    yield f"compiling: {total_s:.2f} s of {whole_s:.2f} s in {len(rows):,} tests, {times.total():,} programs"
    for compile_s, test_s, number, test in sorted(rows, reverse=True)[:SLOWEST]:
        if compile_s > 0:
            yield f"  {compile_s:8.2f} s of {test_s:.2f} s, {number:,} programs: {test}"
    if times:
        yield "compiled most often:"
    for name, number in times.most_common(SLOWEST):
        yield f"  {number:5,} times, {seconds[name]:.2f} s: {name}"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what was stored, how long each call takes, and how long it took in the baseline."""
    reports = itertools.chain.from_iterable(terminalreporter.stats.values())
    ended = [report for report in reports if getattr(report, "when", "") == "teardown"]
    properties = [(report.nodeid, *named) for report in ended for named in report.user_properties]
    lines = [line for _, name, line in properties if name == PROPERTY]
    compiles = [(test, values) for test, name, values in properties if name == COMPILES]
    if compiles:
        lines += compile_lines(compiles)
    if lines:
        terminalreporter.section("jaxperf")
        terminalreporter.write_line("\n".join(lines))


class Baselines:
    def __init__(self, test: pytest.Item) -> None:
        self._test, self._config, self._properties = test.nodeid, test.config, test.user_properties
        self._names: set[str] = set()

    def measure(
        self, fn: Callable[..., Any], *args: Any, name: str | None = None, **options: Any
    ) -> "Measurement":
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
        from jaxperf.result.formatting import format_on_page

        try:
            measurement = measure(fn, *args, name=name, **options)
            if measurement.name in self._names:
                raise JaxperfError(f"{self._test} measures {measurement.name!r} twice; give each a name=")
            self._names.add(measurement.name)
            before = self._baseline(measurement)
        except JaxperfError as e:
            raise pytest.fail.Exception(f"error: {e}", pytrace=False) from None
        if before:
            now_s, before_s = (format_on_page(m.median, m.unit) for m in (measurement, before))
            line = f"{self._test}: {measurement.name}, {now_s} a call, {before_s} before"
            if before.median:
                line += f", {measurement.median / before.median:.2f} times"
            if disturbance := measurement.disturbance or before.disturbance:
                line += f"; {disturbance}"
            if became_slower(before, measurement, by=self._config.getoption("--jaxperf-slower")):
                pytest.fail(f"became slower: {line}", pytrace=False)
            self._properties.append((PROPERTY, line))
        return measurement

    def _baseline(self, measurement: "Measurement") -> "Measurement | None":
        """Return the baseline; if there is none yet, or an update was requested, store this measurement."""
        from jaxperf.measure import current_environment
        from jaxperf.result import Result, Table, load_result, save_result

        label = f"{self._test}: {measurement.name}"
        result = Result("pytest", "", label, "", {}, current_environment(), (Table(label, (measurement,)),))
        stem = re.sub(r"[^\w.-]+", "-", f"{self._test}-{measurement.name}").strip("-")
        folder = self._config.rootpath / self._config.getoption("--jaxperf-baselines")
        path = folder / result.environment.fingerprint / f"{stem}.json"
        is_update = self._config.getoption("--jaxperf-update")
        if not is_update and os.path.exists(path):  # noqa: PTH110  Path.exists raises if a name is too long
            return load_result(path).measurements[0]
        save_result(result, path)
        self._properties.append((PROPERTY, f"baseline stored: {label}, {path}"))
        return None


@pytest.fixture
def jaxperf(request: pytest.FixtureRequest) -> Baselines:
    """Measure functions, and fail if one became slower than this machine's baseline."""
    return Baselines(request.node)


def became_slower(before: "Measurement", now: "Measurement", *, by: float) -> bool:
    """Return whether three quarters of the values lie above three quarters of those before by a factor."""
    if before.disturbance or now.disturbance:
        by = max(by, DISTURBED)
    return now.quartiles[0] > by * before.quartiles[1]
