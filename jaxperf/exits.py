"""How our programs end: the exit statuses, and one line in place of a traceback for what a user can fix.

Ctrl-C, SIGTERM and SIGHUP all end a program in the same way: what runs is left, its processes are ended and
its files put in order on the way out. Before and after `ended` there is nothing to put in order, and such a
signal ends the process at once (`end_at_once`).
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
from typing import Any

from jaxperf.errors import JaxperfError, plain
from jaxperf.orphans import SAME_S

FAILED = 1
USER_MISTAKE = 2
INTERRUPTED = 130
PIPE_CLOSED = 141
# What the machine refuses, wherever it happens; a file that is missing where we expect one is our defect.
REFUSALS = frozenset(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENAMETOOLONG, errno.ELOOP)
)
_AGAIN_S = 0.01
# Ctrl-C, `kill`, and a terminal that is closed; Windows lacks the last.
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Stopped(BaseException):  # no SystemExit: what parses flags takes that for its own end
    """SIGTERM or SIGHUP arrived."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.strsignal(number))
        self.number = number


def ended(main: Callable[[], int]) -> int:
    """Run `main` and return the exit status.

    It is what `main` returns; 2 after a `JaxperfError`, whose line goes to standard error, or where the
    machine refuses a file or folder; 1 where our output cannot be written (a full disk); 130 after Ctrl-C,
    143 after SIGTERM, 129 after SIGHUP; 141 where the reader of our output has gone, e.g. `| head`.
    """
    try:
        with _signals_raised():
            _check_surroundings()
            try:
                return main()
            finally:
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
        if e.errno == errno.ENOSPC and not e.filename:  # a file of ours has a name, so it is the output
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


def say(line: str) -> None:
    """Print a line to standard error, where our commands are named as they can be typed here.

    What could control a terminal is written out, and the terminal may have been closed.
    """
    typed = line.replace("`jaxperf ", f"`{own_name()} ") if "`jaxperf " in line else line
    with contextlib.suppress(OSError):
        print(plain(typed), file=sys.stderr, flush=True)


def own_name() -> str:
    """What to type to reach this program again: a bare name only where the shell would find that."""
    program = Path(sys.argv[0])
    if program.name == "jaxperf":
        on_path = shutil.which("jaxperf")
        return "jaxperf" if on_path and Path(on_path).resolve() == program.resolve() else _nearest(program)
    # Compared unresolved: the Python of an environment is a link to the one it was made with.
    python = "python" if shutil.which("python") == sys.executable else _nearest(Path(sys.executable))
    return f"{python} -m jaxperf"


def _nearest(program: Path) -> str:
    try:
        return shlex.quote(min(str(program.absolute()), os.path.relpath(program), key=len))
    except FileNotFoundError:  # the working directory was deleted
        return shlex.quote(str(program))


def end_at_once() -> None:
    """From now on, outside of `ended`, Ctrl-C ends this process without a word.

    Python would raise KeyboardInterrupt, in the middle of an import as a traceback of fifty lines. A parent
    that has kept the signals back until now (`held_back`) has them delivered. What was told to ignore Ctrl-C,
    as a shell tells its background jobs, goes on ignoring it.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _mask("SIG_UNBLOCK")


@contextlib.contextmanager
def held_back() -> Iterator[Callable[[], None]]:
    """Keep the signals back until the function that this yields is called, at the latest until the end.

    A process started meanwhile keeps them back too, until it calls `end_at_once`: they find it neither half
    started nor unknown to us.
    """
    _mask("SIG_BLOCK")
    try:
        yield lambda: _mask("SIG_UNBLOCK")
    finally:
        _mask("SIG_UNBLOCK")


def _mask(how: str) -> None:
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(getattr(signal, how), SIGNALS)


@contextlib.contextmanager
def _signals_raised() -> Iterator[None]:
    """Let signals whose fate is still the system's own raise KeyboardInterrupt or `Stopped` in here.

    SIGTERM or SIGHUP again within `SAME_S` is the same request, and does not disturb what it has set off.
    """
    before: dict[int, Any] = {}
    came: dict[int, float] = {}  # when, by the signal's number
    hook = sys.unraisablehook
    try:
        sys.unraisablehook = functools.partial(_once_more, hook, came)
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is signal.SIG_DFL:
                    stop = functools.partial(_stop, came)
                    handler = signal.default_int_handler if number == signal.SIGINT else stop
                    before[number] = signal.signal(number, handler)
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(came: dict[int, float], number: int, frame: FrameType | None) -> None:
    now = time.monotonic()
    if now - came.get(number, -math.inf) >= SAME_S:
        came[number] = now
        raise Stopped(number)


def _once_more(report: Callable[[Any], object], came: dict[int, float], lost: Any) -> None:
    """Send a signal again that arrived where Python drops exceptions: JAX's garbage collection, a `__del__`.

    In 1 of 12 trials the run went on otherwise, as if nobody had stopped it.
    """
    match lost.exc_value:
        case KeyboardInterrupt():
            number = int(signal.SIGINT)
        case Stopped():
            number = lost.exc_value.number
            came.pop(number, None)
        case _:
            report(lost)
            return
    # `threading` would wait here until its thread runs, and the signal could arrive in this place too.
    _thread.start_new_thread(_send, (number,))


def _send(number: int) -> None:
    time.sleep(_AGAIN_S)  # until the place that drops exceptions has been left
    os.kill(os.getpid(), number)


def _check_surroundings() -> None:
    """Refuse what no command can work in, and let a terminal without UTF-8 show what it can of our signs."""
    if sys.stdout is None:  # `>&-`; the next file that is opened would get its number, and a child's words
        raise JaxperfError("standard output is closed; send it to a file, or to /dev/null")
    try:
        Path.cwd()
    except FileNotFoundError:
        raise JaxperfError("the working directory was deleted; change to another") from None
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _drop_output() -> None:
    """Keep the interpreter, as it ends, from writing again what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
