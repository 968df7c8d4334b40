"""End a program that does not respond to a signal because C++ code never returns to Python.

Python runs its signal handlers between two instructions of the main thread. Without jaxperf, the system ends
at SIGTERM a program that hangs in C++. `jaxperf watch` installs a handler, which would never run. So a thread
reads the numbers of arriving signals from a pipe, and ends a program whose main thread does not move.
"""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from jaxperf.process import SIGNALS, leave, say, signals_heard
from jaxperf.watch.observe import source_location

ANSWER_S = 2.0  # time limit for the main thread to leave the instruction at which a signal arrived
REPORT_S = 20.0  # time limit for the report of a program that hangs


class Guard:
    """Ends this process, with a report by `finish`, if its main thread does not respond to a signal."""

    def __init__(self, finish: Callable[[str], object]) -> None:
        self.finish = finish
        self._turn = threading.Lock()
        self._handlers: dict[int, Any] = {n: signal.getsignal(n) for n in SIGNALS}
        self._interrupted_at: tuple[int, int] | None = None

    def claim(self) -> None:
        """Take the right to close the watch, or wait for the end of the process if another thread has it."""
        if not self.claims():
            while True:
                time.sleep(REPORT_S)

    def claims(self) -> bool:
        return self._turn.acquire(blocking=False)

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        with signals_heard(self._hear):
            yield

    def leave_child(self) -> None:
        """Give a forked child Python's own handlers, and keep it from writing into our pipe."""
        with contextlib.suppress(ValueError):  # not the main thread
            signal.set_wakeup_fd(-1)
            for number, handler in self._handlers.items():
                if signal.getsignal(number) is handler and callable(handler):
                    usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
                    signal.signal(number, usual)

    def _hear(self, number: int) -> None:
        usual = self._handlers.get(number), signal.default_int_handler
        if number not in self._handlers or signal.getsignal(number) not in usual:
            return  # the program has a handler of its own
        at = _position()
        if number == signal.SIGINT and at != self._interrupted_at:  # a second one there counts
            self._interrupted_at = at
        else:
            threading.Thread(target=self._judge, args=(number, at), daemon=True).start()

    def _judge(self, number: int, at: tuple[int, int]) -> None:
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            time.sleep(0.05)
            if _position() != at:
                return
        name = signal.Signals(number).name
        if self.claims():
            place = source_location.reader_place(_frame())
            where = f"{place}: {place.source}" if place else "no line of its own"
            say(f"the program does not answer {name}; it is at {where}")
            report = threading.Thread(target=self.finish, args=(f"until {name} ended it",), daemon=True)
            report.start()
            report.join(REPORT_S)
            leave(128 + number)


def _frame() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)


def _position() -> tuple[int, int]:
    frame = _frame()
    return (id(frame), frame.f_lasti) if frame else (0, 0)
