"""What all tests share: eight CPU devices, cache folders of their own, real parts that must not be skipped.

The environment is set when this file is imported, which is before any test imports JAX.
JAX_PLATFORMS=cuda,cpu in front of `make test` runs the tests on a GPU.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
for name in ("JAX_COMPILATION_CACHE_DIR", "JAX_DISABLE_JIT", "JAX_DEBUG_NANS", "JAXPERF_DATA"):
    os.environ.pop(name, None)  # the user's settings must neither change a test nor be written to

REQUIRE_REAL = os.environ.get("JAXPERF_REQUIRE_REAL") == "1"
CACHES = {"XDG_CACHE_HOME": "cache", "TFDS_DATA_DIR": "tfds", "MPLCONFIGDIR": "matplotlib"}


def pytest_configure(config: pytest.Config) -> None:
    """Caches go to a folder that lives as long as this run; xdist's workers inherit it."""
    if hasattr(config, "workerinput"):
        return
    folder = tempfile.mkdtemp(prefix="jaxperf-tests-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    for variable, name in CACHES.items():
        os.environ[variable] = str(Path(folder, name))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
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
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Under JAXPERF_REQUIRE_REAL=1 no file may skip itself whole: its marks can't be seen then."""
    report = yield
    if REQUIRE_REAL and report.skipped:
        _refuse_skip(report, collector.nodeid)
    return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport, nodeid: str) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"{nodeid}: must not be skipped under JAXPERF_REQUIRE_REAL=1, but: {reason}"
