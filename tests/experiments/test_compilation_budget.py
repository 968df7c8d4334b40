"""Every section compiles no more programs than it plans to, and says how long compiling took."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
BUDGETS = {
    path.stem: int(match[1])
    for path in sorted(EXPERIMENTS.glob("*.py"))
    if (match := re.search(r"^s = section\(.*programs=(\d+)", path.read_text(), re.MULTILINE))
}


def test_the_sections_of_one_device_have_a_budget() -> None:
    assert BUDGETS.keys() >= {
        "performance_model",
        "hybridize",
        "async_computation",
        "auto_parallelism",
        "use_gpu",
        "model_parallelism",
    }


@pytest.mark.thorough
@pytest.mark.parametrize("name", BUDGETS)
def test_a_section_compiles_no_more_programs_than_it_plans_to(name: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    command = [
        sys.executable,
        str(EXPERIMENTS / f"{name}.py"),
        "--smoke",
        "--platform",
        "cpu",
        f"--json={path}",
    ]
    environment = {**os.environ, "PYTHONPATH": str(EXPERIMENTS.parent), "JAX_COMPILATION_CACHE_DIR": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, env=environment)
    assert done.returncode == 0, done.stderr
    facts = json.loads(path.read_text())["facts"]
    assert BUDGETS[name] / 4 < facts["programs_compiled"] <= BUDGETS[name]
    assert facts["compile_s"] > 0
    assert f"{facts['programs_compiled']} programs compiled in" in done.stdout
    assert "plans to compile" not in done.stderr
