"""The state of a running training: its steps, what it measured, and where it resumes."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import jax
import numpy as np

from jaxperf.errors import JaxperfError, to_one_line
from jaxperf.measure.timing import block
from jaxperf.parallel.data_parallel import State, Step
from jaxperf.parallel.update import TrainState
from jaxperf.result.machine import cores, cpu_model, versions
from jaxperf.train.arrays import describe_arrays
from jaxperf.train.checkpoint import Checkpoints, print_line
from jaxperf.train.manifest import About, DamagedError
from jaxperf.train.on_devices import Call
from jaxperf.train.progress import Epoch, Progress, progress_from

# How many steps are queued behind the one that computes. Two keep the devices busy. CPU devices that sum over
# devices need a bound: with 400 queued steps of LeNet on two devices and two cores, six runs of six
# deadlocked, one device waiting in its all-reduce for the other; with at most eight queued, none did (JAX
# 0.10.2).
AHEAD = 2
# Settings outside a program that change its results: `_settings` names those that are set.
VARIABLES = ("XLA_FLAGS", "NVIDIA_TF32_OVERRIDE")
OPTIONS = ("jax_default_matmul_precision", "jax_enable_x64", "jax_disable_most_optimizations")


class TrainingRun:
    """A training that `train` runs epoch by epoch: it makes the steps, saves the state and resumes from it.

        run = TrainingRun(step, checkpoints, updates=8, training={"seed": 0})
        state = run.start(state, epochs=epochs)
        for number in range(len(run.done) + 1, epochs + 1):
            state, loss, accuracy, train_s = run.epoch(state, calls_from(run.update))
            run.end_epoch(Epoch(number, loss, accuracy, ...), state)

    Args:
      step: computes the updates.
      checkpoints: where the training is saved; nowhere if None.
      updates: how many an epoch has.
      training: what must be the same when it is resumed, by name; plain values.

    Attributes:
      step_count: how many updates were made.
      update: how many of them in this epoch.
      done: the epochs that were trained, each with the state after it if that is known, else None.
    """

    def __init__(
        self, step: Step, checkpoints: Checkpoints | None, *, updates: int, training: Mapping[str, Any]
    ) -> None:
        self._step, self._checkpoints, self._updates = step, checkpoints, updates
        self._training = training
        self.step_count = 0
        self.done: list[tuple[Epoch, State | None]] = []
        self._queue: deque[tuple[Any, Any]] = deque()
        self._new_epoch()

    def _new_epoch(self) -> None:
        self.update, self._before_s = 0, 0.0
        self._losses: list[float] = []
        self._accuracies: list[float] = []

    def start(self, state: State, *, epochs: int) -> State:
        """Return where to begin: `state`, or what the newest checkpoint holds.

        Raises:
          JaxperfError: the checkpoint is from another model or training, or is beyond `epochs`, or none of
            several is intact.
        """
        if not self._checkpoints:
            return state
        self._training = _plain({**self._training, **self._checkpoints.settings})
        self._surroundings = _plain(
            {
                "way": self._step.way,
                "devices": [d.device_kind for d in self._step.devices],
                "processor": cpu_model(),
                "cores": cores(),
                **versions(),
                **_settings(),
            }
        )
        one = self._step.read(state)
        self._arrays = describe_arrays(one)
        loaded = self._checkpoints.load(lambda about: self._like(about, one))
        if not loaded:
            return state
        about, saved = loaded
        progress = progress_from(about.progress)
        if (len(progress.epochs), progress.update) > (epochs, 0):
            raise JaxperfError(
                f"{self._checkpoints.folder}: epoch {len(progress.epochs) + bool(progress.update)} is in the "
                f"checkpoint; {epochs} are too few to go on, give more"
            )
        state = self._step.place(saved)
        self._resume(about.step, progress, state)
        print_line(
            f"going on after step {self.step_count} (epoch {len(self.done) + 1}, update {self.update}) of "
            f"{self._checkpoints.folder}"
        )
        if other := _difference(about.surroundings, self._surroundings):
            print_line(f"{other}; the same bits are not promised")
        return state

    def _like(self, about: About, one: TrainState) -> TrainState:
        """Return the tree to restore into, after checking that the checkpoint belongs to this training."""
        for saved, current in ((about.training, self._training), (about.arrays, self._arrays)):
            if other := _difference(saved, current):
                assert self._checkpoints
                raise JaxperfError(
                    f"{self._checkpoints.folder}: {other}; give what it was saved with, or another folder"
                )
        progress = progress_from(about.progress)
        if about.step != len(progress.epochs) * self._updates + progress.update:
            raise DamagedError(f"it says that step {about.step} is update {progress.update} of an epoch")
        return one

    def _resume(self, step: int, progress: Progress, state: State) -> None:
        self.step_count, self.update = step, progress.update
        self._before_s = progress.train_s
        self._losses, self._accuracies = [*progress.losses], [*progress.accuracies]
        self.done = [(epoch, None) for epoch in progress.epochs]
        if self.done and not self.update:  # saved at the end of an epoch
            self.done[-1] = self.done[-1][0], state

    def epoch(self, state: State, calls: Iterable[Call]) -> tuple[State, float, float, float]:
        """Make the updates that are left of an epoch, and wait for the last one.

        A call is queued while the one before it computes, at most `AHEAD` calls ahead.

        Args:
          state: where to start; it is donated.
          calls: each queues an update, or several (on_devices.py).

        Returns:
          The new state, the epoch's mean loss, its mean accuracy, and its seconds: all of the epoch's, also
          those before a checkpoint.

        Raises:
          JaxperfError: a loss that is NaN or infinite, or such a parameter when the state is to be saved.
          SystemExit: a signal asked the training to end; its state is saved.
        """
        clock = time.perf_counter
        began = clock() - self._before_s
        for call in calls:
            state, metrics = call(state)
            self._queue.append((metrics["loss"], metrics["accuracy"]))
            self._after_call(state, began)
        self._settle(0)
        block(state)
        return state, float(np.mean(self._losses)), float(np.mean(self._accuracies)), clock() - began

    def end_epoch(self, epoch: Epoch, state: State) -> None:
        """Record an epoch that was trained and evaluated, and save the state after it.

        Raises:
          JaxperfError, SystemExit: as `epoch`.
        """
        self.done.append((epoch, None))
        self._new_epoch()
        if self._checkpoints:
            self._save(state, 0.0)
            self._end_if(self._checkpoints.stop())

    def _after_call(self, state: State, began: float) -> None:
        """Count its updates, whose results may not be computed yet, and save the state if that is due."""
        count = np.size(self._queue[-1][0])
        self.step_count += count
        self.update += count
        number = self._checkpoints.stop() if self._checkpoints else 0
        within = self.update < self._updates  # `end_epoch` saves what the last step of an epoch leaves
        due = number or (self._checkpoints and within and self._checkpoints.due(self.step_count))
        self._settle(0 if due else AHEAD)
        if due:
            self._save(state, time.perf_counter() - began)
        self._end_if(number)

    def _settle(self, ahead: int) -> None:
        """Wait for all but the last `ahead` calls that were queued."""
        while len(self._queue) > ahead:
            losses, accuracies = (np.atleast_1d(values).tolist() for values in self._queue.popleft())
            step = self.step_count - sum(np.size(loss) for loss, _ in self._queue) - len(losses)
            for i, (loss, accuracy) in enumerate(zip(losses, accuracies)):
                if not math.isfinite(loss):
                    raise JaxperfError(self._not_finite(f"the loss is {loss}", step + i + 1))
                self._losses.append(loss)
                self._accuracies.append(accuracy)

    def _save(self, state: State, train_s: float) -> None:
        assert self._checkpoints
        one = self._step.read(state)
        # Neither an optimizer's moments nor its best value so far need to be finite
        if not all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves((one.params, one.stats))):
            raise JaxperfError(self._not_finite("a parameter is not finite", self.step_count))
        epochs = tuple(epoch for epoch, _ in self.done)
        progress = Progress(self.update, train_s, tuple(self._losses), tuple(self._accuracies), epochs)
        about = About(self.step_count, self._arrays, self._training, self._surroundings, asdict(progress))
        self._checkpoints.save(one, about)

    def _end_if(self, number: int) -> None:
        """End the process if a signal asked for it."""
        if number and self._checkpoints:
            self._checkpoints.wait()
            name, newest = signal.Signals(number).name, self._checkpoints.steps[-1:]
            saved = f"step {newest[0]} is saved, go on with --resume" if newest else "nothing is saved"
            print_line(f"{name}: stopped after step {self.step_count}; {saved}")
            raise SystemExit(128 + number)

    def _not_finite(self, what: str, step: int) -> str:
        last = [*(epoch.loss for epoch, _ in self.done[-1:]), *self._losses][-1:]
        before = f"the last finite loss was {last[0]:.4g}" if last else "no loss before it was finite"
        newest = ""
        if self._checkpoints:
            jax.block_until_ready(list(self._queue))  # since `wait` may have to ask other processes
            self._checkpoints.wait()
            newest = "".join(f"; step {n} is the newest checkpoint" for n in self._checkpoints.steps[-1:])
        return f"{what} at step {step}, {before}{newest}; use a smaller learning rate"


def _settings() -> dict[str, Any]:
    """Return the number of processes and the flags set, which must match for bitwise equal results."""
    settings = {name: os.environ.get(name) for name in VARIABLES}
    settings |= {name: jax.config.values.get(name) for name in OPTIONS}
    set_to = {name: value for name, value in settings.items() if value not in (None, "", "0", False)}
    return {"processes": jax.process_count(), **set_to}


def _difference(saved: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    """Return the first thing in which two descriptions differ, with both values; "" if there is none."""
    for name in [*current, *saved]:
        pair = [str(side.get(name, "missing"))[:100] for side in (saved, current)]
        if saved.get(name) != current.get(name):
            return to_one_line(f"{name} is {pair[0]} in the checkpoint, and {pair[1]} here")
    return ""


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON gives them back."""
    return dict(json.loads(json.dumps(dict(values), default=str)))


def optimizer_of(opt_state: Any) -> str:
    """Return an optimizer's name, taken from its state, e.g. "ScaleByAdamState, EmptyState"."""
    states: Sequence[Any] = jax.tree.leaves(opt_state, is_leaf=lambda node: hasattr(node, "_fields"))
    return ", ".join(type(state).__name__ for state in states if hasattr(state, "_fields"))
