"""Keep cores from going to sleep while something is timed.

A core with nothing to do goes to sleep, and waking it costs 10 to 50 us, several times what it takes to
hand a small computation to it. Whether it sleeps depends on what else the machine does: the same loop takes
5 us per call on a busy machine and 50 on an idle one.
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
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # runs only while nothing else wants the core
print(flush=True)
while os.getppid() == int(sys.argv[1]):  # ends with its parent, however that ends
    for _ in range(100_000):
        pass
"""


@contextmanager
def cores_awake() -> Iterator[Callable[[bool], None]]:
    """Run a program of idle priority on each core; the scheduler replaces it at once by any other.

    Yields:
      A function that lets the cores sleep (False) or keeps them awake again (True). Where the system has no
      idle priority (anything but Linux), nothing is started and it does nothing.
    """
    if not hasattr(os, "SCHED_IDLE"):
        yield lambda on: None
        return
    command = [sys.executable, "-S", "-c", _SPIN, str(os.getpid())]
    spinning = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in os.sched_getaffinity(0)]

    def keep(on: bool) -> None:
        for process in spinning:
            process.send_signal(signal.SIGCONT if on else signal.SIGSTOP)

    try:
        for process in spinning:
            assert process.stdout is not None
            process.stdout.readline()  # it spins from here on
        yield keep
    finally:
        for process in spinning:
            process.kill()  # a stopped process dies of it, too
            process.communicate()
