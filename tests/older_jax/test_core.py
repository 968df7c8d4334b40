"""The tools with the light core alone, on any JAX from 0.5.3 on; CI runs this folder on several versions.

Nothing here imports Flax, Optax, or what JAX has had only since a recent version.
"""

import json
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from jaxperf.measure import interleaved, measure, stages
from jaxperf.result import ratio

VERSION = tuple(int(part) for part in re.findall(r"\d+", jax.__version__)[:3])
PROGRAM = """\
import jax
import jax.numpy as jnp

def arguments():
    return (jnp.ones((64, 64)),)

@jax.jit
def product(x):
    return (x @ x).sum()
"""
# A new function is jitted in each turn: its line is known, and so is the exit status
RETRACES = """\
import sys
import jax
import jax.numpy as jnp

x = jnp.ones(1000)
for i in range(60):
    y = jax.jit(lambda a: jnp.sin(a) * 2 + a)(x)
y.block_until_ready()
print("the program's own output")
sys.exit(3)
"""


def run_jaxperf(*arguments, folder):
    command = [sys.executable, "-m", "jaxperf", *arguments]
    # What another version compiled is of no use, and old versions say so
    variables = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"}
    return subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "retraces.py").write_text(RETRACES)
    return tmp_path


def measure_command(result):
    return ["measure", "program.py:product", "--setup", "program.py:arguments", "--json", result]


def test_functions_of_measure_work_on_this_version():
    f = jax.jit(lambda x: (x @ x).sum())
    x = jnp.ones((64, 64))
    assert measure(f, x, budget_s=0.1).median > 0
    timed = interleaved({"once": lambda: f(x), "twice": lambda: f(f(x) * x)}, count=6)
    assert set(timed) == {"once", "twice"}
    assert ratio(timed["twice"], timed["once"]).median > 0
    assert stages(f, x)


def test_measure_and_compare_are_commands_on_this_version(folder):
    done = run_jaxperf(*measure_command("a.json"), folder=folder)
    assert done.returncode == 0, done.stderr
    assert "per call" in done.stdout
    compared = run_jaxperf("compare", "a.json", "a.json", folder=folder)
    assert compared.returncode == 0, compared.stderr
    assert "same" in compared.stdout


def test_gate_stores_a_baseline_on_this_version(folder):
    command = [sys.executable, "-m", "jaxperf", *measure_command("{}")]
    done = run_jaxperf("gate", "baselines", "--runs", "4", "--", *command, folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((folder / "baselines").rglob("*.json"))


@pytest.mark.parametrize("command", ["roofline", "doctor"])
def test_command_ends_well_on_this_version(command, folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    done = run_jaxperf(command, folder=folder)
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    assert "GB/s" in done.stdout or "usable" in done.stdout


def test_watch_leaves_the_program_alone_and_never_names_a_cause_that_it_cannot_know(folder):
    done = run_jaxperf("watch", "--json", "watch.json", "retraces.py", folder=folder)
    assert done.returncode == 3
    assert done.stdout == "the program's own output\n"
    assert "Traceback" not in done.stderr
    assert "retraces.py:7" in done.stderr
    report = json.loads((folder / "watch.json").read_text())
    causes = {(finding["cause"], finding["site"]["line"]) for finding in report["findings"]}
    if VERSION >= (0, 8, 2):
        assert ("new function", 7) in causes
    else:
        assert not causes and "Findings" not in done.stderr
        assert "causes are not named with this version of JAX" in done.stderr
