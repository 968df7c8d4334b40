"""Keep cores from going to sleep while something is timed, or keep them busy to see how timings change.

Waking an idle core takes 10 to 50 us, several times the dispatch of a small computation. So the same loop
takes 5 us per call on a busy machine and 50 us on an idle one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SPIN = """
import os, sys
print(flush=True)
while os.getppid() == int(sys.argv[1]):  # ends with its parent, however that ends
    for _ in range(100_000):
        pass
"""
# with idle priority, it runs only while no other program needs the core
_SPIN_IDLE = "import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))" + _SPIN


@contextmanager
def cores_awake() -> Iterator[Callable[[bool], None]]:
    """Run a program with idle priority on each core, which any other program preempts at once.

    Yields:
      A function that lets the cores sleep (False) or keeps them awake again (True). On systems without idle
      priority (all but Linux), no program is started, and the function does nothing.
    """
    if not hasattr(os, "SCHED_IDLE"):
        yield lambda on: None
        return
    with _running(_SPIN_IDLE, len(os.sched_getaffinity(0))) as spinning:

        def keep(on: bool) -> None:
            for process in spinning:
                process.send_signal(signal.SIGCONT if on else signal.SIGSTOP)

        yield keep


@contextmanager
def cores_busy(count: int) -> Iterator[None]:
    """Run `count` programs that each keep a core busy, at this process's priority."""
    with _running(_SPIN, count):
        yield


@contextmanager
def _running(program: str, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-S", "-c", program, str(os.getpid())]
    spinning = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for process in spinning:
            assert process.stdout is not None
            process.stdout.readline()  # printed when it begins to spin
        yield spinning
    finally:
        for process in spinning:
            process.kill()  # this also ends a stopped process
            process.communicate()
