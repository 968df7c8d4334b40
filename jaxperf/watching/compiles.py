"""What was traced and compiled, how long it took, from which line, and why again.

JAX reports each stage (`jax.monitoring`) in the thread and at the moment it ends, so the caller's frames are
there to be read. Its explanations of cache misses (`jax_explain_cache_misses`) come as log records between
the start and the end of the trace that they explain; they are kept out of the program's own log.
"""

from __future__ import annotations

import inspect
import logging
import re
import sys
import threading
import time
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple

from jaxperf.result.intervals import Interval, length
from jaxperf.watching import place
from jaxperf.watching.place import Place
from jaxperf.watching.trouble import Trouble

TRACE, LOWER, COMPILE = "trace", "lower", "compile"
_STAGES = {
    "jaxpr_trace_duration": TRACE,
    "jaxpr_to_mlir_module_duration": LOWER,
    "backend_compile_duration": COMPILE,
}
_MISS = "TRACING CACHE MISS"
# what JAX logs as a warning only because it was told to explain
_EXPLANATIONS = (
    _MISS, "PERSISTENT COMPILATION CACHE MISS", "Not writing persistent cache entry", "Writing "
)  # fmt: skip
_NEW = re.compile(r"never seen function:\s+(?P<name>.+?) id=\d+(?: defined at (?P<at>.+))?")
_AGAIN = re.compile(r"for (?P<name>.+?) defined at (?P<at>\S+)")
_CHANGE = re.compile(
    r"\* at (?P<what>.+?), now (?P<now>.+?) and before (?P<before>.+?)(?=https?://|,? so |$)", re.M
)
_STATIC = re.compile(r"Static\(val=(.*?)\)(?: and|, so|$)")


@dataclass(frozen=True)
class Change:
    """What differs from the nearest earlier call: an argument, and its type or value then and now."""

    kind: str  # "shape", "dtype", "weak type", "static value", "structure", "setting"
    what: str
    before: str
    now: str

    def __str__(self) -> str:
        return f"{self.what}: {self.before} -> {self.now}" if self.what else self.now


@dataclass
class Compiled:
    """One function on its way from Python to a program.

    Attributes:
      name: the function's.
      at: the line of the reader's code whose call set it off.
      stages: when each stage began and ended, by `time.perf_counter`.
      explained: whether JAX said why, which it does for the reader's functions and not for its own.
      defined: file and line of the function, "" where JAX did not say.
      changes: what made it trace a function that it has traced before; empty for a new function object.
      host_bytes: bytes of the NumPy arrays among the call's arguments.
      host_float64: whether one of them has NumPy's default type.
      signature: the call's arguments, by name: arrays as their type, other values as themselves.
      label: the function's name where the program has another, as under `pmap`.
    """

    name: str
    at: Place
    stages: dict[str, Interval] = field(default_factory=dict)
    explained: bool = False
    defined: str = ""
    changes: tuple[Change, ...] = ()
    host_bytes: int = 0
    host_float64: bool = False
    signature: dict[str, str] = field(default_factory=dict)
    label: str = ""

    @property
    def called(self) -> str:
        """The reader's name of the function."""
        return self.label or self.name

    @property
    def total_s(self) -> float:
        """Seconds of all stages."""
        return length(self.stages.values())

    def seconds(self, stage: str) -> float:
        """Seconds of one stage; 0 where it did not take place."""
        start, end = self.stages.get(stage, (0.0, 0.0))
        return end - start


class Listener:
    """Hears what JAX traces and compiles; `compiled` holds the outermost functions in the order of their end.

    A function that is traced while another is belongs to that one. `open` is how many stages run now.
    """

    def __init__(self, trouble: Trouble) -> None:
        self.trouble = trouble
        self.pass_on = False  # the program itself asked for explanations
        self.compiled: list[Compiled] = []
        self.open = 0
        self.count = 0  # of the events heard, for the overhead
        self.spent_s = 0.0  # in hearing them
        self.elsewhere = 0  # compiled in other threads than the one that made this
        self._thread = threading.get_ident()
        self._said = threading.local()
        self._lock = threading.Lock()

    def on_start(self, event: str, value: float | int, **kwargs: Any) -> None:
        """A listener for `jax.monitoring.register_scalar_listener`: JAX reports when each stage begins."""
        if event.rsplit("/", 1)[-1] in _STAGES:
            self.open += 1

    def on_duration(self, event: str, duration_secs: float, **kwargs: Any) -> None:
        """A listener for `jax.monitoring.register_event_duration_secs_listener`."""
        stage = _STAGES.get(event.rsplit("/", 1)[-1])
        if stage is None:
            return
        end = time.perf_counter()
        name = str(kwargs.get("fun_name", "a program"))
        name = name.removeprefix("jit(").removesuffix(")") if name.startswith("jit(") else name
        with self._lock, self.trouble.kept("a compiled function"):
            self._take(stage, name, (end - duration_secs, end))
        self.open = max(0, self.open - 1)
        self.count += 1
        self.elsewhere += stage == COMPILE and threading.get_ident() != self._thread
        self.spent_s += time.perf_counter() - end

    def _take(self, stage: str, name: str, span: Interval) -> None:
        if stage != TRACE:
            for known in reversed(self.compiled[-64:]):
                if known.name == name and stage not in known.stages:
                    known.stages[stage] = span
                    return
        while stage == TRACE and self.compiled and _inside(self.compiled[-1], span):
            self.compiled.pop()  # traced on the way: part of this one
        mine, called = place.own(sys._getframe(2))
        found = Compiled(name, place.place_of(mine), {stage: span})
        if stage == TRACE:
            arguments = _arguments(called)
            arrays = [a for a in arguments.values() if type(a).__module__ == "numpy" and hasattr(a, "nbytes")]
            found.host_bytes = sum(a.nbytes for a in arrays)
            found.host_float64 = any(a.dtype == "float64" for a in arrays)
            found.signature = {where: _described(a) for where, a in arguments.items()}
            self._explain(found)
            if mine is not None and not found.explained and _by_pmap(found.name, called):
                self._explain_pmap(found, place.callee(mine))
        self.compiled.append(found)

    def _explain(self, found: Compiled) -> None:
        """Take the explanation of this function, and drop those of what was traced inside it."""
        said: list[Explanation] = getattr(self._said, "explanations", [])
        for i in reversed(range(len(said))):
            if said[i].name == found.name:
                found.explained = True
                found.defined, found.changes = said[i].defined, said[i].changes
                del said[i:]
                break
        if [c.kind for c in found.changes] == ["other"]:  # JAX 0.12 says nothing about static arguments
            before = (c for c in reversed(self.compiled) if c.defined == found.defined)
            found.changes = _differences(next(before, found), found) or found.changes

    def _explain_pmap(self, found: Compiled, function: Any) -> None:
        """What JAX says nothing about: a function under `pmap`, whose name in the program is JAX's own."""
        code = getattr(getattr(function, "__wrapped__", None), "__code__", None)
        found.explained, found.label = True, code.co_name if code else ""
        found.defined = f"{code.co_filename}:{code.co_firstlineno}" if code else str(found.at)
        before = next((c for c in reversed(self.compiled) if c.defined == found.defined), None)
        found.changes = _differences(before, found) if before else ()

    def on_log(self, record: logging.LogRecord) -> bool:
        """A filter for JAX's loggers: keeps explanations of cache misses, and lets all else pass."""
        message = str(record.msg)  # JAX formats explanations itself; other records are none of ours
        if message.startswith(_MISS):
            with self.trouble.kept("an explanation of a cache miss"):
                if not hasattr(self._said, "explanations"):
                    self._said.explanations = []
                self._said.explanations.append(parse(message))
        return self.pass_on or not message.startswith(_EXPLANATIONS)


class Explanation(NamedTuple):
    """Why a function was traced: its name, file and line; what changed, nothing for a new function object."""

    name: str
    defined: str
    changes: tuple[Change, ...]


def parse(message: str) -> Explanation:
    """Read an explanation of a cache miss.

    The wording is JAX's and may change: what is not recognized is kept as one change of kind "other".
    """
    if new := _NEW.search(message):
        return Explanation(new["name"], (new["at"] or "").strip(), ())
    again = _AGAIN.search(message)
    name, defined = (again["name"], again["at"]) if again else ("", "")
    changes = tuple(
        _change(m["what"], m["before"].strip(), m["now"].strip()) for m in _CHANGE.finditer(message)
    )
    if not changes and "context" in message:
        detail = re.findall(r"\* (.+? differs: .+)", message)
        changes = (Change("setting", "", "", "; ".join(detail) or "a JAX setting or context changed"),)
    return Explanation(
        name, defined, changes or (Change("other", "", "", message.strip().splitlines()[-1].strip()),)
    )


def _change(what: str, before: str, now: str) -> Change:
    if "Static(" in now or "Static(" in before:
        then, later = (m[1] if m else text for text in (before, now) for m in [_STATIC.search(text)])
        return Change("static value", _argument(what), then, later)
    if what.startswith("input path"):
        return Change("structure", _argument(what), before, now)
    kind = "other"
    (dtype, shape, weak), (dtype2, shape2, weak2) = map(_aval, (before, now))
    if shape != shape2:
        kind = "shape"
    elif dtype != dtype2:
        kind = "dtype"
    elif weak != weak2:
        kind = "weak type"
    return Change(kind, what, before, now)


def _argument(path: str) -> str:
    """The reader's word for an input path: "rate" for "[1]['rate']", "argument 2" for "[0][2]"."""
    found = re.match(r"input path \[[01]\]\[(.+?)\](.*)", path)
    if not found:
        return path
    return (f"argument {found[1]}" if found[1].isdigit() else found[1].strip("'")) + found[2]


def _aval(text: str) -> tuple[str, str, str]:
    """Dtype, shape and weak type of "f32[3,4]{weak_type=True}"."""
    dtype, _, rest = text.partition("[")
    shape, _, tail = rest.partition("]")
    return dtype, shape, tail if "weak_type" in tail else ""


def shape_of(text: str) -> tuple[int, ...]:
    """The shape in "f32[3,4]"; empty where it holds no numbers."""
    numbers = _aval(text)[1].split(",")
    return tuple(int(n) for n in numbers) if all(n.isdigit() for n in numbers) else ()


def _inside(known: Compiled, span: Interval) -> bool:
    return all(span[0] <= a and b <= span[1] for a, b in known.stages.values())


def _arguments(frame: FrameType | None) -> dict[str, Any]:
    """The leaves of the arguments of the library's frame that the reader called, by name."""
    if frame is None:
        return {}
    import jax  # has been imported by the program

    names, varargs, keywords, values = inspect.getargvalues(frame)
    given = {n: values.get(n) for n in (*names, varargs, keywords) if n}
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(given):
        where = jax.tree_util.keystr(path[1:])
        if str(getattr(path[0], "key", "")) == varargs:
            where = f"argument {where[1:].replace(']', '', 1)}"
        found[where.removeprefix("['").replace("']", "", 1)] = leaf
    return found


def _described(value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if isinstance(value, bool | int | float | str):
        return repr(value)[:60]
    name = type(value).__name__
    return f"<{name} object at {id(value):#x}>" if type(value).__eq__ is object.__eq__ else name


def _by_pmap(name: str, called: FrameType | None) -> bool:
    """Whether it is the function that pmap makes of the reader's, not one that moves its arguments."""
    return name == "_fun" and called is not None and called.f_code.co_filename.endswith("pmap.py")


def _differences(old: Compiled, new: Compiled) -> tuple[Change, ...]:
    """What differs between two calls' arguments."""
    pairs = [(n, old.signature.get(n, "nothing"), new.signature.get(n, "nothing")) for n in new.signature]
    return tuple(_difference(n, before, now) for n, before, now in pairs if before != now)


def _difference(what: str, before: str, now: str) -> Change:
    arrays = "[" in before and "[" in now
    return _change(what, before, now) if arrays else Change("static value", what, before, now)
