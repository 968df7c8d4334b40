"""A watch: the instruments that write the log while a program runs.

JAX is not imported before the program imports it, because the program may set environment variables first.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType

from jaxperf.errors import JaxperfError
from jaxperf.watch.log import DISPATCH, EAGER, Fork, Log
from jaxperf.watch.observe import hooks, source_location
from jaxperf.watch.observe.compiles import Compiles
from jaxperf.watch.observe.executables import PER_NAME, Programs, note_copied_arguments
from jaxperf.watch.observe.memory import MemoryReadings
from jaxperf.watch.observe.on_cpu import CpuTrials
from jaxperf.watch.observe.profiler import Profiler
from jaxperf.watch.observe.sampler import Sampler
from jaxperf.watch.observe.transfers import Puts
from jaxperf.watch.observe.waits import Waits

__all__ = ["Record", "Watcher"]

Record = Log  # the name that rules and tests use
LOOKS = 10  # after so many samples at calls in its windows, the profiler must have seen a call
_open_watch: Watcher | None = None


class Watcher:
    """The instruments of a watch; call `open` before the program runs, and `close` after it.

    Args:
      name: the program's name in the report.
      profile: run JAX's profiler in short windows.
      starts: whether the process has done nothing else before.
      compiles_only: record what JAX compiles, and samples, but neither waits nor copies, and no windows.
      texts: programs of one name whose texts are kept.
    """

    def __init__(
        self,
        name: str,
        *,
        profile: bool = True,
        starts: bool = False,
        compiles_only: bool = False,
        texts: int = PER_NAME,
    ) -> None:
        self.log = log = Log(name, before_s=time.process_time() if starts else 0.0)
        self.replacements = hooks.Replacements()
        self.compiles = Compiles(log, self.replacements)
        self.waits = None if compiles_only else Waits(log, self.replacements)
        self.puts = None if compiles_only else Puts(log, self.replacements)
        self.profiler = (
            Profiler(log, self.replacements, lambda: self.compiles.open_stages > 0)
            if profile and not compiles_only
            else None
        )
        self.memory = None if compiles_only else MemoryReadings(log, self._started)
        self.programs = Programs(log, texts)
        self.trials = CpuTrials(log)
        if self.profiler:
            self.compiles.on_compiled = self.trials.keep
        self.sampler = Sampler(log, self._look, sparse=self.profiler is None)
        self._undo = contextlib.ExitStack()
        self._looked = 0  # stages that had ended when programs were last noted

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
        self.log.start = time.perf_counter()
        with guard("what JAX does"):
            if "jax" in sys.modules:
                self._attach(sys.modules["jax"])
                if hooks.is_running():  # there may be older programs
                    self.programs.look()
            else:
                attach = self.log.losses.guarded("what JAX does", self._attach)
                self._undo.enter_context(hooks.when_imported("jax", attach))
        self.programs.watching = True
        with guard("samples of the program's lines"):
            self.sampler.open()

    def leave(self) -> None:
        global _open_watch
        _open_watch = None
        with self.log.losses.guard("a forked child"):
            self._undo.close()
        self.sampler.close()

    def follow(self, thread: threading.Thread) -> None:
        """Watch another thread from now on, after the watched one has ended."""
        if thread.ident is not None:
            self.log.thread_id = thread.ident

    def close(self) -> Log:
        """End the watch, remove all hooks, and return the log; each step has a guard of its own."""
        global _open_watch
        log, guard = self.log, self.log.losses.guard
        log.end, log.closed_s = time.perf_counter(), time.process_time()
        with guard("the end of sampling"):
            self.sampler.close()
        for what, instrument in (
            ("waits for devices", self.waits),
            ("arrays put on a device", self.puts),
            ("memory", self.memory),
        ):
            with guard(what):
                if instrument:
                    instrument.close()
        started = log.losses.ask("whether JAX has started", self._started, False)
        with guard("compiled programs"):
            if started and (self._looked != self.compiles.count or not self.compiles.count):
                self.programs.look()
        with guard("windows of the profiler"):
            if self.profiler:
                self.profiler.close()
        with guard("the removal of a hook"):
            self._undo.close()
        _open_watch = None
        with guard("compiled programs"):
            self.programs.close()
        with guard("windows of the profiler"):
            log.activity.drop_unseen((w.start, w.end) for w in log.waits)
        with guard("a trial on the CPU"):
            self.trials.close()
        with guard("copied arguments"):
            note_copied_arguments(log.compiled, log.activity.programs, log.programs)
        with guard("the program's files and settings"):
            self._describe_program(started)
        with guard("remarks"):
            log.remarks += [
                *(f"cannot observe {name} in this version of JAX" for name in self.replacements.missing),
                *self._remarks(),
            ]
        return log

    def _attach(self, jax: ModuleType) -> None:
        """Install the hooks into JAX, once the program has imported it; each opens in a guard of its own."""
        self._undo.callback(self.replacements.close)
        self.log.jax_version = tuple(getattr(jax, "__version_info__", ()))
        if not self.log.names_causes:
            self.profiler = None  # its windows say nothing, and print lines of their own
        self._undo.callback(self.compiles.close)
        for what, instrument in (
            ("what JAX compiles", self.compiles),
            ("waits for devices", self.waits),
            ("arrays put on a device", self.puts),
            ("windows of the profiler", self.profiler),
        ):
            with self.log.losses.guard(what):
                if instrument:
                    instrument.open(jax)

    def _look(self) -> bool:
        """Note programs and memory, open and close windows; return whether a window is open.

        The sampler's thread calls this after each sample.
        """
        if self.memory:
            self._count_cost(self.memory.look)
        if not self._started():
            return False
        if self._looked != self.compiles.count:
            self._looked = self.compiles.count
            self._count_cost(self.programs.look)
        in_window = bool(self.profiler and self.profiler.look())
        if self.waits:
            self.waits.look(time.perf_counter())
        return in_window

    def _count_cost(self, look: Callable[[], None]) -> None:
        began = time.thread_time()
        with self.log.losses.guard("a look at the program"):
            look()
        self.log.overhead_s["samples"] += time.thread_time() - began

    def _started(self) -> bool:
        return hooks.is_running(otherwise=self.compiles.count > 0)

    def _describe_program(self, started: bool) -> None:
        """Note the program's own files, JAX's platform, and its compile cache."""
        jax = sys.modules.get("jax")
        files = [source_location.stored_attributes(m).get("__file__") for m in [*sys.modules.values()]]
        own = {file for file in files if isinstance(file, str) and not source_location.library_of(file)}
        self.log.modules = sorted(own)
        if jax and started:
            self.log.backend = str(jax.default_backend())
        config = getattr(jax, "config", None)
        self.log.compile_cache = str(getattr(config, "jax_compilation_cache_dir", None) or "")

    def _remarks(self) -> Iterator[str]:
        """Yield what the log lacks: other threads, and each kind of event that this JAX version lacks."""
        log, version = self.log, getattr(sys.modules.get("jax"), "__version__", "")
        if any(log.elsewhere.values()):
            yield (
                f"other threads waited {log.elsewhere['waits']} times and compiled "
                f"{log.elsewhere['compiled']} programs; shares, waits and findings about lines are of the "
                "thread that is watched"
            )
        new = sum(not facts.old for facts in log.programs)
        if new and not self.compiles.count:
            yield (
                f"JAX {version} does not tell what it traces and compiles: there are {new} new programs, "
                "and no event said so; shares and findings lack it"
            )
        windows, programs = log.activity.windows, log.activity.programs.values()
        dispatched = (s for s in log.samples if s.kind in (DISPATCH, EAGER))
        looks = sum(any(a <= s.start and s.end <= b for a, b in windows) for s in dispatched)
        # in a short window, the front end may stay in one call, which waits for a long execution
        enough = sum(p.whole for p in programs) >= LOOKS or not any(p.run_s for p in programs)
        if looks >= LOOKS and enough and log.activity.busy and not any(p.calls for p in programs):
            yield (
                f"no window of the profiler of JAX {version} saw a program being called, although devices "
                "compute; findings about calls and copies lack it"
            )


@functools.cache  # a registration cannot be undone
def _watch_forks() -> None:
    """Note where the program forks while JAX runs, and leave no hook of a watch in the child."""
    os.register_at_fork(before=_note_fork, after_in_child=_leave_child)


def _leave_child() -> None:
    if _open_watch:
        _open_watch.leave()


def _note_fork() -> None:
    if _open_watch and hooks.is_running():
        with _open_watch.log.losses.guard("a fork"):
            at = source_location.reader_place(sys._getframe(1))
            _open_watch.log.forks.append(Fork(time.perf_counter(), at))
