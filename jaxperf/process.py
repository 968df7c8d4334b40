"""Processes: their exit statuses, their response to signals, their children, and what C++ code in them logs.

A mistake that a user can fix ends in one line instead of a traceback. Ctrl-C, SIGTERM and SIGHUP all end a
program in the same way: it stops its work, ends its child processes and cleans up its files. Before and after
`ended` there is nothing to clean up, and such a signal ends the process at once (`end_at_once`).

Only the standard library is imported with this module, since it is the first thing that a process does.
"""

import _thread
import contextlib
import errno
import io
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO

from jaxperf.errors import JaxperfError, to_one_line

FAILED = 1
USER_MISTAKE = 2
INTERRUPTED = 130
PIPE_CLOSED = 141
OUTPUT_LOST = 120  # Python's own status where it cannot write what is left in a stream
# Errors of the machine, wherever they happen; if a file is missing that we expect, the bug is ours.
REFUSALS = frozenset(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENAMETOOLONG, errno.ELOOP)
)
# The same signal again within this many seconds is the same request: `timeout` signals its child and then the
# whole group, and a parent passes on to its child what the group has received.
SAME_S = 5.0
# After a signal during C++ code
GRACE_S = 1.2  # for Python's own way to end: its handler raises, and the block is left
CLEANUP_S = 0.4  # for `clean_up`, after that
# XLA logs as errors what is none, such as a kernel whose time it could not take; what ends a process remains
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}
PARENT = "JAXPERF_PARENT"  # names the process that a child must not outlive
LOOK_S = 1.0  # from one look at the parent to the next
OWN_END_S = 0.4  # how long a child may take to end by itself, before it gets SIGTERM
PATIENCE_S = 10.0  # to stop its work and save its results
# Ctrl-C, `kill`, and a terminal that closes; Windows lacks the last.
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Stopped(BaseException):  # not a SystemExit: code that parses flags would take that as its own
    def __init__(self, number: int) -> None:
        super().__init__(signal.strsignal(number))
        self.number = number


def ended(main: Callable[[], int]) -> int:
    """Run `main` and return the exit status.

    It is what `main` returns; 2 after a `JaxperfError`, whose line goes to standard error, or if the machine
    refuses a file, a folder, or our output (a full disk); 130 after Ctrl-C, 143 after SIGTERM, 129 after
    SIGHUP; 141 if the reader of our output has gone, e.g. `| head`.
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
    except OSError as e:
        # Files have names, so without one it is the output: its reader has gone, or the terminal was closed
        if isinstance(e, BrokenPipeError) or (e.errno == errno.EIO and not e.filename):
            drop_output(sys.stdout)
            return PIPE_CLOSED
        if e.errno == errno.ENOSPC and not e.filename:
            drop_output(sys.stdout)
            say(f"error: cannot write the output: {e.strerror}; send it elsewhere")
        elif e.errno in REFUSALS and e.filename:
            say(f"error: {os.fsdecode(e.filename)}: {e.strerror}; check the path and its permissions")
        else:
            raise
        return USER_MISTAKE
    except (KeyboardInterrupt, Stopped) as e:
        say("stopped")
        return 128 + e.number if isinstance(e, Stopped) else INTERRUPTED


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

    Control characters and newlines are escaped, a very long line is shortened, and the terminal may have been
    closed.
    """
    if "`jaxperf " in line:
        line = line.replace("`jaxperf ", f"`{program_name()} ")
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(to_one_line(line), file=sys.stderr, flush=True)


def program_name() -> str:
    """Return what to type to run this program again: a bare name only if the shell would find it."""
    program = sys.argv[0]
    if Path(program).name == "jaxperf":
        return "jaxperf" if shutil.which("jaxperf") == program else shlex.quote(program)
    return f"{shlex.quote(sys.executable)} -m jaxperf"


def end_at_once() -> None:
    """From now on, outside `ended`, let Ctrl-C end this process silently.

    Python would raise KeyboardInterrupt, which in the middle of an import gives a traceback of fifty lines.
    If a parent has blocked the signals until now (`run_child`), they are delivered. A process that was told
    to ignore Ctrl-C, as a shell tells its background jobs, continues to ignore it.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    release_signals()


def release_signals() -> None:
    """Unblock the signals: in a child of `run_child`, before it becomes a program that is not ours."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


@contextlib.contextmanager
def _signals_raised() -> Iterator[None]:
    """Let signals that still have the system's default action raise KeyboardInterrupt or `Stopped` inside.

    SIGTERM or SIGHUP within `SAME_S` of any of them is the same request, and does not disturb the cleanup: a
    parent sends SIGTERM to a child that has received Ctrl-C too.
    """
    same_until = -math.inf

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal same_until
        is_same, same_until = time.monotonic() < same_until, time.monotonic() + SAME_S
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        if not is_same:
            raise Stopped(number)

    replaced: list[int] = []
    try:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, stop)
                    replaced.append(number)
        yield
    finally:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)


def _check_surroundings() -> None:
    """Reject surroundings in which no command works; let a terminal without UTF-8 show what signs it can."""
    if sys.stdout is None:  # `>&-`: the next file opened would get its number, and a child's output
        os.open(os.devnull, os.O_WRONLY)
    try:
        Path.cwd()
    except FileNotFoundError:
        raise JaxperfError("the working directory was deleted; change to another") from None
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def drop_output(stream: TextIO) -> None:
    """Keep the interpreter from writing again, at exit, what could not be written."""
    with contextlib.suppress(OSError, ValueError):  # no file descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def flush_as_python(status: int) -> int:
    """Write what a program has left in standard output; return 120 if that fails, as Python does."""
    try:
        sys.stdout.flush()
    except OSError as e:
        drop_output(sys.stdout)
        if e.errno != errno.EPIPE:  # as after `| head`
            say(f"error: cannot write the output of the program: {e.strerror}; send it elsewhere")
        return OUTPUT_LOST
    except (ValueError, AttributeError):  # it is closed, or replaced
        pass
    return status


# --- signals while C++ code runs
#
# Python notes a signal in C, and runs its handler when the main thread next executes Python code. A
# compilation of ResNet-18 keeps the main thread in C++ for 8 to 16 s on a GPU. So a thread also gets the
# signal's number, through `signal.set_wakeup_fd`, and ends the process if the main thread has not. The thread
# needs Python's lock. JAX releases it while it compiles, and while it waits for a result.


@contextlib.contextmanager
def signals_heard(receive: Callable[[int], object]) -> Iterator[None]:
    """Call `receive` with the number of each signal that arrives inside, in a thread of its own.

    Nothing is heard outside the main thread, on Windows, and where the program has a wakeup file of its own.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(os, "register_at_fork"):
        yield
        return
    before = signal.set_wakeup_fd(-1)
    if before != -1:
        signal.set_wakeup_fd(before)
        yield
        return
    process, (reading, writing) = os.getpid(), os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def hear() -> None:
        while (numbers := os.read(reading, 1)) not in (b"", b"\0"):
            receive(numbers[0])
        os.close(reading)

    _thread.start_new_thread(hear, ())  # hidden from `threading.enumerate`
    try:
        yield
    finally:
        now = signal.set_wakeup_fd(-1)
        if now not in (-1, writing):  # the program has set one meanwhile
            signal.set_wakeup_fd(now)
        if os.getpid() == process:  # not in a forked child, which shares the pipe
            with contextlib.suppress(OSError):
                os.write(writing, b"\0")  # ends the thread; a forked process may keep the pipe open
        os.close(writing)


@contextlib.contextmanager
def forced_end(clean_up: Callable[[], object] = lambda: None) -> Iterator[None]:
    """End this process `GRACE_S` seconds after a signal that comes inside, unless the block ends before.

    After a signal, all child processes get SIGKILL, and `clean_up` is called in a thread of its own. The exit
    status is 128 and the signal's number: 130 after Ctrl-C. In any thread but the main one, and on Windows,
    nothing happens.
    """
    over = threading.Event()
    handlers = {number: signal.getsignal(number) for number in SIGNALS}

    def receive(number: int) -> None:
        # The block may have set a handler of its own, such as one that saves a training first
        if number not in handlers or signal.getsignal(number) is not handlers[number]:
            return
        if not over.wait(GRACE_S):
            _end_now(number, clean_up)

    with signals_heard(receive):
        try:
            yield
        except (KeyboardInterrupt, Stopped):
            _kill_descendants()  # those that the block has not ended itself
            raise
        finally:
            over.set()


def _kill_descendants() -> None:
    import psutil

    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.kill()


def _end_now(number: int, clean_up: Callable[[], object]) -> None:
    _kill_descendants()
    cleaning = threading.Thread(target=clean_up, daemon=True)
    cleaning.start()
    cleaning.join(CLEANUP_S)
    say("stopped")
    os._exit(128 + number)


# --- child processes
#
# None of our processes outlives the one that started it, however that one ended. The parent names itself in
# the child's environment; the child checks once per second whether that is still its parent. A pipe would
# need a descriptor passed through every start, and a signal on the parent's death exists only on Linux.
# `getppid` is right where psutil may err, after the clock was set and for a parent that nobody has reaped.


def follow_parent() -> None:
    """End this process soon after its parent, if the parent has requested that: SIGTERM, later SIGKILL."""
    parent = os.environ.pop(PARENT, "")  # children of this process have this one as their parent

    def follow() -> None:
        while os.getppid() == int(parent):
            time.sleep(LOOK_S)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(PATIENCE_S)
        os.kill(os.getpid(), signal.SIGKILL)

    # On Windows, a process keeps its parent's number after the parent has ended
    if parent.isdecimal() and sys.platform != "win32":
        threading.Thread(target=follow, daemon=True).start()


def child_environment(inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return our environment (or `inherited`), with which children in a checkout import this very package."""
    environment = dict(os.environ if inherited is None else inherited)
    root = Path(__file__).resolve().parents[1]
    if (root / "pyproject.toml").exists():  # a script's import path starts at experiments/, not at the root
        paths = [str(root), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def run_child(command_line: Sequence[str], environment: Mapping[str, str], **options: Any) -> int:
    """Return a child's exit status, 128 and the signal's number if one ended it; an interrupt ends the child.

    The child starts with signals blocked, until it calls `end_at_once` or `release_signals`. So none arrives
    while it is half started, or before we know it.
    """
    # `.venv/bin/jaxperf gate ... -- jaxperf ...` is also typed where PATH lacks this environment
    path = os.pathsep.join([environment.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    variables = {**environment, "PATH": path, PARENT: str(os.getpid())}
    child = None
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        child = subprocess.Popen(command_line, env=variables, **options)
        release_signals()
        status = child.wait()
    except BaseException:
        if child:
            _end(child)
        raise
    finally:
        release_signals()
    return 128 - status if status < 0 else status


def _end(child: subprocess.Popen[Any]) -> None:
    """End the child; it may already have received Ctrl-C, so it first gets a moment to end by itself."""
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(OWN_END_S)
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(PATIENCE_S)
    finally:  # also runs after a second Ctrl-C or SIGTERM
        child.kill()
        child.wait()


def how_it_ended(status: int, *, fresh: bool = True) -> str:
    """Return what went wrong when a child ended, "" if nothing; `fresh` is whether it wrote its result."""
    number = status - 128
    if number in signal.valid_signals():
        hint = " (out of memory?)" if number == signal.SIGKILL else ""
        return f"ended by signal {number}, {signal.strsignal(number)}{hint}"
    if status:
        return f"exit status {status}"
    return "" if fresh else "ended well but wrote no result"


def cache_folder() -> Path:
    """Return the folder of this user's files that jaxperf can make again."""
    home = Path.home()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "jaxperf" / "Cache"
    usual = home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (named if named.is_absolute() else usual) / "jaxperf"
