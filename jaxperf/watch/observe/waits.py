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
from array import array
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple

from jaxperf.watch.observe import source_location
from jaxperf.watch.observe.hooks import Replacements, Trouble, named_as
from jaxperf.watch.observe.pauses import KINDS, Pauses
from jaxperf.watch.observe.source_location import Place

# `__iter__` is not among them: JAX slices the array on its device into arrays; `copy.deepcopy` copies there
METHODS = {
    "item": "item", "tolist": "tolist", "tobytes": "tobytes", "__array__": "np.asarray", "__bool__": "if",
    "__float__": "float", "__int__": "int", "__index__": "int", "__complex__": "complex",
    "__format__": "print", "__repr__": "print", "__str__": "print", "block_until_ready": "block_until_ready",
}  # fmt: skip
_FUNCTIONS = ("block_until_ready", "effects_barrier", "device_get")  # JAX functions, which take whole pytrees
_CALLBACK = re.compile(r"[/\\]jax[/\\]_src[/\\]callback\.py$")
_NUMBERS = {"item", "float", "int", "complex", "if"}
_NOT_AWAITED = -1.0  # the site of a call in a callback: the program waits for it, and not the front end
_SEQUENCES = (list, tuple)
_NOTHING_COMES = ("block_until_ready", "effects_barrier")


class Wait(NamedTuple):
    """One call that needed a value: when, by `time.perf_counter`; `nbytes` came to the host."""

    kind: str
    at: Place
    start: float
    end: float
    nbytes: int


class Waits:
    """Wraps the methods while it is open; records the outermost calls only.

    `elsewhere` counts calls in threads other than the one that opened it.
    """

    def __init__(self, trouble: Trouble) -> None:
        self.trouble = trouble
        self.elsewhere = 0
        self.thread_id, self._inside = threading.get_ident(), False
        # Python's garbage collector walks through objects again and again, but not through numbers
        self._calls = array("d")  # start, end, bytes and the index in `_sites` of each call
        self._sites: list[tuple[str, Place]] = []
        self._indices: dict[tuple[str, Place], float] = {}
        # by code, instruction and kind; the code is kept, so that no other gets its id
        self._fixed: dict[tuple[int, int, str], tuple[CodeType, float | None]] = {}

    @property
    def waits(self) -> list[Wait]:
        """Return the calls, in the order in which they ended."""
        numbers = iter(self._calls)
        return [
            Wait(*self._sites[int(site)], start, end, int(nbytes))
            for start, end, nbytes, site in zip(numbers, numbers, numbers, numbers)
        ]

    def __len__(self) -> int:
        return len(self._calls) // 4

    def open(self, jax: Any, replacements: Replacements, pauses: Pauses) -> None:
        """Wrap the calls of this thread, until the replacements are closed; `jax` is the imported module."""
        self.thread_id = threading.get_ident()
        for kind in jax.Array.__subclasses__():
            for method, name in METHODS.items():
                if method in vars(kind):
                    replace = (pauses if name in KINDS else replacements).replace
                    replace(kind, method, self._method(getattr(kind, method), name))
        if "__float__" not in {m for c in jax.Array.__subclasses__() for m in vars(c)}:
            replacements.missing.append("float, item and the like")
        numpy = sys.modules["numpy"]
        arrays = frozenset(c for c in jax.Array.__subclasses__() if "__array__" in vars(c))
        for function in ("asarray", "array"):
            pauses.replace(numpy, function, self._conversion(getattr(numpy, function), arrays))
        for function in _FUNCTIONS:
            replacements.replace(jax, function, self._method(getattr(jax, function), function))

    def _conversion(self, function: Callable[..., Any], arrays: frozenset[type]) -> Callable[..., Any]:
        """Wrap a function of NumPy, which waits for `arrays` only; JAX itself calls it with plain numbers."""
        waiting = self._method(function, "np.asarray", depth=2)

        def converting(*args: Any, **kwargs: Any) -> Any:
            kind = type(args[0]) if args else None  # JAX's own check, by `isinstance`, takes 0.5 us
            if kind in _SEQUENCES and args[0]:
                kind = type(args[0][0])  # np.array([loss, accuracy])
            return waiting(*args, **kwargs) if kind in arrays else function(*args, **kwargs)

        return named_as(function, converting)

    def _method(self, method: Callable[..., Any], kind: str, depth: int = 1) -> Callable[..., Any]:
        """Wrap a call that waits; `depth` frames outwards is the one that asked for it.

        A program may read single numbers, or call back in each turn of a loop. This takes a microsecond, and
        five or more where nothing of it is in a cache, as after the work of a JAX operation. So all that most
        calls need is in one function, and a call from the same instruction as the last one is not looked up.
        """
        clock, ident, frame, calls = time.perf_counter, threading.get_ident, sys._getframe, self._calls
        number, code, instruction, site = kind in _NUMBERS, None, -1, None

        def waiting(*args: Any, **kwargs: Any) -> Any:
            nonlocal code, instruction, site
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
                try:  # through `catch_errors` it takes 30 us more
                    caller = frame(depth)
                    if site is None or caller.f_lasti != instruction or caller.f_code is not code:
                        code, instruction = caller.f_code, caller.f_lasti
                        site = self._fixed_site(kind, caller)
                    at = self._varying_site(kind, caller) if site is None else site
                    if at != _NOT_AWAITED:
                        nbytes = args[0].dtype.itemsize if number else _nbytes(kind, args, kwargs)
                        calls.extend((start, end, nbytes, at))
                except Exception as e:
                    self.trouble.lost("a wait", e)

        return named_as(method, waiting)

    def _fixed_site(self, kind: str, frame: FrameType) -> float | None:
        """Return the site of an instruction of the reader's own; None in a library, whose caller may vary."""
        key = id(frame.f_code), frame.f_lasti, kind
        if key not in self._fixed:
            site: float | None = None
            if not source_location.library_of(frame.f_code.co_filename):
                files = (f.f_code.co_filename for f in source_location.frames_outwards(frame))
                called_back = any(map(_CALLBACK.search, files))
                site = _NOT_AWAITED if called_back else self._site(kind, source_location.place_of(frame))
            self._fixed[key] = frame.f_code, site
        return self._fixed[key][1]

    def _varying_site(self, kind: str, frame: FrameType) -> float:
        """Return the site of the reader's line that called a library."""
        reader, library = source_location.reader_and_library_frames(frame)
        # jax.debug.print formats in the call that runs its program; `find_callbacks` covers it
        if kind == "print" and library and source_location.library_of(library.f_code.co_filename) == "jax":
            return _NOT_AWAITED
        return self._site(kind, source_location.place_of(reader))

    def _site(self, kind: str, at: Place) -> float:
        """Return the index of a kind of call at a line."""
        if (kind, at) not in self._indices:
            self._indices[kind, at] = float(len(self._sites))
            self._sites.append((kind, at))
        return self._indices[kind, at]


def _nbytes(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return the bytes of all arrays among the arguments; a key or a tracer has none that come."""
    if kind in _NOTHING_COMES:
        return 0
    if len(args) == 1 and not kwargs and hasattr(args[0], "nbytes"):  # walking a tree takes 30 us more
        return int(args[0].nbytes)
    leaves = sys.modules["jax"].tree.leaves((args, kwargs))
    return sum(int(getattr(leaf, "nbytes", 0)) for leaf in leaves)
