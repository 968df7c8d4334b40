"""The state of a running training: what it measured, whether its loss is finite, and where it resumes."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import jax
import numpy as np

from jaxperf.errors import JaxperfError, one_line
from jaxperf.onednn import BY_NAME, SUMS
from jaxperf.parallel.update import TrainState
from jaxperf.result.machine import cores, cpu_model, versions
from jaxperf.train.arrays import described
from jaxperf.train.checkpoint import Checkpoints, say
from jaxperf.train.manifest import About, DamagedError
from jaxperf.train.progress import Epoch, Progress, progress_from

Tree = Any
# How many steps are queued behind the one that computes. Two keep the devices busy. CPU devices that sum over
# devices need a bound: with 400 queued steps of LeNet on two devices and two cores, six runs of six
# deadlocked, one device waiting in its all-reduce for the other; with at most eight queued, none did (JAX
# 0.10.2).
AHEAD = 2
# Settings outside a program that change its results: `_settings` names those that are set.
VARIABLES = ("XLA_FLAGS", BY_NAME, SUMS, "NVIDIA_TF32_OVERRIDE")
OPTIONS = ("jax_default_matmul_precision", "jax_enable_x64", "jax_disable_most_optimizations")


class Run:
    """What a training loop reports to after each step and epoch, and what it resumes a training from.

        run = Run(checkpoints, read=step.read, place=step.place, training={"seed": 0}, updates=8)
        state = run.start(state, epochs=epochs)
        yield from run.done
        for number in range(len(run.done) + 1, epochs + 1):
            run.begin()
            for X, y in epoch_batches(..., epoch=number, start=run.update):
                state, metrics = step(state, X, y)
                run.stepped(state, metrics["loss"], metrics["accuracy"])
            epoch = Epoch(number, *run.means(), ...)
            run.ended(epoch, state)
            yield epoch, state

    Args:
      checkpoints: where it is saved; nowhere if None.
      read: `read(state)` gives one copy of the state as a tree of arrays, a `TrainState` or parameters.
      place: `place(tree)` puts a tree of NumPy arrays back on the devices as the loop's state.
      training: what must be the same when it is resumed, by name; plain values.
      surroundings: what else must be the same for bitwise equal results; processor, versions and settings are
        added.
      updates: how many an epoch has.
      remember: whether the state after each epoch is also kept, and given with `done`.

    Attributes:
      step: how many updates were made.
      update: how many of them in this epoch.
      done: the epochs that were trained, each with the state after it if that is known, else None.
      data_s: seconds of this epoch that devices may have waited for batches; saved with it.
    """

    def __init__(
        self,
        checkpoints: Checkpoints | None = None,
        *,
        read: Callable[[Any], Tree] = lambda state: state,
        place: Callable[[Tree], Any] = lambda tree: tree,
        training: Mapping[str, Any] | None = None,
        surroundings: Mapping[str, Any] | None = None,
        updates: int = 0,
        remember: bool = False,
    ) -> None:
        self._checkpoints, self._read, self._place, self._remember = checkpoints, read, place, remember
        self._training, self._surroundings = training or {}, surroundings or {}
        self.step, self._updates = 0, updates
        self.done: list[tuple[Epoch, Any]] = []
        self._queued: deque[tuple[Any, Any]] = deque()
        self._new_epoch()

    def _new_epoch(self) -> None:
        self.update, self.data_s, self._before_s = 0, 0.0, 0.0
        self._losses: list[float] = []
        self._accuracies: list[float] = []

    def start(self, state: Any, *, epochs: int) -> Any:
        """Return where to begin: `state`, or what the newest checkpoint holds.

        Raises:
          JaxperfError: the checkpoint is from another model or training, or is beyond `epochs`, or none of
            several is intact.
        """
        if not self._checkpoints:
            return state
        self._training = _plain({**self._training, **self._checkpoints.settings})
        self._surroundings = _plain(
            {**self._surroundings, "processor": cpu_model(), "cores": cores(), **versions(), **_settings()}
        )
        one = self._read(state)
        self._arrays = described(one)
        found = self._checkpoints.load(lambda about: self._like(about, one))
        if not found:
            return state
        about, saved = found
        progress = progress_from(about.progress)
        if (len(progress.epochs), progress.update) > (epochs, 0):
            raise JaxperfError(
                f"{self._checkpoints.folder}: epoch {len(progress.epochs) + bool(progress.update)} is in the "
                f"checkpoint; {epochs} are too few to go on, give more"
            )
        state = self._place(saved["state"])
        self._go_on(about.step, progress, state, saved["after"])
        say(
            f"going on after step {self.step} (epoch {len(self.done) + 1}, update {self.update}) of "
            f"{self._checkpoints.folder}"
        )
        other = _difference(about.surroundings, self._surroundings)
        if other:
            say(f"{other}; the same bits are not promised")
        return state

    def _go_on(self, step: int, progress: Progress, state: Any, after: Sequence[Tree]) -> None:
        self.step, self.update = step, progress.update
        self.data_s, self._before_s = progress.data_s, progress.train_s
        self._losses, self._accuracies = [*progress.losses], [*progress.accuracies]
        known: Sequence[Any] = after if self._remember else [None] * len(progress.epochs)
        self.done = list(zip(progress.epochs, known))
        if self.done and not self.update:  # saved at the end of an epoch
            self.done[-1] = self.done[-1][0], known[-1] if self._remember else state

    def begin(self) -> None:
        """Start an epoch's clock, or continue it."""
        self._began = time.perf_counter() - self._before_s

    def brought(self, seconds: float) -> None:
        """Record a batch that took so many seconds; they count if no step is running any more."""
        if all(loss.is_ready() for loss, _ in self._queued):
            self.data_s += seconds

    def seconds(self) -> float:
        """Return the seconds of this epoch so far, including those before a checkpoint."""
        return time.perf_counter() - self._began

    def stepped(self, state: Any, loss: jax.Array, accuracy: jax.Array) -> None:
        """Record a step, whose results may not be computed yet, and wait for the step `AHEAD` before it.

        Raises:
          JaxperfError: a loss that is NaN or infinite, or such a parameter when the state is to be saved.
          SystemExit: a signal told the training to end; its state is saved.
        """
        self.step += 1
        self.update += 1
        self._queued.append((loss, accuracy))
        told = self._checkpoints.stop() if self._checkpoints else 0
        # `ended` saves what the last step of an epoch leaves
        due = told or (self._checkpoints and self.update < self._updates and self._checkpoints.due(self.step))
        self._settle(0 if due else AHEAD)
        if due:
            self._save(state, self.seconds())
        self._end_if(told)

    def means(self) -> tuple[float, float]:
        """Return the means of loss and accuracy over the epoch's steps, after waiting for all of them."""
        self._settle(0)
        return float(np.mean(self._losses)), float(np.mean(self._accuracies))

    def ended(self, epoch: Epoch, state: Any) -> None:
        """Record an epoch that was trained and evaluated, and save the state after it.

        Raises:
          JaxperfError, SystemExit: as `stepped`.
        """
        self.done.append((epoch, self._read(state) if self._remember else None))
        self._new_epoch()
        if self._checkpoints:
            self._save(state, 0.0)
            self._end_if(self._checkpoints.stop())

    def _settle(self, ahead: int) -> None:
        """Wait for all but the last `ahead` steps that were queued."""
        while len(self._queued) > ahead:
            loss, accuracy = map(float, self._queued.popleft())
            if not math.isfinite(loss):
                raise JaxperfError(self._not_finite(f"the loss is {loss}", self.step - len(self._queued)))
            self._losses.append(loss)
            self._accuracies.append(accuracy)

    def _save(self, state: Any, train_s: float) -> None:
        assert self._checkpoints
        one = self._read(state)
        # Neither an optimizer's moments nor its best value so far need to be finite
        values = (one.params, one.stats) if isinstance(one, TrainState) else one
        if not all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(values)):
            raise JaxperfError(self._not_finite("a parameter is not finite", self.step))
        progress = Progress(
            self.update, train_s, self.data_s, tuple(self._losses), tuple(self._accuracies),
            tuple(epoch for epoch, _ in self.done),
        )  # fmt: skip
        tree = {"state": one, "after": [after for _, after in self.done] if self._remember else []}
        about = About(self.step, self._arrays, self._training, self._surroundings, asdict(progress))
        self._checkpoints.save(tree, about)

    def _end_if(self, told: int) -> None:
        if told and self._checkpoints:
            self._checkpoints.wait()
            name, newest = signal.Signals(told).name, self._checkpoints.steps[-1:]
            saved = f"step {newest[0]} is saved, go on with --resume" if newest else "nothing is saved"
            say(f"{name}: stopped after step {self.step}; {saved}")
            raise SystemExit(128 + told)

    def _not_finite(self, what: str, step: int) -> str:
        last = [*(epoch.loss for epoch, _ in self.done[-1:]), *self._losses][-1:]
        before = f"the last finite loss was {last[0]:.4g}" if last else "no loss before it was finite"
        newest = ""
        if self._checkpoints:
            jax.block_until_ready(list(self._queued))  # since `wait` may have to ask other processes
            self._checkpoints.wait()
            newest = "".join(f"; step {n} is the newest checkpoint" for n in self._checkpoints.steps[-1:])
        return f"{what} at step {step}, {before}{newest}; use a smaller learning rate"

    def _like(self, about: About, one: Tree) -> Tree:
        """The tree to restore into, after checking that the checkpoint belongs to this training."""
        for theirs, ours in ((about.training, self._training), (about.arrays, self._arrays)):
            other = _difference(theirs, ours)
            if other:
                assert self._checkpoints
                raise JaxperfError(
                    f"{self._checkpoints.folder}: {other}; give what it was saved with, or another folder"
                )
        progress = progress_from(about.progress)
        epochs = progress.epochs
        if self._updates and about.step != len(epochs) * self._updates + progress.update:
            raise DamagedError(f"it says that step {about.step} is update {progress.update} of an epoch")
        return {"state": one, "after": [one for _ in epochs] if self._remember else []}


def _settings() -> dict[str, Any]:
    """The number of processes and the flags that are set: they too must match for bitwise equal results."""
    given = {name: os.environ.get(name) for name in VARIABLES}
    given |= {name: jax.config.values.get(name) for name in OPTIONS}
    set_to = {name: value for name, value in given.items() if value not in (None, "", "0", False)}
    return {"processes": jax.process_count(), **set_to}


def _difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """The first thing in which two descriptions differ, with both values; "" if there is none."""
    for name in [*ours, *theirs]:
        pair = [str(side.get(name, "missing"))[:100] for side in (theirs, ours)]
        if theirs.get(name) != ours.get(name):
            return one_line(f"{name} is {pair[0]} in the checkpoint, and {pair[1]} here")
    return ""


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON gives them back."""
    return dict(json.loads(json.dumps(dict(values), default=str)))


def optimizer_of(opt_state: Tree) -> str:
    """Return an optimizer's name, taken from its state, e.g. "ScaleByAdamState, EmptyState"."""
    states: Sequence[Any] = jax.tree.leaves(opt_state, is_leaf=lambda node: hasattr(node, "_fields"))
    return ", ".join(type(state).__name__ for state in states if hasattr(state, "_fields"))
