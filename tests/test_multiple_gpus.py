"""Section 8.4: the step it shows is the package's, by hand and by pmap, and the script tells all of it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import chex
import jax
import numpy as np
import optax
import pytest
from cases import cases
from stories import begin, log_of, whole
from test_rate_and_batch import epochs

from jaxperf.models import lenet, lenet_params
from jaxperf.parallel import first_devices, get_params, make_step, model_of_function, train_batch
from jaxperf.result import Code, Grid, Timelines

SCRIPT = Path(__file__).parents[1] / "experiments" / "multiple_gpus.py"


def run(*words: str, devices: int = 2) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--platform", "cpu", "--smoke", f"--devices={devices}", *words]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[1])}
    return subprocess.run(command, capture_output=True, text=True, timeout=580, env=environment)


@pytest.fixture(scope="module")
def section() -> ModuleType:
    spec = importlib.util.spec_from_file_location("multiple_gpus", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["multiple_gpus"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.thorough
def test_by_hand_and_by_pmap_are_the_packages_step(section: ModuleType) -> None:
    rng, devices, params = (
        np.random.default_rng(0),
        first_devices(2, platform="cpu"),
        lenet_params(jax.random.key(0), scale=0.05),
    )
    X, y = rng.integers(0, 256, (8, 28, 28, 1), np.uint8), rng.integers(0, 10, 8, np.int32)
    hand, together = [get_params(params, d) for d in devices], params
    package = make_step("manual", model_of_function(lenet, params), optax.sgd(0.2), devices)
    state = package.init()
    for _ in range(2):
        hand, (loss, accuracy) = section.by_hand(devices, 0.2)(X, y, hand)
        together, means = section.by_pmap(devices, 0.2)(X, y, together)
        state, metrics = package(state, X, y)
        chex.assert_trees_all_close(
            (loss, accuracy), means, (metrics["loss"], metrics["accuracy"]), rtol=1e-5
        )
    expected = jax.device_get(package.read(state).params)
    for found in (*hand, together):
        chex.assert_trees_all_close(jax.device_get(found), expected, atol=2e-7)
    assert [p[0].devices() for p in hand] == [{d} for d in devices]


@pytest.mark.thorough
def test_what_is_shown_is_what_trains(section: ModuleType) -> None:
    result = whole("multiple_gpus")
    shown = [block.source.splitlines()[0] for block in result.of(Code)]
    assert any(line.startswith("def train_batch(") for line in shown)
    assert any(line.startswith("def by_pmap(") for line in shown)
    assert section.train_batch is train_batch
    titles = [grid.title for grid in result.of(Grid)]
    assert titles[:3] == ["1 device: batch 16, rate 0.2", "2 devices: batch 16, rate 0.2", "2 devices, pmap"]


@pytest.mark.thorough
def test_the_smoke_run_decides_what_no_clock_and_no_long_training_is_needed_for() -> None:
    result = whole("multiple_gpus")
    assert any("after allreduce:  [[3.0, 3.0]] on" in line for line in log_of(result))
    differences = {name: v for name, v in result.facts.items() if name.startswith("max_param_diff")}
    ways = ("manual", "pmap", "shard_map", "jit")
    assert set(differences) == {f"max_param_diff_{way}_2" for way in ways}
    assert max(differences.values()) <= 8 * 2.0**-23  # eight units in the last place of 1, after ten updates
    assert (result.facts["allreduce_count"], result.facts["allgather_count"]) == (1, 0)
    assert result.facts["test_accuracy_1"] == result.facts["test_accuracy_2"]
    verdicts = {claim.statement: claim.holds for claim in result.claims}
    for words in ("allreduce adds up", "pmap with psum trains", "Training on several", "Predicting on all"):
        [verdict] = [holds for statement, holds in verdicts.items() if statement.startswith(words)]
        assert verdict == "holds", words
    [learns] = [holds for statement, holds in verdicts.items() if statement.startswith("LeNet learns")]
    assert learns == "undecided"  # three updates prove nothing
    for words in ("LeNet's test accuracy", "Two GPUs shorten"):  # the full data; real devices
        [verdict] = [holds for statement, holds in verdicts.items() if statement.startswith(words)]
        assert verdict == "cannot be measured here", words
    assert len(list(result.of(Timelines))) == 1
    assert result.environment.devices_are_fake


def test_the_flags_of_the_grid_reach_its_trainings(
    section: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[tuple[int, float, int]] = []

    def train(lr: float, state: Any, data: Any, *, batch_size: int, numbers: Any, **_: Any) -> list[Any]:
        tried.append((batch_size, lr, len(numbers)))
        return [(epoch, None) for epoch in epochs(0.5)]

    monkeypatch.setattr(section, "ready_to_train", lambda devices, lr, params: (lr, params))
    monkeypatch.setattr(section, "train", train)
    config = section.Config(batch_size=32, lr=0.5, grid_epochs=3, grid_batches=(2, 4), grid_rates=(1.0, 2.0))
    story = begin("8.4")
    section.batch_of_twice_the_size(story, config, None, {story.devices: [(epochs(0.5)[0], None)]})
    grid = [(32, 0.5), (64, 0.5), (64, 1.0), (128, 0.5), (128, 1.0)]
    assert tried == [(n, lr, 3) for n, lr in grid]


def test_one_device_has_nothing_for_pmap_to_sum(section: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = {1: [(epochs(0.5)[0], None)]}
    monkeypatch.setattr(section, "train", lambda *_, **__: [(epochs(0.7)[0], None)])
    story = begin("8.4", devices=1)
    section.with_pmap(story, section.Config(epochs=1), None, trained)
    [claim] = story.result().claims
    assert (claim.holds, claim.prediction) == ("cannot be measured here", "undecided")
    assert claim.observed == "only one device here, nothing to sum"


@pytest.mark.parametrize(
    ("words", "said"),
    cases(
        [
            (("--batch-size", "15"), "--batch-size 15 is not divisible by 2 devices; use 14 or 16"),
            (("--lr", "nan"), "--lr is nan; give more than 0"),
            (("--devices", "0"), "--devices is 0; give at least 1"),
        ],
        quick=lambda words, said: words[0] != "--batch-size",  # found after JAX is imported
    ),
)
def test_mistakes_end_in_one_line_before_any_training(words: tuple[str, ...], said: str) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert said in done.stderr and len(done.stderr.splitlines()) == 1
    assert "8.4.3" not in done.stdout
