"""Record what JAX traces and compiles: for how long, called from which line, and why again.

`jax.monitoring` reports a stage when it ends, in the thread that ran it, so the caller's frames are known.
Explanations of cache misses (`jax_explain_cache_misses`) arrive as log records during the trace that they
explain. They are kept out of the program's own log.
"""

import contextlib
import importlib
import logging
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import FrameType, FunctionType, ModuleType
from typing import Any

from jaxperf import jax_internals
from jaxperf.result.intervals import Interval
from jaxperf.retraces import MISS, Change, Explanation, argument_changes, parse_explanation
from jaxperf.watch.log import COMPILE, LOWER, TRACE, Compiled, Log, field_owner
from jaxperf.watch.observe import frame_arguments, hooks, source_location
from jaxperf.watch.observe.hooks import Replacements
from jaxperf.watch.observe.source_location import NOWHERE, Place

FLAG = "jax_explain_cache_misses"
_STAGES = {
    "jaxpr_trace_duration": TRACE,
    "jaxpr_to_mlir_module_duration": LOWER,
    "backend_compile_duration": COMPILE,
}
_CACHE_HIT = "cache_retrieval_time_sec"  # ends inside the stage that takes a program from the cache
_WITH_BODY = ("scan", "while", "cond")  # operations that take functions
_CHECKED = "checked_fun"  # JAX's name for a function under `checkify`
_PLACED = Change("placement", "", "", "the same trace, used in another way")
_DERIVED = Change("derived", "", "", "made of it by jax.grad, vmap or the like")
_ALONE = Change("derived", "", "", "called outside of jax.grad or vmap")
_CLEARED = Change("cleared", "", "", "jax.clear_caches made JAX forget it")
# JAX logs these as warnings only because `jax_explain_cache_misses` is on
_CACHE_MISS, _NOT_KEPT = "PERSISTENT COMPILATION CACHE MISS", "Not writing persistent cache entry"
_WHY_NOT_KEPT = re.compile(r"(?:because|since) (.+?)(?: \([\d.]+s\))?\Z")
_EXPLANATIONS = (MISS, _CACHE_MISS, _NOT_KEPT, "Writing ")
_SETTINGS = ("jax_enable_x64", *jax_internals.DEBUG_FLAGS)
_REMEMBERED = 64  # latest functions among which a later stage looks for its trace
_COMPARED = 16  # earlier calls with which one is compared, to explain why JAX traces again
_INTEGER, _FLOAT = re.compile(r"-?\d+"), re.compile(r"-?(\d*\.\d*|\d+)(e[+-]?\d+)?|-?inf|nan")
_CLOCKS_S = 1e-3  # by which an explanation may precede its trace where JAX does not report starts


# when each one of a stage began, the outermost first: by the clock, and in the process's used time
_Open = dict[str, list[tuple[float, float]]]


class _Thread(threading.local):
    def __init__(self, threads: dict[int, _Open]) -> None:
        self.open: _Open = {TRACE: [], LOWER: [], COMPILE: []}
        threads[threading.get_ident()] = self.open
        self.began = 0.0  # of the trace that ended last
        self.explanations: list[tuple[float, Explanation]] = []
        self.cache = "", ""  # what the compile cache on disk did, and why


class Compiles:
    """Writes what JAX traces and compiles into the log; a function traced inside another is a part of it."""

    def __init__(self, log: Log, replacements: Replacements) -> None:
        self.log, self._replacements = log, replacements
        # each gets what was compiled, and a frame below JAX's compiler
        self.on_compiled: list[Callable[[Compiled, FrameType], None]] = []
        self.open_stages = 0  # that run now
        self.count = 0  # ended stages
        self._began = log.losses.guarded("a compiled function", self.on_start)
        self._ended = log.losses.guarded("a compiled function", self.on_duration)
        self._pass_on = False  # whether the program itself asked for explanations
        self._explained_late = False
        self._undo = contextlib.ExitStack()
        self._threads: dict[int, _Open] = {}
        self._local = _Thread(self._threads)
        self._lock = threading.Lock()
        self._functions: weakref.WeakValueDictionary[str, FunctionType] = weakref.WeakValueDictionary()
        self._forgotten, self._cleared_at = 0, NOWHERE  # events before the last `jax.clear_caches`, its line

    def open(self, jax: ModuleType) -> None:
        losses, before = self.log.losses, self._replacements.call_before
        with losses.guard("what JAX compiles"):
            self.listen(jax)
        with losses.guard("why JAX traces again"):
            self.explain(jax)
        before(jax, "clear_caches", losses.guarded("a call of clear_caches", self.note_cleared_caches))
        before(jax, "disable_jit", losses.guarded("a call of disable_jit", self.note_disabled_jit))

    def listen(self, jax: ModuleType) -> None:
        monitoring = importlib.import_module("jax.monitoring")
        tells_starts = hasattr(monitoring, "register_scalar_listener")  # from JAX 0.6 on

        def register() -> None:
            monitoring.register_event_duration_secs_listener(self._ended)
            if tells_starts:
                monitoring.register_scalar_listener(self._began)

        def clearing(clear: Callable[[], None]) -> Callable[[], None]:
            def cleared() -> None:
                clear()
                if tells_starts:  # JAX may have left this one, and would call it twice
                    with contextlib.suppress(AssertionError, ValueError):
                        jax_internals.stop_listening("scalar", self._began)
                register()

            return cleared

        register()
        self._undo.callback(jax_internals.stop_listening, "event_duration", self._ended)
        if tells_starts:
            self._undo.callback(jax_internals.stop_listening, "scalar", self._began)
        self._replacements.replace(monitoring, "clear_event_listeners", clearing)

    def explain(self, jax: ModuleType) -> None:
        """Have JAX explain cache misses until the end, and show that only to a program that asks for it."""

        def updating(update: Callable[..., None]) -> Callable[..., None]:
            def updated(config: Any, name: str, val: Any) -> None:
                if name == FLAG and isinstance(val, bool):
                    self._pass_on = val
                else:
                    update(config, name, val)

            return updated

        self._pass_on = bool(getattr(jax.config, FLAG))
        self._explained_late = getattr(jax, "__version_info__", (0, 9)) < (0, 9)
        update = jax.config.update
        self._undo.callback(lambda: update(FLAG, self._pass_on))
        update(FLAG, True)
        for name in [n for n in logging.root.manager.loggerDict if n.split(".")[0] == "jax"]:
            logging.getLogger(name).addFilter(self.on_log)
            self._undo.callback(logging.getLogger(name).removeFilter, self.on_log)
        self._replacements.replace(type(jax.config), "update", updating)
        for internal, wrap in (
            (jax_internals.COMPARED_KEYS, _few_keys),
            (jax_internals.COMPARED_TREES, _unequal),
        ):
            if jax_internals.loaded(internal):
                self._replacements.replace(sys.modules[internal.module], internal.attribute, wrap)

    def close(self) -> None:
        with self._undo:
            self._end_stages()
            if hooks.is_running(otherwise=self.count > 0):
                self.look_at_settings()

    def _end_stages(self) -> None:
        """End the stages that still run, as where a signal ends a program that compiles."""
        for thread, opened in self._threads.items():
            for stage, begins in opened.items():
                if not begins:
                    continue
                began, _ = begins[0]
                event = None
                if stage != TRACE:
                    of_thread = (c for c in reversed(self.log.compiled) if c.thread == thread)
                    event = next((c for c in of_thread if stage not in c.stages), None)
                if event is None:
                    at = source_location.reader_place(sys._current_frames().get(thread))
                    event = Compiled("a program", at, thread=thread)
                    self.log.compiled.append(event)
                event.stages[stage] = began, self.log.end
                how = "traced" if stage == TRACE else "compiled"
                self.log.remarks.append(
                    f"{event.called} at {event.at} was still being {how} when the program ended, after "
                    f"{self.log.end - began:.2g} s"
                )

    # --- what JAX calls

    def on_start(self, event: str, value: float | int, **kwargs: Any) -> None:
        if stage := _STAGES.get(event.rsplit("/", 1)[-1]):
            self.open_stages += 1
            self._local.open[stage].append((time.perf_counter(), time.process_time()))

    def on_duration(self, event: str, duration_secs: float, **kwargs: Any) -> None:
        event = event.rsplit("/", 1)[-1]
        if event == _CACHE_HIT:
            self._local.cache = "hit", ""
        stage = _STAGES.get(event)
        if stage is None:
            return
        end, now_s, ran_s = time.perf_counter(), time.process_time(), time.thread_time()
        name = re.sub(r"^jit\((.*)\)$", r"\1", str(kwargs.get("fun_name", "a program")))
        opened = self._local.open[stage]
        began, used_s = opened.pop() if opened else (end - duration_secs - _CLOCKS_S, None)
        if stage == TRACE:
            self._local.began = began
        with self._lock, self.log.losses.guard("a compiled function"):
            compiled = self._event(stage, name, (end - duration_secs, end))
            if used_s is not None:
                compiled.used_s[stage] = now_s - used_s
            if stage == COMPILE:
                compiled.cache, compiled.cache_note = self._local.cache
                self._local.cache = "", ""
                for keep in self.on_compiled:
                    with self.log.losses.guard("a compiled program"):
                        keep(compiled, sys._getframe())
        self.open_stages = max(0, self.open_stages - 1)
        self.count += 1
        if stage == COMPILE and threading.get_ident() != self.log.thread_id:
            self.log.other_threads["compiled"] += 1
        self.log.overhead_s["hooks"] += time.thread_time() - ran_s

    def on_log(self, record: logging.LogRecord) -> bool:
        """Keep explanations of cache misses and pass on other records, as a filter for JAX's loggers."""
        message = str(record.msg)  # without arguments: JAX has formatted explanations already
        with self.log.losses.guard("an explanation of a cache miss"):
            if message.startswith(MISS):
                explanation = parse_explanation(message)
                self._local.explanations.append((time.perf_counter(), explanation))
                if self._explained_late:
                    self._describe_again(explanation.name)
            elif message.startswith(_CACHE_MISS):
                self._local.cache = "miss", ""
            elif message.startswith(_NOT_KEPT):
                reason = _WHY_NOT_KEPT.search(record.getMessage())
                self._local.cache = "miss", f"JAX did not keep it: {reason[1]}" if reason else ""
        return self._pass_on or not message.startswith(_EXPLANATIONS)

    def _describe_again(self, name: str) -> None:
        """Describe a trace whose explanation JAX logs after its event, as it does before 0.9."""
        if self._local.open[TRACE]:  # it is inside another one
            return
        with self._lock:
            event = self._last(lambda c: c.name == name and not c.explained and set(c.stages) == {TRACE})
            if event:
                self._describe(event, *source_location.reader_and_library_frames(sys._getframe()))

    def note_cleared_caches(self) -> None:
        with self._lock:
            self._forgotten = len(self.log.compiled)
            self._cleared_at = source_location.reader_place(sys._getframe())

    def note_disabled_jit(self) -> None:
        """Note the line that calls `jax.disable_jit`, which JAX turns off while it traces an operation."""
        self.log.settings.setdefault("jax_disable_jit", source_location.reader_place(sys._getframe()))

    def look_at_settings(self, at: Place = NOWHERE) -> None:
        config = sys.modules["jax"].config
        for setting in _SETTINGS:
            if getattr(config, setting, False) is True:
                self.log.settings.setdefault(setting, at)

    # --- from a stage to an event

    def _event(self, stage: str, name: str, span: Interval) -> Compiled:
        """Return the event of the log that a stage belongs to: one with earlier stages, or a new one."""
        if stage == TRACE:
            self._drop_inside(span)
        else:
            for known in reversed(self.log.compiled[-_REMEMBERED:]):
                if known.name == name and stage not in known.stages:
                    known.stages[stage] = span
                    if not known.at:
                        self._locate(known)
                    return known
        event = Compiled(name, NOWHERE, {stage: span}, thread=threading.get_ident())
        if stage == TRACE and self._local.open[TRACE]:
            # inside another trace, which will replace it; there may be thousands, far from the reader's line
            self._explain(event)
        elif stage == TRACE:
            self._describe(event, *self._locate(event))
        else:
            event = self._recognize(event, *self._locate(event))
        self.log.compiled.append(event)
        return event

    def _drop_inside(self, span: Interval) -> None:
        """Drop what this thread traced inside another trace; what it also compiled is kept apart."""
        compiled, others = self.log.compiled, list[Compiled]()
        while compiled and all(span[0] <= a and b <= span[1] for a, b in compiled[-1].stages.values()):
            event = compiled.pop()
            if event.thread != threading.get_ident():
                others.insert(0, event)
            elif COMPILE in event.stages:
                self.log.nested.append(event)
        compiled += others

    @staticmethod
    def _locate(event: Compiled) -> tuple[FrameType | None, FrameType | None]:
        """Set the lines of an event; return the frames of the reader and of the library that it called."""
        frame = sys._getframe()
        reader, library = source_location.reader_and_library_frames(frame)
        event.at, event.callers = source_location.place_of(reader), source_location.caller_places(reader)
        event.inner = next(iter(source_location.places_outside_jax(frame, 1)), NOWHERE)
        event.under = source_location.transformed_at(frame)
        event.derived = bool(event.under) or source_location.is_transformed(frame, reader)
        return reader, library

    def _recognize(self, event: Compiled, reader: FrameType | None, library: FrameType | None) -> Compiled:
        """Return a stage without a trace as one of the reader's functions, if that is known."""
        before = self._last(lambda c: c.explained and c.name == event.name)
        # JAX reports no trace of what `jax.grad` or `jax.vmap` makes of a jitted function
        if reader is not None and (before is None or TRACE not in before.stages):
            function = frame_arguments.jitted_function(sys._getframe(), reader, event.name)
            event.defined = frame_arguments.defined_at(function)
            if event.defined:
                event.explained = True
                self._describe_derived(event, frame_arguments.call_arguments(library))
                return event
        if before is None:
            return event
        arguments = frame_arguments.call_arguments(library)
        placements = frame_arguments.array_placements(arguments)
        changes = frame_arguments.placement_changes(before.placements, placements)
        if not changes and event.derived != before.derived:
            changes = (_DERIVED if event.derived else _ALONE,)
        known = replace(
            before, at=event.at, stages=event.stages, used_s=event.used_s, callers=event.callers,
            cleared=None, inner=event.inner, thread=event.thread, placements=placements,
            changes=changes or (_PLACED,), derived=event.derived,
        )  # fmt: skip
        if source_location.is_transformed(sys._getframe(), reader):
            self._describe_derived(known, arguments)
        return known

    def _describe_derived(self, event: Compiled, arguments: dict[str, Any]) -> None:
        """Describe what `jax.grad` or `jax.vmap` makes of a jitted function, often two programs of a call."""
        event.signature = {where: frame_arguments.describe_value(a) for where, a in arguments.items()}
        before = self._last(lambda c: c.defined == event.defined and TRACE not in c.stages)
        if before and (before.signature, before.derived) == (event.signature, event.derived):
            event.changes = before.changes
        else:
            unknown = _DERIVED if event.derived else _ALONE
            event.changes = (before and self._differs(event)) or (unknown,)

    def _describe(self, event: Compiled, reader: FrameType | None, library: FrameType | None) -> None:
        file = library.f_code.co_filename if library else ""
        event.through = source_location.library_of(file)
        arguments = frame_arguments.call_arguments(library)
        arrays = {where: a for where, a in arguments.items() if frame_arguments.is_array(a)}
        event.host = {where: a.nbytes for where, a in arrays.items() if type(a).__module__ == "numpy"}
        event.signature = {where: frame_arguments.describe_value(a) for where, a in arguments.items()}
        event.weak = frozenset(where for where, a in arrays.items() if getattr(a, "weak_type", False))
        event.placements = frame_arguments.array_placements(arguments)
        with contextlib.suppress(Exception):  # another thread may change what an object stores
            for where, argument in arguments.items():
                event.fields |= frame_arguments.object_fields(where, argument)
        self._explain(event)
        # a library may jit one of its own functions, as Optax does; Equinox jits the reader's
        owner = source_location.library_of(event.defined.rpartition(":")[0])
        if event.explained and owner and event.through not in ("", "jax", "equinox"):
            event.owner, event.explained = owner, False
        # of the programs of `pmap`, not one that moves its arguments
        by_pmap = event.name == "_fun" and file.endswith("pmap.py")
        before_0_9 = event.name == "call_wrapped" and event.through == "jax"
        if reader is not None and not event.explained and (by_pmap or before_0_9):
            self._explain_pmap(event, source_location.callee(reader))
        function = None
        if event.explained and event.through == "equinox":
            function = frame_arguments.filtered_function(sys._getframe(), reader)
            event.defined = frame_arguments.defined_at(function) or event.defined
        if event.explained and not event.changes:  # a new function object, as far as JAX can tell
            frame = sys._getframe()
            function = function or frame_arguments.traced_function(frame, reader, event.defined)
            if function:
                captured = frame_arguments.captured_values(function)
                event.closure = {n: frame_arguments.identify_value(v) for n, v in captured.items()}
                event.refers_to = frame_arguments.referenced_arrays(function)
                with contextlib.suppress(Exception):
                    event.fields |= frame_arguments.captured_fields(function)
        self._remember(event, getattr(function, "__func__", function))
        self.look_at_settings(event.at)

    def _remember(self, event: Compiled, function: FunctionType | None) -> None:
        """Recognize traces that only repeat what `jax.clear_caches` made JAX forget."""
        new = function is not None and self._functions.get(event.defined) is not function
        if self._forgotten and not event.changes and not new:
            call, forgotten = _call(event), self.log.compiled[: self._forgotten]
            if any(_call(c) == call for c in forgotten):
                event.cleared, event.changes = self._cleared_at, (_CLEARED,)
            elif event.explained:
                event.changes = self._differs(event)
        if function is not None:
            self._functions[event.defined] = function

    def _explain(self, event: Compiled) -> None:
        """Take the explanation of this function, and drop those of functions traced inside it.

        JAX explains a trace when it begins. Later, it may explain others of the same name that are inside,
        such as a transpose, for which there is no event, and some are left from earlier traces without one.
        """
        explanations = self._local.explanations
        named = [i for i, (_, explanation) in enumerate(explanations) if explanation.name == event.name]
        if self._explained_late:
            matching = [i for i in named if explanations[i][0] >= event.stages[TRACE][0] - _CLOCKS_S]
        else:  # it is the latest one, if the clocks disagree
            matching = [i for i in named if explanations[i][0] >= self._local.began] or named[-1:]
        if not matching and event.name == _CHECKED and explanations:
            matching, event.label = [0], explanations[0][1].name
        if matching:
            event.explained = True
            _, event.defined, event.changes = explanations[matching[0]][1]
            del explanations[matching[0] :]
        # the remaining explanations belong to an operation that takes functions
        if not event.explained and event.name in _WITH_BODY and explanations:
            new = [e.name for _, e in explanations if not e.changes]
            event.changes = explanations[-1][1].changes
            if new:
                event.changes = (Change("new body", "", "", f"{new[-1]} is a new function each time"),)
            explanations.clear()
        # JAX compares with one earlier call, and JAX 0.12 says nothing about static arguments
        elif kinds := {c.kind for c in event.changes} & {"other", "shape", "structure"}:
            changes = self._differs(event)
            # of a long list, that sees only the first elements, which may be numbers
            lengths = any(c.kind == "structure" and " of length " in c.now for c in event.changes)
            numbers = lengths and all(c.kind == "static value" for c in changes)
            if changes and not numbers and not ("shape" in kinds and any("[" in c.now for c in changes)):
                # JAX itself names no reason for a static argument
                typed = "other" not in kinds
                event.changes = tuple(_as_types(c) if typed else c for c in changes)

    def _explain_pmap(self, event: Compiled, function: Any) -> None:
        """Explain a trace under `pmap`, which JAX does not; the program's name is not the function's."""
        function = getattr(function, "__wrapped__", None)
        defined = frame_arguments.defined_at(function)
        event.explained, event.defined = True, defined or str(event.at)
        event.label = function.__code__.co_name if defined else ""
        event.changes = self._differs(event)

    def _differs(self, event: Compiled) -> tuple[Change, ...]:
        """Return how a call differs from that earlier call of the function in which fewest arguments do."""
        names = event.signature.keys()
        alike = [c for c in self.log.compiled if c.defined == event.defined and c.signature.keys() == names]
        calls = [c for c in reversed(alike[-_COMPARED:]) if c is not event]
        changes = [
            argument_changes(c.signature, event.signature, c.weak | event.weak)
            or argument_changes(_compared(c), _compared(event))
            for c in calls
        ]
        # of equally many, those in other values than arrays
        return min(changes, key=lambda each: (len(each), any("[" in c.now for c in each)), default=())

    def _last(self, wanted: Callable[[Compiled], bool]) -> Compiled | None:
        return next(filter(wanted, reversed(self.log.compiled)), None)


def _as_types(change: Change) -> Change:
    """Return a number's change from int to float, or back, as one of dtypes: the number is traced."""
    values = change.before, change.now
    integers = sum(bool(_INTEGER.fullmatch(value)) for value in values)
    if change.kind == "static value" and integers == 1 and all(map(_FLOAT.fullmatch, values)):
        return replace(change, kind="dtype")
    return change


def _few_keys(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Have JAX compare a call with a few earlier ones; it would compare it with all, 60 us for each."""
    local = threading.local()

    def compared(new: Any, old: Any) -> Any:
        if getattr(local, "new", None) is not new:
            local.new, local.count = new, 0
        local.count += 1
        if local.count > _COMPARED:
            return sys.maxsize, 0, ""  # JAX takes the smallest difference
        return compare(new, old)

    return compared


def _unequal(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Have JAX look for differences of pytrees only where there are some; it looks at each node in Python."""

    def compared(new: Any, old: Any) -> Any:
        with contextlib.suppress(Exception):  # of a class's own `__eq__`
            if new == old:
                return None
        return compare(new, old)

    return compared


def _compared(c: Compiled) -> dict[str, str]:
    """Return the fields of arguments that are not compared by identity."""
    owners = {where for where, text in c.signature.items() if " object at 0x" not in text}
    return {name: text for name, text in c.fields.items() if field_owner(name) in owners}


def _call(c: Compiled) -> tuple[str, str, dict[str, str]]:
    return c.name, c.defined, c.signature
