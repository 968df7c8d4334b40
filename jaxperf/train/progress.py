"""The progress of a training: its finished epochs with their figures, and the steps of the current one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from jaxperf.train.manifest import DamagedError


@dataclass(frozen=True)
class Epoch:
    """The figures of one epoch.

    Attributes:
      number: 1, 2, ...
      loss: mean over the epoch's examples, each at the parameters of its own step.
      train_accuracy: likewise.
      test_accuracy: after the epoch, on all test images.
      train_s: seconds from the first batch until the last parameter is ready; without compiling.
      compile_s: seconds for compiling all programs, before the first epoch; 0 for the others.
      test_s: seconds of the evaluation after it.
      images: how many were trained on.
    """

    number: int
    loss: float
    train_accuracy: float
    test_accuracy: float
    train_s: float
    compile_s: float
    test_s: float
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


@dataclass(frozen=True)
class Progress:
    """What a checkpoint keeps of a training besides its arrays.

    Attributes:
      update: how many updates of the current epoch were made.
      train_s: seconds of this epoch so far.
      losses: of each of its updates.
      accuracies: likewise.
      epochs: those that ended.
    """

    update: int
    train_s: float
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    epochs: tuple[Epoch, ...]


def progress_from(plain: Mapping[str, Any]) -> Progress:
    """Return the progress from plain data (`dataclasses.asdict`), read from a file that may hold anything.

    Raises:
      DamagedError: it makes no sense.
    """
    try:
        epochs = tuple(Epoch(**row) for row in plain["epochs"])
        lists = {name: tuple(plain[name]) for name in ("losses", "accuracies")}
        progress = Progress(**{**plain, **lists, "epochs": epochs})
        numbers = [progress.update, progress.train_s, *progress.losses, *progress.accuracies]
        numbers += [n for epoch in epochs for n in asdict(epoch).values()]
        counts = [progress.update, *(n for epoch in epochs for n in (epoch.number, epoch.images))]
        if (
            all(type(n) in (int, float) and math.isfinite(n) for n in numbers)
            and all(type(n) is int for n in counts)
            and {progress.update} == {len(progress.losses), len(progress.accuracies)}
            and [epoch.number for epoch in epochs] == list(range(1, len(epochs) + 1))
            and all(epoch.images > 0 and epoch.train_s > 0 for epoch in epochs)
            and progress.train_s >= 0
        ):
            return progress
    except (KeyError, TypeError, ValueError, OverflowError):
        pass
    raise DamagedError("its progress makes no sense")
