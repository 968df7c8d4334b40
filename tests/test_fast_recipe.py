"""The fast recipe: what decays, how the rate goes, what an epoch sees, when an accuracy is reached."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from stories import begin

from experiments import multiple_gpus_concise as section
from jaxperf.chapter import fast_recipe as part
from jaxperf.data import FashionMNIST
from jaxperf.parallel import Model, first_devices, make_step, model_of_function
from jaxperf.result import Grid, Lines
from jaxperf.train import Epoch


def made_up(train: int = 8, test: int = 4) -> FashionMNIST:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (train + test, 28, 28, 1), np.uint8)
    labels = rng.integers(0, 10, train + test, np.int32)
    return FashionMNIST(images[:train], labels[:train], images[train:], labels[train:], "made up")


def test_kernels_decay_and_neither_biases_nor_scales_do() -> None:
    params = {
        "kernel": jnp.ones((3, 3, 1, 2)),
        "dense": jnp.ones((4, 2)),
        "bias": jnp.ones(2),
        "scale": jnp.ones(2),
    }
    optimizer = part.one_cycle(0.4, 10)
    zeros = jax.tree.map(jnp.zeros_like, params)
    updates, _ = optimizer.update(zeros, optimizer.init(params), params)
    moved = {name: bool((update != 0).all()) for name, update in updates.items()}
    assert moved == {"kernel": True, "dense": True, "bias": False, "scale": False}


@pytest.mark.parametrize("updates", [10, 702, 5])
def test_the_rate_rises_once_to_the_largest_and_falls_until_the_last_update(updates: int) -> None:
    optimizer, params = part.one_cycle(0.4, updates), {"bias": jnp.zeros(1)}

    def step(state: Any, _: Any) -> Any:
        # without momentum's memory an update is minus (1 + .9) times the rate
        update, new = optimizer.update({"bias": jnp.ones(1)}, fresh(state), params)
        return new, -update["bias"][0] / (1 + part.MOMENTUM)

    def fresh(state: Any) -> Any:
        return jax.tree.map(lambda a: jnp.zeros_like(a) if a.shape == (1,) else a, state)

    rates = np.asarray(jax.lax.scan(step, optimizer.init(params), length=updates)[1])
    top = int(rates.argmax())
    assert rates[top] == pytest.approx(0.4, rel=0.05 if updates > 5 else 0.5) and 0 < top <= 0.2 * updates
    assert (np.diff(rates[: top + 1]) > 0).all() and (np.diff(rates[top:]) < 0).all()
    assert 0 < rates[-1] < 0.25 * 0.4


def test_each_image_is_there_as_it_is_and_mirrored_with_its_label() -> None:
    data = made_up()
    both = part.with_mirrored(data)
    assert len(both.train_images) == len(both.train_labels) == 16 and both.train_images.dtype == np.uint8
    np.testing.assert_array_equal(both.train_images[:8], data.train_images)
    np.testing.assert_array_equal(both.train_images[8:, :, 0], data.train_images[:, :, 27])
    np.testing.assert_array_equal(both.train_images[8:, 3], data.train_images[:, 3, ::-1])
    np.testing.assert_array_equal(both.train_labels[8:], data.train_labels)
    assert both.test_images is data.test_images


def test_seconds_count_until_the_epoch_that_reached_it(monkeypatch: pytest.MonkeyPatch) -> None:
    accuracies = {0: (0.9, 0.93, 0.92), 3: (0.8, 0.92, 0.9299), 5: (0.94, 0.9, 0.95)}
    asked: list[dict[str, Any]] = []

    def train(step: Any, data: FashionMNIST, **options: Any) -> Any:
        asked.append(options | {"images": len(data.train_images)})
        for i, accuracy in enumerate(accuracies[options["seed"]]):
            yield Epoch(i + 1, 0.3, 0.9, accuracy, 2.0 + i, 9.0, 0.0, 8), None

    monkeypatch.setattr(part, "train", train)
    for data, verdict in ((made_up(), "not measured"), (made_up(60_000, 10_000), "does not hold")):
        story = begin("8.5")
        recipe = part.Recipe(3, 4, 0.1)
        part.fast_recipe(story, make, draw, data, recipe, seeds=(0, 3, 5))
        [grid] = story.result().of(Grid)
        assert [row[:2] for row in grid.rows] == [("0", "5.0 s"), ("3", "not reached"), ("5", "2.0 s")]
        facts = story.result().facts
        assert (facts["fast_reached"], facts["fast_seconds_mean"]) == (2, 3.5)
        assert facts["fast_seconds_spread"] == pytest.approx(1.5 * 2**0.5)
        assert facts["fast_accuracy_mean"] == pytest.approx(np.mean([0.92, 0.9299, 0.95]))
        [claim] = story.result().claims
        assert (claim.holds == "does not hold") is (verdict == "does not hold"), claim
        [lines] = story.result().of(Lines)
        assert [curve.name for curve in lines.curves] == ["seed 0", "seed 3", "seed 5"]
    assert [a["images"] for a in asked[:3]] == [16] * 3  # of which an epoch takes eight
    assert all((a["epochs"], a["batch_size"], a["updates"]) == (3, 4, 2) for a in asked[:3])
    assert asked[0]["evaluator"] is asked[2]["evaluator"]


def softmax_net(X: jax.Array, params: Any) -> jax.Array:
    return X.reshape(len(X), -1) @ params["kernel"] + params["bias"]


def draw(seed: int) -> Model:
    kernel = 0.01 * jax.random.normal(jax.random.key(seed), (784, 10))
    return model_of_function(softmax_net, {"kernel": kernel, "bias": jnp.zeros(10)})


def make(optimizer: optax.GradientTransformation) -> Any:
    return make_step("jit", draw(0), optimizer, first_devices(1))


def test_a_training_per_seed_begins_with_its_own_weights_and_learns() -> None:
    data = made_up(64, 64)
    same = dataclasses.replace(data, test_images=data.train_images, test_labels=data.train_labels)
    story = begin("8.5")
    part.fast_recipe(story, make, draw, same, part.Recipe(12, 16, 0.02), seeds=(0, 1))
    [lines] = story.result().of(Lines)
    one, other = (curve.y for curve in lines.curves)
    assert one != other and min(one[-1], other[-1]) > 0.5  # noise that it learns by heart


def test_the_flag_replaces_the_books_training(monkeypatch: pytest.MonkeyPatch) -> None:
    for recipe, told in (("book", "training"), ("fast", "training_fast")):
        story = begin("8.5")
        parts: list[str] = []
        monkeypatch.setattr(story, "part", lambda tell, *_, to=parts, **__: to.append(tell.__name__))
        config = dataclasses.replace(section.Config.smoke(), recipe=recipe)
        section.main(config, story)
        assert told in parts and len([p for p in parts if p.startswith("training")]) == 1
