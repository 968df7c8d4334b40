"""The script of section 8.5 at toy size: counts, equal ways, one all-reduce; mistakes end in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "experiments" / "multiple_gpus_concise.py"
WAYS = ("manual", "pmap", "shard_map", "jit")


def run(*words):
    command = [sys.executable, str(SCRIPT), "--platform", "cpu", *words]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[1])}
    return subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)


def test_every_way_equals_one_device_and_sums_once(tmp_path):
    path = tmp_path / "result.json"
    done = run("--smoke", "--json", str(path))
    assert done.returncode == 0, done.stderr
    result = json.loads(path.read_text())
    facts = result["facts"]
    assert (facts["param_count"], facts["value_count"]) == (11_175_818, 11_183_626)
    for way in WAYS:
        for devices in (1, 2):
            assert facts[f"max_param_diff_vs_one_device/{way}/{devices}"] <= 1e-5, (way, devices)
        assert facts[f"max_param_diff_vs_shares_by_hand/{way}/2"] <= 1e-5, way
    assert facts["max_param_diff_vs_one_device/uneven_shares"] <= 1e-6
    assert (facts["allreduce_count"], facts["allgather_count"]) == (1, 0)
    assert "kept as {'float32'}" in done.stdout
    assert [s["name"] for s in result["series"][:2]] == ["accuracy/2 devices", "loss/2 devices"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--batch-size", "33"), "--batch-size 33 is not divisible by 2 devices; use 32 or 34"),
        (("--way", "telepathy"), "invalid choice 'telepathy'"),
        (("--dtype", "int8"), "invalid choice 'int8'"),
        (("--train-images", "8"), "--train-images 8 holds no batch of 32"),
        (("--lr", "-1"), "--lr -1 must be positive"),
    ],
)
def test_mistakes_end_in_one_line(words, said):
    done = run(*words)
    assert done.returncode == 2
    assert said in done.stderr and len(done.stderr.splitlines()) == 1
