"""Section 8.5, `--recipe fast`: seconds of training until ResNet-18 has a given test accuracy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np
import optax

from jaxperf.chapter.training import accuracy_curves
from jaxperf.data import FashionMNIST, updates_per_epoch
from jaxperf.parallel import Model, Step
from jaxperf.script import Story
from jaxperf.train import CheckpointFolder, Epoch, evaluator_of, train
from jaxperf.train.on_devices import DataOn

ACCURACY = 0.93  # of the 10,000 test images
MOMENTUM = 0.9
DECAY = 5e-4  # He et al. (2016) train ResNets on ImageNet, which has more images, with 1e-4
WARM_UP = 0.2  # the part of the updates over which the rate rises; then it falls until the end


@dataclass(frozen=True)
class Recipe:
    """A training's length and its largest learning rate."""

    epochs: int
    batch_size: int  # on all devices together
    lr: float


def one_cycle(lr: float, updates: int) -> optax.GradientTransformation:
    """Nesterov's momentum, a rate that rises to `lr` and falls to nearly 0, and decay of kernels only.

    Sources: Smith and Topin, "Super-Convergence" (2018), for the cycle; Goyal et al., "Accurate, Large
    Minibatch SGD" (2017), for BatchNorm's scales without decay.

    Args:
      lr: the largest rate.
      updates: of the whole training, which is one cycle of the rate.
    """
    rate = optax.cosine_onecycle_schedule(updates, lr, pct_start=WARM_UP)
    decay = optax.add_decayed_weights(DECAY, mask=kernels)
    return optax.chain(decay, optax.sgd(rate, momentum=MOMENTUM, nesterov=True))


def kernels(params: Any) -> Any:
    """Which parameters are kernels, as a tree of bools: they have two axes or more, biases and scales one."""
    return jax.tree.map(lambda a: a.ndim > 1, params)


def with_mirrored(data: FashionMNIST) -> FashionMNIST:
    """The data with each training image twice, the second time mirrored left to right.

    An epoch takes N of these 2 N images, in an order on which all processes agree. A step that mirrors by
    itself would need random keys.
    """
    images, labels = data.train_images, data.train_labels
    return dataclasses.replace(
        data,
        train_images=np.concatenate([images, images[:, :, ::-1]]),
        train_labels=np.concatenate([labels, labels]),
    )


def fast_recipe(
    story: Story,
    make: Callable[[optax.GradientTransformation], Step],
    draw: Callable[[int], Model],
    data: FashionMNIST,
    recipe: Recipe,
    *,
    seeds: Sequence[int],
    data_on: DataOn = "auto",
    folder: CheckpointFolder | None = None,
    **what_trains: Any,
) -> None:
    """Train with every seed; show after how many seconds each reached the accuracy, the mean and the spread.

    Seconds are of training alone, up to the end of the first epoch with the accuracy: compiling and
    predicting the test set do not count.

    Facts: `fast_reached`, how many seeds reached the accuracy; `fast_seconds_mean` and `fast_seconds_spread`
    of those, None if none did; `fast_accuracy_mean` and `fast_accuracy_spread` of the last epochs. A spread
    is a standard deviation, None with one value.

    Args:
      story: is told the results.
      make: `make(optimizer)` gives the step that all seeds share, so that it compiles once.
      draw: `draw(seed)` gives the network with its initial values.
      data: images and labels, of which those to train on are also mirrored.
      recipe: how long, and how fast.
      seeds: of weights and order of images; a training each.
      data_on: as `train`.
      folder: where to save the trainings; nowhere if None.
      what_trains: what else must be the same when a saved training is resumed.

    Raises:
      JaxperfError: as `train`, and fewer images than a batch.
    """
    story.heading(f"Seconds to a test accuracy of {ACCURACY:.2f}")
    story.text(
        f"""With a constant rate and no momentum, the book reaches .92 after four epochs. This recipe adds
        four things: momentum, a rate that rises over the first fifth of the updates and then falls to 0,
        weight decay, and mirrored images. Most of the accuracy comes in the last epochs, when the rate is
        small. So a training of fewer epochs needs a shorter cycle; it is not the beginning of a longer one.
        The test set is predicted after each of the {recipe.epochs} epochs. Neither this nor compiling counts
        as training."""
    )
    story.code(one_cycle, with_mirrored)
    updates, doubled = updates_per_epoch(len(data.train_labels), recipe.batch_size), with_mirrored(data)
    step = make(one_cycle(recipe.lr, recipe.epochs * updates))
    evaluator, settings = evaluator_of(step, recipe.batch_size), {**what_trains, **asdict(recipe)}
    runs: dict[int, list[Epoch]] = {}
    for seed in seeds:
        epochs = train(
            step, doubled, epochs=recipe.epochs, batch_size=recipe.batch_size, seed=seed, updates=updates,
            state=step.init(draw(seed)), evaluator=evaluator, progress=story.progress, data_on=data_on,
            checkpoints=folder.of(f"fast recipe, seed {seed}", **settings) if folder else None,
        )  # fmt: skip
        runs[seed] = [epoch for epoch, _ in epochs]
    _judge(
        story, runs, by=recipe.epochs, cannot="" if data.is_full else "it needs all 60,000 + 10,000 images"
    )


def _judge(story: Story, runs: Mapping[int, Sequence[Epoch]], *, by: int, cannot: str) -> None:
    """Show the epochs of each seed's training, and whether all reached the accuracy."""
    reached = {seed: _seconds(run) for seed, run in runs.items()}
    story.grid(
        ("seed", f"seconds to {ACCURACY:.2f}", "epochs", "an epoch", "test acc"),
        [
            (str(seed), f"{s:.1f} s" if s else "not reached", str(len(run)),
             f"{np.median([e.train_s for e in run]):.1f} s", f"{run[-1].test_accuracy:.4f}")
            for (seed, run), s in zip(runs.items(), reached.values(), strict=True)
        ],
        title="The fast recipe",
        right=range(5),
    )  # fmt: skip
    named = {f"seed {seed}": run for seed, run in runs.items()}
    accuracy_curves(story, named, printed={}, title="Test accuracy with the fast recipe")
    last = [run[-1].test_accuracy for run in runs.values()]
    seconds = [s for s in reached.values() if s]
    story.fact("fast_reached", len(seconds), words=f"of {len(runs)} trainings reached {ACCURACY:.2f}")
    _mean_and_spread(story, "fast_seconds", seconds, f"of training to {ACCURACY:.2f}", unit="s")
    _mean_and_spread(story, "fast_accuracy", last, "test accuracy at the end")
    story.claim(
        ours=f"The fast recipe reaches a test accuracy of {ACCURACY:.2f} with every seed",
        holds=len(seconds) == len(runs),
        predicted=f"by epoch {by}",
        right=len(seconds) == len(runs),
        observed=f"{len(seconds)} of {len(runs)}; {min(last):.3f} to {max(last):.3f} at the end",
        cannot=cannot,
    )


def _seconds(run: Sequence[Epoch]) -> float | None:
    """Seconds of training until the end of the first epoch with the accuracy; None without one."""
    spent = 0.0
    for epoch in run:
        spent += epoch.train_s
        if epoch.test_accuracy >= ACCURACY:
            return spent
    return None


def _mean_and_spread(story: Story, name: str, values: Sequence[float], words: str, *, unit: str = "") -> None:
    mean = float(np.mean(values)) if values else None
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    story.fact(f"{name}_mean", mean, unit=unit, words=words)
    story.fact(f"{name}_spread", spread, unit=unit, words=f"standard deviation, of {len(values)} seeds")
    if mean is not None and spread is not None:
        of = f"mean and standard deviation of {len(values)} seeds"
        story.say(f"{mean:.4g}{unit and ' ' + unit} {words}, +- {spread:.2g} ({of})")
