"""Keep cores from going to sleep while something is timed.

Waking an idle core takes 10 to 50 us, several times the dispatch of a small computation. So the same loop
takes 5 us per call on a busy machine and 50 us on an idle one.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# With idle priority, it runs only while no other program needs the core
_SPIN = """
import os, sys
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
print(flush=True)
while os.getppid() == int(sys.argv[1]):  # ends with its parent, however that ends
    for _ in range(100_000):
        pass
"""


@contextmanager
def cores_awake() -> Iterator[Callable[[bool], None]]:
    """Run a program with idle priority on each core, which any other program preempts at once.

    It yields a function that lets the cores sleep (False) or keeps them awake again (True). Systems without
    idle priority (all but Linux) start no program, and the function does nothing.
    """
    command = [sys.executable, "-S", "-c", _SPIN, str(os.getpid())]
    count = len(os.sched_getaffinity(0)) if hasattr(os, "SCHED_IDLE") else 0
    spinning = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(count)]

    def keep(on: bool) -> None:
        for process in spinning:
            process.send_signal(signal.SIGCONT if on else signal.SIGSTOP)

    try:
        for process in spinning:
            assert process.stdout is not None
            process.stdout.readline()  # printed when it begins to spin
        yield keep
    finally:
        for process in spinning:
            process.kill()  # this also ends a stopped process
            process.communicate()
