"""A tree of arrays in a folder: Orbax writes it behind the next steps, and restores it."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxperf.train.manifest import DamagedError

Tree = Any


class Arrays:
    """Orbax as one process uses it by itself, even if there are several: none waits for another in it."""

    def save(self, path: Path, tree: Tree) -> None:
        """Start to write a tree of arrays to a new folder; returns once they are copied."""
        # As NumPy arrays, which Orbax copies, so the next step may use the state up
        self._orbax.save(path, args=_arguments().StandardSave(jax.tree.map(np.asarray, tree)))

    def wait(self) -> None:
        """Wait until all is written, or raise what went wrong."""
        self._orbax.wait_until_finished()

    def restore(self, path: Path, like: Tree) -> Tree:
        """Return the tree of NumPy arrays in a folder; `like` has its structure, shapes and dtypes.

        Raises:
          DamagedError: the files are of something else, or those that say what they are were changed.
        """
        wanted = jax.tree.map(lambda a: np.empty(a.shape, a.dtype), like)
        try:
            tree = self._orbax.restore(path, args=_arguments().StandardRestore(wanted))
            if described(tree) != described(wanted):
                raise DamagedError("its arrays have other shapes or types than it says")
        except Exception as e:  # ValueError, KeyError, ...
            raise DamagedError(reason(e)) from None
        return tree

    def close(self) -> None:
        """Wait, and end the threads; what went wrong has been raised before. It can be used again."""
        if used := self.__dict__.pop("_orbax", None):
            with contextlib.suppress(Exception):
                used.close()

    @functools.cached_property
    def _orbax(self) -> Any:
        import orbax.checkpoint as ocp  # 0.8 s, which runs without checkpoints need not wait for

        _drop_late_errors()
        own = jax.process_index()
        alone = ocp.options.MultiprocessingOptions(primary_host=own, active_processes={own})
        return ocp.AsyncCheckpointer(
            ocp.StandardCheckpointHandler(multiprocessing_options=alone),
            multiprocessing_options=alone,
            # Where Orbax cannot make a folder behind our back, its other threads wait 300 s for that
            async_options=ocp.options.AsyncOptions(create_directories_asynchronously=False),
        )


def described(tree: Tree) -> dict[str, str]:
    """Return each array's path, with its dtype and shape."""
    rows = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): f"{a.dtype}{list(a.shape)}" for path, a in rows}


def reason(error: Exception) -> str:
    """Return the cause in a few words; TensorStore says the system's number within a long sentence."""
    number = re.search(r"os_error_code='(\d+)'", str(error))
    if number:
        return os.strerror(int(number[1]))
    words = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return words.splitlines()[0][:200]


def _arguments() -> Any:
    import orbax.checkpoint as ocp

    return ocp.args


@functools.cache
def _drop_late_errors() -> None:
    """Drop what is said of arrays that fail after the first that failed, which we tell of.

    The first one ends Orbax's event loop, to which TensorStore's threads still report: "Event loop is
    closed". No handler is above them, so Python would print a traceback for each array. Of arrays that had
    failed before that, asyncio tells later, with all of their specification.
    """
    logging.getLogger("asyncio").addFilter(lambda record: "tensorstore_spec" not in record.getMessage())
    shown = sys.unraisablehook

    def show(error: Any) -> None:
        if not (isinstance(error.exc_value, RuntimeError) and str(error.exc_value) == "Event loop is closed"):
            shown(error)

    sys.unraisablehook = show
