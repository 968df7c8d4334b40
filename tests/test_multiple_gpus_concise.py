"""The script of section 8.5 at toy size: counts, equal ways, one all-reduce; mistakes end in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cases import cases
from stories import whole

from jaxperf.models import resnet18
from jaxperf.result import Code, Grid, Output

SCRIPT = Path(__file__).parents[1] / "experiments" / "multiple_gpus_concise.py"
WAYS = ("manual", "pmap", "shard_map", "jit")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--platform", "cpu", *words]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[1])}
    return subprocess.run(command, capture_output=True, text=True, timeout=580, env=environment)


@pytest.mark.thorough
def test_every_way_equals_one_device_and_sums_once() -> None:
    result = whole("multiple_gpus_concise")
    for way in WAYS:
        if way != "manual":  # by hand there is no BatchNorm over the whole batch
            assert result.facts[f"max_param_diff_{way}_2"] <= 1e-5, way
        assert result.facts[f"max_param_diff_shares_{way}"] <= 1e-5, way
    assert result.facts["max_param_diff_uneven_shares"] <= 1e-6
    assert (result.facts["allreduce_count"], result.facts["allgather_count"]) == (1, 0)
    assert result.facts["bytes_per_mflop_large"] < result.facts["bytes_per_mflop_small"]
    verdicts = {claim.statement: claim.holds for claim in result.claims}
    for words in (
        "The same parameter", "A parameter cannot be read", "Training on several", "With BatchNorm by share",
        "ResNet-18 computes more", "Computing in bfloat16", "A batch divided by strength",
    ):  # fmt: skip
        [verdict] = [holds for statement, holds in verdicts.items() if statement.startswith(words)]
        assert verdict == "holds", words
    said = "\n".join(output.text for output in result.of(Output))
    assert "not initialized on" in said and "init book" in said
    titles = [grid.title for grid in result.of(Grid)]
    assert titles[0].startswith("1 device: batch 8, rate 0.05")
    assert titles[1].startswith("2 devices: batch 16, rate 0.1")
    assert resnet18.__name__ in "".join(block.source for block in result.of(Code))


@pytest.mark.parametrize(
    ("words", "said"),
    cases(
        [
            (("--batch-size", "33"), "--batch-size 33 is not divisible by 2 devices; use 32 or 34"),
            (("--way", "telepathy"), "invalid choice 'telepathy'"),
            (("--train-images", "8"), "--train-images 8 holds no batch of 64"),
            (("--lr", "-1"), "--lr is -1.0; give more than 0"),
        ],
        quick=lambda words, said: words[0] in ("--way", "--lr"),  # found before JAX is imported
    ),
)
def test_mistakes_end_in_one_line(words: tuple[str, ...], said: str) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert said in done.stderr and len(done.stderr.splitlines()) == 1
