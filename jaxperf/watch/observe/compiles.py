"""Record what JAX traces and compiles: for how long, called from which line, and why again.

`jax.monitoring` reports a stage when it ends, in the thread that ran it, so the caller's frames are known.
Explanations of cache misses (`jax_explain_cache_misses`) arrive as log records during the trace that they
explain. They are kept out of the program's own log.
"""

from __future__ import annotations

import inspect
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import FrameType, FunctionType
from typing import Any

from jaxperf.result.intervals import Interval, total_length
from jaxperf.watch.observe import frame_arguments, source_location
from jaxperf.watch.observe.frame_arguments import (
    MISS,
    Change,
    Explanation,
    argument_changes,
    parse_explanation,
)
from jaxperf.watch.observe.hooks import Losses
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.observe.windows import canonical_name

TRACE, LOWER, COMPILE = "trace", "lower", "compile"
_STAGES = {
    "jaxpr_trace_duration": TRACE,
    "jaxpr_to_mlir_module_duration": LOWER,
    "backend_compile_duration": COMPILE,
}
_WITH_BODY = ("scan", "while", "cond")  # operations that take functions
WRAPPED = ("checked_fun",)  # JAX's name for a function under `checkify`
_PLACED = Change("placement", "", "", "other devices or sharding, or compiled by hand")
_DERIVED = Change("derived", "", "", "made of it by jax.grad, vmap or the like")
_CLEARED = Change("cleared", "", "", "jax.clear_caches made JAX forget it")
# JAX logs these as warnings only because `jax_explain_cache_misses` is on
_EXPLANATIONS = (
    MISS, "PERSISTENT COMPILATION CACHE MISS", "Not writing persistent cache entry", "Writing "
)  # fmt: skip


@dataclass
class Compiled:
    """One function that JAX traced, lowered or compiled.

    Attributes:
      name: the program's name, which usually is the function's.
      at: the line of the reader's code whose call triggered it.
      callers: the reader's lines on the stack above `at`, the innermost first.
      through: the library that the reader called, such as "flax" for `nnx.jit`.
      stages: start and end of each stage, by `time.perf_counter`.
      explained: whether JAX explained the trace, which it does for the reader's functions only.
      defined: file and line of the function; "" if JAX did not say.
      changes: why JAX traced a function again; empty for a new function object.
      host: bytes of the NumPy arrays among the call's arguments, by name.
      elsewhere: bytes of the arrays whose devices are not those of the program, by name.
      signature: the call's arguments, by name: an array's type, or another value's description.
      closure: descriptions of the function's closure variables and default values, by name.
      refers_to: types of the arrays among its closure, defaults and module variables, by name.
      owner: the library whose own function it is, such as "optax"; "" for the reader's and for operations.
      label: the function's name if the program has another one, as under `pmap`.
      placements: devices and sharding of the arrays among the arguments, by name.
      cleared: the line whose `jax.clear_caches` caused this trace; None for any other reason.
    """

    name: str
    at: Place
    stages: dict[str, Interval] = field(default_factory=dict)
    explained: bool = False
    defined: str = ""
    changes: tuple[Change, ...] = ()
    host: dict[str, int] = field(default_factory=dict)
    elsewhere: dict[str, int] = field(default_factory=dict)
    signature: dict[str, str] = field(default_factory=dict)
    closure: dict[str, str] = field(default_factory=dict)
    refers_to: dict[str, str] = field(default_factory=dict)
    label: str = ""
    owner: str = ""
    callers: tuple[Place, ...] = ()
    through: str = ""
    cleared: Place | None = None
    placements: dict[str, frame_arguments.Placement] = field(default_factory=dict)

    @property
    def called(self) -> str:
        """Return the function's name in the reader's code."""
        return self.label or self.name

    @property
    def program(self) -> str:
        """Return the program's name in the profiler's windows."""
        return canonical_name(self.name)

    @property
    def host_bytes(self) -> int:
        """Return the bytes of all NumPy arrays among the arguments."""
        return sum(self.host.values())

    @property
    def host_argument(self) -> str:
        """Return the name of the largest NumPy array among the arguments; "" for none."""
        return max(self.host, key=lambda where: self.host[where], default="")

    @property
    def total_s(self) -> float:
        """Return the seconds of all stages."""
        return total_length(self.stages.values())

    def seconds(self, stage: str) -> float:
        """Return the seconds of one stage; 0 if it did not take place."""
        start, end = self.stages.get(stage, (0.0, 0.0))
        return end - start


class Listener:
    """Records what JAX traces and compiles; `open` is the number of stages that run now.

    `compiled` holds functions ordered by their end. A function traced inside another one is part of that one.
    """

    def __init__(self, losses: Losses) -> None:
        self.losses = losses
        self.started: Callable[..., None] = self.on_start  # what JAX calls
        self.ended: Callable[..., None] = self.on_duration
        self.pass_on = False  # whether the program itself asked for explanations
        self.compiled: list[Compiled] = []
        self.open = 0
        self.count = 0  # ended stages
        self.spent_s = 0.0  # overhead of this listener
        self.elsewhere = 0  # programs compiled in threads other than `thread_id`
        self.thread_id = threading.get_ident()
        self._local = threading.local()
        self._lock = threading.Lock()
        self.settings: dict[str, Place] = {}  # JAX settings that were on, and where each was first seen
        self._known: set[tuple[Any, ...]] = set()  # traced calls
        self._forgotten: set[tuple[Any, ...]] = set()  # those before the last `jax.clear_caches`
        self._functions: weakref.WeakValueDictionary[str, FunctionType] = weakref.WeakValueDictionary()
        self._cleared_at = NOWHERE

    def on_start(self, event: str, value: float | int, **kwargs: Any) -> None:
        """Count a stage that begins, as a listener for `jax.monitoring.register_scalar_listener`."""
        if event.rsplit("/", 1)[-1] in _STAGES:
            self.open += 1

    def on_duration(self, event: str, duration_secs: float, **kwargs: Any) -> None:
        """Record a stage that has ended, as a listener for `register_event_duration_secs_listener`."""
        stage = _STAGES.get(event.rsplit("/", 1)[-1])
        if stage is None:
            return
        end = time.perf_counter()
        name = str(kwargs.get("fun_name", "a program"))
        name = name.removeprefix("jit(").removesuffix(")") if name.startswith("jit(") else name
        with self._lock, self.losses.guard("a compiled function"):
            self._take(stage, name, (end - duration_secs, end))
        self.open = max(0, self.open - 1)
        self.count += 1
        self.elsewhere += stage == COMPILE and threading.get_ident() != self.thread_id
        self.spent_s += time.perf_counter() - end

    def _take(self, stage: str, name: str, span: Interval) -> None:
        if stage != TRACE:
            for known in reversed(self.compiled[-64:]):
                if known.name == name and stage not in known.stages:
                    known.stages[stage] = span
                    return
        while stage == TRACE and self.compiled and _inside(self.compiled[-1], span):
            self.compiled.pop()  # it was traced inside this one
        reader, library = source_location.reader_and_library_frames(sys._getframe(2))
        compiled = Compiled(
            name,
            source_location.place_of(reader),
            {stage: span},
            callers=source_location.caller_places(reader),
        )
        if stage == TRACE:
            self._describe(compiled, reader, library)
        else:
            self._derive(compiled, reader)
        before = next((c for c in reversed(self.compiled) if c.explained and c.name == name), None)
        if compiled.explained and stage != TRACE:
            before = None
        if stage != TRACE and before:  # one of the reader's functions, which was traced earlier
            placements = frame_arguments.array_placements(frame_arguments.call_arguments(library))
            moved = frame_arguments.placement_changes(before.placements, placements)
            compiled = replace(
                before, at=compiled.at, stages=compiled.stages, callers=compiled.callers, cleared=None,
                placements=placements, changes=moved or (_PLACED,),
            )  # fmt: skip
        self.compiled.append(compiled)

    def _derive(self, compiled: Compiled, reader: FrameType | None) -> None:
        """Recognize a program that `jax.grad` or `jax.vmap` makes of a jitted function of the reader's.

        JAX reports no trace of it, and explains none.
        """
        known = [c for c in self.compiled if c.name == compiled.name and c.explained]
        if reader is None or any(c.changes != (_DERIVED,) for c in known):
            return
        function = source_location.variable_value(reader, compiled.name)
        code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
        if code and source_location.jitted_program(function) == compiled.name:
            compiled.explained, compiled.changes = True, (_DERIVED,)
            compiled.defined = f"{code.co_filename}:{code.co_firstlineno}"

    def _describe(self, compiled: Compiled, reader: FrameType | None, library: FrameType | None) -> None:
        """Record a trace's arguments, its cause, and what its function captures."""
        compiled.through = source_location.library_of(library.f_code.co_filename) if library else ""
        arguments = frame_arguments.call_arguments(library)
        arrays = {
            where: a
            for where, a in arguments.items()
            if type(a).__module__ == "numpy" and frame_arguments.is_array(a)
        }
        compiled.host = {where: a.nbytes for where, a in arrays.items()}
        compiled.signature = {where: frame_arguments.describe_value(a) for where, a in arguments.items()}
        compiled.placements = frame_arguments.array_placements(arguments)
        self._explain(compiled)
        if compiled.explained and source_location.by_a_library(compiled.defined, library):
            compiled.owner = source_location.library_of(compiled.defined.rpartition(":")[0])
            compiled.explained = False
        if reader is not None and not compiled.explained and _by_pmap(compiled.name, library):
            self._explain_pmap(compiled, source_location.callee(reader))
        function = None
        if compiled.explained and not compiled.changes:  # a new function object, as far as JAX can tell
            function = frame_arguments.traced_function(sys._getframe(3), reader, compiled.defined)
            if function:
                compiled.closure = {
                    n: frame_arguments.identify_value(v)
                    for n, v in frame_arguments.captured_values(function).items()
                }
                compiled.refers_to = frame_arguments.referenced_arrays(function)
        self._remember(compiled, getattr(function, "__func__", function))
        self.look_at_settings(compiled.at)

    def look_at_settings(self, at: Place = NOWHERE) -> None:
        """Note the settings that are on now, for the calling thread."""
        for setting, value in getattr(sys.modules["jax"].config, "values", {}).items():
            if value is True:
                self.settings.setdefault(setting, at)

    def _remember(self, compiled: Compiled, function: FunctionType | None) -> None:
        """Recognize traces that only repeat what `jax.clear_caches` made JAX forget."""
        call = compiled.name, compiled.defined, tuple(compiled.signature.items())
        new = function is not None and self._functions.get(compiled.defined) is not function
        if self._forgotten and not compiled.changes and not new:
            last = next(
                (c for c in reversed(self.compiled) if c.explained and c.defined == compiled.defined), None
            )
            if call in self._forgotten:
                compiled.cleared, compiled.changes = self._cleared_at, (_CLEARED,)
            elif compiled.explained and last:
                compiled.changes = argument_changes(last.signature, compiled.signature)
        if function is not None:
            self._functions[compiled.defined] = function
        self._known.add(call)

    def note_cleared_caches(self) -> None:
        """Note that the program calls `jax.clear_caches`, so that JAX forgets all earlier traces."""
        with self._lock, self.losses.guard("a call of clear_caches"):
            self._cleared_at = source_location.reader_place(sys._getframe())
            self._forgotten |= self._known

    def note_disabled_jit(self) -> None:
        """Note the line that calls `jax.disable_jit`, which JAX turns off while it traces an operation."""
        with self.losses.guard("a call of disable_jit"):
            self.settings.setdefault("jax_disable_jit", source_location.reader_place(sys._getframe()))

    def _explain(self, compiled: Compiled) -> None:
        """Take the explanation of this function, and drop those of functions traced inside it."""
        explanations: list[Explanation] = getattr(self._local, "explanations", [])
        for i in reversed(range(len(explanations))):
            if explanations[i].name == compiled.name:
                compiled.explained = True
                compiled.defined, compiled.changes = explanations[i].defined, explanations[i].changes
                del explanations[i:]
                break
        if not compiled.explained and compiled.name in WRAPPED and explanations:
            outermost = explanations[0]
            compiled.explained, compiled.label = True, outermost.name
            compiled.defined, compiled.changes = outermost.defined, outermost.changes
            explanations.clear()
        # the remaining explanations belong to an operation that takes functions
        if not compiled.explained and compiled.name in _WITH_BODY and explanations:
            new = [e.name for e in explanations if not e.changes]
            body = Change("new body", "", "", f"{new[-1]} is a new function each time") if new else None
            compiled.changes = (body,) if body else explanations[-1].changes
            explanations.clear()
        elif [c.kind for c in compiled.changes] == ["other"]:  # JAX 0.12 says nothing about static arguments
            before = (c for c in reversed(self.compiled) if c.defined == compiled.defined)
            compiled.changes = (
                argument_changes(next(before, compiled).signature, compiled.signature) or compiled.changes
            )

    def _explain_pmap(self, compiled: Compiled, function: Any) -> None:
        """Explain a trace under `pmap`, which JAX does not; the program's name is not the function's."""
        code = getattr(getattr(function, "__wrapped__", None), "__code__", None)
        compiled.explained, compiled.label = True, code.co_name if code else ""
        compiled.defined = f"{code.co_filename}:{code.co_firstlineno}" if code else str(compiled.at)
        before = next((c for c in reversed(self.compiled) if c.defined == compiled.defined), None)
        compiled.changes = argument_changes(before.signature, compiled.signature) if before else ()

    def on_log(self, record: logging.LogRecord) -> bool:
        """Keep explanations of cache misses and pass on other records, as a filter for JAX's loggers."""
        message = str(record.msg)  # without arguments: JAX has formatted explanations already
        if message.startswith(MISS):
            with self.losses.guard("an explanation of a cache miss"):
                if not hasattr(self._local, "explanations"):
                    self._local.explanations = []
                self._local.explanations.append(parse_explanation(message))
        return self.pass_on or not message.startswith(_EXPLANATIONS)


def _inside(known: Compiled, span: Interval) -> bool:
    return all(span[0] <= a and b <= span[1] for a, b in known.stages.values())


def _by_pmap(name: str, library: FrameType | None) -> bool:
    """Return whether a program is the reader's function under `pmap`, not one that moves its arguments."""
    return name == "_fun" and library is not None and library.f_code.co_filename.endswith("pmap.py")
