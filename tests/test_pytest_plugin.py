"""The fixture `jaxperf`: stores a baseline, passes what is as fast, fails what became slower."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jaxperf.chapter.run_sections import child_environment

# Recorded values, since a busy machine leaves real ones undecided
TEST = """
import os
from jaxperf.result import Measurement
def recorded(fn, *args, name=None, **options):
    seconds = float(os.environ["PAUSE_S"])
    return Measurement(name or fn.__name__, "s", tuple(seconds * (1 + i / 1000) for i in range(20)))
def step(x):
    return x + 1
def test_step(jaxperf, monkeypatch):
    monkeypatch.setattr("jaxperf.measure.measure", recorded)
    measured = jaxperf.measure(step, 1.0)
    assert measured.name == "step" and measured.unit == "s"
"""
MANIFEST = "[pytest]\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "test_mine.py").write_text(TEST)
    (tmp_path / "pytest.ini").write_text(MANIFEST)
    return tmp_path


def run(project: Path, pause_s: float, *flags: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *flags],
        cwd=project, env={**child_environment(), "PAUSE_S": str(pause_s)}, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_a_step_that_became_slower_fails_its_test_and_an_update_passes(project: Path) -> None:
    status, output = run(project, 0.001)
    [baseline] = (project / ".jaxperf").rglob("*.json")
    assert status == 0 and f"baseline stored: test_mine.py::test_step: step, {baseline}" in output
    stored = baseline.read_text()
    status, output = run(project, 0.1)
    assert status == 1 and "test_mine.py::test_step: step became slower: " in output
    assert " a call, " in output and " before, " in output and "Traceback" not in output
    assert baseline.read_text() == stored
    assert run(project, 0.1, "--jaxperf-update")[0] == 0
    status, output = run(project, 0.001)
    assert status == 0 and "faster: test_mine.py::test_step: step, " in output


def test_baselines_may_be_elsewhere_and_a_damaged_one_is_one_line(project: Path) -> None:
    flag = f"--jaxperf-baselines={project / 'kept'}"
    assert run(project, 0.001, flag)[0] == 0
    [baseline] = (project / "kept").rglob("*.json")
    baseline.write_text("{")
    status, output = run(project, 0.001, flag)
    assert status == 1 and "error: " in output and baseline.name in output and "Traceback" not in output
    assert baseline.read_text() == "{"


def test_without_the_fixture_nothing_is_said_and_nothing_imported(project: Path) -> None:
    (project / "test_mine.py").write_text("import sys\ndef test_it(): assert 'jax' not in sys.modules\n")
    status, output = run(project, 0.0)
    assert status == 0 and "jaxperf" not in output
