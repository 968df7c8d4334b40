"""One training loop for every way to run a step, and what each epoch took and reached."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxperf.data import epoch_batches, updates_per_epoch
from jaxperf.data.fashion_mnist import FULL_TRAIN, FashionMNIST
from jaxperf.errors import JaxperfError
from jaxperf.measure.timing import block
from jaxperf.parallel.data_parallel import State, Step
from jaxperf.parallel.several import rows_of
from jaxperf.train.evaluate import Evaluator

# How many steps are queued behind the one that computes. Two keep the devices busy. CPU devices that meet in
# a sum need a bound: 400 queued steps of LeNet on two devices and two cores stopped in six runs of six, one
# device waiting in its all-reduce for the other, and with at most eight queued in none (JAX 0.10.2).
AHEAD = 2
Progress = Callable[[Iterable[Any], int], Iterable[Any]]


@dataclass(frozen=True)
class Epoch:
    """The figures of one epoch.

    Attributes:
      number: 1, 2, ...
      loss: mean over the epoch's examples, each at the parameters of its own step.
      train_accuracy: likewise.
      test_accuracy: after the epoch, on all test images.
      train_s: seconds from the first batch until the last parameter is ready; without compiling.
      compile_s: seconds for compiling the step, before the first epoch; 0 for the others.
      data_s: of `train_s`, the seconds in which the loop prepared and sent batches.
      images: how many were trained on.
    """

    number: int
    loss: float
    train_accuracy: float
    test_accuracy: float
    train_s: float
    compile_s: float
    data_s: float
    images: int

    @property
    def images_per_s(self) -> float:
        """Images trained on per second."""
        return self.images / self.train_s

    def line(self) -> str:
        """Return the book's line, with the loss."""
        return (
            f"epoch {self.number}, time {self.train_s:.1f} sec, loss {self.loss:.4f}, "
            f"train acc {self.train_accuracy:.2f}, test acc {self.test_accuracy:.2f}"
        )


def train(
    step: Step,
    data: FashionMNIST,
    *,
    epochs: int,
    batch_size: int,
    seed: int = 0,
    updates: int | None = None,
    state: State | None = None,
    evaluator: Evaluator | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[Epoch, State]]:
    """Train as sections 8.4 and 8.5 do, and yield each epoch when it is over.

    A step is queued while the one before it computes, and the metrics of an epoch are read once it has ended,
    so the devices never wait for the loop, which is at most `AHEAD` steps before them.

    Args:
      step: from `make_step`; it says how and where.
      data: images and labels.
      epochs: how many.
      batch_size: images of one update, on all devices together; the trailing partial batch is dropped.
      seed: of the order of the images.
      updates: how many per epoch; as many as the full data set has batches if None, so that the small
        subset, used several times per epoch, follows the book's curve too.
      state: where to start; the step's own fresh state if None. It is used up.
      evaluator: for the test accuracy; one over the step's devices if None.
      progress: `progress(batches, updates)` goes through the batches of an epoch, e.g. with a bar.

    Yields:
      The epoch and the state after it, for `step.read`. The next epoch uses it up: copy what must last.

    Raises:
      JaxperfError: no epochs, a batch size that does not divide among the devices or exceeds the data.
    """
    if epochs < 1:
        raise JaxperfError(f"{epochs} epochs leave nothing to train; give at least 1")
    updates = updates or updates_per_epoch(FULL_TRAIN, batch_size)
    evaluator = evaluator or _evaluator(step, batch_size)
    state = step.init() if state is None else state
    rows = slice(None) if step.way == "manual" else rows_of(batch_size, step.devices)
    for number in range(1, epochs + 1):
        batches = epoch_batches(
            data.train_images, data.train_labels,
            batch_size=batch_size, seed=seed, epoch=number, updates=updates, rows=rows,
        )  # fmt: skip
        compile_s = 0.0
        if number == 1:
            shares = step.load(data.train_images[:batch_size][rows], data.train_labels[:batch_size][rows])
            compile_s = step.compile_s(state, shares)
        began = time.perf_counter()
        state, metrics, data_s = _one_epoch(step, state, progress(batches, updates) if progress else batches)
        block((state, metrics))
        train_s = time.perf_counter() - began
        found = step.read(state)
        accuracy = evaluator.accuracy((found.params, found.stats), data.test_images, data.test_labels)
        means = {k: float(np.mean([m[k] for m in metrics])) for k in metrics[0]}
        yield (
            Epoch(
                number, means["loss"], means["accuracy"], accuracy,
                train_s, compile_s, data_s, updates * batch_size,
            ),
            state,
        )  # fmt: skip


def _evaluator(step: Step, batch_size: int) -> Evaluator:
    def apply(variables: Any, X: jax.Array) -> jax.Array:
        return step.model.apply(*variables, X, train=False)[0]

    return Evaluator(apply, step.devices, batch_size=batch_size)


def _one_epoch(
    step: Step, state: State, batches: Iterable[Any]
) -> tuple[State, Sequence[dict[str, jax.Array]], float]:
    """Queue an epoch's steps; the seconds returned are those spent on getting batches and sending them."""
    metrics, data_s = [], 0.0
    clock = time.perf_counter
    before = clock()
    for X, y in batches:
        shares = step.load(X, y)
        data_s += clock() - before
        state, found = step.run(state, shares)
        metrics.append(found)
        block(metrics[-1 - AHEAD : -AHEAD])
        before = clock()
    return state, metrics, data_s
