"""A story to which a test lets one part of a section tell what it has to tell; what whole sections told."""

import dataclasses
import functools
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from jaxperf import catalogue
from jaxperf.launch import child_environment
from jaxperf.measure import current_environment
from jaxperf.report import terminal
from jaxperf.report.story import walk
from jaxperf.result import Measurement, Result, load_result
from jaxperf.story import Story


def begin(section: str, *, json: Path | None = None, devices: int = 0, verbose: bool = False) -> Story:
    """The story of this section, of which nothing is told yet; raw traces go next to `json`."""
    config = {"devices": devices or len(jax.devices())}
    return Story(catalogue.find(section), current_environment(), config, keep=json, verbose=verbose)


@functools.cache
def whole(name: str) -> Result:
    """What a section told from end to end at toy size: in CI's run of all, or else in one of its own."""
    if given := os.environ.get("JAXPERF_RESULTS"):
        return load_result(Path(given, f"{name}.json"))
    cache = Path(os.environ["XDG_CACHE_HOME"])  # removed when the tests are through, see conftest.py
    cache.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(dir=cache), f"{name}.json")
    script = str(catalogue.folder() / f"{name}.py")
    environment = {k: v for k, v in child_environment().items() if k != "JAX_NUM_CPU_DEVICES"}
    command = [sys.executable, script, "--smoke", "--platform", "cpu", f"--json={path}"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=580)
    assert done.returncode == 0, done.stderr
    result = load_result(path)
    assert done.stdout.splitlines()[:-1] == log_of(result)
    return result


def log_of(result: Result) -> list[str]:
    """The lines that a run prints while it tells this result, but for the last, which names the file."""
    console = terminal.console(color=False)
    console.file = io.StringIO()
    # a run's first lines are printed before it looks for its images
    terminal.head(
        console,
        dataclasses.replace(result, environment=dataclasses.replace(result.environment, data_source="")),
    )
    for item in walk(result, brief=True):
        terminal.show(console, item, verbose=False)
    return console.file.getvalue().splitlines()


def medians(*seconds: float) -> Any:
    """An `interleaved` that calls nothing and found these seconds, one for each part in order."""

    def interleaved(parts: Mapping[str, Any], *, count: int) -> dict[str, Measurement]:
        return {name: Measurement(name, "s", (s,) * count) for name, s in zip(parts, seconds, strict=True)}

    return interleaved
