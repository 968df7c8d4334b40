"""The end of a process whose main thread does not come back to Python, as while XLA compiles.

Python notes a signal in C, and runs its handler when the main thread next executes Python code. A compilation
of ResNet-18 keeps the main thread in C++ for 8 to 16 s on a GPU. So a thread also gets the signal's number,
through `signal.set_wakeup_fd`, and ends the process if the main thread has not.

The thread needs Python's lock. JAX releases it while it compiles, and while it waits for a result.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

import psutil

from jaxperf.processes.exit_status import SIGNALS, Stopped, say

GRACE_S = 1.2  # for Python's own way to end: its handler raises, and the block is left
CLEANUP_S = 0.4  # for `clean_up`, after that


@contextlib.contextmanager
def forced_end(clean_up: Callable[[], object] = lambda: None) -> Iterator[None]:
    """End this process `GRACE_S` seconds after a signal that comes inside, unless the block ends before.

    After a signal, all child processes get SIGKILL. The exit status is 128 and the signal's number: 130 after
    Ctrl-C. In any thread but the main one, and on Windows, nothing happens.

    Args:
      clean_up: is called before the process ends, in another thread than the main one.
    """
    if threading.current_thread() is not threading.main_thread() or os.name != "posix":
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    over = threading.Event()
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watch = threading.Thread(target=_watch, args=(reader, over, clean_up), daemon=True)
    watch.start()
    try:
        yield
    except (KeyboardInterrupt, Stopped):
        signal_descendants(signal.SIGKILL)  # those that the block has not ended itself
        raise
    finally:
        over.set()
        signal.set_wakeup_fd(before, warn_on_full_buffer=False)
        os.write(writer, b"\0")  # wakes the thread; a forked process may have the pipe, which then has no end
        watch.join()
        os.close(writer)
        os.close(reader)


def _watch(reader: int, over: threading.Event, clean_up: Callable[[], object]) -> None:
    """Wait for one of our signals, then for the end of the block, and end the process."""
    while not over.is_set():
        number = os.read(reader, 1)[0]
        if number in SIGNALS and not over.wait(GRACE_S):
            _end_now(number, clean_up)


def signal_descendants(number: int) -> None:
    """Send a signal to all children of this process, and to theirs."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def _end_now(number: int, clean_up: Callable[[], object]) -> None:
    signal_descendants(signal.SIGKILL)
    cleaning = threading.Thread(target=clean_up, daemon=True)
    cleaning.start()
    cleaning.join(CLEANUP_S)
    say("stopped")
    os._exit(128 + number)
