"""How our programs end: the exit statuses, and one line instead of a traceback for what a user can fix.

Ctrl-C, SIGTERM and SIGHUP all end a program in the same way: it stops its work, ends its child processes and
cleans up its files. Before and after `ended` there is nothing to clean up, and such a signal ends the process
at once (`end_at_once`).
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import functools
import io
import math
import os
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from jaxperf.errors import JaxperfError, escape_control
from jaxperf.processes.parent import SAME_S

FAILED = 1
USER_MISTAKE = 2
INTERRUPTED = 130
PIPE_CLOSED = 141
# Errors of the machine, wherever they happen; if a file is missing that we expect, the bug is ours.
REFUSALS = frozenset(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENAMETOOLONG, errno.ELOOP)
)
_AGAIN_S = 0.01
# Ctrl-C, `kill`, and a terminal that closes; Windows lacks the last.
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Stopped(BaseException):  # not a SystemExit: code that parses flags would take that as its own
    """SIGTERM or SIGHUP arrived."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.strsignal(number))
        self.number = number


def ended(main: Callable[[], int]) -> int:
    """Run `main` and return the exit status.

    It is what `main` returns; 2 after a `JaxperfError`, whose line goes to standard error, or if the machine
    refuses a file or folder; 1 if our output cannot be written (a full disk); 130 after Ctrl-C, 143 after
    SIGTERM, 129 after SIGHUP; 141 if the reader of our output has gone, e.g. `| head`.
    """
    try:
        with _signals_raised():
            _check_surroundings()
            try:
                return main()
            finally:
                with contextlib.suppress(ValueError, AttributeError):  # a program under watch replaced it
                    sys.stdout.flush()
    except JaxperfError as e:
        say(f"error: {e}")
        return USER_MISTAKE
    except BrokenPipeError:
        _drop_output()
        return PIPE_CLOSED
    except OSError as e:
        if e.errno == errno.EIO and not e.filename:  # the terminal was closed
            _drop_output()
            return PIPE_CLOSED
        if e.errno == errno.ENOSPC and not e.filename:  # our files have names, so it is the output
            _drop_output()
            say(f"error: cannot write the output: {e.strerror}; send it elsewhere")
            return FAILED
        if e.errno not in REFUSALS or not e.filename:
            raise
        say(f"error: {os.fsdecode(e.filename)}: {e.strerror}; check the path and its permissions")
        return USER_MISTAKE
    except KeyboardInterrupt:
        say("stopped")
        return INTERRUPTED
    except Stopped as e:
        say("stopped")
        return 128 + e.number


@contextlib.contextmanager
def mistakes_end() -> Iterator[None]:
    """End the program with one line where a user's mistake shows."""
    try:
        yield
    except JaxperfError as e:
        say(f"error: {e}")
        raise SystemExit(USER_MISTAKE) from None


def leave(status: int) -> NoReturn:
    """End this process; unless all went well, at once.

    Python's own end frees what JAX uses on other threads: a program that was interrupted while JAX compiled
    ended with SIGSEGV in 3 of 16 trials (JAX 0.10.2).
    """
    if not status:
        raise SystemExit(0)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)


def say(line: str) -> None:
    """Print a line to standard error, with our commands written as they can be typed here.

    Control characters and newlines are escaped, and the terminal may have been closed.
    """
    text = line.replace("`jaxperf ", f"`{program_name()} ") if "`jaxperf " in line else line
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(escape_control(text).replace("\n", "\\n"), file=sys.stderr, flush=True)


def program_name() -> str:
    """Return what to type to run this program again: a bare name only if the shell would find it."""
    program = Path(sys.argv[0])
    if program.name == "jaxperf":
        on_path = shutil.which("jaxperf")
        return "jaxperf" if on_path and Path(on_path).resolve() == program.resolve() else _nearest(program)
    # Compared unresolved: the Python in an environment is a link to the one that created it.
    python = "python" if shutil.which("python") == sys.executable else _nearest(Path(sys.executable))
    return f"{python} -m jaxperf"


def _nearest(program: Path) -> str:
    try:
        return shlex.quote(min(str(program.absolute()), os.path.relpath(program), key=len))
    except FileNotFoundError:  # the working directory was deleted
        return shlex.quote(str(program))


def end_at_once() -> None:
    """From now on, outside `ended`, let Ctrl-C end this process silently.

    Python would raise KeyboardInterrupt, which in the middle of an import gives a traceback of fifty lines.
    If a parent has blocked the signals until now (`held_back`), they are delivered. A process that was told
    to ignore Ctrl-C, as a shell tells its background jobs, continues to ignore it.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _mask("SIG_UNBLOCK")


@contextlib.contextmanager
def held_back() -> Iterator[Callable[[], None]]:
    """Block the signals until the function that this yields is called, at the latest until the block ends.

    A process started meanwhile blocks them too, until it calls `end_at_once` or `release_signals`. So no
    signal arrives while it is half started or before we know it.
    """
    _mask("SIG_BLOCK")
    try:
        yield lambda: _mask("SIG_UNBLOCK")
    finally:
        _mask("SIG_UNBLOCK")


def release_signals() -> None:
    """Unblock the signals: in a child of `held_back`, before it becomes a program that is not ours."""
    _mask("SIG_UNBLOCK")


def _mask(how: str) -> None:
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(getattr(signal, how), SIGNALS)


@contextlib.contextmanager
def _signals_raised() -> Iterator[None]:
    """Let signals that still have the system's default action raise KeyboardInterrupt or `Stopped` inside.

    SIGTERM or SIGHUP within `SAME_S` of any of them is the same request, and does not disturb the cleanup: a
    parent sends SIGTERM to a child that has received Ctrl-C too.
    """
    handlers: dict[int, Any] = {}  # those to restore
    arrivals: dict[int, float] = {}  # times in seconds, by the signal's number
    hook = sys.unraisablehook
    try:
        sys.unraisablehook = functools.partial(_send_again, hook, arrivals)
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is signal.SIG_DFL:
                    handlers[number] = signal.signal(number, functools.partial(_stop, arrivals))
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _stop(arrivals: dict[int, float], number: int, frame: FrameType | None) -> None:
    now, soonest = time.monotonic(), max(arrivals.values(), default=-math.inf) + SAME_S
    arrivals[number] = now
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    if now >= soonest:
        raise Stopped(number)


def _send_again(report: Callable[[Any], object], arrivals: dict[int, float], unraisable: Any) -> None:
    """Send a signal again that arrived where Python drops exceptions: JAX's garbage collection, a `__del__`.

    Without this, the run continued in 1 of 12 trials as if nobody had stopped it.
    """
    match unraisable.exc_value:
        case KeyboardInterrupt():
            number = int(signal.SIGINT)
        case Stopped():
            number = unraisable.exc_value.number
            arrivals.clear()
        case _:
            report(unraisable)
            return
    # `threading` would wait here until its thread runs, and the signal could also arrive at this point.
    _thread.start_new_thread(_send, (number,))


def _send(number: int) -> None:
    time.sleep(_AGAIN_S)  # until the code that drops exceptions has returned
    os.kill(os.getpid(), number)


def _check_surroundings() -> None:
    """Reject surroundings in which no command works; let a terminal without UTF-8 show what signs it can."""
    if sys.stdout is None:  # `>&-`; the next file opened would get its number, and a child's output
        raise JaxperfError("standard output is closed; send it to a file, or to /dev/null")
    try:
        Path.cwd()
    except FileNotFoundError:
        raise JaxperfError("the working directory was deleted; change to another") from None
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _drop_output() -> None:
    """Keep the interpreter from writing again, at exit, what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
