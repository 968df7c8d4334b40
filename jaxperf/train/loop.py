"""One training loop for every way to run a step, with each epoch's time, loss and accuracy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np

from jaxperf.data import epoch_batches, updates_per_epoch
from jaxperf.data.fashion_mnist import FULL_TRAIN, FashionMNIST
from jaxperf.errors import JaxperfError
from jaxperf.parallel.data_parallel import State, Step
from jaxperf.parallel.multihost import rows_of
from jaxperf.train.checkpoint import Checkpoints
from jaxperf.train.evaluate import Evaluator
from jaxperf.train.fitting import fitting
from jaxperf.train.on_devices import DataOn, OnDevices, lie_on_devices
from jaxperf.train.progress import Epoch
from jaxperf.train.run import TrainingRun, optimizer_of

Progress = Callable[[Iterable[Any], int], Iterable[Any]]


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
    checkpoints: Checkpoints | None = None,
    data_on: DataOn = "auto",
) -> Iterator[tuple[Epoch, State]]:
    """Train on the devices of `step`, and yield each epoch when it has ended.

    A step is queued while the one before it computes, so the devices never wait for the loop, which runs at
    most `AHEAD` steps ahead of them.

    Args:
      step: from `make_step`; it determines how and where to compute.
      data: images and labels.
      epochs: how many.
      batch_size: images of one update, on all devices together; the trailing partial batch is dropped.
      seed: of the order of the images.
      updates: how many per epoch; as many as the full data set has batches if None, so that the small
        subset, used several times per epoch, follows the book's curve too.
      state: where to start; the step's own fresh state if None. It is donated.
      evaluator: for the test accuracy; one over the step's devices if None.
      progress: `progress(batches, updates)` goes through the batches of an epoch, e.g. with a bar.
      checkpoints: where to save the training and resume it from, made by a `CheckpointFolder`; none if None.
      data_on: "host" gathers each batch in NumPy and copies it; "devices" copies all images to each device
        once and gathers there; "auto" does that on all devices but CPUs. The batches are the same.

    Yields:
      The epoch and the state after it, for `step.read`. The next epoch donates it: copy what you need later.
      The earlier epochs of a resumed training come first, with None for a state that is gone.

    Raises:
      JaxperfError: no epochs, a batch size that does not divide among the devices or exceeds the data, a
        batch or images that do not fit into a device's memory, a loss that is NaN or infinite, or a
        checkpoint that belongs to another training.
      SystemExit: a signal asked the training to end; see `CheckpointFolder`.
    """
    if epochs < 1:
        raise JaxperfError(f"{epochs} epochs leave nothing to train; give at least 1")
    updates = updates or updates_per_epoch(FULL_TRAIN, batch_size)
    evaluator = evaluator or evaluator_of(step, batch_size)
    state = step.init() if state is None else state
    rows, order = _rows(step, batch_size), {"batch_size": batch_size, "seed": seed, "updates": updates}
    optimizer = optimizer_of(step.read(state).opt_state)
    training = {"optimizer": optimizer, "data": data.fingerprint, **order}
    run = TrainingRun(step, checkpoints, updates=updates, training=training)
    state = run.start(state, epochs=epochs)
    yield from run.done
    images: Any = data.train_images
    labels: Any = data.train_labels
    load = step.load
    if lie_on_devices(data_on, step):
        load = OnDevices(step, images, labels).load
        images = labels = np.arange(len(labels), dtype=np.int32)
    compile_s = None
    for number in range(len(run.done) + 1, epochs + 1):
        batches = epoch_batches(images, labels, **order, epoch=number, start=run.update, rows=rows)
        with fitting(batch_size, partial(_fresh_step, step, data), step.devices):
            if compile_s is None:
                compile_s = step.compile_s(state, _load(step, data, batch_size))
            shown = progress(batches, updates) if progress else batches
            state, loss, accuracy, train_s = run.epoch(state, shown, load)
        values = step.read(state)
        tested = evaluator.accuracy((values.params, values.stats), data.test_images, data.test_labels)
        epoch = Epoch(number, loss, accuracy, tested, train_s, compile_s, run.data_s, updates * batch_size)
        run.end_epoch(epoch, state)
        yield epoch, state
        compile_s = 0.0


def evaluator_of(step: Step, batch_size: int) -> Evaluator:
    """Return an `Evaluator` of a step's model on its devices; trainings that share it compile it once."""

    def apply(variables: Any, X: jax.Array) -> jax.Array:
        return step.model.apply(*variables, X, train=False)[0]

    return Evaluator(apply, step.devices, batch_size=batch_size)


def _fresh_step(step: Step, data: FashionMNIST, n: int) -> Any:
    """One step on `n` images from a fresh state, to see how much memory a batch of `n` takes."""
    return step.run(step.init(), _load(step, data, n))


def _load(step: Step, data: FashionMNIST, n: int) -> Any:
    rows = _rows(step, n)
    return step.load(data.train_images[:n][rows], data.train_labels[:n][rows])


def _rows(step: Step, n: int) -> slice:
    """The rows of a batch of `n` that this process loads: all if by hand, where shares may also differ."""
    return slice(None) if step.way == "manual" else rows_of(n, step.devices)
