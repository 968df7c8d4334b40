"""Checkpoints of a training: Orbax's `CheckpointManager`, with a digest, and errors of one line.

    checkpoints = Checkpoints(Path("saved"), {"lr": 0.1, "seed": 0}, resume=True)
    if checkpoints.step is not None:
        state, about = checkpoints.load(state)
    checkpoints.save(100, state, losses=[...])

Orbax writes a checkpoint in the background, and gives its folder a valid name when it is complete, so a kill
at any moment leaves whole ones. But it restores flipped bits and wrong shapes without an error (0.12). So the
SHA-256 of the arrays is saved beside them, and compared. It detects damage; it is no signature. Nothing is
pickled.
"""

import contextlib
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxperf.errors import JaxperfError, first_line, to_one_line

Tree = Any
KEPT = 3  # the newest checkpoints, which stay


def digest(state: Tree, about: Any = None) -> str:
    """Return the SHA-256 of all arrays, and of plain data about them: equal digests are equal bits."""
    sha256 = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for leaf in jax.tree.leaves(state):
        sha256.update(np.ascontiguousarray(leaf))
    return sha256.hexdigest()


class Checkpoints:
    """The checkpoints of one training; several processes share the folder, and make the same calls.

    Args:
      folder: theirs alone; made if it is missing.
      settings: plain values that must be the same when the training is resumed.
      resume: go on from the newest checkpoint, if there is one.

    Attributes:
      step: of the newest checkpoint, or None.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, resume: bool) -> None:
        import orbax.checkpoint as ocp  # takes a second, which runs without checkpoints save

        # Otherwise tracebacks of errors that we report in one line are logged: Orbax's, and asyncio's of
        # arrays that fail after the first
        for name in ("absl", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self.folder, self._args = folder.absolute(), ocp.args
        self._settings = json.loads(json.dumps(dict(settings)))
        options = ocp.CheckpointManagerOptions(max_to_keep=KEPT, cleanup_tmp_directories=True)
        with self._in_one_line("cannot save there"):
            self._manager = ocp.CheckpointManager(self.folder, options=options)
        self.step: int | None = self._manager.latest_step()
        if self.step is not None and not resume:
            raise JaxperfError(f"{folder} holds checkpoints; add --resume to go on, or give another folder")

    def save(self, step: int, state: Tree, **about: Any) -> None:
        """Copy a tree of arrays, equal in all processes, and begin to write it.

        It waits before that until the checkpoint before it is complete, and raises what went wrong there.
        """
        # Copies, since the next update reuses the memory of a donated state
        state = jax.tree.map(np.array, state)
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state)):
            raise JaxperfError(f"the state is not finite at step {step}; use a smaller learning rate")
        about = {"settings": self._settings, "arrays": digest(state), **about}
        about["sha256"] = digest({}, about)
        args = self._args.Composite(state=self._args.StandardSave(state), about=self._args.JsonSave(about))
        with self._in_one_line(f"cannot save step {step}"):
            if step != self._manager.latest_step():
                self._manager.save(step, args=args, force=True)

    def load(self, like: Tree) -> tuple[Tree, dict[str, Any]]:
        """Return the newest checkpoint's arrays, in a tree like `like`, and what was saved about them."""
        damaged = f"checkpoint {self.step} is damaged; remove that folder to go on from the one before"
        with self._in_one_line(damaged):
            args = self._args.Composite(about=self._args.JsonRestore())
            about = dict(self._manager.restore(self.step, args=args)["about"])
            if about.pop("sha256") != digest({}, about):
                raise ValueError("its SHA-256 differs")
            saved = about["settings"]
        for name in [*self._settings, *saved]:
            old, new = saved.get(name, "missing"), self._settings.get(name, "missing")
            if old != new:
                raise JaxperfError(
                    f"{self.folder}: {name} is {old} in the checkpoint, and {new} here; give what it was "
                    "saved with, or another folder"
                )
        with self._in_one_line(damaged):
            args = self._args.Composite(state=self._args.StandardRestore(like))
            state = self._manager.restore(self.step, args=args)["state"]
            types, types_like = (jax.tree.map(lambda a: (a.shape, a.dtype), tree) for tree in (state, like))
            if types != types_like:
                raise ValueError("its arrays have other shapes or types")
            if digest(state) != about["arrays"]:
                raise ValueError("its SHA-256 differs")
        return state, about

    def close(self) -> None:
        with self._in_one_line("cannot save the last checkpoint"):
            self._manager.wait_until_finished()
            self._manager.close()

    @contextlib.contextmanager
    def _in_one_line(self, problem: str) -> Iterator[None]:
        try:
            yield
        except Exception as e:  # Orbax's errors are of many types
            raise JaxperfError(to_one_line(f"{self.folder}: {problem} ({first_line(e)})")) from None
