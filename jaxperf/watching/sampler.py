"""A thread that looks at what the program does every few milliseconds: its line, and the memory it holds.

A look costs the same whatever the program does, where a hook on every call would cost a share of it. A look
stands for the time since the one before. While C code holds Python's lock the thread cannot look; its next
look is at the end of that very instruction, so the time still goes to the right line.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import psutil

from jaxperf.watching import backend, place
from jaxperf.watching.place import NOWHERE, Place
from jaxperf.watching.trouble import Trouble

CLOSE_S = 0.005  # from one look to the next, in a window of the profiler
WIDE_S = 0.025  # the same outside of windows, after a second or so
WIDER = 0.02  # of the time since the first look, until then
SPARSE = 2  # times as long where no window ever comes; a look costs an eager program 0.25 to 0.3 ms
DATA, EAGER, DISPATCH, NUMPY, PYTHON = "data", "eager", "dispatch", "numpy", "python"
CALLBACK = "callback"  # the reader's function, called by JAX
WRITE = "write"  # a checkpoint, most likely
BETWEEN = "between"  # Python in a loop of steps, which `between` finds out
IMPORT = "import"
_LOADERS = {"tensorflow", "tensorflow_datasets", "torch", "grain", "datasets", "PIL", "cv2", "h5py"}
_EAGER = {"jax", "flax", "optax", "equinox", "haiku"}  # or a jitted call, where one was traced at the line
_WRITERS = {"dump", "dumps", "save", "savez", "savez_compressed", "save_file", "to_bytes", "write"}
_LONG_S = 10.0  # no look takes so long
_MEMORY_EVERY_S = 0.05  # reading it costs as much as the look
_PEAK_STEP = 1.05  # live arrays are listed when memory is this much over the last such list


class Sample(NamedTuple):
    """The reader's line and what it was doing, for the stretch from `start` to `end`."""

    kind: str
    at: Place
    start: float
    end: float
    inside: Place = NOWHERE  # where the next item of the `for` at `at` is made
    callers: tuple[Place, ...] = ()  # the reader's lines around `at`, outwards


class Sampler:
    """Looks at the thread that opened it, until it is closed.

    Attributes:
      samples: what each look saw.
      memory: resident bytes over time, as (time, bytes).
      held: what the arrays alive near the peak are, largest first, as (type, number, bytes).
      on_look: called after each look, in the sampler's thread; returns whether to look closely.
      started: whether JAX's backend runs, so that listing arrays does not start it.
      sparse: look half as often, since `on_look` never asks to look closely.
      spent_s: processor time of the sampler's own work.
    """

    def __init__(
        self,
        trouble: Trouble,
        *,
        on_look: Callable[[], bool] = lambda: True,
        started: Callable[[], bool] = backend.started,
        sparse: bool = False,
    ) -> None:
        self.trouble, self.started, self._slower = trouble, started, SPARSE if sparse else 1
        self.samples: list[Sample] = []
        self.memory: list[tuple[float, int]] = []
        self.held: list[tuple[str, int, int]] = []
        self.on_look, self.spent_s = on_look, 0.0
        self._listed_at = 0.0
        self._stop = threading.Event()
        self._process = psutil.Process()

    def open(self) -> None:
        """Begin to look at the calling thread."""
        self._thread_id, self._last = threading.get_ident(), time.perf_counter()
        self._first = self._last
        self._thread = threading.Thread(target=self._run, name="jaxperf-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._stop.set()
        self._thread.join()
        self._weigh()

    def _run(self) -> None:
        interval_s, weighed = self._slower * CLOSE_S, 0.0
        while not self._stop.wait(interval_s):
            began = time.thread_time()
            with self.trouble.kept("a sample"):
                self._look()
                if self._last - weighed >= _MEMORY_EVERY_S:
                    weighed = self._last
                    self._weigh()
            self.spent_s += time.thread_time() - began
            interval_s = self._slower * min(WIDE_S, max(CLOSE_S, WIDER * (self._last - self._first)))
            with self.trouble.kept("a window of the profiler"):
                if self.on_look():
                    interval_s = CLOSE_S

    def _look(self) -> None:
        now = time.perf_counter()
        with _undisturbed():
            frame = sys._current_frames().get(self._thread_id)
            self.samples.append(Sample(*_seen(frame, self._last, now)))
            del frame
        self._last = now

    def _weigh(self) -> None:
        resident = self._process.memory_info().rss
        self.memory.append((time.perf_counter(), resident))
        jax = sys.modules.get("jax")
        if resident > self._listed_at * _PEAK_STEP and hasattr(jax, "live_arrays") and self.started():
            self._listed_at = resident
            self.held = _live(jax)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Let no other thread take Python's lock away for now, so that no frame ends while it is looked at.

    A look takes 0.1 ms, far below the 5 ms after which a thread that waits may ask for the lock; but a busy
    host may stop us in between. Python 3.11 has crashed in a look, on a frame without code.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(_LONG_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _seen(frame: FrameType | None, start: float, end: float) -> tuple[Any, ...]:
    """The fields of a sample, from the frames of the thread that is watched."""
    mine, called = place.own(frame)
    if mine is None:
        return PYTHON, NOWHERE, start, end
    at, kind, callers = place.place_of(mine), _kind(mine, called), place.callers(mine)
    if kind in (DISPATCH, EAGER, IMPORT):
        return kind, at, start, end, NOWHERE, callers
    for outer in place.stack(mine):  # who asked for this work?
        library = place.library(outer.f_code.co_filename)
        if library == "jax":
            return CALLBACK, at, start, end
        if not library and place.waits_for_next(outer):
            return DATA, place.place_of(outer), start, end, at, callers
    return kind, at, start, end, NOWHERE, callers


def _kind(mine: FrameType, called: FrameType | None) -> str:
    """What the reader's frame is busy with: by the library that it is in, or else by what it calls."""
    if place.called_name(mine).rpartition(".")[2] in _WRITERS:
        return WRITE
    if called is None:
        return _kind_of_callee(place.callee(mine))
    if called.f_code.co_filename.startswith("<frozen importlib"):
        return IMPORT
    name = place.library(called.f_code.co_filename)
    kinds = dict.fromkeys(_EAGER, EAGER) | dict.fromkeys(_LOADERS, DATA) | {"numpy": NUMPY}
    return kinds.get(name, PYTHON)


def _kind_of_callee(called: object) -> str:
    module = str(getattr(type(called), "__module__", ""))
    if module.startswith(("jaxlib", "jax")):  # a jitted function, JAX's own (jnp.sin) or the reader's
        return EAGER if str(getattr(called, "__module__", "")).startswith("jax") else DISPATCH
    own = str(getattr(called, "__module__", ""))
    if module.startswith("numpy") or own.startswith("numpy"):
        return NUMPY
    return EAGER if own.startswith("jax.") else PYTHON


def _live(jax: Any) -> list[tuple[str, int, int]]:
    """Live arrays by type, those that hold most bytes first."""
    found: dict[str, tuple[int, int]] = {}
    try:
        for array in jax.live_arrays():
            name = f"{array.dtype}[{','.join(map(str, array.shape))}]"
            number, total = found.get(name, (0, 0))
            found[name] = number + 1, total + array.nbytes
    except Exception:  # the program deletes arrays, and starts its backend, while we look
        return []
    return sorted(((n, *v) for n, v in found.items()), key=lambda row: -row[2])[:5]
