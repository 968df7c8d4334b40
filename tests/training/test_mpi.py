import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from jaxperf.process import child_environment
from jaxperf.result.store import load_result

ROOT = Path(__file__).parents[2]
MPIEXEC = Path(sys.executable).with_name("mpiexec")  # of the package mpich, which the extra `mpi` brings
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.real,
    pytest.mark.skipif(not (MPIEXEC.exists() and find_spec("mpi4py")), reason="needs the extra mpi"),
]


def by_mpi(*processes):
    environment = child_environment() | {"JAX_PLATFORMS": "cpu"}
    program = [sys.executable, "experiments/train.py", "--smoke"]
    first, second = (["-n", "1", *program, *flags] for flags in processes)
    command = [str(MPIEXEC), *first, ":", *second]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_two_processes_train_one_model_and_the_first_writes(tmp_path):
    done = by_mpi(*2 * [["--json", f"{tmp_path}/r.json"]])
    assert done.returncode == 0, done.stdout + done.stderr
    result = load_result(tmp_path / "r.json")
    assert not result.incomplete
    assert result.config["processes"] == 2
    assert done.stdout.count("epoch 1, time ") == 1  # process 0 alone prints


def test_a_process_with_other_flags_ends_all_with_a_line_and_a_status(tmp_path):
    done = by_mpi(*(["--json", f"{tmp_path}/r.json", "--epochs", n] for n in ("1", "2")))
    assert done.returncode != 0
    assert "process 1 has other flags or versions than process 0; start all alike" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
