"""End a program that does not respond to a signal because C++ code never returns to Python.

Python runs its signal handlers between two instructions of the main thread. Without jaxperf, the system ends
at SIGTERM a program that hangs in C++. `jaxperf watch` installs a handler, which would never run. So a thread
reads the numbers of arriving signals from a pipe, and ends a program whose main thread does not move.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from jaxperf.process import SIGNALS, drop_unraisable_hook, leave, say, signals_heard
from jaxperf.watch.observe import source_location

ANSWER_S = 2.0  # time limit for the main thread to leave the instruction at which a signal arrived
REPORT_S = 20.0  # time limit for the report of a program that hangs
AGAIN_S = 0.5  # a second signal after this time does not wait for the report


class Guard:
    """Ends this process, with a report, if its main thread does not respond to a signal.

    Args:
      finish: closes the watch and prints its report, given how the program ended.
    """

    def __init__(self, finish: Callable[[str], object]) -> None:
        self.finish = finish
        self._turn = threading.Lock()
        self._main, self._pid = threading.main_thread().ident, os.getpid()
        self._handlers = {n: signal.getsignal(n) for n in SIGNALS}
        self._last: dict[int, tuple[float, tuple[int, int]]] = {}  # when each signal came, and where that was

    def claim(self) -> None:
        """Take the right to close the watch, or wait for the end of the process if another thread has it."""
        if not self.claims():
            while True:
                time.sleep(REPORT_S)

    def claims(self) -> bool:
        """Take the right to close the watch; return whether no other thread has it."""
        return self._turn.acquire(blocking=False)

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        if hasattr(os, "register_at_fork"):
            _forget_in_children()
            _handled.update(self._handlers)
        with signals_heard(self._hear):
            yield

    def _hear(self, number: int) -> None:
        usual = self._handlers.get(number), signal.default_int_handler
        if number not in self._handlers or signal.getsignal(number) not in usual:
            return  # the program has a handler of its own
        now, at = time.monotonic(), self._position()
        before, then = self._last.get(number, (now, (0, 0)))
        again, self._last[number] = now - before > AGAIN_S, (now, at)
        if number != signal.SIGINT or (again and at == then):  # the first Ctrl-C had no effect
            threading.Thread(target=self._judge, args=(number, at, again), daemon=True).start()

    def _judge(self, number: int, at: tuple[int, int], again: bool) -> None:
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            time.sleep(0.05)
            if self._position() != at:
                return
        name = signal.Signals(number).name
        if self._turn.acquire(blocking=False):
            say(f"the program does not answer {name}; it is at {where_it_is(self._main)}")
            report = threading.Thread(target=self.finish, args=(f"until {name} ended it",), daemon=True)
            report.start()
            report.join(REPORT_S)
        elif not again:
            return  # another thread closes the watch already
        leave(128 + number)

    def _frame(self) -> FrameType | None:
        return sys._current_frames().get(self._main or 0)

    def _position(self) -> tuple[int, int]:
        frame = self._frame()
        return (id(frame), frame.f_lasti) if frame else (0, 0)


def where_it_is(main: int | None) -> str:
    """Return the reader's current line in each thread, the main thread's first."""
    frames = sys._current_frames()
    order = sorted(frames, key=lambda ident: ident != main)
    places = [(ident, source_location.reader_place(frames[ident])) for ident in order]
    lines = [
        f"{at}{'' if ident == main else ' (in another thread)'}: {at.source}" for ident, at in places if at
    ]
    return "; ".join(dict.fromkeys(lines)) or "no line of its own"


@functools.cache  # a registration cannot be undone
def _forget_in_children() -> None:
    """Keep a forked child from writing the numbers of its signals into our pipe."""
    os.register_at_fork(after_in_child=_no_wakeup)


def _no_wakeup() -> None:
    """Give a forked child Python's own handlers in place of those of `jaxperf`."""
    drop_unraisable_hook()
    with contextlib.suppress(ValueError):  # not the main thread
        signal.set_wakeup_fd(-1)
        for number, handler in _handled.items():
            if signal.getsignal(number) is handler and callable(handler):
                usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
                signal.signal(number, usual)


_handled: dict[int, Any] = {}  # the handlers of `jaxperf` while a program is watched
