"""Watch an unchanged script or module while it runs as Python itself would run it."""

import builtins
import contextlib
import importlib.machinery
import importlib.util
import io
import itertools
import os
import runpy
import shlex
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxperf import libraries
from jaxperf.errors import JaxperfError
from jaxperf.process import FAILED, INTERRUPTED, SIGNALS, Stopped, flush_as_python, say
from jaxperf.result.store import check_writable
from jaxperf.watch.compiling import output
from jaxperf.watch.context import deliver_report, how_it_ended, report_guarded
from jaxperf.watch.log import Log
from jaxperf.watch.observe import hooks, source_location
from jaxperf.watch.observe.stuck import Guard
from jaxperf.watch.report import text
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules import find_causes
from jaxperf.watch.rules.table import failures
from jaxperf.watch.session import Watcher

EXITED = "until it called os._exit"


class _NoModule(BaseException):
    """There is no such module to run, as `runpy` says before it runs anything."""


def run_script(path: Path, arguments: Sequence[str], **options: Any) -> int:
    """Run a script, or a folder with `__main__.py`, with its own flags `arguments`; return its exit status.

    Args:
      path: the script or the folder.
      arguments: the words after it.
      **options: `profile`, whether to run JAX's profiler; `json`, the file for the report; `fail_on`, kinds
        of findings for which the status of a successful program is 1; `compiles`, a folder for the compile
        report, with which nothing else is watched.

    Raises:
      JaxperfError: there is no such script, or `json` or `compiles` cannot be written.
    """
    script = path / "__main__.py" if path.is_dir() else path
    absolute = os.path.abspath(script)  # noqa: PTH100  Python does not resolve links either
    loader = importlib.machinery.SourceFileLoader("__main__", absolute)
    try:
        code = loader.source_to_code(loader.get_data(absolute), absolute)
    except OSError as e:
        raise JaxperfError(
            f"cannot read the script {script}: {e.strerror}; give the path of a Python file"
        ) from None
    except SyntaxError as e:
        print("".join(traceback.format_exception_only(e)), end="", file=sys.stderr)
        return FAILED
    except ValueError as e:  # null bytes, before Python 3.12
        raise JaxperfError(f"{script} is not Python: {e}") from None

    def run() -> None:
        main = types.ModuleType("__main__")
        main.__dict__.update(
            __file__=absolute, __builtins__=builtins, __loader__=loader, __annotations__={}, __cached__=None
        )
        sys.modules["__main__"] = main  # pickle and inspect look there
        exec(code, main.__dict__)

    _begin_import_path(os.path.dirname(absolute) if script != path else str(path.resolve().parent))  # noqa: PTH120
    with libraries.user_code([absolute, str(path.resolve())]):
        return _watched(run, path.name, [str(path), *arguments], **options)


def run_module(name: str, arguments: Sequence[str], **options: Any) -> int:
    """Run a module as `python -m` does, and otherwise do the same as `run_script`.

    Raises:
      JaxperfError: there is no such module, it is a package without `__main__`, or `json` or `compiles`
        cannot be written.
    """

    def run() -> None:
        try:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        except ImportError as e:
            frames = traceback.walk_tb(e.__traceback__)
            if all(frame.f_globals.get("__name__") in (__name__, "runpy") for frame, _ in frames):
                raise _NoModule(e) from None
            raise

    for plugin in filter(None, map(sys.modules.get, ("jaxperf", "typeguard"))):
        # without this mark, pytest warns that it cannot rewrite a plugin that is imported already
        plugin.__doc__ = f"{plugin.__doc__ or ''} PYTEST_DONT_REWRITE"
    _begin_import_path(os.getcwd())  # noqa: PTH109  as Python does
    with libraries.user_code(_roots(name)):
        return _watched(run, name, [name, *arguments], **options)


def _begin_import_path(folder: str) -> None:
    """Put a folder in front of the import path, in place of the one that Python put there for jaxperf."""
    if sys.flags.safe_path:
        return
    put_there = ("", os.getcwd(), os.path.dirname(os.path.realpath(sys.argv[0])))  # noqa: PTH109, PTH120
    if sys.path and sys.path[0] in put_there:
        del sys.path[0]
    sys.path.insert(0, folder)


def _roots(name: str) -> list[str]:
    """Return the paths of the code of a module's package; none for packages that the watch itself uses."""
    parts = name.split(".")
    if parts[0] in ("", *sys.stdlib_module_names, "jaxperf", "jax", "jaxlib", "flax", "optax", "numpy"):
        return []
    with contextlib.suppress(ImportError):  # running the module will report it
        for outer in itertools.accumulate(parts, "{}.{}".format):
            spec = importlib.util.find_spec(outer)
            # A namespace package, which has no origin, may hold libraries beside the module's package
            if spec and spec.origin and spec.has_location:
                folders = spec.submodule_search_locations
                return [f"{folder}{os.sep}" for folder in folders] if folders else [spec.origin]
    return []


def _watched(
    run: Callable[[], Any],
    name: str,
    argv: list[str],
    *,
    profile: bool = True,
    json: Path | None = None,
    fail_on: Collection[str] = (),
    compiles: Path | None = None,
) -> int:
    if json:
        json = check_writable(json)
    page = output.reserve(compiles, name) if compiles else None
    if isinstance(sys.stdout, io.TextIOWrapper) and isinstance(sys.stdin, io.TextIOWrapper):
        # `ended` has changed it for our own output
        sys.stdout.reconfigure(errors=sys.stdin.errors)
    sys.argv, stderr = argv, sys.stderr  # the program may replace its streams
    watcher, process = Watcher(name, profile=profile, starts=True, compiles_only=bool(page)), os.getpid()
    refused: list[str] = []

    @report_guarded()
    def finish(ended: str) -> None:
        log, command = watcher.close(), shlex.join(["jaxperf", "watch", *argv])
        if ended != EXITED:  # which does not write what is left in the streams
            with contextlib.suppress(OSError, ValueError, AttributeError):  # it is closed, or replaced
                sys.stdout.flush()
        if page:
            output.write(log, page, command=command, ended=ended, stream=stderr)
            return
        analysis = Analysis(log)
        if fail_on:
            refused.extend(failures(find_causes(analysis), fail_on))
        result = text.make_result(analysis, command=command, ended=ended)
        deliver_report(result, json=json, stream=stderr)

    def finish_at_exit() -> None:  # of this process, not of a forked child
        if os.getpid() == process and guard.claims():
            finish(EXITED)

    guard = Guard(finish)
    watcher.in_child = guard.leave_child
    watcher.open()
    with guard.open(), contextlib.closing(hooks.Replacements()) as replacements:
        replacements.call_before(os, "_exit", finish_at_exit)
        try:
            status, ended = _run_to_its_end(run, watcher.log)
        except _NoModule as e:
            watcher.close()
            raise JaxperfError(f"{e}; give a module's name, as for `python -m`") from None
        if os.getpid() != process:  # a forked child does not report
            return status
        guard.claim()
        with _terminations_wait():
            finish(ended)
    for line in refused:
        say(line)
    return flush_as_python(FAILED if refused and not status else status)


@contextlib.contextmanager
def _terminations_wait() -> Iterator[None]:
    """Let a SIGTERM or SIGHUP, as of `timeout`, wait for the report; a second one ends the process."""
    before = {n: signal.getsignal(n) for n in SIGNALS if n != signal.SIGINT}

    def wait(number: int, _: types.FrameType | None) -> None:
        signal.signal(number, before[number])

    for number in before:
        signal.signal(number, wait)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_to_its_end(run: Callable[[], None], log: Log) -> tuple[int, str]:
    """Return the exit status that the program would have alone, and a phrase for how it ended early."""
    status, ended, process = 0, "", os.getpid()
    try:
        with _interrupts_as_python(), _room_for_our_frames():
            try:
                run()
            except SystemExit as e:
                if e.code is None or isinstance(e.code, int):
                    status = e.code or 0
                else:
                    status = FAILED
                    print(e.code, file=sys.stderr)
            except Exception as e:
                status, ended = FAILED, how_it_ended(e)
                _show_traceback(e)
            if os.getpid() == process:
                _wait_for_threads(log)
    except _NoModule:
        raise
    except KeyboardInterrupt as e:
        return INTERRUPTED, how_it_ended(e)
    except Stopped as e:
        return 128 + e.number, how_it_ended(e)
    except BaseException as e:
        _show_traceback(e)
        return FAILED, how_it_ended(e)
    return status, ended


@contextlib.contextmanager
def _room_for_our_frames() -> Iterator[None]:
    """Let the program recurse as deeply as it does alone, below the frames that run it, and not see that."""
    # this generator and contextlib's frame are gone when the program runs, and one of ours is there in turn
    frames = list(source_location.frames_outwards(sys._getframe()))
    more = len(frames) - 1
    # Python 3.11 counts calls of exec, too: that which runs the program, and those that ran a module of ours
    if sys.version_info < (3, 12):
        more += 1 + sum(frame.f_code.co_name == "<module>" and frame.f_back is not None for frame in frames)
    sys.setrecursionlimit(sys.getrecursionlimit() + more)
    with contextlib.closing(hooks.Replacements()) as replacements:
        replacements.replace(sys, "getrecursionlimit", lambda get: lambda: get() - more)
        replacements.replace(sys, "setrecursionlimit", lambda set_: lambda n: set_(n + more if n > 0 else n))
        try:
            yield
        finally:
            sys.setrecursionlimit(sys.getrecursionlimit() - more)


@contextlib.contextmanager
def _interrupts_as_python() -> Iterator[None]:
    """Handle Ctrl-C by Python's own handler, without which asyncio does not cancel its main task."""
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        with contextlib.suppress(KeyboardInterrupt):
            before(signal.SIGINT, None)  # so that it takes a SIGTERM that follows for the same request
        raise
    finally:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, before)


def _wait_for_threads(log: Log) -> None:
    """Wait for the threads that Python joins at its exit, and watch them meanwhile, one at a time.

    Threads of a pool are left out, since they wait for work until Python itself ends them.
    """
    current = threading.current_thread()
    pools = getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", ())
    while left := [t for t in threading.enumerate() if t is not current and not t.daemon and t not in pools]:
        log.thread_id = left[0].ident or log.thread_id
        left[0].join()


def _show_traceback(error: BaseException) -> None:
    """Show an error as Python does; it, and those that it came from, lose the frames of jaxperf's hooks."""
    left: list[BaseException] = [error]
    seen: set[int] = set()
    while left:
        e = left.pop()
        seen.add(id(e))
        frames, kept = e.__traceback__, list[types.TracebackType]()
        while frames:
            name = str(frames.tb_frame.f_globals.get("__name__"))
            if not (name.startswith("jaxperf.watch.") or (name == "runpy" and not kept)):
                kept.append(frames)
            frames = frames.tb_next
        for frame, inner in itertools.zip_longest(kept, kept[1:]):
            frame.tb_next = inner
        e.__traceback__ = kept[0] if kept else None
        inside = e.exceptions if isinstance(e, BaseExceptionGroup) else ()
        left += [x for x in (e.__cause__, e.__context__, *inside) if x is not None and id(x) not in seen]
    sys.excepthook(type(error), error, error.__traceback__)
