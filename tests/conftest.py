"""What all tests share: eight CPU devices, cache folders of their own, real parts that must not be skipped.

The environment is set before any test imports JAX.
JAX_PLATFORMS=cuda,cpu in front of `make test` runs the tests on a GPU. JAXPERF_TEST_DEVICES=1 gives them a
single CPU device, to see which are skipped on a machine with one GPU; those that take several CPU devices by
themselves then fail.
"""

import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["JAX_NUM_CPU_DEVICES"] = os.environ.get("JAXPERF_TEST_DEVICES", "8")
if os.environ["JAX_PLATFORMS"] != "cpu":
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or each worker takes 75 % of the memory
    os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")  # TF32 keeps too few digits for 1e-6

REQUIRE_REAL = os.environ.get("JAXPERF_REQUIRE_REAL") == "1"
USERS = (  # settings of the user's that must not change a test
    "JAX_DISABLE_JIT", "JAX_DEBUG_NANS", "JAXPERF_DATA", "COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR",
)  # fmt: skip
CACHES = {
    "XDG_CACHE_HOME": "cache",
    "TFDS_DATA_DIR": "tfds",
    "MPLCONFIGDIR": "matplotlib",
    "JAX_COMPILATION_CACHE_DIR": "compiled",
}
# Compiling is most of this suite's work: test_lenet.py takes 33 s of CPU time, 9 s with everything compiled
# before. So what one worker or one process started by a test has compiled, all others load.
CACHE_EVERYTHING = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
# The optimizer of XLA's backend is half of what is left: without it a ResNet's step compiles in 1.0 s of CPU
# time instead of 2.2 s and computes the same in another rounding. JAX's own tests run like this. CI runs one
# of its two suites with the optimizer, as users do. Where computing outlasts compiling, use `optimized`.
OPTIMIZATION = "JAX_DISABLE_MOST_OPTIMIZATIONS"


def pytest_configure(config):
    """Caches go to a folder that exists as long as this run; xdist's workers inherit it."""
    # nohup ignores the one, and a script's background jobs the other; what tests start would inherit that
    for number, usual in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, usual)
    if hasattr(config, "workerinput"):
        return
    for name in USERS:
        os.environ.pop(name, None)
    folder = tempfile.mkdtemp(prefix="jaxperf-tests-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ.update({variable: str(Path(folder, name)) for variable, name in CACHES.items()})
    if compiled := os.environ.get("JAXPERF_COMPILED"):  # CI's steps share what they compile
        os.environ["JAX_COMPILATION_CACHE_DIR"] = compiled
    os.environ.update(CACHE_EVERYTHING)
    os.environ.setdefault(OPTIMIZATION, "1")


def pytest_collection_modifyitems(items):
    """Mark what tests the sections and the book; loading a section compiles its programs."""
    for item in items:
        if item.path.parent.name == "experiments" or item.path.name == "test_book.py":
            item.add_marker(pytest.mark.chapter)


@pytest.fixture
def optimized():
    """Compile as users do: ResNet-18 in float64 takes twice as long otherwise."""
    import jax

    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", os.environ[OPTIMIZATION] == "1")


@pytest.fixture
def several_devices():
    """For tests of what sections do with all of their devices: a machine with a single GPU skips them.

    Tests that choose devices by themselves take the CPU's, `jax.devices("cpu")`, of which there are eight
    unless JAXPERF_TEST_DEVICES says otherwise.
    """
    import jax

    if jax.device_count() < 2:
        pytest.skip("one device here, and the test takes several")


@pytest.fixture
def compiles_anew():
    """Switch the compile cache off, for tests of compiling itself."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    folder = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_compilation_cache_dir", folder)
    compilation_cache.reset_cache()


@pytest.fixture
def small_disk(tmp_path):
    """A disk of its own with 400 KiB; mark the test `real`."""
    from disks import mounted

    (tmp_path / "disk").mkdir()
    with mounted(tmp_path / "disk", size="400k") as disk:
        yield disk


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Under JAXPERF_REQUIRE_REAL=1 a test marked `real` fails where it would be skipped."""
    report = yield
    if (
        REQUIRE_REAL
        and report.skipped
        and item.get_closest_marker("real")
        and not hasattr(report, "wasxfail")
    ):
        _refuse_skip(report, item.nodeid)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Under JAXPERF_REQUIRE_REAL=1 no file may skip itself whole: its marks can't be seen then."""
    report = yield
    if REQUIRE_REAL and report.skipped:
        _refuse_skip(report, collector.nodeid)
    return report


def _refuse_skip(report, nodeid):
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"{nodeid}: must not be skipped under JAXPERF_REQUIRE_REAL=1, but: {reason}"
