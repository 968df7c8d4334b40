"""The script of section 8.4 at toy size: every way equals one device, mistakes end in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "experiments" / "multiple_gpus.py"
ROUNDING = 8 * 2.0**-23  # eight units in the last place of 1, after ten updates


def run(*words, devices=2):
    command = [sys.executable, str(SCRIPT), "--platform", "cpu", "--smoke", f"--devices={devices}", *words]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[1])}
    return subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)


def test_two_devices_compute_what_one_does_and_tell_what_it_costs(tmp_path):
    result_path, picture = tmp_path / "result.json", tmp_path / "curve.svg"
    done = run("--json", str(result_path), "--picture", str(picture))
    assert done.returncode == 0, done.stderr
    result = json.loads(result_path.read_text())
    facts = result["facts"]
    differences = {name: value for name, value in facts.items() if name.startswith("max_param_diff")}
    ways = ("manual", "pmap", "shard_map", "jit")
    assert set(differences) == {f"max_param_diff_vs_one_device/{way}/{k}" for way in ways for k in (1, 2)}
    assert max(differences.values()) <= ROUNDING
    assert (
        differences["max_param_diff_vs_one_device/pmap/2"] > 0
    )  # sums in another order: it was not run twice
    assert (facts["allreduce_count"], facts["allgather_count"], facts["evaluation_equal"]) == (1, 0, True)
    assert {"scaling_efficiency", "images_per_s/2 devices, seed 0", "communication_share"} <= set(facts)
    assert [claim["held"] for claim in result["claims"]] == [True, None, True]  # three updates prove no curve
    assert "after allreduce:  [[[3.0, 3.0]], [[3.0, 3.0]]]" in done.stdout
    assert "epoch 1, time " in done.stdout
    assert result["environment"]["devices_are_fake"]
    assert any("devices are fake" in note for note in result["notes"])
    assert picture.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--batch-size", "15"), "--batch-size 15 is not divisible by 2 devices; use 14 or 16"),
        (("--batch-size", "0"), "--batch-size is 0; give at least 1"),
        (("--epochs", "0"), "--epochs is 0; give at least 1"),
        (("--lr", "nan"), "--lr nan and --scale 0.01 must be positive numbers"),
        (("--scale", "inf"), "--lr 0.2 and --scale inf must be positive numbers"),
        (("--updates", "-1"), "--updates must not be negative"),
        (("--picture", "curve.docx"), "docx is not a picture format; use .svg or .png"),
        (("--devices", "0"), "--devices is 0; a program needs at least 1"),
    ],
)
def test_mistakes_end_in_one_line_before_any_training(words, said):
    done = run(*words)
    assert done.returncode == 2
    assert said in done.stderr and len(done.stderr.splitlines()) == 1
    assert "running on" not in done.stdout
