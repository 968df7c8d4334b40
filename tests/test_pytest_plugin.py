from pathlib import Path

import jax
import pytest
import scipy.stats  # noqa: F401  pytester forgets what a test imports; neither this nor JAX can be imported twice

import jaxperf.measure
from jaxperf.pytest_plugin import became_slower
from jaxperf.result import Measurement

pytest_plugins = ["pytester"]
TEST = """
def step(x):
    return x + 1
def test_step(jaxperf):
    measured = jaxperf.measure(step, 1.0)
    assert measured.name == "step" and measured.unit == "s"
"""


@pytest.fixture
def run(pytester, monkeypatch):
    """`run(seconds, *flags)` runs the test of a step that takes so long; returns status and output."""
    pytester.makepyfile(test_mine=TEST)
    pytester.makeini("[pytest]")
    jax.devices()

    def run_test(seconds, *flags):
        # Recorded values, since a busy machine leaves real ones undecided
        recorded = Measurement("step", "s", tuple(seconds * (1 + i / 1000) for i in range(20)))
        monkeypatch.setattr(jaxperf.measure, "measure", lambda fn, *args, **options: recorded)
        done = pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider", *flags)
        return int(done.ret), done.stdout.str() + done.stderr.str()

    return run_test


def test_a_step_that_became_slower_fails_its_test_and_an_update_passes(run):
    status, output = run(0.001)
    [baseline] = Path(".jaxperf").resolve().rglob("*.json")
    assert status == 0 and f"baseline stored: test_mine.py::test_step: step, {baseline}" in output
    stored = baseline.read_text()
    status, output = run(0.1)
    assert status == 1 and "became slower: test_mine.py::test_step: step, " in output
    assert " a call, " in output and " before, " in output and "Traceback" not in output
    assert baseline.read_text() == stored
    assert run(0.1, "--jaxperf-update")[0] == 0
    status, output = run(0.001)
    assert status == 0 and "test_mine.py::test_step: step, " in output and ", 0.01 times" in output


def test_workers_of_xdist_report_to_the_terminal(run, pytester):
    pytest.importorskip("xdist")
    done = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", "-n1")
    [baseline] = Path(".jaxperf").resolve().rglob("*.json")
    done.stdout.fnmatch_lines(f"baseline stored: test_mine.py::test_step: step, {baseline}")


def test_two_measurements_of_a_test_need_two_names(run):
    Path("test_mine.py").write_text(TEST + "    jaxperf.measure(step, 2.0)\n")
    status, output = run(0.001)
    assert status == 1 and "error: test_mine.py::test_step measures 'step' twice; give each a name=" in output


def test_what_cannot_be_measured_is_one_line(pytester):
    pytester.makeini("[pytest]")
    pytester.makepyfile(test_mine="def test_it(jaxperf): jaxperf.measure(len, [1], budget_s=-1.0)")
    output = pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider").stdout.str()
    assert "error: measure(len): items, seconds" in output
    assert "timing.py" not in output and "During handling" not in output


def test_baselines_may_be_elsewhere_and_a_damaged_one_is_one_line(run, tmp_path):
    flag = f"--jaxperf-baselines={tmp_path / 'baselines'}"
    assert run(0.001, flag)[0] == 0
    [baseline] = (tmp_path / "baselines").rglob("*.json")
    baseline.write_text("{")
    status, output = run(0.001, flag)
    assert status == 1 and "error: " in output and baseline.name in output and "Traceback" not in output
    assert baseline.read_text() == "{"


def test_without_the_fixture_nothing_is_printed_and_nothing_imported(pytester):
    pytester.makeini("[pytest]")
    pytester.makepyfile(test_mine="import sys\ndef test_it(): assert 'jax' not in sys.modules\n")
    done = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider")
    assert done.ret == 0 and "jaxperf" not in done.stdout.str()


@pytest.mark.parametrize(
    ("factor", "spread", "aside", "fails"),
    [
        (1.4, 0.01, 0, False),
        (1.6, 0.01, 0, True),
        (1.6, 0.5, 0, False),  # the values of both overlap
        (98.0, 0.65, 0, True),
        (3.0, 0.01, 50, False),  # another program had the core
        (98.0, 0.65, 50, True),
    ],
)
def test_only_a_difference_that_noise_cannot_make_fails(factor, spread, aside, fails):
    def measured(median):
        values = tuple(median * (1 + spread * (i - 10) / 10) for i in range(21))
        return Measurement("step", "s", values, set_aside=(5 * median,) * aside)

    assert became_slower(measured(1e-3), measured(factor * 1e-3), by=1.5) is fails
    assert not became_slower(measured(factor * 1e-3), measured(1e-3), by=1.5)


COMPILING = """
import pytest
@pytest.fixture
def values():
    import jax
    return jax.numpy.arange(7.0)
@pytest.mark.parametrize("n", [3, 4])
def test_sizes(n, values):
    import jax
    step = jax.jit(lambda x: x * 2)
    for size in range(1, n):
        step(values[:size])
def test_nothing():
    pass
"""


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_seconds_of_compiling_are_reported_for_each_test(pytester, workers):
    pytest.importorskip("xdist")
    pytester.makeini("[pytest]")
    pytester.makepyfile(test_mine=COMPILING)
    done = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", workers, "--jaxperf-compiles")
    assert done.ret == 0
    lines = done.stdout.str().splitlines()
    [head] = [line for line in lines if line.startswith("compiling: ")]
    assert " in 3 tests, " in head and head.endswith(" programs")
    # two and three programs of the function, and operations outside jit that the fixture and slices compile
    listed = {line.rpartition(" ")[2]: line for line in lines if " programs: test_mine.py" in line}
    assert {*listed} == {"test_mine.py::test_sizes[3]", "test_mine.py::test_sizes[4]"}
    most = lines[lines.index("compiled most often:") + 1 :]
    [function] = [line for line in most if line.endswith(": <lambda>")]
    assert function.split()[:2] == ["5", "times,"]
