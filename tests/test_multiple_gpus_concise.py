"""The script of section 8.5 at toy size: counts, equal ways, one all-reduce; mistakes end in one line."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import cases
from stories import begin, whole
from test_rate_and_batch import epochs as made

from experiments import multiple_gpus_concise as section
from jaxperf.data import FashionMNIST
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


@pytest.mark.parametrize(
    ("backend", "config", "words", "full"),
    [
        ("cpu", section.Config(), (), False),
        ("cpu", section.Config(full=True), (), True),
        ("gpu", section.Config(), (), True),
        ("gpu", section.Config(way="jit"), ("--way", "jit"), True),  # no size
        ("gpu", section.Config(train_images=6000), (), False),
        ("gpu", section.Config(), ("--epochs=2",), False),  # the default, but asked for
        ("gpu", section.Config(small=True), (), False),
        ("gpu", section.Config.smoke(), ("--smoke",), False),
    ],
)
def test_the_books_recipe_is_the_default_where_no_cpu_trains_and_no_size_is_chosen(
    backend: str, config: section.Config, words: tuple[str, ...], full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["multiple_gpus_concise.py", *words])
    story = begin("8.5")
    story.environment = dataclasses.replace(story.environment, backend=backend)
    sized = section.sized(story, config)
    assert sized == (dataclasses.replace(config, full=True, **section.RECIPE) if full else config)
    assert story.config.get("full", False) is full  # which the notebook repeats
    said = [output.text for output in story.result().of(Output)]
    assert len(said) == (full and not config.full) and all("--full" in line for line in said)


def test_the_flags_of_the_exercise_reach_its_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def step_for(config: Any, devices: Any, **options: Any) -> dict[str, Any]:
        return options

    def train(step: Any, data: Any, *, epochs: int, batch_size: int, **_: Any) -> list[Any]:
        asked.append({**step, "epochs": epochs, "batch_size": batch_size})
        return [(epoch, None) for epoch in made(1.0, epochs)]

    monkeypatch.setattr(section, "step_for", step_for)
    monkeypatch.setattr(section, "train", train)
    labels = np.zeros(2 * section.MOST + 2, np.int32)
    data = FashionMNIST(np.zeros((len(labels), 1, 1, 1), np.uint8), labels, labels, labels, "made up")
    config = section.Config(batch_size=16, lr=0.1, grid_epochs=5, grid_width=8)
    section.rate_and_epochs(begin("8.5"), config, data)
    assert [(a["batch_size"], a["lr"]) for a in asked] == [(16, 0.1), (16, 0.4), (section.MOST, 0.4)]
    for a in asked:
        assert (a["epochs"], a["width"]) == (5, 8)
        assert a["updates"] == 5 * (len(labels) // a["batch_size"])  # of the schedule
