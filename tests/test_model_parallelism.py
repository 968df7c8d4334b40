"""The script of the split models at toy size: every way equals one device, mistakes end in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "experiments" / "model_parallelism.py"


def run(*words):
    command = [sys.executable, str(SCRIPT), "--platform", "cpu", *words]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[1])}
    return subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)


def test_every_way_to_split_equals_one_device(tmp_path):
    path = tmp_path / "result.json"
    done = run("--smoke", "--json", str(path))
    assert done.returncode == 0, done.stderr
    result = json.loads(path.read_text())
    facts = result["facts"]
    ways = ("halves/LeNet", "halves/ResNet-18", "tensor/sharding", "tensor/shard_map")
    for way in ways:
        assert facts[f"max_param_diff_vs_one_device/{way}"] <= 2e-5, way
    assert facts["allreduce_count/tensor/sharding"] == facts["allreduce_count/tensor/shard_map"] == 3
    assert facts["allgather_count/tensor/sharding"] == facts["allgather_count/tensor/shard_map"] == 0
    held = facts["params_bytes_per_device/tensor"]
    assert held < facts["params_bytes_per_device/pipeline"] < facts["params_bytes_per_device/data"]
    equal = [c for c in result["claims"] if "equal to one device" in c["statement"]]
    assert len(equal) == len(ways) and all(c["held"] for c in equal)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--devices", "1"), "--devices 1 leaves nothing to split; use 2 or more"),
        (("--batch-size", "100"), "--batch-size 100 has an eighth that 8 micro-batches do not divide"),
        (("--steps", "0"), "--steps and --micro-batches are counts"),
    ],
)
def test_mistakes_end_in_one_line(words, said):
    done = run(*words)
    assert done.returncode == 2
    assert said in done.stderr and len(done.stderr.splitlines()) == 1
