"""Trainings killed at random moments end as if nobody had killed them (100 kills: docs/reliability.md)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxperf.process import child_environment

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
ALL = ("manual", "pmap", "shard_map", "jit")
# `make test` kills train.py once: tests/experiments/test_train_program.py
pytestmark = pytest.mark.thorough


def counts_of(script: str, *flags: str) -> dict[str, int]:
    command = [sys.executable, str(SCRIPTS / script), *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=child_environment(), timeout=280)
    assert done.returncode == 0, done.stderr
    return {name: int(count) for name, count in re.findall(r"(\w[a-z ]*): (\d+)", done.stdout)}


def test_trainings_killed_again_and_again_end_with_the_same_hash() -> None:
    counts = counts_of("kill_and_resume.py", "--kills", "20", "--ways", *ALL)
    assert counts["kills"] == 20 and counts["equal"] == counts["trainings"] >= 1


def test_one_training_takes_all_kills() -> None:
    counts = counts_of("kill_and_resume.py", "--kills", "10", "--ways", "jit", "--epochs", "10")
    assert (counts["kills"], counts["equal"], counts["trainings"]) == (10, 1, 1)


def test_two_processes_of_which_one_is_killed_again_and_again_end_with_the_same_hash() -> None:
    assert counts_of("kill_one_of_two.py", "--kills", "2") == {"kills": 2, "equal": 1, "trainings": 1}
