"""Trainings that go on: the same bits wherever they were interrupted, and nothing infinite is saved."""

from __future__ import annotations

import copy
import dataclasses
import random
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import cases
from trainings import (
    NAME,
    STEPS,
    UPDATES,
    InterruptedTrainingError,
    assert_same,
    at,
    figures,
    pictures,
    step_of,
    steps_in,
    trained,
)

from jaxperf.errors import JaxperfError
from jaxperf.parallel import WAYS, Way
from jaxperf.train import Epoch, Policy
from jaxperf.train.manifest import DamagedError, read_verified, write_manifest
from jaxperf.train.progress import progress_from

STEP = step_of()


@pytest.mark.parametrize(
    ("way", "every"),
    cases([(w, e) for w in WAYS for e in (1, 3)], lambda way, every: every == 3 and way in ("manual", "jit")),
)
def test_every_way_interrupted_anywhere_ends_with_the_same_bits(way: Way, every: int, tmp_path: Path) -> None:
    step = step_of(way)
    expected = trained(step)
    for first in (UPDATES + 1,) if every == 3 else range(1, STEPS):  # the second needs two steps more
        folder = tmp_path / str(first)
        for stop in (first, 2):  # once before a checkpoint, or soon after going on from one
            with pytest.raises(InterruptedTrainingError):
                trained(step, folder, before=at(stop), policy=Policy(every_steps=every))
        assert_same(trained(step, folder), expected)


def test_a_training_that_ended_is_told_again_and_not_trained_again(tmp_path: Path) -> None:
    expected = trained(STEP, tmp_path)
    again = trained(STEP, tmp_path, before=at(1))
    assert_same(again, expected)
    assert again[0] == expected[0]  # with its seconds
    longer = trained(STEP, tmp_path, epochs=3)
    assert figures(longer[0][:2]) == figures(expected[0])
    assert_same(longer, trained(STEP, epochs=3))
    with pytest.raises(
        JaxperfError, match=r"epoch 3 is in the checkpoint; 2 are too few to go on, give more"
    ):
        trained(STEP, tmp_path)


def test_another_training_is_refused_with_both_values_and_left_alone(tmp_path: Path) -> None:
    with pytest.raises(InterruptedTrainingError):
        trained(STEP, tmp_path, before=at(3), settings={"lr": 0.1})
    before = steps_in(tmp_path)
    others: list[tuple[Any, dict[str, Any], str]] = [
        (step_of(optimizer=optax.sgd(0.1)), {}, "optimizer is ScaleByAdamState, .* in the checkpoint, and E"),
        (step_of(classes=5), {}, r".params\['W'\] is float32\[4, 3\] in the checkpoint, and float32\[4, 5"),
        (STEP, {"seed": 1}, "seed is 0 in the checkpoint, and 1 here"),
        (STEP, {"batch_size": 8}, "batch_size is 4 in the checkpoint, and 8 here"),
        (STEP, {"updates": 5}, "updates is 4 in the checkpoint, and 5 here"),
        (STEP, {"data": pictures(3)}, "data is 9 images, .* in the checkpoint, and 9 images, "),
        (STEP, {"settings": {"lr": 0.2}}, "lr is 0.1 in the checkpoint, and 0.2 here"),
        (STEP, {"settings": {}}, "lr is 0.1 in the checkpoint, and missing here"),
    ]  # fmt: skip
    for step, options, message in others:
        with pytest.raises(
            JaxperfError,
            match=f"^[^\n]*{NAME}: {message}[^\n]*; give what it was saved with, or another folder$",
        ):
            trained(step, tmp_path, **({"settings": {"lr": 0.1}} | options))
        assert steps_in(tmp_path) == before


def test_another_way_or_version_goes_on_and_says_that_the_bits_may_differ(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = trained(STEP)
    with pytest.raises(InterruptedTrainingError):
        trained(STEP, tmp_path / "way", before=at(6))
    _, leaves = trained(step_of("manual"), tmp_path / "way")
    for actual, desired in zip(leaves, expected[1], strict=True):
        np.testing.assert_allclose(actual, desired, rtol=1e-5, atol=1e-6)
    message = "way is jit in the checkpoint, and manual here; the same bits are not promised"
    assert message in capfd.readouterr().err
    with pytest.raises(InterruptedTrainingError):
        trained(STEP, tmp_path / "version", before=at(2))
    monkeypatch.setattr("jaxperf.train.run.versions", lambda: {"jax": "99.9"})
    trained(STEP, tmp_path / "version")
    assert "and 99.9 here; the same bits are not" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["XLA_FLAGS", "jax_default_matmul_precision"])
def test_other_settings_go_on_and_say_that_the_bits_may_differ(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    for _ in range(2):
        with pytest.raises(InterruptedTrainingError):
            trained(STEP, tmp_path, before=at(2))
    assert "not promised" not in capfd.readouterr().err
    if name.startswith("jax_"):
        with jax.default_matmul_precision("float32"):
            trained(STEP, tmp_path)
    else:
        monkeypatch.setenv(name, "--xla_a=1")
        trained(STEP, tmp_path)
    message = (
        rf"^{name} is \w+ in the checkpoint, and (--xla_a=1|float32) here; the same bits are not promised$"
    )
    assert re.search(message, capfd.readouterr().err, re.MULTILINE)


def test_a_checkpoint_that_does_not_tell_its_settings_is_gone_on_from(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InterruptedTrainingError):
        trained(STEP, tmp_path, before=at(3))
    folder = tmp_path / NAME / "step-00000002"
    about = read_verified(folder)
    (folder / "manifest.json").unlink()
    write_manifest(folder, dataclasses.replace(about, surroundings={"way": "jit"}))
    assert_same(trained(STEP, tmp_path), trained(STEP))
    errors = capfd.readouterr().err
    assert "going on after step 2 " in errors and "is missing in the checkpoint" in errors


def test_no_checkpoints_yet_means_from_the_beginning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert_same(trained(STEP, tmp_path, resume=True), trained(STEP))
    assert capfd.readouterr().err == (
        f"no checkpoint in {tmp_path / NAME} to go on from; starting at the beginning\n"
    )


def test_no_made_up_progress_gets_further_than_a_named_error(tmp_path: Path) -> None:
    trained(STEP, tmp_path, policy=Policy(every_steps=3))
    about = read_verified(tmp_path / NAME / "step-00000006")
    rng, accepted = random.Random(0), 0
    values = [
        -1,
        0,
        2,
        1e308,
        -0.5,
        True,
        None,
        "x",
        [],
        {},
        [0.5],
        [None],
        [10**400],
        {"number": 1},
        10**400,
    ]
    for _ in range(2000):
        progress = copy.deepcopy(dict(about.progress))
        for name in rng.sample(sorted(progress), rng.randint(1, 3)):
            progress[name] = rng.choice(values)
        if rng.random() < 0.5 and progress["epochs"]:
            row = dict(about.progress["epochs"][0])
            row[rng.choice([*row, "more"])] = rng.choice(values)
            progress["epochs"] = [row]
        try:
            count = len(progress_from(progress).epochs)
        except DamagedError:
            continue
        accepted += 1
        rows = [Epoch(**row) for row in progress["epochs"]]
        assert len([epoch.line() for epoch in rows]) == count
        assert all(epoch.images_per_s > 0 for epoch in rows)
    assert accepted


def test_a_progress_that_does_not_lead_to_its_step_is_damage(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Such a training would leave out updates, or have more in an epoch than there are."""
    with pytest.raises(InterruptedTrainingError):
        trained(STEP, tmp_path, before=at(8))
    for step, progress in (
        (7, {"epochs": []}),
        (6, {"update": 6, "losses": [1.0] * 6, "accuracies": [1.0] * 6}),
    ):
        folder = tmp_path / NAME / f"step-0000000{step}"
        about = read_verified(folder)
        (folder / "manifest.json").unlink()
        write_manifest(folder, dataclasses.replace(about, progress={**about.progress, **progress}))
    with pytest.raises(InterruptedTrainingError):
        trained(STEP, tmp_path, before=at(1))
    _, first, second, on = capfd.readouterr().err.splitlines()
    assert "(it says that step 7 is update 3 of an epoch); using step 6" in first
    assert "(it says that step 6 is update 6 of an epoch); using step 5" in second
    assert on.startswith("going on after step 5 ")


def exploding(from_step: int) -> Any:
    """Gradient descent whose rate is far too large from a step on."""
    return optax.sgd(lambda count: jnp.where(count < from_step - 1, 0.1, jnp.inf))


def test_a_loss_that_is_not_finite_stops_with_its_step_and_is_never_saved(tmp_path: Path) -> None:
    """Step 3 makes the parameters infinite, so the loss of step 4 is not a number."""
    step = step_of(optimizer=exploding(3))
    message = (
        r"^the loss is (nan|inf) at step 4, the last finite loss was \d\.\d+; use a smaller learning rate$"
    )
    with pytest.raises(JaxperfError, match=message):
        trained(step)
    with pytest.raises(JaxperfError, match=message.replace(";", "; step 2 is the newest checkpoint;")):
        trained(step, tmp_path / "every 2", policy=Policy(every_steps=2))
    assert steps_in(tmp_path / "every 2") == ["step-00000002"]
    with pytest.raises(JaxperfError, match=r"^a parameter is not finite at step 3, the last finite loss was"):
        trained(step, tmp_path / "every step", policy=Policy(every_steps=1))
    assert steps_in(tmp_path / "every step") == ["step-00000001", "step-00000002"]


def test_a_first_loss_that_is_not_finite_says_so() -> None:
    step = step_of()
    broken = dataclasses.replace(step.model, params={"W": step.model.params["W"] * np.inf})
    with pytest.raises(JaxperfError, match="the loss is nan at step 1, no loss before it was finite"):
        trained(step, state=step.init(broken))


def test_seconds_of_an_epoch_are_those_of_all_its_processes(tmp_path: Path) -> None:
    with pytest.raises(InterruptedTrainingError):
        trained(STEP, tmp_path, before=at(4))
    about = read_verified(tmp_path / NAME / "step-00000003")
    before = about.progress["train_s"]
    (first, _), _ = trained(STEP, tmp_path)
    assert 0 < before < first.train_s
