"""None of our processes outlives the one that started it, however that one ended.

The parent names itself in the child's environment; the child checks once per second whether that is still its
parent. A pipe would need a descriptor passed through every start, and a signal on the parent's death exists
only on Linux. Standard library only (on Windows psutil): this is the first thing that a process does, and
`getppid` is right where psutil may err, after the clock was set and for a parent that nobody has reaped.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

VARIABLE = "JAXPERF_PARENT"
LOOK_S = 1.0
PATIENCE_S = 10.0  # to stop its work and save its results
SAVING_S = 60.0  # to finish a step of a training, or an evaluation, and to save
# The same signal again within this many seconds is the same request: `timeout` signals its child and then the
# whole group, and a parent passes on to its child what the group has received.
SAME_S = 5.0


def named_parent() -> dict[str, str]:
    """Return the variable that makes a child started with it follow this process."""
    return {VARIABLE: str(os.getpid())}


def follow_parent() -> None:
    """End this process soon after its parent, if the parent has requested that: SIGTERM, later SIGKILL."""
    parent = os.environ.pop(VARIABLE, "")  # children of this process have this one as their parent
    if parent.isdecimal():
        threading.Thread(target=_follow, args=(int(parent),), daemon=True).start()


def _follow(parent: int) -> None:
    is_alive = _on_windows(parent) if sys.platform == "win32" else lambda: os.getppid() == parent
    while is_alive():
        time.sleep(LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)  # on Windows this is the end
    time.sleep(PATIENCE_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _on_windows(parent: int) -> Callable[[], bool]:
    """Return what says whether a process lives, by its number and start time.

    On Windows, `python.exe` of a virtual environment starts the real interpreter, and stands between it and
    its parent. And a process keeps its parent's number after the parent has ended.
    """
    import psutil

    try:
        return psutil.Process(parent).is_running
    except psutil.Error:
        return lambda: False
