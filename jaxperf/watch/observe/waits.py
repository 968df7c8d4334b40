"""Record where the front end waits for a device: every call that needs an array's value on the host.

The calls are public methods, most of which Python itself names: `float(x)` calls `x.__float__`, and `print`
calls `x.__str__`. They are wrapped on the concrete subclasses of `jax.Array`. On a CPU, NumPy reads an array
through the buffer protocol, without calling any method. So `np.asarray` and `np.array` are wrapped, too, and
other NumPy functions appear in the samples only.

The profiler's Python tracer and `sys.setprofile` would slow down every Python call of the program, and
`sys.monitoring` exists only from Python 3.12 on.

`Pauses` removes hooks for most of the time while a program reads thousands of scalars per second.

Such a read takes about 80 us, and recording it 8 us more. So after `FIRST_WAITS` waits, and while they come
at `RATE`, the hooks are removed for a multiple of the time for which they last recorded. For a pause, the
report assumes the same waits as before it, while the samples are in the same functions.

Hooks of other calls, such as `block_until_ready`, stay: these calls are few, and each may wait for long.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
import time
from array import array
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple

from jaxperf import jax_internals
from jaxperf.result.intervals import Interval
from jaxperf.watch.observe import source_location
from jaxperf.watch.observe.hooks import Losses, Replacements, named_as
from jaxperf.watch.observe.source_location import Place

KINDS = frozenset({"item", "float", "int", "complex", "if", "np.asarray"})  # of waits whose hooks pause
FIRST_WAITS = 5000  # waits before the first pause, so that a short program has all of them
RATE = 4000  # waits per second
LONGER = 9  # ratio of a pause to the recorded time before it
# shortest pause over the time since the first one, which limits the number of pauses: Python 3.13 no longer
# caches the attributes of a class that has been changed a thousand times
GROWTH = 0.01


class Pause(NamedTuple):
    """An interval without hooks, and the interval just before it, in which waits were recorded."""

    recorded: Interval
    start: float
    end: float


class Pauses:
    """Removes and restores hooks: call `look` every few milliseconds from one thread."""

    def __init__(self, replacements: Replacements) -> None:
        self.pauses: list[Pause] = []
        self._replacements = replacements
        self._hooks: list[tuple[Any, str, Any, Any]] = []
        self._paused: Pause | None = None
        self._count, self._moment, self._first = 0, 0.0, 0.0

    def replace(self, owner: Any, name: str, new: Callable[[Any], Any]) -> None:
        """Replace a function by a hook, as `Replacements` does, but not in pauses."""
        function = vars(owner).get(name)
        self._replacements.replace(owner, name, new)
        if (hook := vars(owner).get(name)) is not function:
            self._hooks.append((owner, name, hook, function))

    def look(self, now: float, count: int, needed: bool) -> None:
        """Begin or end a pause if it is time to.

        Args:
          now: the time, by `time.perf_counter`.
          count: how many waits have been recorded so far.
          needed: whether every wait must be recorded now, as in a window of the profiler.
        """
        if self._paused:
            if needed or now >= self._paused.end:
                self.end(now)
        elif not needed and count >= FIRST_WAITS and count - self._count >= RATE * (now - self._moment):
            self._first = self._first or now
            pause_s = max(LONGER * (now - self._moment), GROWTH * (now - self._first))
            self._paused = Pause((self._moment, now), now, now + pause_s)
            self._set(hooked=False)
        self._count, self._moment = count, now

    def end(self, now: float) -> None:
        """End the current pause, if there is one."""
        if self._paused:
            self._set(hooked=True)
            self.pauses.append(self._paused._replace(end=now))
            self._paused = None

    def _set(self, *, hooked: bool) -> None:
        """Install or remove the hooks, except where the program has replaced the function itself."""
        for owner, name, hook, function in self._hooks:
            before, after = (function, hook) if hooked else (hook, function)
            if vars(owner).get(name) is before:
                setattr(owner, name, after)


# not `__iter__`, for which JAX slices the array on its device, nor `__deepcopy__`, which copies it there
METHODS = {
    "item": "item", "tolist": "tolist", "tobytes": "tobytes", "__array__": "np.asarray", "__bool__": "if",
    "__float__": "float", "__int__": "int", "__index__": "int", "__complex__": "complex",
    "__format__": "print", "__repr__": "print", "__str__": "print", "block_until_ready": "block_until_ready",
}  # fmt: skip
_FUNCTIONS = ("block_until_ready", "effects_barrier", "device_get")  # of `jax`
_CALLBACK = re.compile(r"[/\\]jax[/\\]_src[/\\]callback\.py$")
_NUMBERS = {"item", "float", "int", "complex", "if"}
_NOT_AWAITED = -1.0  # the site of a call in a callback: the device waits for it, the front end does not
_SEQUENCES = (list, tuple)
_NOTHING_COMES = ("block_until_ready", "effects_barrier")


class Wait(NamedTuple):
    """One call that waited from `start` to `end`, by `time.perf_counter`, and copied `nbytes` to the host."""

    kind: str
    at: Place
    start: float
    end: float
    nbytes: int


class Waits:
    """Records the outermost waiting calls of one thread; `elsewhere` counts calls in other threads."""

    def __init__(self, losses: Losses) -> None:
        self.losses = losses
        self.elsewhere = 0
        self.thread_id, self._inside = threading.get_ident(), False
        # start, end, bytes and index in `_sites` of each call: numbers that the garbage collector skips
        self._calls = array("d")
        self._sites: list[tuple[str, Place]] = []
        self._indices: dict[tuple[str, Place], float] = {}
        # by the code's id, instruction and kind; the code is kept alive, so that its id stays unique
        self._fixed: dict[tuple[int, int, str], tuple[CodeType, float | None]] = {}

    @property
    def waits(self) -> list[Wait]:
        """Return the calls, ordered by their end."""
        numbers = iter(self._calls)
        return [
            Wait(*self._sites[int(site)], start, end, int(nbytes))
            for start, end, nbytes, site in zip(numbers, numbers, numbers, numbers)
        ]

    def __len__(self) -> int:
        return len(self._calls) // 4

    def open(self, jax: Any, replacements: Replacements, pauses: Pauses) -> None:
        """Wrap the methods and functions until the replacements are closed; record calls of this thread."""
        self.thread_id = threading.get_ident()
        for kind in array_classes(jax):
            for method, name in METHODS.items():
                if callable(vars(kind).get(method)):
                    replace = (pauses if name in KINDS else replacements).replace
                    replace(kind, method, functools.partial(self._method, kind=name))
        if "__float__" not in {m for c in array_classes(jax) for m in vars(c)}:
            replacements.missing.append("float, item and the like")
        numpy = sys.modules["numpy"]
        arrays = frozenset(c for c in array_classes(jax) if "__array__" in vars(c))
        for function in ("asarray", "array"):
            pauses.replace(numpy, function, functools.partial(self._conversion, arrays=arrays))
        for function in _FUNCTIONS:
            replacements.replace(jax, function, functools.partial(self._method, kind=function))

    def _conversion(self, function: Callable[..., Any], arrays: frozenset[type]) -> Callable[..., Any]:
        """Wrap a NumPy function, which waits only if its argument's type is one of `arrays`."""
        waiting = self._method(function, "np.asarray", depth=2)

        def converting(*args: Any, **kwargs: Any) -> Any:
            kind = type(args[0]) if args else None  # `isinstance(x, jax.Array)` would take 0.5 us
            if kind in _SEQUENCES and args[0]:
                kind = type(args[0][0])  # np.array([loss, accuracy])
            return waiting(*args, **kwargs) if kind in arrays else function(*args, **kwargs)

        return named_as(function, converting)

    def _method(self, method: Callable[..., Any], kind: str, depth: int = 1) -> Callable[..., Any]:
        """Wrap a call that waits; its caller is `depth` frames outwards.

        A program may read a scalar in each iteration of a loop. The wrapper takes 1 us, or 5 us and more
        with cold processor caches. So one function does all that most calls need, and a call from the same
        instruction as the last one is not looked up.
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
                try:  # `catch_errors` would take 30 us more
                    caller = frame(depth)
                    if site is None or caller.f_lasti != instruction or caller.f_code is not code:
                        code, instruction = caller.f_code, caller.f_lasti
                        site = self._fixed_site(kind, caller)
                    at = self._varying_site(kind, caller) if site is None else site
                    if at != _NOT_AWAITED:
                        nbytes = args[0].dtype.itemsize if number else _nbytes(kind, args, kwargs)
                        calls.extend((start, end, nbytes, at))
                except Exception as e:
                    self.losses.note("a wait", e)

        return named_as(method, waiting)

    def _fixed_site(self, kind: str, frame: FrameType) -> float | None:
        """Return the site of an instruction of the reader; None for a library, whose callers may vary."""
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
        # `jax.debug.print` formats while its program runs; `find_callbacks` covers it
        if kind == "print" and library and source_location.library_of(library.f_code.co_filename) == "jax":
            return _NOT_AWAITED
        return self._site(kind, source_location.place_of(reader))

    def _site(self, kind: str, at: Place) -> float:
        """Return the index of a kind of call at a line in `_sites`, where it is added if it is new."""
        if (kind, at) not in self._indices:
            self._indices[kind, at] = float(len(self._sites))
            self._sites.append((kind, at))
        return self._indices[kind, at]


def array_classes(jax: Any) -> list[type]:
    """Return the classes of arrays and tracers."""
    classes = jax.Array.__subclasses__()
    array = jax_internals.loaded(jax_internals.ARRAY)  # before JAX 0.6, not a subclass
    return classes if array is None or array in classes else [array, *classes]


def _nbytes(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return the bytes of all arrays among the arguments; 0 for a call that copies nothing to the host."""
    if kind in _NOTHING_COMES:
        return 0
    if len(args) == 1 and not kwargs and hasattr(type(args[0]), "nbytes"):  # saves 30 us
        return int(args[0].nbytes)
    leaves = sys.modules["jax"].tree_util.tree_leaves((args, kwargs))
    return sum(int(leaf.nbytes) for leaf in leaves if hasattr(type(leaf), "nbytes"))
