import os
import subprocess
from pathlib import Path

import pytest

from jaxperf import cli
from jaxperf.compare import gate
from jaxperf.watch.rules.table import parse_kinds

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load(ROOT.joinpath("action.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
# Stands for the job's Python: notes its arguments, and ends with the status in a file.
PYTHON = '#!/bin/sh\nprintf "%s\\n" "$@" > arguments\nexit $(cat status)\n'
GATE = {
    "MEASURE": "jaxperf measure train:step --args 'f32[4, 4]' --json {}",
    "BASELINES": "base lines", "UPDATE": "false", "RUNS": "4", "UNDECIDED": "warn",
}  # fmt: skip


def run(step, folder, status, **inputs):
    (folder / "status").write_text(str(status))
    (folder / "python").write_text(PYTHON)
    (folder / "python").chmod(0o755)
    assert set(inputs) == set(STEPS[step]["env"])
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[step]["run"]],
        cwd=folder, env={**inputs, "PATH": f"{folder}:{os.environ['PATH']}"}, capture_output=True, text=True,
    )  # fmt: skip


def command(folder, monkeypatch):
    """What jaxperf understands of the arguments that it got: the command, and what follows it."""
    module, name, *arguments = (folder / "arguments").read_text().splitlines()
    assert (module, name) == ("-m", "jaxperf")
    commands = []
    monkeypatch.setattr(gate, "main", lambda *parsed: commands.append(parsed) or 0)
    watched = lambda *parsed, **options: commands.append((*parsed, options)) or 0  # noqa: E731
    monkeypatch.setattr("jaxperf.watch.run_script", watched)
    assert cli.main(arguments) == 0
    return commands[0]


@pytest.mark.parametrize("update", [False, True])
def test_the_gate_gets_the_inputs(tmp_path, monkeypatch, update):
    assert run("Gate", tmp_path, 0, **{**GATE, "UPDATE": str(update).lower()}).returncode == 0
    measure = ["jaxperf", "measure", "train:step", "--args", "f32[4, 4]", "--json", "{}"]
    options, words = command(tmp_path, monkeypatch)
    assert (options.baseline, options.update, options.runs) == (Path("base lines"), update, 4)
    assert list(words) == measure


@pytest.mark.parametrize(
    ("status", "undecided", "job_status"),
    [(0, "warn", 0), (1, "warn", 1), (2, "warn", 2), (3, "warn", 0), (3, "fail", 3)],
)
def test_the_job_fails_where_a_function_became_slower_and_warns_or_fails_where_the_gate_is_undecided(
    status, undecided, job_status, tmp_path
):
    done = run("Gate", tmp_path, status, **{**GATE, "UNDECIDED": undecided})
    assert done.returncode == job_status
    assert ("::warning::" in done.stdout) == ((status, job_status) == (3, 0))


@pytest.mark.parametrize("status", [0, 1])
def test_watch_gets_the_program_and_its_kinds_and_its_status_is_the_jobs(status, tmp_path, monkeypatch):
    done = run("Watch", tmp_path, status, PROGRAM="--no-profile 'my train.py' --lr 1", FAIL_ON="retrace,sync")
    assert done.returncode == status
    options = {"profile": False, "json": None, "fail_on": parse_kinds("retrace,sync"), "compiles": None}
    script, words, given = command(tmp_path, monkeypatch)
    assert (script, list(words), given) == (Path("my train.py"), ["--lr", "1"], options)


INPUTS = {"gate": "", "watch": "train.py", "update": "false", "install": "true", "undecided": "warn"}


@pytest.mark.parametrize(("changes", "line"), [
    ({"watch": "'my train.py' --lr 1", "gate": "jaxperf measure a:b --json {}"}, ""),
    ({"watch": ""}, "nothing to do; give the input gate, a command, or watch, a script"),
    ({"watch": "'train.py"}, "watch is no list of words: 'train.py; close its quotes"),
    ({"gate": "jaxperf)"}, "gate is no list of words: jaxperf); close its quotes"),
    ({"update": "yes"}, "update is 'yes'; give true or false"),
    ({"install": ""}, "install is ''; give true or false"),
    ({"undecided": "ignore"}, "undecided is 'ignore'; give warn or fail"),
])  # fmt: skip
def test_a_mistake_in_an_input_is_one_line(changes, line, tmp_path):
    done = run("Check the inputs", tmp_path, 0, **{**INPUTS, **changes})
    assert (done.stdout, done.stderr) == (f"::error::jaxperf: {line}\n" if line else "", "")
    assert done.returncode == (2 if line else 0)
