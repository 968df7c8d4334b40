"""A tree of arrays in a folder: Orbax writes it in the background during the next steps, and restores it."""

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
    """Orbax as a single process uses it, even if there are several: processes do not wait for each other."""

    def save(self, path: Path, tree: Tree) -> None:
        """Start to write a tree of arrays to a new folder; returns once they are copied."""
        # As NumPy arrays, which Orbax copies, so the next step may donate the state
        import orbax.checkpoint as ocp  # takes 0.8 s, which runs without checkpoints save

        self._orbax.save(path, args=ocp.args.StandardSave(jax.tree.map(np.asarray, tree)))

    def wait(self) -> None:
        """Wait until everything is written, or raise the error that occurred."""
        self._orbax.wait_until_finished()

    def restore(self, path: Path, like: Tree) -> Tree:
        """Return the tree of NumPy arrays in a folder; `like` has its structure, shapes and dtypes.

        Raises:
          DamagedError: the files hold something else, or the files that describe them were changed.
        """
        import orbax.checkpoint as ocp

        wanted = jax.tree.map(lambda a: np.empty(a.shape, a.dtype), like)
        try:
            tree = self._orbax.restore(path, args=ocp.args.StandardRestore(wanted))
            if describe_arrays(tree) != describe_arrays(wanted):
                raise DamagedError("its arrays have other shapes or types than it says")
        except Exception as e:  # ValueError, KeyError, ...
            raise DamagedError(failure_reason(e)) from None
        return tree

    def close(self) -> None:
        """Wait, and end the threads; errors have been raised before. The object can be used again."""
        if used := self.__dict__.pop("_orbax", None):
            with contextlib.suppress(Exception):
                used.close()

    @functools.cached_property
    def _orbax(self) -> Any:
        import orbax.checkpoint as ocp

        _drop_late_errors()
        process = jax.process_index()
        alone = ocp.options.MultiprocessingOptions(primary_host=process, active_processes={process})
        return ocp.AsyncCheckpointer(
            ocp.StandardCheckpointHandler(multiprocessing_options=alone),
            multiprocessing_options=alone,
            # If Orbax cannot create a folder in the background, its other threads wait 300 s for it
            async_options=ocp.options.AsyncOptions(create_directories_asynchronously=False),
        )


def describe_arrays(tree: Tree) -> dict[str, str]:
    """Return each array's path, with its dtype and shape."""
    rows = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): f"{a.dtype}{list(a.shape)}" for path, a in rows}


def failure_reason(error: Exception) -> str:
    """Return the cause in a few words; TensorStore gives the system's error number in a long sentence."""
    number = re.search(r"os_error_code='(\d+)'", str(error))
    if number:
        return os.strerror(int(number[1]))
    message = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return message.splitlines()[0][:200]


@functools.cache
def _drop_late_errors() -> None:
    """Drop the errors of arrays that fail after the first, which is the one that we report.

    The first failure ends Orbax's event loop, to which TensorStore's threads still report: "Event loop is
    closed". Nothing handles that error, so Python would print a traceback for each array. asyncio reports
    arrays that had failed earlier later on, with their full specification.
    """
    logging.getLogger("asyncio").addFilter(lambda record: "tensorstore_spec" not in record.getMessage())
    shown = sys.unraisablehook

    def show(error: Any) -> None:
        if not (isinstance(error.exc_value, RuntimeError) and str(error.exc_value) == "Event loop is closed"):
            shown(error)

    sys.unraisablehook = show
