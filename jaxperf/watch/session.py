"""A watch: the instruments that write the log while a program runs.

JAX is not imported before the program imports it, because the program may set environment variables first.
"""

import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType

import psutil

from jaxperf.errors import JaxperfError, warnings_hidden
from jaxperf.result.formatting import format_count
from jaxperf.result.intervals import difference, intersection, total_length
from jaxperf.watch.compiling.report import note_types
from jaxperf.watch.guard import collector_paused
from jaxperf.watch.log import DISPATCH, EAGER, NAMES_CAUSES, Log
from jaxperf.watch.observe import hooks, sampler, source_location
from jaxperf.watch.observe.compiles import Compiles
from jaxperf.watch.observe.executables import Programs, note_copied_arguments
from jaxperf.watch.observe.memory import MemoryReadings
from jaxperf.watch.observe.on_cpu import CpuTrials
from jaxperf.watch.observe.profiler import Profiler
from jaxperf.watch.observe.sampler import Sampler
from jaxperf.watch.observe.transfers import Puts
from jaxperf.watch.observe.waits import Waits

WINDOWS = "windows of the profiler"
CALLS_S = 0.03  # after so many seconds in calls in its windows, the profiler must have seen one end
EXECUTIONS = 10  # and after so many executions


class Watcher:
    """The instruments of a watch; call `open` before the program runs, and `close` after it."""

    def __init__(
        self,
        name: str,  # the program's in the report
        *,
        profile: bool = True,  # run JAX's profiler in short windows
        starts: bool = False,  # whether the process has done nothing else before
        compiles_only: bool = False,  # record only what JAX compiles, and samples
    ) -> None:
        self.log = log = Log(name, before_s=time.process_time() if starts else 0.0)
        self.replacements = hooks.Replacements()
        self.compiles, self.waits = Compiles(log, self.replacements), Waits(log, self.replacements)
        self.programs, self.trials = Programs(log, slow_only=compiles_only), CpuTrials(log)
        self.memory = MemoryReadings(log, self._started)
        self.profiler = Profiler(log, self.replacements, self._compiling)
        self.sampler = Sampler(log, self._look, self._compiling if compiles_only else None)
        self.compiles.on_compiled = [self.programs.keep]
        # what is installed into JAX
        self.instruments: dict[str, Compiles | Waits | Puts | Profiler] = {"what JAX compiles": self.compiles}
        if compiles_only:
            self.compiles.on_compiled += [note_types]
        else:
            self.compiles.on_compiled += [self.trials.keep, self.profiler.begin_anew]
            self.instruments["waits for devices"] = self.waits
            self.instruments["arrays put on a device"] = Puts(log, self.replacements)
            if profile:
                self.instruments[WINDOWS] = self.profiler
        self.in_child: Callable[[], None] = lambda: None  # what else a forked child has to undo
        self.undo = contextlib.ExitStack()
        self.own_threads = 2 if starts else 1  # the sampler's, and one that hears signals
        self.fork_warning = self.undo.enter_context(contextlib.ExitStack())
        self._compiles_only = compiles_only

    def open(self) -> None:
        """Begin to watch.

        Raises:
          JaxperfError: another watch is open in this process.
        """
        global _open_watch
        if _open_watch is not None:
            raise JaxperfError(f"{_open_watch.log.name} is being watched already; close that watch first")
        _open_watch = self
        if hasattr(os, "register_at_fork"):
            _watch_forks()
        guard = self.log.losses.guard
        self.log.thread_id, self.log.opened_s = threading.get_ident(), time.process_time()
        self._busy_s, self.log.start = _busy_s(), time.perf_counter()
        with guard("what JAX does"):
            if "jax" in sys.modules:
                self._attach(sys.modules["jax"])
                if hooks.is_running() and not self._compiles_only:
                    self.programs.look_at_live()
            else:
                attach = self.log.losses.guarded("what JAX does", self._attach)
                self.undo.callback(hooks.WhenImported("jax", attach).close)
        with guard("samples of the program's lines"):
            self.sampler.open()

    def close(self) -> Log:
        """End the watch, remove all hooks, and return the log; each step has a guard of its own."""
        global _open_watch
        log = self.log
        log.end, log.closed_s = time.perf_counter(), time.process_time()
        log.others_s = max(0.0, _busy_s() - self._busy_s - (log.closed_s - log.opened_s))
        steps: dict[str, Callable[[], object]] = {
            "the end of sampling": self.sampler.close,
            "waits": self.waits.close,
            WINDOWS: self.profiler.close,
            "memory": self.memory.close,
            "compiled programs": self.programs.close,
            "the removal of a hook": self.undo.close,
            "a trial on the CPU": self.trials.close,
            "copied arguments": lambda: note_copied_arguments(log),
            "the program's files and settings": self._describe_program,
            "remarks": lambda: log.remarks.extend(self._remarks()),
        }
        if self._compiles_only:
            del steps["memory"]  # which lists arrays
        # what is read makes no garbage, and the collector would look at all objects of the program again
        with collector_paused():
            for part, step in steps.items():
                with log.losses.guard(part):
                    step()
        _open_watch = None
        return log

    def _attach(self, jax: ModuleType) -> None:
        """Install the hooks into JAX, once the program has imported it; each opens in a guard of its own."""
        self.undo.callback(self.replacements.close)
        self.log.names_causes = getattr(jax, "__version_info__", NAMES_CAUSES) >= NAMES_CAUSES
        if not self.log.names_causes:  # windows would say nothing, and print lines of their own
            self.instruments.pop(WINDOWS, None)
        self.undo.callback(self.compiles.close)
        for part, instrument in self.instruments.items():
            with self.log.losses.guard(part):
                instrument.open(jax)

    def _look(self) -> bool:
        """Note programs and memory after a sample, open and close windows; return whether one is open."""
        began, started = time.thread_time(), self._started()
        with self.log.losses.guard("a look at the program"):
            if not self._compiles_only:
                self.memory.look()
            if started:
                self.programs.look()
        self.log.overhead_s["samples"] += time.thread_time() - began
        return started and WINDOWS in self.instruments and self.profiler.look()

    def _compiling(self) -> bool:
        return self.compiles.open_stages > 0

    def _started(self) -> bool:
        return hooks.is_running(otherwise=self.compiles.count > 0)

    def _describe_program(self) -> None:
        jax = sys.modules.get("jax")
        files = [source_location.stored_attributes(m).get("__file__") for m in [*sys.modules.values()]]
        paths = {file for file in files if isinstance(file, str)}
        self.log.modules = sorted(path for path in paths if not source_location.library_of(path))
        if jax and self._started():
            self.log.backend = str(jax.default_backend())
        config = getattr(jax, "config", None)
        self.log.compile_cache = str(getattr(config, "jax_compilation_cache_dir", None) or "")

    def _remarks(self) -> Iterator[str]:
        """Yield what the log lacks: other threads, and each kind of event that this JAX version lacks."""
        log, version = self.log, getattr(sys.modules.get("jax"), "__version__", "")
        for name in self.replacements.missing:
            yield f"cannot observe {name} in this version of JAX"
        if any(log.other_threads.values()):
            waits = format_count(log.other_threads["waits"], "time")
            compiled = format_count(log.other_threads["compiled"], "program")
            yield (
                f"other threads waited {waits} and compiled {compiled}; shares, waits and findings about "
                "lines are of the thread that is watched"
            )
        new = sum(not facts.old for facts in log.programs)
        if new and not self.compiles.count:
            yield (
                f"JAX {version} does not tell what it traces and compiles: there are {new} new programs, "
                "and no event said so; shares and findings lack it"
            )
        windows, programs = log.activity.windows, log.activity.programs.values()
        calls = [(s.start, s.end) for s in log.samples if s.kind in (DISPATCH, EAGER)]
        calls = difference(intersection(calls, windows), (wait.span for wait in log.waits))
        # in a short window, the front end may stay in one call, which waits for a long execution
        enough = sum(p.whole for p in programs) >= EXECUTIONS or not any(p.run_s for p in programs)
        enough = enough and total_length(calls) >= CALLS_S
        if enough and log.activity.devices and not any(p.calls for p in programs):
            yield (
                f"no window of the profiler of JAX {version} saw a program being called, although devices "
                "compute; findings about calls and copies lack it"
            )


def _busy_s() -> float:
    """Return the processor time of all programs on this machine."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


_open_watch: Watcher | None = None


@functools.cache  # a registration cannot be undone
def _watch_forks() -> None:
    release = sampler.SAMPLING.release
    os.register_at_fork(before=_before_fork, after_in_parent=release, after_in_child=_leave_child)


def _before_fork() -> None:
    """Note a fork while JAX runs; else hide Python's warning of other threads if they are the watch's."""
    # Let a sample end, and none begin until the process has forked: a child would keep its settings
    sampler.SAMPLING.acquire()
    watch = _open_watch
    if watch is None:
        return
    with watch.log.losses.guard("a fork"):
        watch.fork_warning.close()
        if hooks.is_running():
            watch.log.forks.append(source_location.reader_place(sys._getframe()))
        elif sampler.THREADS.is_dir() and len([*sampler.THREADS.iterdir()]) <= 1 + watch.own_threads:
            watch.fork_warning.enter_context(warnings_hidden(DeprecationWarning, "This process .*threaded"))


def _leave_child() -> None:
    global _open_watch
    sampler.SAMPLING.release()
    watch, _open_watch = _open_watch, None
    if watch:
        with watch.log.losses.guard("a forked child"):
            watch.undo.close()
        watch.sampler.close()
        watch.in_child()
