"""Checkpoints of one training: written by Orbax in the background, found again, and always verified first.

Not by Orbax's `CheckpointManager` (0.12): its thread gives a checkpoint its valid name and at once deletes
older ones, so that digests of the files cannot be added in between, and a kill could leave no checkpoint that
can be verified. With several processes all must meet at each save, where a full disk of one leaves the others
waiting.

2-devices/step-00000200/state/          what Orbax wrote
2-devices/step-00000200/manifest.json   what it is, and the SHA-256 of every file (manifest.py)
2-devices/step-00000300.part/           being written; the rename to its name makes it a checkpoint
2-devices/step-00000100.damaged/        found damaged; jaxperf leaves it for you to remove
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from jaxperf.errors import JaxperfError, to_one_line
from jaxperf.parallel.multihost import any_process, digest_of, gather_numbers
from jaxperf.train.arrays import Arrays, failure_reason
from jaxperf.train.manifest import About, DamagedError, read_verified, write_manifest

Tree = Any
PART, DAMAGED = ".part", ".damaged"
STEP = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class Policy:
    """When to save and what to keep.

    Attributes:
      every_steps: save each time after this many updates; 0 for no such rule.
      every_s: save once this many seconds have passed since the last save; 0 for no such rule. For a single
        process, since the clocks of several differ.
      keep: how many of the newest checkpoints of a training are kept.
    """

    every_steps: int = 100
    every_s: float = 0
    keep: int = 3


class Checkpoints:
    """The checkpoints of one training, in a folder that no other run writes to; see `CheckpointFolder.of`.

    Args:
      folder: where they are.
      policy: when to save, and how many to keep.
      resume: whether `load` looks for a checkpoint.
      stop: `stop()` gives the signal that asks the training to end after the current step, or 0.
      settings: what else must be the same to resume.
    """

    def __init__(
        self,
        folder: Path,
        policy: Policy,
        *,
        resume: bool,
        stop: Callable[[], int],
        settings: Mapping[str, Any],
    ) -> None:
        self.folder, self.policy, self.resume, self.stop = folder, policy, resume, stop
        self.settings = settings
        self.steps = sorted(
            step
            for path in folder.glob("step-*")
            if (match := STEP.fullmatch(path.name)) and self._path(step := int(match[1])) == path
        )
        self._saved_at = time.monotonic()  # not affected by changes of the system clock
        self._arrays, self._writer = Arrays(), ThreadPoolExecutor(1)
        self._pending: tuple[int, Future[None] | None] | None = None

    def due(self, step: int) -> bool:
        """Return whether the policy says to save the state after this step, which is then saved."""
        by_steps = self.policy.every_steps and step % self.policy.every_steps == 0
        by_time = self.policy.every_s and time.monotonic() - self._saved_at >= self.policy.every_s
        return bool(by_steps or by_time)

    def save(self, tree: Tree, about: About) -> None:
        """Save a tree of arrays, complete in every process; returns once they are copied, and then writes.

        If a checkpoint cannot be written, e.g. to a full disk, this prints a line on standard error. The
        training goes on, and earlier checkpoints stay. Only process 0 writes to the disk: if two wrote
        together, one whose disk is full would leave the other waiting in Orbax.
        """
        self.wait()
        self._pending = about.step, self._begin(tree, about) if jax.process_index() == 0 else None
        self._saved_at = time.monotonic()

    def _begin(self, tree: Tree, about: About) -> Future[None] | None:
        """Start to write, in process 0; None if not even that was possible, which is then reported."""
        part = self._path(about.step, PART)
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            self._arrays.save(part / "state", tree)
        except Exception as e:
            self._failed(about.step, e)
            return None
        return self._writer.submit(self._seal, part, about)

    def wait(self) -> None:
        """Wait until what was saved is a checkpoint, or report why it is not one.

        All processes call it while no step is running, since they inform each other.
        """
        if self._pending:
            step, writing = self._pending
            if any_process(self._written(step, writing)):
                self.steps = self._with(step)[-self.policy.keep :]
            self._pending = None

    def _written(self, step: int, writing: Future[None] | None) -> bool:
        """Return whether this process has written a checkpoint; waits until it is complete."""
        try:
            if writing:
                writing.result()
        except Exception as e:
            self._failed(step, e)
            return False
        return writing is not None

    def load(self, like: Callable[[About], Tree]) -> tuple[About, Tree] | None:
        """Return the newest checkpoint's description and arrays; None without `resume`, or if there is none.

        A damaged checkpoint is reported in one line and renamed, and the one before it is used.

        Args:
          like: `like(about)` gives the tree to restore, of arrays or shapes. It raises a `JaxperfError` if
            the checkpoint belongs to another training, and `DamagedError` if it makes no sense.

        Raises:
          JaxperfError: as `like`, no checkpoint is intact, or several processes find different ones.
        """
        if not self.resume:
            return None
        some = bool(self.steps)
        while True:
            about, damage = self._read_newest()
            self._check_same(about)
            if not self.steps:
                break
            tree: Tree = None
            try:
                if about:
                    tree = self._arrays.restore(self._path(about.step) / "state", like(about))
            except DamagedError as e:
                damage = str(e)
            if about and not any_process(bool(damage)):
                return about, tree
            self._set_aside(damage or "another process cannot restore it")
        if some:
            raise JaxperfError(f"no checkpoint in {self.folder} is intact; start again in another folder")
        print_line(f"no checkpoint in {self.folder} to go on from; starting at the beginning")
        return None

    def _read_newest(self) -> tuple[About | None, str]:
        """Return the newest checkpoint's description, or None and why it is damaged."""
        if not self.steps:
            return None, ""
        try:
            about = read_verified(self._path(self.steps[-1]))
            if about.step != self.steps[-1]:
                raise DamagedError(f"it says that it is step {about.step}")
        except DamagedError as e:
            return None, str(e)
        return about, ""

    def _check_same(self, about: About | None) -> None:
        """Refuse to go on from different checkpoints; every process has listed and read them by then."""
        if jax.process_count() == 1:
            return
        rows = gather_numbers([*(self.steps[-1:] or [0]), *digest_of(about)])
        for process, row in enumerate(rows):
            if row != rows[0]:
                newest, expected = (
                    f"step {step}" if step else "no checkpoint" for step in (row[0], rows[0][0])
                )
                other = "another " * (newest == expected)
                raise JaxperfError(
                    f"{self.folder}: process {process} finds {other}{newest}, "
                    f"and process 0 finds {expected}; give --checkpoints a folder that all processes share"
                )

    def _set_aside(self, why: str) -> None:
        """Report the newest checkpoint as damaged; process 0 renames it, so that it looks like none."""
        path = self._path(self.steps.pop())
        before = f"using step {self.steps[-1]}" if self.steps else "and there is none before it"
        print_line(f"checkpoint {path} is damaged ({why}); {before}")
        if jax.process_index() == 0:
            names = (path.with_suffix(DAMAGED + f"-{n}" * (n > 1)) for n in itertools.count(1))
            path.rename(next(name for name in names if not os.path.lexists(name)))

    def close(self) -> None:
        """Wait for the last checkpoint and end the threads, but not for other processes: they may be gone."""
        if self._pending:
            self._written(*self._pending)
            self._pending = None
        self._writer.shutdown()
        self._arrays.close()

    def _path(self, step: int, suffix: str = "") -> Path:
        return self.folder / f"step-{step:08d}{suffix}"

    def _seal(self, part: Path, about: About) -> None:
        """On the writer's thread: wait for Orbax, add the manifest, rename the folder, remove old ones."""
        self._arrays.wait()
        write_manifest(part, about)
        _remove(self._path(about.step))  # saved during the epoch, and now again at its end
        part.rename(self._path(about.step))
        for step in self._with(about.step)[: -self.policy.keep]:
            _remove(self._path(step))

    def _with(self, step: int) -> list[int]:
        return [*(other for other in self.steps if other != step), step]

    def _failed(self, step: int, error: Exception) -> None:
        newest = f"step {self.steps[-1]} is the newest" if self.steps else "there is none yet"
        print_line(
            f"cannot save a checkpoint of step {step} to {self.folder}: {failure_reason(error)}; {newest}"
        )
        self._arrays.close()  # after an error it raises that again at every call
        shutil.rmtree(self._path(step, PART), ignore_errors=True)


def _remove(path: Path) -> None:
    """Remove a checkpoint; if the process is killed meanwhile, the rest does not look like a checkpoint."""
    if path.exists():
        old = path.with_suffix(".old" + PART)
        path.rename(old)
        shutil.rmtree(old)


def print_line(line: str) -> None:
    """Print one line about a checkpoint on standard error, whatever its file names and contents are."""
    print(to_one_line(line), file=sys.stderr, flush=True)
