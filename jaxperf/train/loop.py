"""One training loop for every way to run a step, with each epoch's time, loss and accuracy."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax

from jaxperf.data import updates_per_epoch
from jaxperf.data.fashion_mnist import FULL_TRAIN, FashionMNIST
from jaxperf.errors import JaxperfError
from jaxperf.measure.compile_together import compile_lowered
from jaxperf.parallel.data_parallel import State, Step
from jaxperf.train.checkpoint import Checkpoints
from jaxperf.train.evaluate import Evaluator
from jaxperf.train.on_devices import FAILURES, Call, DeviceFeed, Feed, HostFeed, feed_of, no_memory
from jaxperf.train.progress import Epoch
from jaxperf.train.run import TrainingRun, optimizer_of

Progress = Callable[[Iterable[Call], int], Iterable[Call]]


class Trainer:
    """Trainings of one step on the same data, e.g. with several seeds: they share the compiled programs.

    Args:
      step: from `make_step`; it determines how and where to compute.
      data: images and labels.
      batch_size: images of one update, on all devices together; the trailing partial batch is dropped.
      updates: how many per epoch; as many as the full data set has batches if None, so that the small
        subset, used several times per epoch, follows the book's curve too.
      evaluator: for the test accuracy; one over the step's devices if None.
      feed: "host", "step" or "epoch", see on_devices.py; "auto" is the last of these that fits.
      saves: the trainings are saved within an epoch.

    Raises:
      JaxperfError: a batch size that does not divide among the devices or exceeds the data, or images that
        do not fit into a device's memory.
    """

    def __init__(
        self,
        step: Step,
        data: FashionMNIST,
        *,
        batch_size: int,
        updates: int | None = None,
        evaluator: Evaluator | None = None,
        feed: Feed = "auto",
        saves: bool = False,
    ) -> None:
        self.step, self.data, self.batch_size = step, data, batch_size
        self.updates = updates or updates_per_epoch(FULL_TRAIN, batch_size)
        size: dict[str, int] = {"batch_size": batch_size, "updates": self.updates}
        feed, self._compiled = feed_of(feed, step, saves=saves), False
        self._feed = (
            HostFeed(step, data, **size)
            if feed == "host"
            else DeviceFeed(step, data, **size, scan=feed == "epoch")
        )
        self.evaluator = evaluator or evaluator_of(step, data, batch_size)

    def train(
        self,
        *,
        epochs: int,
        seed: int = 0,
        state: State | None = None,
        progress: Progress | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> Iterator[tuple[Epoch, State]]:
        """Train on the devices of the step, and yield each epoch when it has ended.

        Args:
          epochs: how many.
          seed: of the order of the images.
          state: where to start; the step's own fresh state if None. It is donated.
          progress: `progress(calls, updates)` goes through the calls of an epoch, e.g. with a bar.
          checkpoints: where to save the training and resume it from, made by a `CheckpointFolder`, or None.

        Yields:
          The epoch and the state after it, for `step.read`. The next epoch donates it: copy what you need
          later. The earlier epochs of a resumed training come first, with None for a state that is gone.

        Raises:
          JaxperfError: no epochs, a batch that does not fit into a device's memory, a loss that is NaN or
            infinite, or a checkpoint that belongs to another training.
          SystemExit: a signal asked the training to end; see `CheckpointFolder`.
        """
        if epochs < 1:
            raise JaxperfError(f"{epochs} epochs leave nothing to train; give at least 1")
        state = self.step.init() if state is None else state
        training = {
            "optimizer": optimizer_of(self.step.read(state).opt_state), "data": self.data.fingerprint,
            "batch_size": self.batch_size, "seed": seed, "updates": self.updates,
        }  # fmt: skip
        run = TrainingRun(self.step, checkpoints, updates=self.updates, training=training)
        state = run.start(state, epochs=epochs)
        yield from run.done
        for number in range(len(run.done) + 1, epochs + 1):
            calls: Iterable[Call] = self._feed.calls(seed=seed, epoch=number, start=run.update)
            try:
                compile_s = self._compile(state)
                calls = progress(calls, self.updates) if progress else calls
                state, loss, accuracy, train_s = run.epoch(state, calls)
            except FAILURES as e:
                raise self._too_large(e) if no_memory(e) else e from None
            began = time.perf_counter()
            tested = self.evaluator.accuracy(self._variables(state))
            test_s = time.perf_counter() - began
            images = self.updates * self.batch_size
            epoch = Epoch(number, loss, accuracy, tested, train_s, compile_s, test_s, images)
            run.end_epoch(epoch, state)
            yield epoch, state

    def _compile(self, state: State) -> float:
        """Compile the training and the evaluation side by side, once; the seconds that took."""
        if self._compiled:
            return 0.0
        began = time.perf_counter()
        compile_lowered([*self._feed.lower(state), self.evaluator.lower(self._variables(state))])
        self._compiled = True
        return time.perf_counter() - began

    def _variables(self, state: State) -> Any:
        values = self.step.read(state)
        return values.params, values.stats

    def _too_large(self, error: Exception) -> JaxperfError:
        n, reason = self.batch_size, str(error).splitlines()[0][:160]
        half = n // 2 // len(self.step.devices) * len(self.step.devices)
        way_out = f"try --batch-size {half}" if half else "use more devices"
        return JaxperfError(f"a batch of {n} images does not fit into memory ({reason}); {way_out}")


def train(
    step: Step, data: FashionMNIST, *, batch_size: int, updates: int | None = None,
    evaluator: Evaluator | None = None, feed: Feed = "auto", checkpoints: Checkpoints | None = None,
    **options: Any,
) -> Iterator[tuple[Epoch, State]]:  # fmt: skip
    """Train once: `Trainer(step, data, ...).train(checkpoints=checkpoints, **options)`."""
    trainer = Trainer(
        step, data, batch_size=batch_size, updates=updates, evaluator=evaluator, feed=feed,
        saves=checkpoints is not None,
    )  # fmt: skip
    return trainer.train(checkpoints=checkpoints, **options)


def evaluator_of(step: Step, data: FashionMNIST, batch_size: int) -> Evaluator:
    """Return an `Evaluator` of a step's model on the test images, on the step's devices."""
    predict, images, labels = _prediction(step.model.apply), data.test_images, data.test_labels
    return Evaluator(predict, step.devices, images, labels, batch_size=batch_size)


@functools.lru_cache(8)
def _prediction(apply: Callable[..., Any]) -> Callable[[Any, jax.Array], jax.Array]:
    return lambda variables, X: apply(*variables, X, train=False)[0]
