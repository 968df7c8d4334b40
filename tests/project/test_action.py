"""The hosted action: its steps run as a workflow would run them, and end with the right status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxperf.chapter.run_sections import child_environment
from jaxperf.result import Environment, Measurement, Result, Table, save_result

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load(ROOT.joinpath("action.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
WRITE = "import shutil, sys; shutil.copy(sys.argv[1], sys.argv[2])"
RETRACED = """
import jax, jax.numpy as jnp
step = jax.jit(lambda x: jnp.tanh(x @ x).sum())
for n in range(20, 40):
    float(step(jnp.ones((n, n))))
"""


def run(step: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a step's script in bash, with `python` this environment's, and its inputs as variables."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(exist_ok=True)
    if not (bin_folder / "python").exists():
        (bin_folder / "python").symlink_to(sys.executable)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    assert set(variables) == set(STEPS[step]["env"])
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[step]["run"]],
        cwd=folder, env={**child_environment(), "PATH": path, **variables}, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip


def result(folder: Path, seconds: float) -> str:
    path = folder / f"{seconds}.json"
    table = Table("", (Measurement("step", "s", tuple(seconds * (1 + i / 1e5) for i in range(5))),))
    save_result(Result("measure", "", "T", "Q?", {}, Environment(cpu="Z80"), (table,)), path)
    return str(path)


def gate(folder: Path, seconds: float, **changes: str) -> subprocess.CompletedProcess[str]:
    inputs = {"BASELINES": "baselines", "UPDATE": "false", "RUNS": "4", "UNDECIDED": "warn"}
    return run(
        "Gate", folder, **inputs | changes, MEASURE=f'python -c "{WRITE}" {result(folder, seconds)} {{}}'
    )


def test_a_gate_stores_then_judges_and_fails_the_job_where_it_is_slower(tmp_path: Path) -> None:
    assert "baseline stored" in gate(tmp_path, 1.0).stdout
    assert gate(tmp_path, 2.0).returncode == 1
    assert gate(tmp_path, 1.001).returncode == 0
    assert gate(tmp_path, 2.0, UPDATE="true").returncode == 0
    assert gate(tmp_path, 2.001).returncode == 0


def test_an_undecided_gate_warns_or_fails_as_the_workflow_wants(tmp_path: Path) -> None:
    gate(tmp_path, 1.0)
    machine = next((tmp_path / "baselines").iterdir())
    machine.rename(machine.with_name("another-machine"))  # this one has no baseline now
    warned, failed = gate(tmp_path, 1.0), gate(tmp_path, 1.0, UNDECIDED="fail")
    assert warned.returncode == 0 and "::warning::" in warned.stdout
    assert failed.returncode == 3


@pytest.mark.parametrize(("kinds", "status"), [("retrace", 1), ("float64", 0)])
def test_watch_fails_the_job_for_the_named_kinds_only(kinds: str, status: int, tmp_path: Path) -> None:
    (tmp_path / "my train.py").write_text(RETRACED)
    done = run("Watch", tmp_path, PROGRAM="--no-profile 'my train.py'", FAIL_ON=kinds)
    assert done.returncode == status, done.stderr


def test_every_input_is_described_and_used() -> None:
    text = ROOT.joinpath("action.yml").read_text(encoding="utf-8")
    for name, entry in ACTION["inputs"].items():
        assert entry["description"] and f"inputs.{name}" in text
