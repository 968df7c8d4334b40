"""Where the front end waits for a device: every call that needs an array's value on the host.

The calls are the public methods that Python itself uses (`float(x)` is `x.__float__`, an `if` is
`x.__bool__`, `print` is `x.__str__`), so their names cannot change without breaking every JAX program. They
are wrapped on the concrete subclasses of `jax.Array`. On a CPU, NumPy reads an array through the buffer
protocol, without calling any method. So `np.asarray` and `np.array` are wrapped too, and other NumPy
functions appear in the samples.

Alternatives: the profiler's Python tracer and `sys.setprofile` slow every Python call of the program;
`sys.monitoring` could be limited to the reader's code, but exists only from Python 3.12 on.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple

from jaxperf.watch.observe import source_location
from jaxperf.watch.observe.hooks import Replacements, Trouble, named_as
from jaxperf.watch.observe.source_location import NOWHERE, Place

# `__iter__` is not among them: JAX slices the array on its device into arrays; `copy.deepcopy` copies there
METHODS = {
    "item": "item", "tolist": "tolist", "tobytes": "tobytes", "__array__": "np.asarray", "__bool__": "if",
    "__float__": "float", "__int__": "int", "__index__": "int", "__complex__": "complex",
    "__format__": "print", "__repr__": "print", "__str__": "print", "block_until_ready": "block_until_ready",
}  # fmt: skip
_FUNCTIONS = ("block_until_ready", "effects_barrier", "device_get")  # JAX functions, which take whole pytrees
_CALLBACK = re.compile(r"[/\\]jax[/\\]_src[/\\]callback\.py$")
_NUMBERS = {"item", "float", "int", "complex", "if"}
_NOTHING_COMES = ("block_until_ready", "effects_barrier")


class Wait(NamedTuple):
    """One call that needed a value: when, by `time.perf_counter`; `nbytes` came to the host."""

    kind: str
    at: Place
    start: float
    end: float
    nbytes: int


class Waits:
    """Wraps the methods while it is open; `waits` holds the calls, outermost ones only.

    `elsewhere` counts calls in threads other than the one that opened it.
    """

    def __init__(self, trouble: Trouble) -> None:
        self.trouble = trouble
        self.waits: list[Wait] = []
        self.elsewhere = 0
        self.thread_id, self._inside = threading.get_ident(), False
        self._lines: dict[tuple[int, int], tuple[CodeType, Place | None]] = {}  # by code and instruction

    def open(self, jax: Any, replacements: Replacements) -> None:
        """Wrap the calls of this thread, until the replacements are closed; `jax` is the imported module."""
        self.thread_id = threading.get_ident()
        for kind in jax.Array.__subclasses__():
            for method, name in METHODS.items():
                if method in vars(kind):
                    replacements.replace(kind, method, self._method(getattr(kind, method), name))
        if "__float__" not in {m for c in jax.Array.__subclasses__() for m in vars(c)}:
            replacements.missing.append("float, item and the like")
        numpy = sys.modules["numpy"]
        # JAX's own type check is slow for anything but an array, and this runs at every np.asarray
        arrays = tuple(c for c in jax.Array.__subclasses__() if "__array__" in vars(c))
        for function in ("asarray", "array"):
            replacements.replace(
                numpy, function, self._method(getattr(numpy, function), "np.asarray", arrays)
            )
        for function in _FUNCTIONS:
            replacements.replace(jax, function, self._method(getattr(jax, function), function))

    def _method(
        self, method: Callable[..., Any], kind: str, arrays: tuple[type, ...] = ()
    ) -> Callable[..., Any]:
        """Wrap a call that waits, for `arrays` only if there are any.

        A program may read single numbers, or call back in each turn of a loop, so this takes a microsecond or
        two, and up to 20 where nothing of it is in a cache.
        """
        clock, ident, frame, record = time.perf_counter, threading.get_ident, sys._getframe, self._record

        def waiting(*args: Any, **kwargs: Any) -> Any:
            if arrays:
                value = args[0] if args else None
                if type(value) in (list, tuple) and value:
                    value = value[0]  # np.array([loss, accuracy])
                if not isinstance(value, arrays):
                    return method(*args, **kwargs)
            if self._inside or ident() != self.thread_id:  # `print` formats through `__array__`
                self.elsewhere += ident() != self.thread_id
                return method(*args, **kwargs)
            self._inside = True
            start = clock()
            try:
                return method(*args, **kwargs)
            finally:
                end = clock()
                self._inside = False
                try:  # after a wait nothing of this is in a cache: through `catch_errors` it takes 30 us more
                    record(kind, frame(1), start, end, args, kwargs)
                except Exception as e:
                    self.trouble.lost("a wait", e)

        return named_as(method, waiting)

    def _record(self, kind: str, frame: FrameType, start: float, end: float, args: Any, kwargs: Any) -> None:
        key = id(frame.f_code), frame.f_lasti
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = frame.f_code, _line(frame)
        at = line[1]
        if at == NOWHERE:  # in a callback: the program waits for this, and not the front end
            return
        if at is None:  # a library's frame: the reader's line may be another one each time
            reader, library = source_location.reader_and_library_frames(frame)
            # jax.debug.print formats in the call that runs its program; `find_callbacks` covers it
            if (
                kind == "print"
                and library
                and source_location.library_of(library.f_code.co_filename) == "jax"
            ):
                return
            at = source_location.place_of(reader)
        nbytes = args[0].dtype.itemsize if kind in _NUMBERS else _nbytes(kind, args, kwargs)
        self.waits.append(Wait(kind, at, start, end, nbytes))


def _line(frame: FrameType) -> Place | None:
    """Return a frame's line if it is the reader's own; NOWHERE in a callback, None in a library."""
    if source_location.library_of(frame.f_code.co_filename):
        return None
    files = (f.f_code.co_filename for f in source_location.frames_outwards(frame))
    return NOWHERE if any(map(_CALLBACK.search, files)) else source_location.place_of(frame)


def _nbytes(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return the bytes of all arrays among the arguments; a key or a tracer has none that come."""
    if kind in _NOTHING_COMES:
        return 0
    if len(args) == 1 and not kwargs and hasattr(args[0], "nbytes"):  # walking a tree takes 30 us more
        return int(args[0].nbytes)
    leaves = sys.modules["jax"].tree.leaves((args, kwargs))
    return sum(int(getattr(leaf, "nbytes", 0)) for leaf in leaves)
