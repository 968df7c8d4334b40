"""A thread that samples what the program does every few milliseconds: its line, and the memory it holds.

A sample costs the same whatever the program does, while a hook on every call would cost a share of each. A
sample represents the time since the one before. While C code holds Python's lock, the thread cannot sample;
its next sample is at the end of that very instruction, so the time still goes to the right line.

A thread asks for the lock after 5 ms by default, and before that gets it only where the program gives it up,
as the call of a jitted function does. Then Python of 2 ms before each call would be seen at the call: a loop
that lost 70 % of its time to such Python had a finding in none of ten runs. With `_SWITCH_S` it has one in
nine or ten, and the program's time is the same.
"""

from __future__ import annotations

import _thread
import contextlib
import gc
import itertools
import linecache
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import NamedTuple

import psutil

from jaxperf.watch.observe import backend, live_arrays, source_location
from jaxperf.watch.observe.hooks import Trouble
from jaxperf.watch.observe.sleeping import Sleep
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.source.call_sites import CallSites, jitted_program, module_of

CLOSE_S = 0.005  # from one sample to the next, in a window of the profiler
WIDE_S = 0.025  # the same outside of windows, after a second or so
WIDER = 0.02  # of the time since the first sample, until then
SPARSE = 2  # times as long if no window ever comes; a sample costs an eager program 0.25 to 0.3 ms
DATA, EAGER, DISPATCH, NUMPY, PYTHON = "data", "eager", "dispatch", "numpy", "python"
CALLBACK = "callback"  # the reader's function, called by JAX
WRITE = "write"  # a checkpoint, most likely
BETWEEN = "between"  # Python in a loop of steps, as `report.attribution` determines
IMPORT = "import"
_LOADERS = {"tensorflow", "tensorflow_datasets", "torch", "grain", "datasets", "PIL", "cv2", "h5py"}
_EAGER = {"jax", "flax", "optax", "equinox", "haiku"}  # or the call of a jitted function
_WRITERS = {
    "dump", "dumps", "save", "savez", "savez_compressed", "save_file", "to_bytes", "write", "fsync",
}  # fmt: skip
_COLLECTED = "_xla_gc_callback"  # which JAX adds to each collection of garbage
_SWITCH_S = 0.001  # after which a thread asks for Python's lock; 5 ms by default
_LONG_S = 0.1  # a sample takes 0.1 ms
_TURN_S = 0.0003  # well below `_SWITCH_S`
_MEMORY_EVERY_S = 0.05  # reading it costs as much as the sample
ASLEEP_S = 0.02  # a call of a jitted function or of an operation takes less, unless the queue is full
_PEAK_STEP = 1.05  # live arrays are listed when memory is this many times that at the last list


class StackSample(NamedTuple):
    """The reader's line and what it was doing, for the stretch from `start` to `end`."""

    kind: str
    at: Place
    start: float
    end: float
    inside: Place = NOWHERE  # where the next item of the `for` at `at` is made
    callers: tuple[Place, ...] = ()  # the reader's lines around `at`, outwards
    blocked: bool = False  # a call waits for a place in the queue of a device


class Sampler:
    """Samples the thread that opened it, until it is closed.

    Attributes:
      samples: what was seen each time.
      call_sites: the lines that call jitted functions.
      peaks: the most bytes so far, of resident memory and of devices that count theirs.
      live_arrays: the arrays alive near the peak, those with the most bytes first.
      on_look: called after each sample, in the sampler's thread; returns whether to sample often.
      started: whether JAX's backend runs, so that listing arrays does not start it.
      sparse: sample half as often, since `on_look` never asks to sample often.
      spent_s: processor time of the sampler's own work.
    """

    def __init__(
        self,
        trouble: Trouble,
        *,
        on_look: Callable[[], bool] = lambda: True,
        started: Callable[[], bool] = backend.is_running,
        sparse: bool = False,
    ) -> None:
        self.trouble, self.started, self._slower = trouble, started, SPARSE if sparse else 1
        self.samples: list[StackSample] = []
        self.call_sites = CallSites()
        self.peaks: Counter[str] = Counter()
        self.live_arrays: list[live_arrays.LiveArrays] = []
        self.on_look, self.spent_s = on_look, 0.0
        self._known: set[tuple[Place, Place, tuple[Place, ...]]] = set()
        self._codes: dict[int, CodeType] = {}
        self._listed_at = 0.0
        self._stop, self._stopped = threading.Event(), threading.Event()
        self._process = psutil.Process()

    def open(self) -> None:
        """Start sampling the calling thread."""
        self.thread_id, self._last = threading.get_ident(), time.perf_counter()
        self._first = self._last
        self._opener, self._sleep = self.thread_id, Sleep()
        self._before = sys.getswitchinterval()
        sys.setswitchinterval(min(_SWITCH_S, self._before))
        self._switch_interval_s = sys.getswitchinterval()
        self._pid = os.getpid()
        _thread.start_new_thread(self._run, ())  # a program may wait for all that `threading.enumerate` lists

    def close(self) -> None:
        """Stop sampling."""
        self._stop.set()
        if os.getpid() == self._pid:  # a forked child has no such thread
            self._stopped.wait()
        self._sleep.close()
        if sys.getswitchinterval() == self._switch_interval_s:  # else the program has set its own
            sys.setswitchinterval(self._before)
        self._weigh()

    def _run(self) -> None:
        try:
            self._sample_until_stopped()
        finally:
            self._stopped.set()

    def _sample_until_stopped(self) -> None:
        interval_s, weighed = self._slower * CLOSE_S, 0.0
        while not self._stop.wait(interval_s):
            began = time.thread_time()
            with self.trouble.catch_errors("a sample"):
                self._look()
                if self._last - weighed >= _MEMORY_EVERY_S:
                    weighed = self._last
                    self._weigh()
            self.spent_s += time.thread_time() - began
            interval_s = self._slower * min(WIDE_S, max(CLOSE_S, WIDER * (self._last - self._first)))
            with self.trouble.catch_errors("a window of the profiler"):
                if self.on_look():
                    interval_s = CLOSE_S

    def _look(self) -> None:
        now = time.perf_counter()
        with _undisturbed():
            frame = sys._current_frames().get(self.thread_id)
            unread = self._unread(frame)
            if not unread:
                self._sample(frame, now)
            del frame
        if unread:
            self._read(unread)
            with _undisturbed():
                self._sample(sys._current_frames().get(self.thread_id), now)
        self._last = now

    def _sample(self, frame: FrameType | None, now: float) -> None:
        sample = _sample_of(frame, self._last, now)
        asleep = self._sleep.until(now) >= ASLEEP_S and self.thread_id == self._opener
        self.samples.append(sample._replace(blocked=asleep and sample.kind in (DISPATCH, EAGER)))
        where = sample.at, sample.inside, sample.callers
        if where not in self._known and "jax" in sys.modules:  # the same lines have the same call sites
            self._known.add(where)
            with self.trouble.catch_errors("lines that call jitted functions"):
                self.call_sites.look(frame)

    def _unread(self, frame: FrameType | None) -> list[CodeType]:
        """Return the functions whose bytecode and file a sample needs, and that are not in memory yet."""
        codes = (f.f_code for f in source_location.frames_outwards(frame))
        return [code for code in codes if id(code) not in self._codes]

    def _read(self, codes: list[CodeType]) -> None:
        """Read what a sample needs before taking it: files release the lock, bytecode takes up to 5 ms."""
        began = time.perf_counter()
        for code in codes:
            linecache.getline(code.co_filename, 1)
            source_location.cache_bytecode(code)
            self._codes[id(code)] = code  # which keeps it, and so its id, alive
        if time.perf_counter() - began > _TURN_S:  # a thread that waits would ask for the lock in mid-sample
            time.sleep(_TURN_S)

    def _weigh(self) -> None:
        used = {"resident": self._process.memory_info().rss}
        jax = sys.modules.get("jax")
        lists = hasattr(jax, "live_arrays") and self.started()
        if lists and (on_devices := live_arrays.bytes_in_use(jax)):
            used["device"] = on_devices
        self.peaks |= Counter(used)
        last = [*used.values()][-1]  # of devices, where they count theirs
        if lists and last > self._listed_at * _PEAK_STEP:
            self._listed_at = last
            self.live_arrays = live_arrays.live_arrays(jax)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep other threads from taking Python's lock for now, so that no frame ends while it is inspected.

    A sample takes 0.1 ms, below `_SWITCH_S`, after which a waiting thread may ask for the lock; but a busy
    host may stop us in between. A thread that has waited since before still asks after `_SWITCH_S`. Then we
    in turn wait for `_LONG_S` before we ask: when that was 10 s, we saw nothing more of a program that never
    gives the lock away by itself.

    Nor is garbage collected. Python 3.11 collects while it allocates, and `frame.f_back` allocates with the
    caller's frame in hand; JAX adds a callback to each collection, which lets the program run and that frame
    end. Three processes at a time watched one program again and again on two cores: six of six crashed or
    hung within 4 minutes (four, for 2 minutes, did not); without collections none of three in 890 watches.
    """
    before, collects = sys.getswitchinterval(), gc.isenabled()
    sys.setswitchinterval(_LONG_S)
    switch_interval_s = sys.getswitchinterval()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
        if sys.getswitchinterval() == switch_interval_s:
            sys.setswitchinterval(before)


def _sample_of(frame: FrameType | None, start: float, end: float) -> StackSample:
    """Return a sample, from the frames of the thread that is watched."""
    reader, library = source_location.reader_and_library_frames(frame)
    if reader is None:
        return StackSample(PYTHON, NOWHERE, start, end)
    at, kind = source_location.place_of(reader), _kind(frame, reader, library)
    callers = source_location.caller_places(reader)
    if kind in (DISPATCH, EAGER, IMPORT):
        return StackSample(kind, at, start, end, callers=callers)
    for outer in source_location.frames_outwards(reader):  # who asked for this work?
        owner = source_location.library_of(outer.f_code.co_filename)
        if owner == "jax":
            return StackSample(CALLBACK, at, start, end)
        if not owner and source_location.waits_for_next(outer):
            return StackSample(DATA, source_location.place_of(outer), start, end, at, callers)
    return StackSample(kind, at, start, end, callers=callers)


def _kind(frame: FrameType | None, reader: FrameType, library: FrameType | None) -> str:
    """Return what the reader's frame is busy with, by the library or else by the callee."""
    if source_location.called_name(reader).rpartition(".")[2] in _WRITERS:
        return WRITE
    if library is None:
        return _kind_of_callee(source_location.callee(reader))
    if library.f_code.co_filename.startswith("<frozen importlib"):
        return IMPORT
    if library.f_code.co_name == _COLLECTED:  # at any line: Python collects garbage
        return _kind_of_callee(source_location.callee(reader))
    name = source_location.library_of(library.f_code.co_filename)
    if name in _EAGER:
        return DISPATCH if jitted_program(source_location.callee(reader)) else EAGER
    if name in _LOADERS:
        return DATA
    return NUMPY if name == "numpy" else _kind_inside(frame, reader)


def _kind_inside(frame: FrameType | None, reader: FrameType) -> str:
    """Return what another library does for the reader: JAX's operations, as distrax does, or Python."""
    if frame is None or source_location.waits_for_next(reader):  # a loader's, whatever it does
        return PYTHON
    inside = itertools.takewhile(lambda f: f is not reader, source_location.frames_outwards(frame))
    if any(source_location.library_of(f.f_code.co_filename) == "jax" for f in inside):
        return EAGER
    kind = _kind_of_callee(source_location.callee(frame))
    return kind if kind in (EAGER, DISPATCH) else PYTHON


def _kind_of_callee(called: object) -> str:
    if jitted_program(called):
        return DISPATCH
    whose = {module_of(type(called)), module_of(called)}
    if whose & {"jax", "jaxlib"}:
        return EAGER
    return NUMPY if "numpy" in whose else PYTHON
