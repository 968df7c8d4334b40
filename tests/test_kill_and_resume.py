"""Trainings killed at random moments end as if nobody had killed them (100 kills: docs/reliability.md)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxperf.launch import child_environment

SCRIPT = Path(__file__).parents[1] / "scripts" / "kill_and_resume.py"
ALL = ("manual", "pmap", "shard_map", "jit")


@pytest.mark.parametrize(
    ("kills", "ways"), [(3, ("jit",)), pytest.param(20, ALL, marks=pytest.mark.thorough)], ids=["3", "20"]
)
def test_a_training_killed_again_and_again_ends_with_the_same_hash(kills: int, ways: tuple[str, ...]) -> None:
    command = [sys.executable, str(SCRIPT), "--kills", str(kills), "--ways", *ways]
    done = subprocess.run(command, capture_output=True, text=True, env=child_environment(), timeout=280)
    assert done.returncode == 0, done.stderr
    counts = {name: int(count) for name, count in re.findall(r"(\w[a-z ]*): (\d+)", done.stdout)}
    assert counts["kills"] == kills and counts["equal"] == counts["trainings"] >= 1
