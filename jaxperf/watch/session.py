"""A watch: the instruments that observe a program while it runs, and what they saw.

JAX is not imported before the program imports it, because the program may set environment variables first.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import threading
import time
import timeit
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType

from jaxperf import jax_internals
from jaxperf.errors import JaxperfError
from jaxperf.watch.observe import hooks, source_location
from jaxperf.watch.observe.compiles import Compiled, Listener
from jaxperf.watch.observe.executables import Facts, Programs, note_copied_arguments
from jaxperf.watch.observe.hooks import Losses, named_as
from jaxperf.watch.observe.profiler import Profiler
from jaxperf.watch.observe.sampler import DISPATCH, EAGER, LiveArrays, Sampler, StackSample
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.observe.transfers import Put, Puts
from jaxperf.watch.observe.waits import Pause, Pauses, Wait, Waits
from jaxperf.watch.observe.windows import DeviceActivity
from jaxperf.watch.source.call_sites import CallSite

LOOKS = 10  # after so many samples at calls in its windows, the profiler must have seen a call
NAMES_CAUSES = (0, 8, 2)  # the first JAX version that says enough for findings
FLAG = "jax_explain_cache_misses"
_open_watch: Watcher | None = None


@dataclass(frozen=True)
class Record:
    """Everything that a watch saw; times are of `time.perf_counter`."""

    name: str
    start: float
    end: float
    compiled: list[Compiled] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)  # without records of short waits
    samples: list[StackSample] = field(default_factory=list)
    peaks: Mapping[str, int] = field(default_factory=dict)  # bytes of "resident" and "device" memory
    live_arrays: list[LiveArrays] = field(default_factory=list)  # near the peak of memory
    programs: list[Facts] = field(default_factory=list)
    activity: DeviceActivity = field(default_factory=DeviceActivity)
    overhead_s: dict[str, float] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    puts: list[Put] = field(default_factory=list)
    settings: dict[str, Place] = field(default_factory=dict)  # JAX settings that were on
    backend: str = ""  # the platform of the devices that JAX uses by default
    call_sites: list[CallSite] = field(default_factory=list)
    called_back: list[StackSample] = field(default_factory=list)  # in threads of JAX
    parameters: dict[tuple[str, str], dict[str, set[str]]] = field(default_factory=dict)  # see `Sampler`
    modules: list[str] = field(default_factory=list)  # the program's own files
    compile_cache: str = ""  # the folder of JAX's compile cache
    small_puts: dict[Place, list[float]] = field(default_factory=dict)  # times, by line
    jax_version: tuple[int, ...] = ()
    before_s: float = 0.0  # processor time of the process before the program began
    closed_s: float = 0.0  # processor time of the process when the program ended
    losses: Losses = field(default_factory=Losses)  # what errors inside the watch cost

    @property
    def names_causes(self) -> bool:
        """Return whether this JAX says enough for findings; an unknown version counts as new."""
        return not self.jax_version or self.jax_version >= NAMES_CAUSES

    @property
    def wall_s(self) -> float:
        """Return the seconds that the program ran."""
        return self.end - self.start

    @property
    def used_jax(self) -> bool:
        """Return whether the program used JAX in any way that was seen."""
        new = any(not facts.old for facts in self.programs)
        return bool(self.compiled or self.waits or new or self.activity.busy)


class Watcher:
    """The instruments of a watch; call `open` before the program runs, and `close` after it.

    Args:
      name: the program's name in the report.
      profile: run JAX's profiler in short windows.
      starts: whether the process has done nothing else before.
    """

    def __init__(self, name: str, *, profile: bool = True, starts: bool = False) -> None:
        self.name = name
        self.before_s = time.process_time() if starts else 0.0
        self.losses = Losses()
        self.listener, self.waits = Listener(self.losses), Waits(self.losses)
        self.puts, self.replacements = Puts(self.losses), hooks.Replacements()
        self.pauses = Pauses(self.replacements)
        self.programs = Programs()
        self.profiler = Profiler(lambda: self.listener.open > 0) if profile else None
        self.sampler = Sampler(self.losses, on_look=self._look, started=self._started, sparse=not profile)
        self._undo = contextlib.ExitStack()
        self._compiled = 0

    def open(self) -> None:
        """Begin to watch.

        Raises:
          JaxperfError: another watch is open in this process.
        """
        global _open_watch
        if _open_watch is not None:
            raise JaxperfError(f"{_open_watch.name} is being watched already; close that watch first")
        _open_watch = self
        if hasattr(os, "register_at_fork"):
            _leave_in_children()
        self.start = time.perf_counter()
        with self.losses.guard("what JAX does"):
            if "jax" in sys.modules:
                self._attach(sys.modules["jax"])
                if hooks.is_running():  # there may be older programs
                    self.programs.look()
            else:
                self._undo.enter_context(hooks.when_imported("jax", self._attach))
        self.programs.watching = True
        with self.losses.guard("samples of the program's lines"):
            self.sampler.open()

    def leave(self) -> None:
        """Remove all hooks in a forked child, which is not watched."""
        global _open_watch
        _open_watch = None
        with self.losses.guard("a forked child"):
            self._undo.close()
        self.sampler.close()

    def follow(self, thread: threading.Thread) -> None:
        """Watch another thread from now on, after the watched one has ended."""
        if thread.ident is not None:
            for instrument in (self.listener, self.waits, self.puts, self.sampler):
                instrument.thread_id = thread.ident

    def close(self) -> Record:
        """End the watch, remove all hooks, and return what was recorded."""
        global _open_watch
        end, ask, closed_s = time.perf_counter(), self.losses.ask, time.process_time()
        with self.losses.guard("the end of sampling"):
            self.sampler.close()
        with self.losses.guard("a pause of the hooks"):
            self.pauses.end(end)
        overhead_s: dict[str, float] = ask("what watching cost", self._overhead_s, dict[str, float]())
        if self.profiler:
            with self.losses.guard("a window of the profiler"):
                self.profiler.end()
        with self.losses.guard("the removal of a hook"):
            self._undo.close()
        _open_watch = None
        started = ask("whether JAX has started", self._started, False)
        with self.losses.guard("compiled programs"):
            if started and (self._compiled != self.listener.count or not self.listener.count):
                self.programs.look()
        activity = DeviceActivity()
        if self.profiler:
            with self.losses.guard("windows of the profiler"):
                self.profiler.read(activity)
        nothing: list[Wait] = []
        waits = ask("waits", lambda: self.waits.waits, nothing)
        with self.losses.guard("windows of the profiler"):
            activity.drop_unseen((w.start, w.end) for w in waits)
        jax = sys.modules.get("jax")
        with self.losses.guard("settings of JAX"):
            if started:
                self.listener.look_at_settings()
        with self.losses.guard("copied arguments"):
            note_copied_arguments(self.listener.compiled, activity.programs, self.programs.facts)
        return Record(
            self.name,
            self.start,
            end,
            compiled=self.listener.compiled,
            waits=waits,
            pauses=self.pauses.pauses,
            samples=self.sampler.samples,
            peaks=self.sampler.peaks,
            live_arrays=self.sampler.live_arrays,
            programs=self.programs.facts,
            activity=activity,
            overhead_s=overhead_s,
            remarks=ask("remarks", lambda: [*self._remarks(), *self._unreported(activity)], []),
            puts=self.puts.puts,
            settings=self.listener.settings,
            backend=ask("the platform", lambda: str(jax.default_backend()), "") if jax and started else "",
            call_sites=ask("lines of calls", lambda: sorted(self.sampler.call_sites.sites), []),
            called_back=self.sampler.called_back,
            parameters=self.sampler.parameters,
            modules=ask("the program's files", _program_files, []),
            compile_cache=str(getattr(getattr(jax, "config", None), "jax_compilation_cache_dir", None) or ""),
            small_puts=ask("small arrays put on a device", lambda: self.puts.small, {}),
            jax_version=self._version(jax),
            before_s=self.before_s,
            closed_s=closed_s,
            losses=self.losses,
        )

    def _attach(self, jax: ModuleType) -> None:
        """Install the hooks into JAX, once the program has imported it; each opens in a guard of its own."""
        self._undo.callback(self.replacements.close)
        if len(self._version(jax)) > 0 and self._version(jax) < NAMES_CAUSES:
            self.profiler = None  # its windows say nothing, and print lines of their own
        for what, install in (
            ("what JAX compiles", self._listen_to_compiling),
            ("why JAX traces again", self._explain_traces),
            ("waits for devices", lambda jax: self.waits.open(jax, self.replacements, self.pauses)),
            ("arrays put on a device", lambda jax: self.puts.open(jax, self.replacements)),
            ("calls that change JAX's caches and settings", self._note_calls),
        ):
            with self.losses.guard(what):
                install(jax)

    @staticmethod
    def _version(jax: ModuleType | None) -> tuple[int, ...]:
        return tuple(getattr(jax, "__version_info__", ()))

    def _listen_to_compiling(self, jax: ModuleType) -> None:
        if not hasattr(jax, "monitoring"):
            importlib.import_module("jax.monitoring")
        self.listener.ended = self.losses.guarded("a compiled function", self.listener.on_duration)
        self.listener.started = self.losses.guarded("a compiled function", self.listener.on_start)
        self._undo.callback(self._stop_listening, jax.monitoring)
        self._listen(jax.monitoring)
        self.replacements.replace(jax.monitoring, "clear_event_listeners", self._clearing_listeners)

    def _explain_traces(self, jax: ModuleType) -> None:
        self.listener.pass_on = bool(getattr(jax.config, FLAG))
        self._undo.callback(jax.config.update, FLAG, self.listener.pass_on)
        jax.config.update(FLAG, True)
        self._undo.enter_context(hooks.filtered_logs(self.listener.on_log))

    def _note_calls(self, jax: ModuleType) -> None:
        guarded, before = self.losses.guarded, self.replacements.call_before
        before(jax, "clear_caches", guarded("a call of clear_caches", self.listener.note_cleared_caches))
        before(jax, "disable_jit", guarded("a call of disable_jit", self.listener.note_disabled_jit))
        if self.profiler:
            for name in ("start_trace", "trace"):
                before(jax.profiler, name, guarded("a window of the profiler", self.profiler.end))

    def _listen(self, monitoring: ModuleType) -> None:
        monitoring.register_event_duration_secs_listener(self.listener.ended)
        if hasattr(monitoring, "register_scalar_listener"):  # from JAX 0.6 on
            monitoring.register_scalar_listener(self.listener.started)

    def _stop_listening(self, monitoring: ModuleType) -> None:
        for kind, listener in (
            ("event_duration", self.listener.ended),
            ("scalar", self.listener.started),
        ):
            if kind == "scalar" and not hasattr(monitoring, "register_scalar_listener"):
                continue
            with self.losses.guard("what was compiled after the program removed JAX's listeners"):
                jax_internals.stop_listening(kind, listener)

    def _clearing_listeners(self, clear: Callable[[], None]) -> Callable[[], None]:
        """Wrap `jax.monitoring.clear_event_listeners` to remove the program's own listeners only."""

        def cleared() -> None:
            clear()
            with self.losses.guard("what was compiled after the program removed JAX's listeners"):
                self._listen(sys.modules["jax"].monitoring)

        return named_as(clear, cleared)  # type: ignore[no-any-return]

    def _look(self) -> bool:
        """Note programs, open and close windows, and pause hooks; return whether a window is open.

        The sampler's thread calls this after each sample.
        """
        if not self._started():
            return False
        if self._compiled != self.listener.count:
            self._compiled = self.listener.count
            began = time.thread_time()
            self.programs.look()
            self.sampler.spent_s += time.thread_time() - began
        in_window = bool(self.profiler and self.profiler.look(self.sampler.thread_id))
        self.pauses.look(time.perf_counter(), len(self.waits), in_window)
        return in_window

    def _started(self) -> bool:
        return hooks.is_running(otherwise=self.listener.count > 0)

    def _overhead_s(self) -> dict[str, float]:
        """Return the processor seconds that each instrument took."""
        return {
            "samples": self.sampler.spent_s,
            "hooks": self.listener.spent_s + len(self.waits) * _wrapper_costs_s(),
            "profiler": self.profiler.cost_s if self.profiler else 0.0,
        }

    def _remarks(self) -> list[str]:
        remarks = [f"cannot observe {name} in this version of JAX" for name in self.replacements.missing]
        if self.waits.elsewhere or self.listener.elsewhere:
            remarks.append(
                f"other threads waited {self.waits.elsewhere} times and compiled {self.listener.elsewhere} "
                "programs; shares, waits and findings about lines are of the thread that is watched"
            )
        if self.pauses.pauses:
            paused_s = sum(pause.end - pause.start for pause in self.pauses.pauses)
            remarks.append(
                f"the program reads so many numbers that their reads were not recorded for {paused_s:.2g} s; "
                "for that time their count and seconds are estimates"
            )
        if self.programs.trouble:
            remarks.append(f"no FLOPs and bytes: {self.programs.trouble}")
        remarks += [
            f"the text of {name} is too long to be read, so findings about its instructions lack it"
            for name in dict.fromkeys(self.programs.too_long)
        ]
        if self.profiler and self.profiler.trouble:
            remarks.append(f"windows of the profiler are missing: {self.profiler.trouble}")
        return remarks

    def _unreported(self, activity: DeviceActivity) -> Iterator[str]:
        """Yield a remark for each kind of event that this JAX version lacks, perhaps under a new name."""
        version = getattr(sys.modules.get("jax"), "__version__", "")
        new = sum(not facts.old for facts in self.programs.facts)
        if new and not self.listener.count:
            yield (
                f"JAX {version} does not tell what it traces and compiles: there are {new} new programs, "
                "and no event said so; shares and findings lack it"
            )
        dispatched = (s for s in self.sampler.samples if s.kind in (DISPATCH, EAGER))
        looks = sum(any(a <= s.start and s.end <= b for a, b in activity.windows) for s in dispatched)
        # in a short window, the front end may stay in one call, which waits for a long execution
        whole = sum(p.whole for p in activity.programs.values())
        runs = any(p.run_s for p in activity.programs.values())
        if (
            looks >= LOOKS
            and (whole >= LOOKS or not runs)
            and activity.busy
            and not any(p.calls for p in activity.programs.values())
        ):
            yield (
                f"no window of the profiler of JAX {version} saw a program being called, although devices "
                "compute; findings about calls and copies lack it"
            )


@functools.cache  # a registration cannot be undone
def _leave_in_children() -> None:
    """Leave no hook of a watch in a forked child."""
    os.register_at_fork(after_in_child=lambda: _open_watch.leave() if _open_watch else None)


def _program_files() -> list[str]:
    """Return the files of the imported modules that belong to no library."""
    files = [getattr(module, "__file__", None) for module in [*sys.modules.values()]]
    return sorted({file for file in files if isinstance(file, str) and not source_location.library_of(file)})


def _wrapper_costs_s() -> float:
    """Return the seconds that a wrapper adds to a waiting call, measured now on a trivial call."""
    wrapped, count = Waits(Losses())._method(abs, "block_until_ready"), 100
    # the minimum of five, since other programs may use the core
    wrapped_s = min(timeit.repeat(lambda: wrapped(0), number=count, repeat=5))
    alone_s = min(timeit.repeat(lambda: abs(0), number=count, repeat=5))
    return max(0.0, wrapped_s - alone_s) / count
