"""What C++ writes to standard error while a command runs, in a file of its own.

XLA logs there, for instance a line for each kernel whose time it could not take well ("Delay kernel timed
out"). Such lines look like errors between those of the command. `TF_CPP_MIN_LOG_LEVEL` would silence them,
and with them the message before a crash. The file keeps all.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from jaxperf.errors import to_one_line
from jaxperf.processes.exit_status import say


def path_for(name: str) -> Path:
    """Return the file for a section's script or a command; every run of it begins the file anew."""
    return platformdirs.user_cache_path("jaxperf") / "log" / f"{name}.log"


@contextlib.contextmanager
def native_stderr_to(path: Path) -> Iterator[None]:
    """Let file descriptor 2 be the file `path` from now on; Python's own `sys.stderr` stays where it is.

    When the block ends, a line says where the file is; an empty one is removed. Child processes write
    to the file too, unless they are started with a `stderr`. After a crash, Python's traceback is where
    `sys.stderr` is. Where the file cannot be written, or a test or a notebook has replaced `sys.stderr`,
    nothing changes.
    """
    if sys.stderr is not sys.__stderr__:
        yield
        return
    try:
        terminal = os.dup(2)
        path.parent.mkdir(parents=True, exist_ok=True)
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    except OSError:  # no folder to write to, or no standard error
        yield
        return
    os.dup2(log, 2)
    os.close(log)
    sys.stderr = os.fdopen(terminal, "w", buffering=1, errors="backslashreplace")
    faulthandler.enable(sys.stderr)
    try:
        yield
    finally:
        if path.exists() and path.stat().st_size:
            say(to_one_line(f"note: what C++ code (XLA) logged is in {path}"))
        else:
            path.unlink(missing_ok=True)
