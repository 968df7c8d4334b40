import json
import os
import re
import subprocess
import sys

import pytest

from jaxperf.chapter import catalogue

NAMES = [section.name for section in catalogue.SECTIONS if section.name != "peers"]
OTHER_DEVICES = {  # for sections of several devices
    "multiple_gpus": (["--devices", "8"],),
    "multiple_gpus_concise": (["--devices", "1"], ["--devices", "4"]),
    "collectives": (["--devices", "6", "--nodes", "3"],),
    "model_parallelism": (["--devices", "4"],),
    "scaling": (["--devices", "4", "--k", "1024", "--parameters", "1000000", "--bandwidth", "12.5"],),
}
RUNS = [(name, flags) for name in NAMES for flags in ([], *OTHER_DEVICES.get(name, ()))]


def budget_of(name):
    text = (catalogue.folder() / f"{name}.py").read_text(encoding="utf-8")
    planned = re.search(r"^s = section\(.*programs=(\d+)", text, re.M)
    return int(planned[1]) if planned else 0


def run(name, folder, *flags):
    path = folder / "result.json"
    script = catalogue.folder() / f"{name}.py"
    command = [sys.executable, str(script), "--smoke", "--platform", "cpu", f"--json={path}", *flags]
    environment = {
        **os.environ, "PYTHONPATH": str(script.parents[1]), "JAX_COMPILATION_CACHE_DIR": "",
        "UV_CACHE_DIR": str(folder / "uv"),
    }  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(path.read_text()), done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "flags"), RUNS, ids=["".join((name, *flags)) for name, flags in RUNS])
def test_a_section_runs_with_its_answers(name, flags, tmp_path):
    result, _ = run(name, tmp_path, "--answers", *flags)
    assert result["failed"] == []
    statements = [claim["statement"] for claim in result["claims"]]
    assert len(statements) == len(set(statements))
    assert all(claim["expected"] and claim["observed"] for claim in result["claims"])
    for_gpus = {claim["verdict"] for claim in result["claims"] if claim["observed"] == "this needs a GPU"}
    assert for_gpus <= {"not measurable here"}
    assert "holds" in {claim["verdict"] for claim in result["claims"]}


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in NAMES if budget_of(name)])
def test_a_section_compiles_no_more_programs_than_it_plans_to(name, tmp_path):
    result, printed = run(name, tmp_path)
    facts, budget = result["facts"], budget_of(name)
    assert budget / 4 < facts["programs_compiled"] <= budget
    assert facts["compile_s"] > 0
    assert f"{facts['programs_compiled']} programs compiled in" in printed
