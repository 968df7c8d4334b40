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

import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any, NamedTuple

from jaxperf.watch.observe import source_location
from jaxperf.watch.observe.hook_errors import Trouble
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.observe.transfers import named_as

# `__iter__` is not among them: JAX slices the array on its device into arrays; `copy.deepcopy` copies there
METHODS = {
    "item": "item", "tolist": "tolist", "tobytes": "tobytes", "__array__": "np.asarray", "__bool__": "if",
    "__float__": "float", "__int__": "int", "__index__": "int", "__complex__": "complex",
    "__format__": "print", "__repr__": "print", "__str__": "print", "block_until_ready": "block_until_ready",
}  # fmt: skip
_FUNCTIONS = ("block_until_ready", "effects_barrier", "device_get")  # JAX functions, which take whole pytrees
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

    `missing` names what this JAX version does not have or what could not be wrapped; `elsewhere` counts calls
    in threads other than the one that opened it.
    """

    def __init__(self, trouble: Trouble) -> None:
        self.trouble = trouble
        self.waits: list[Wait] = []
        self.missing: list[str] = []
        self.elsewhere = 0
        self._thread, self._inside = threading.get_ident(), False
        self._undo = ExitStack()

    def open(self, jax: Any) -> None:
        """Begin to record, for the calling thread; `jax` is the imported module."""
        self._thread = threading.get_ident()
        for kind in jax.Array.__subclasses__():
            for method, name in METHODS.items():
                if method in vars(kind):
                    self.replace(kind, method, self._method(getattr(kind, method), name))
        if "__float__" not in {m for c in jax.Array.__subclasses__() for m in vars(c)}:
            self.missing.append("float, item and the like")
        numpy = sys.modules["numpy"]
        for function in ("asarray", "array"):
            self.replace(numpy, function, self._function(getattr(numpy, function), jax.Array))
        for function in _FUNCTIONS:
            self.replace(jax, function, self._method(getattr(jax, function), function))

    def watch_thread(self, ident: int) -> None:
        """Watch this thread from now on."""
        self._thread = ident

    def close(self) -> None:
        """Restore everything."""
        self._undo.close()

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Replace a function by another until `close`."""
        old = vars(owner)[name]
        try:
            setattr(owner, name, new)
        except (AttributeError, TypeError):
            self.missing.append(f"{owner.__name__}.{name}")
        else:
            self._undo.callback(setattr, owner, name, old)

    def _method(self, method: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def waiting(*args: Any, **kwargs: Any) -> Any:
            return self._timed(kind, method, args, kwargs)

        return named_as(method, waiting)

    def _function(self, function: Callable[..., Any], kind: type) -> Callable[..., Any]:
        # JAX's own type check is slow for anything but an array, and this runs at every np.asarray
        subclasses: list[type] = kind.__subclasses__()
        concrete = tuple(c for c in subclasses if "__array__" in vars(c))

        def converting(*args: Any, **kwargs: Any) -> Any:
            value = args[0] if args else None
            if type(value) in (list, tuple) and value:
                value = value[0]  # np.array([loss, accuracy])
            if isinstance(value, concrete):
                return self._timed("np.asarray", function, args, kwargs)
            return function(*args, **kwargs)

        return named_as(function, converting)

    def _timed(self, kind: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if threading.get_ident() != self._thread:
            self.elsewhere += 1
            return call(*args, **kwargs)
        if self._inside:  # `print` formats through `__array__`
            return call(*args, **kwargs)
        self._inside = True
        start = time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            end = time.perf_counter()
            self._inside = False
            try:  # after a wait nothing of this is in a cache: through `catch_errors` it takes 30 us more
                self._record(kind, sys._getframe(1), start, end, args, kwargs)
            except Exception as e:
                self.trouble.lost("a wait", e)

    def _record(self, kind: str, frame: FrameType, start: float, end: float, args: Any, kwargs: Any) -> None:
        mine, called = source_location.reader_and_library_frames(frame)
        # jax.debug.print formats in the call that runs its program; `find_callbacks` covers it
        if kind == "print" and called and source_location.library_of(called.f_code.co_filename) == "jax":
            return
        nbytes = 0 if kind in _NOTHING_COMES else _nbytes(args, kwargs)
        self.waits.append(Wait(kind, source_location.place_of(mine), start, end, nbytes))


def _nbytes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return the bytes of all arrays among the arguments; a key or a tracer has none that come."""
    if len(args) == 1 and not kwargs and hasattr(args[0], "nbytes"):  # walking a tree takes 30 us more
        return int(args[0].nbytes)
    leaves = sys.modules["jax"].tree.leaves((args, kwargs))
    return sum(int(getattr(leaf, "nbytes", 0)) for leaf in leaves)
