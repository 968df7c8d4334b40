"""Record where the front end waits for a device: every call that needs an array's value on the host.

The calls are public methods, most of which Python itself names: `float(x)` calls `x.__float__`, and `print`
calls `x.__str__`. They are wrapped on the concrete subclasses of `jax.Array`. On a CPU, NumPy reads an array
through the buffer protocol, without calling any method. So `np.asarray` and `np.array` are wrapped, too, and
other NumPy functions appear in the samples only. `sys.setprofile` would slow down every Python call.

A program may read millions of scalars. Such a read takes 20 to 80 us, and recording it 8 us more. So after
`FIRST_WAITS`, about every fiftieth brief one is recorded, and stands for those before it.
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
import threading
import time
import timeit
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any

from jaxperf import jax_internals
from jaxperf.watch.log import Log, Wait
from jaxperf.watch.observe import source_location
from jaxperf.watch.observe.hooks import Replacements, named_as
from jaxperf.watch.observe.source_location import Place, library_of

FIRST_WAITS = 10_000  # that are all recorded
BRIEF_S = 1e-3  # longer waits are always recorded
# recorded waits stand for so many, fifty in the mean; the numbers vary, so that no loop keeps step with them
STANDS_FOR = (15, 85, 35, 65, 45, 55, 25, 75)

CHUNK = 100  # elements that a program of JAX takes apart, of an array over which Python iterates
# not `__iter__`, for which JAX slices the array on its device, nor `__deepcopy__`, which copies it there
METHODS = {
    "item": "item", "tolist": "tolist", "tobytes": "tobytes", "__array__": "np.asarray", "__bool__": "if",
    "__float__": "float", "__int__": "int", "__index__": "int", "__complex__": "complex",
    "__format__": "print", "__repr__": "print", "__str__": "print", "block_until_ready": "block_until_ready",
}  # fmt: skip
_FUNCTIONS = ("block_until_ready", "effects_barrier", "device_get")  # of `jax`
_CALLBACK = re.compile(r"[/\\]jax[/\\]_src[/\\]callback\.py$")
NUMBERS = {"item", "float", "int", "complex", "if"}


class Waits:
    def __init__(self, log: Log, replacements: Replacements) -> None:
        self.log, self._replacements = log, replacements
        self._inside = False
        self._skip, self._times = 0, 1  # calls to skip now, and how many the next recorded one stands for
        self._numbers = itertools.cycle(STANDS_FOR)
        self._count = 0
        # by kind and line, of each call: start, end, bytes, and how many calls it stands for; as numbers,
        # which the garbage collector skips
        self._calls: dict[tuple[str, Place], array[float]] = defaultdict(lambda: array("d"))
        # those of a code's id, instruction and kind; the code is kept alive, so that its id stays unique
        self._fixed: dict[tuple[int, int, str], tuple[CodeType, array[float] | None]] = {}

    def open(self, jax: Any) -> None:
        classes, replace = array_classes(jax), self._replacements.replace
        for cls in classes:
            for method, kind in METHODS.items():
                if callable(vars(cls).get(method)):
                    replace(cls, method, functools.partial(self._method, kind=kind))
            if callable(vars(cls).get("__iter__")):
                replace(cls, "__iter__", self._iteration)
        if not any("__float__" in vars(cls) for cls in classes):
            self._replacements.missing.append("float, item and the like")
        arrays = frozenset(cls for cls in classes if "__array__" in vars(cls))
        for name in ("asarray", "array"):
            replace(sys.modules["numpy"], name, functools.partial(self._conversion, arrays=arrays))
        for name in _FUNCTIONS:
            replace(jax, name, functools.partial(self._method, kind=name))

    def close(self) -> None:
        for (kind, at), calls in self._calls.items():
            numbers = iter(calls)
            self.log.waits += [
                Wait(kind, at, start, end, int(nbytes), int(times))
                for start, end, nbytes, times in zip(numbers, numbers, numbers, numbers)
            ]
        self.log.waits.sort(key=lambda wait: wait.end)
        self.log.overhead_s["hooks"] += len(self.log.waits) * wrapper_costs_s()
        if any(wait.times > 1 for wait in self.log.waits):
            self.log.remarks.append(
                "the program reads so many numbers that about every fiftieth read was recorded, and stands "
                "for the others: their count and seconds are estimates"
            )

    def _iteration(self, method: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap the iteration over an array, which waits for nothing, to note its line once."""
        noted: dict[tuple[Any, ...], CodeType] = {}  # the code is kept alive, so that its id stays unique

        def note(x: Any, frame: FrameType) -> None:
            caller = frame
            if library_of(frame.f_code.co_filename):  # for which several lines of the reader's may call
                caller = source_location.reader_and_library_frames(frame)[0] or frame
            key = id(caller.f_code), caller.f_lasti, x.shape, x.dtype
            if key not in noted:
                noted[key] = caller.f_code
                at = source_location.reader_place(frame)
                for kind in taken_types(x.shape, str(x.dtype)):
                    self.log.iterated[kind].add(at)
                arrays = [(n, v) for n, v in source_location.variables(caller) if type(v) is type(x)]
                itself = {name for name, value in arrays if value is x}
                self.log.iterated_variables[at] |= itself or {name for name, _ in arrays}

        def iterating(x: Any) -> Any:
            try:
                if threading.get_ident() == self.log.thread_id:
                    note(x, sys._getframe(1))
            except Exception as e:
                self.log.losses.note("an iteration", e)
            return method(x)

        return iterating

    def _conversion(self, function: Callable[..., Any], arrays: frozenset[type]) -> Callable[..., Any]:
        """Wrap a NumPy function, which waits only if its argument's type is one of `arrays`."""
        waiting = named_as(function, self._method(function, "np.asarray", depth=2))

        def converting(*args: Any, **kwargs: Any) -> Any:
            cls = type(args[0]) if args else None  # `isinstance(x, jax.Array)` would take 0.5 us
            if cls in (list, tuple) and args[0]:
                cls = type(args[0][0])  # np.array([loss, accuracy])
            return waiting(*args, **kwargs) if cls in arrays else function(*args, **kwargs)

        return converting

    def _method(self, method: Callable[..., Any], kind: str, depth: int = 1) -> Callable[..., Any]:
        """Wrap a call that waits; its caller is `depth` frames outwards.

        A program may read a scalar in each iteration of a loop, and the wrapper takes 1 us, more with cold
        processor caches. So one function does all that most calls need.
        """
        clock, ident, frame, log = time.perf_counter, threading.get_ident, sys._getframe, self.log
        number, last = kind in NUMBERS, [None]  # the array that was read last

        def record(caller: FrameType, args: tuple[Any, ...], kwargs: Any, start: float, end: float) -> None:
            brief = end - start < BRIEF_S
            try:  # a guard would take 30 us more
                # NumPy asks of each index whether it is a number, and all other arrays raise an error
                asked = number and args[0].size != 1
                calls = None if asked else self._calls_from(kind, caller)
                if calls is not None:
                    nbytes = args[0].dtype.itemsize if number else _nbytes(kind, args, kwargs)
                    if number and args[0] is last[0]:
                        nbytes = 0
                    calls.extend((start, end, nbytes, self._times if brief else 1))
                if brief:
                    self._times = next(self._numbers) if self._count >= FIRST_WAITS else 1
                    self._skip = self._times - 1
            except Exception as e:
                log.losses.note("a wait", e)

        def waiting(*args: Any, **kwargs: Any) -> Any:
            if self._inside or ident() != log.thread_id:  # `print` formats through `__array__`
                log.other_threads["waits"] += ident() != log.thread_id
                return method(*args, **kwargs)
            self._inside = True
            start = clock()
            try:
                return method(*args, **kwargs)
            finally:
                end = clock()
                self._inside = False
                self._count += 1
                if self._skip and end - start < BRIEF_S:
                    self._skip -= 1
                else:
                    record(frame(depth), args, kwargs, start, end)
                if number:
                    last[0] = args[0]

        return waiting

    def _calls_from(self, kind: str, frame: FrameType) -> array[float] | None:
        """Return the calls at a line, which is looked up once for each instruction of the reader.

        None if the call is in a callback: the device waits for it, the front end does not.
        """
        key = id(frame.f_code), frame.f_lasti, kind
        if key in self._fixed:
            return self._fixed[key][1]
        reader, library = source_location.reader_and_library_frames(frame)
        at = source_location.place_of(reader)
        calls = self._calls[kind, at]
        owner = library_of(library.f_code.co_filename) if library else ""
        if reader and at not in self.log.host_arrays:
            self.log.host_arrays[at] = _host_arrays(reader)
        if owner not in ("", "jax"):
            self.log.waiting_libraries[kind, at] = owner
        if reader is frame:
            files = (f.f_code.co_filename for f in source_location.frames_outwards(frame))
            self._fixed[key] = frame.f_code, None if any(map(_CALLBACK.search, files)) else calls
            return self._fixed[key][1]
        # `jax.debug.print` formats while its program runs; `find_callbacks` covers it
        if kind == "print" and owner == "jax":
            return None
        return calls  # the callers of a library vary


def _host_arrays(frame: FrameType) -> set[str]:
    """Return the variables that a frame's code names and that are arrays of NumPy."""
    code, numpy = frame.f_code, sys.modules["numpy"].ndarray
    names = (*code.co_varnames, *code.co_names, *code.co_freevars, *code.co_cellvars)
    values = source_location.variable_values(frame, names)
    return {name for name, value in values.items() if issubclass(type(value), numpy)}


def taken_types(shape: tuple[int, ...], dtype: str) -> list[str]:
    """Return the types of arrays that JAX takes apart by one program each, of an array of any length."""
    length, *rest = shape or (0,)
    lengths = {length} if length <= CHUNK else {CHUNK, length % CHUNK}
    return [f"{dtype}{[n, *rest]}" for n in sorted(lengths - {0})]


def array_classes(jax: Any) -> list[type]:
    classes = jax.Array.__subclasses__()
    array = jax_internals.loaded(jax_internals.ARRAY)  # before JAX 0.6, not a subclass
    return classes if array is None or array in classes else [array, *classes]


def wrapper_costs_s() -> float:
    """Return the seconds that a wrapper adds to a waiting call, measured now on a trivial call."""
    wrapped, count = Waits(Log(""), Replacements())._method(abs, "block_until_ready"), 100
    # the minimum of five, since other programs may use the core
    wrapped_s = min(timeit.repeat(lambda: wrapped(0), number=count, repeat=5))
    alone_s = min(timeit.repeat(lambda: abs(0), number=count, repeat=5))
    return max(0.0, wrapped_s - alone_s) / count


def _nbytes(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    if kind in ("block_until_ready", "effects_barrier"):  # nothing comes to the host
        return 0
    leaves: Iterable[Any] = args
    if len(args) != 1 or kwargs or not hasattr(type(args[0]), "nbytes"):  # to look costs 30 us
        leaves = sys.modules["jax"].tree_util.tree_leaves((args, kwargs))
    sizes = (leaf.nbytes for leaf in leaves if hasattr(type(leaf), "nbytes"))
    return sum(size for size in sizes if isinstance(size, int))
