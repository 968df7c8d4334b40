"""A thread that samples the program's line every few milliseconds, and reads its memory less often.

Sampling costs the same whatever the program does, while a hook would slow down every call. A sample
represents the time since the one before. While C code holds the GIL, the thread cannot sample. Its next
sample is at the end of the same instruction, so the time still goes to the right line.

By default, a thread that waits for the GIL requests it after 5 ms. Until then it gets the GIL only where the
program releases it, as in the call of a jitted function, so 2 ms of Python before each call would be
attributed to the call. `_SWITCH_S` prevents that, and does not slow down the program.
"""

import _thread
import contextlib
import inspect
import itertools
import linecache
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, FunctionType, MethodType
from typing import Any

from jaxperf import jax_internals
from jaxperf.watch import log as events
from jaxperf.watch.guard import collector_paused
from jaxperf.watch.log import Log, Stack, StackSample
from jaxperf.watch.observe import source_location
from jaxperf.watch.observe.frame_arguments import is_array
from jaxperf.watch.observe.source_location import NOWHERE, Place, jitted_program, library_of, module_of
from jaxperf.watch.source.call_sites import CallSites

THREADS, COUNTS = Path("/proc/self/task"), Path("/proc/self/io")
AWAKE = 0.1  # a thread that ran or was ready for a smaller share of the time between two calls has slept


class KernelFile:
    """A small file of Linux in which the kernel counts, such as the bytes that a process has written.

    It stays open, since each sample reads it: to open it would release the GIL some times more.
    """

    def __init__(self, path: Path) -> None:
        self._file = -1
        with contextlib.suppress(OSError):  # this system has no such file
            self._file = os.open(path, os.O_RDONLY)
            self._opened = os.fstat(self._file)

    def read(self) -> bytes:
        """Return what the file holds now; b"" if this system has no such file, or its thread has ended."""
        try:
            return os.pread(self._file, 400, 0)
        except (OSError, AttributeError):  # Windows has no such function
            return b""

    def close(self) -> None:
        file, self._file = self._file, -1
        # the program may have closed all files, and opened its own
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(file), self._opened):
                os.close(file)


class Sleep:
    """The sleep of the thread that creates this object, by Linux's statistics; 0 on systems without these.

    A call into JAX that sleeps waits for a device. A thread that only waits for a core does not sleep: it is
    ready to run. The scheduler adds that wait to its statistics only when the wait is over, so the thread's
    state is read, too.
    """

    def __init__(self, threads: Path = THREADS) -> None:
        folder = threads / str(threading.get_native_id())
        self._times, self._stat = KernelFile(folder / "schedstat"), KernelFile(folder / "stat")
        self._awake = self._last = time.perf_counter()
        self._ran_s = self._waited_s = 0.0
        # between the last two calls of `until`: in which the thread waited for a core, and in which it slept
        self.delayed_s = self.slept_s = 0.0
        self.until(self._last)

    def until(self, now: float) -> float:
        """Return the seconds that the thread has slept until `now`, a time of `time.perf_counter`."""
        times, stat = self._times.read(), self._stat.read()
        if not (times and stat):
            self.delayed_s = self.slept_s = 0.0
            return 0.0
        ran_s, waited_s = (int(part) / 1e9 for part in times.split()[:2])
        state = stat.rpartition(b")")[2].split()[0]  # b"R" if it runs or is ready to run
        seconds, self.delayed_s = now - self._last, waited_s - self._waited_s
        awake_s = ran_s - self._ran_s + self.delayed_s
        asleep, was_awake = state in (b"S", b"D"), awake_s > AWAKE * seconds
        if was_awake or not asleep:
            self._awake = now
        # else it waits for a core, which the statistics do not know yet
        self.slept_s = max(0.0, seconds - awake_s) if was_awake or asleep else 0.0
        self._last, self._ran_s, self._waited_s = now, ran_s, waited_s
        return now - self._awake

    def close(self) -> None:
        self._times.close()
        self._stat.close()


SAMPLING = threading.RLock()  # held while a sample has changed settings that a forked child would keep
CLOSE_S = 0.005  # between samples, in a window of the profiler
WIDE_S = 0.05  # between samples outside of windows, at most
WIDER = 0.02  # interval over the time since the first sample, until it reaches `WIDE_S`
_EAGER = {"jax", "flax", "optax", "equinox", "haiku"}  # unless a jitted function is called
# have a jit of their own, or objects that jit knows
_OF_JAX = _EAGER | {"jaxlib", "blackjax", "brax", "distrax", "keras", "numpyro"}
_WRITERS = {
    "dump", "dumps", "save", "savez", "savez_compressed", "save_file", "to_bytes", "write", "fsync",
}  # fmt: skip
_OF_NUMPY = ("ufunc", "_ArrayFunctionDispatcher")  # types of NumPy's functions of arrays
_CALLS_BACK = re.compile(r"[/\\]jax[/\\]_src[/\\](?:callback|debugging|buffer_callback)\.py$")
_COLLECTED = "_xla_gc_callback"  # JAX's callback on garbage collection
_SWITCH_S = 0.001  # after which a waiting thread requests the GIL
_LONG_S = 0.1  # the same during a sample, which takes 0.1 ms
_TURN_S = 0.0003  # well below `_SWITCH_S`
ASLEEP_S = 0.02  # a call of a jitted function or an operation takes less, unless the queue is full
_SHORT = 60  # elements of a tuple, or characters of a text, that may be a static argument
STACK = 40  # lines that are kept of a stack
# samples of a function in which its parameters' values are looked at; of the later ones, every so many, since
# a call may last for many samples
LOOKS_AT_VALUES, SELDOM = 20, 16


class Sampler:
    """Samples the watched thread, until it is closed."""

    def __init__(
        self,
        log: Log,
        # called after each sample, in the sampler's thread; returns whether to sample often
        on_look: Callable[[], bool] = lambda: True,
        # for the compile report only, returns whether something is being traced or compiled now
        compiling: Callable[[], bool] | None = None,
    ) -> None:
        self.log, self.on_look, self.compiling = log, on_look, compiling
        self.call_sites = CallSites()
        self._files: set[str] = set()  # that Python has read, to show lines
        self._looks: Counter[int] = Counter()  # at the values of parameters, by the id of the code
        self._known: set[tuple[Place, Place, tuple[Place, ...]]] = set()
        self._undo = contextlib.ExitStack()
        self._stop, self._stopped = threading.Event(), threading.Event()

    def open(self) -> None:
        """Start sampling the watched thread, which is the one that calls this."""
        self._opener, self._pid = threading.get_ident(), os.getpid()
        self._first = self._last = time.perf_counter()
        self._sleep, self._counts = Sleep(), KernelFile(COUNTS)
        self._undo.callback(self._sleep.close)
        self._undo.callback(self._counts.close)
        self._written = self._bytes_written()
        self._undo.enter_context(_switch_interval(min(_SWITCH_S, sys.getswitchinterval())))
        _thread.start_new_thread(self._run, ())  # hidden from `threading.enumerate`: a program may join those

    def close(self) -> None:
        if os.getpid() == self._pid:  # a forked child has no such thread, and its locks may stay taken
            self._stop.set()
            self._stopped.wait()
        self._undo.close()
        self.log.call_sites = sorted(self.call_sites.sites)

    def _run(self) -> None:
        interval_s = CLOSE_S
        try:
            while not self._stop.wait(interval_s):
                began = time.thread_time()
                with self.log.losses.guard("a sample"):
                    self._look()
                self.log.overhead_s["samples"] += time.thread_time() - began
                interval_s = min(WIDE_S, max(CLOSE_S, WIDER * (self._last - self._first)))
                with self.log.losses.guard("a look at the program"):
                    if self.on_look():
                        interval_s = CLOSE_S
        finally:
            self._stopped.set()

    def _look(self) -> None:
        now, unread = time.perf_counter(), set[str]()
        with undisturbed():
            frames = sys._current_frames()
            frame = frames.get(self.log.thread_id)
            if self.compiling:
                self._sample_stack(frame, now, self.compiling())
            else:
                unread = _files_to_read(frame) - self._files
                self._sample_callbacks(frames, now)
                if not unread:
                    self._sample(frame, now)
            del frame, frames
        if unread:  # reading releases the GIL
            for file in unread:
                linecache.getline(file, 1)
            self._files |= unread
            time.sleep(_TURN_S)  # else a waiting thread might request the GIL during the sample
            with undisturbed():
                self._sample(sys._current_frames().get(self.log.thread_id), now)
        self._last = now

    def _sample(self, frame: FrameType | None, now: float) -> None:
        sample = _sample_of(frame, self._last, now)
        calls_jax = sample.kind in (events.DISPATCH, events.EAGER)
        may_block = calls_jax or _in_numpy(frame)
        if calls_jax:
            self._note_parameters(frame)
        # from here on the program may go on: reading files releases the GIL
        before, self._written = self._written, self._bytes_written()
        slept_s = self._sleep.until(now)
        sample = sample._replace(written=max(0, self._written - before))
        if self.log.thread_id == self._opener:  # whose sleep is known
            delayed_s = min(self._sleep.delayed_s, now - self._last)
            blocked = slept_s >= ASLEEP_S and may_block
            sample = sample._replace(blocked=blocked, delayed_s=delayed_s, slept_s=self._sleep.slept_s)
        self.log.samples.append(sample)
        where = sample.at, sample.inside, sample.callers
        if where not in self._known and "jax" in sys.modules:
            self._known.add(where)
            with self.log.losses.guard("lines that call jitted functions"):
                self.call_sites.look(frame)

    def _bytes_written(self) -> int:
        """Return the bytes that this process has written to files and pipes; 0 on systems that do not say."""
        counted = dict(line.split(b": ") for line in self._counts.read().splitlines())
        return int(counted.get(b"wchar", 0))

    def _sample_stack(self, frame: FrameType | None, now: float, compiling: bool) -> None:
        """Record what the compile report needs: stacks while something compiles, and imports."""
        reader = source_location.reader_and_library_frames(frame)[0]
        if compiling:
            places = source_location.places_outside_jax(frame, STACK)
            self.log.stacks.append(Stack(self._last, now, places))
        elif reader is not None and _imports(frame, reader):
            at = source_location.place_of(reader)
            self.log.samples.append(StackSample(events.IMPORT, at, self._last, now))

    def _sample_callbacks(self, frames: dict[int, FrameType], now: float) -> None:
        """Record the reader's line in each thread in which JAX calls Python back."""
        for ident, frame in frames.items():
            *_, first = source_location.frames_outwards(frame)
            if ident != self.log.thread_id and library_of(first.f_code.co_filename) == "jax":
                at = source_location.reader_place(frame)
                self.log.called_back.append(StackSample(events.CALLBACK, at, self._last, now))

    def _note_parameters(self, frame: FrameType | None) -> None:
        """Note the values of parameters that a jitted function would need as static arguments."""
        for f in source_location.readers_frames(frame):
            code = f.f_code
            if not code.co_flags & inspect.CO_OPTIMIZED:  # a module
                continue
            self._looks[id(code)] += 1
            looks = self._looks[id(code)]
            if looks > LOOKS_AT_VALUES and looks % SELDOM:
                continue
            known = self.log.parameters[code.co_filename, code.co_name]
            for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
                if value := _static_value(source_location.variable_value(f, name)):
                    known[name].add(value)


def _files_to_read(frame: FrameType | None) -> set[str]:
    """Return the files whose lines say what is called: the reader's, and that of the innermost frame."""
    readers = list(source_location.readers_frames(frame))
    files = {f.f_code.co_filename for f in readers}
    if frame is not None and readers and not _imports(frame, readers[0]):
        files.add(frame.f_code.co_filename)
    return files


@contextlib.contextmanager
def _switch_interval(seconds: float) -> Iterator[None]:
    """Set after which time a waiting thread requests the GIL, unless the program sets it meanwhile."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    ours = sys.getswitchinterval()
    try:
        yield
    finally:
        if sys.getswitchinterval() == ours:
            sys.setswitchinterval(before)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Keep other threads from taking the GIL, so that no frame ends while it is inspected.

    A busy host may interrupt a sample. So a thread that begins to wait for the GIL requests it only after
    `_LONG_S`. One that waits already still does so after `_SWITCH_S`, and then we wait for `_LONG_S`; if that
    were many seconds, a program that never releases the GIL would not be sampled any more.

    Garbage collection is off, too. Python 3.11 may collect while `frame.f_back` allocates, and JAX's callback
    to the collector lets the program run. If the frame ends then, the program crashes or hangs.
    """
    with SAMPLING, _switch_interval(_LONG_S), collector_paused():
        yield


def _in_numpy(frame: FrameType | None) -> bool:
    """Return whether the reader's line calls a function as np.sin, or stores an item.

    Both sleep only for JAX's arrays.
    """
    reader = source_location.reader_and_library_frames(frame)[0]
    if reader is None:
        return False
    stores = source_location.stores_item(reader)
    return stores or type(source_location.callee(reader)).__name__ in _OF_NUMPY


def _static_value(value: Any) -> str:
    """Return a value's description if a jitted function needs it as a static argument; "" if it does not.

    A list and an array have one, too: jit compiles for each length, and a loop over an array goes over data.
    """
    cls = type(value)
    if is_array(value):
        return f"{events.ARRAY_OF}{value.shape[0]}" if value.shape else ""
    if cls is list:
        return f"{events.LIST_OF}{len(value)}"
    if cls is dict:
        parts = itertools.islice(value.values(), _SHORT)
        return events.SETTINGS if any(type(part) in (bool, int, str) for part in parts) else ""
    if cls in (bool, int, str):
        return repr(value[:_SHORT] if cls is str else value)[:_SHORT]
    if issubclass(cls, tuple) and 0 < tuple.__len__(value) < _SHORT:
        values = tuple(tuple.__iter__(value))  # the program's class may have methods of its own
        classes = set(map(type, values))
        if classes == {int}:
            return repr(values)[:_SHORT]
        if FunctionType in classes:  # optax.adam(0.1)
            return cls.__name__
    if any(c.__module__.startswith("flax.linen") for c in cls.__mro__):
        return "module"
    if cls in (FunctionType, MethodType):
        return "function"
    file = _file_of(cls)
    library = library_of(file) if file else ""
    numpys_number = cls.__module__ == "numpy"
    if library and (library in _OF_JAX or numpys_number or _jit_knows(value)):
        return ""
    # of a library's class, there is nothing to read
    return f"{events.OBJECT_OF}{'' if library else file}:{cls.__name__}" if file else ""


def _jit_knows(value: Any) -> bool:
    """Return whether JAX knows what an object of a library holds, or it is a function, or this is unknown."""
    trees = jax_internals.loaded(jax_internals.PYTREES)
    return not isinstance(trees, dict) or type(value) in trees or callable(value)


def _file_of(cls: type) -> str:
    """Return the file that defines a class of Python's, or that of its module; "" if it is not known."""
    if issubclass(cls, (tuple, list, dict)):  # which JAX knows
        return ""
    made = inspect.getattr_static(cls, "__init__", None)
    file = made.__code__.co_filename if type(made) is FunctionType else "<"
    # `dataclass` writes the method into no file
    module = sys.modules.get(cls.__module__)
    return str(source_location.stored_attributes(module).get("__file__") or "") if file[:1] == "<" else file


def _sample_of(frame: FrameType | None, start: float, end: float) -> StackSample:
    reader, library = source_location.reader_and_library_frames(frame)
    if frame is None or reader is None:
        return StackSample(events.PYTHON, NOWHERE, start, end)
    at, callers = source_location.place_of(reader), source_location.caller_places(reader)
    outwards = list(source_location.frames_outwards(reader))
    if any(_CALLS_BACK.search(f.f_code.co_filename) for f in outwards):
        return StackSample(events.CALLBACK, at, start, end)
    kind, under = _kind(frame, reader, library), NOWHERE
    if kind in (events.DISPATCH, events.EAGER, events.IMPORT):
        under, outwards = source_location.transformed_at(frame), []
    for outer in outwards:  # a callback of JAX, or the next item of a loop?
        owner = library_of(outer.f_code.co_filename)
        if owner == "jax":
            return StackSample(events.CALLBACK, at, start, end)
        if not owner and source_location.waits_for_next(outer):
            return StackSample(events.DATA, source_location.place_of(outer), start, end, at, callers)
    return StackSample(kind, at, start, end, callers=callers, under=under)


def _kind(frame: FrameType, reader: FrameType, library: FrameType | None) -> str:
    """Return what the reader's frame does, by the library that it called, or else by the callee."""
    called = source_location.callee(reader)
    if _imports(frame, reader):
        return events.IMPORT
    if source_location.called_name(reader).rpartition(".")[2] in _WRITERS:
        return events.WRITE
    if library is None or library.f_code.co_name == _COLLECTED:  # which may run at any line
        return _kind_of_callee(called)
    owner = library_of(library.f_code.co_filename)
    if owner in _EAGER:
        return events.DISPATCH if jitted_program(called) else events.EAGER
    inside = source_location.frames_outwards(frame, reader)
    of_jax = [f for f in inside if library_of(f.f_code.co_filename) == "jax"]
    # NumPy gives a call to an array of JAX, as `np.sum(x)` does; a copy is none
    if owner == "numpy" and (not of_jax or of_jax[-1].f_code.co_name == "__array__"):
        return events.NUMPY
    if source_location.waits_for_next(reader):  # a data loader, whatever it calls
        return events.PYTHON
    if of_jax:
        return events.EAGER
    inner = _kind_of_callee(source_location.callee(frame))
    return inner if inner in (events.EAGER, events.DISPATCH) else events.PYTHON


def _imports(frame: FrameType | None, reader: FrameType) -> bool:
    inside = source_location.frames_outwards(frame, reader)
    return any(f.f_code.co_filename.startswith("<frozen importlib") for f in inside)


def _kind_of_callee(called: object) -> str:
    if jitted_program(called):
        return events.DISPATCH
    whose = {module_of(type(called))}
    if source_location.is_a_librarys(type(called)):
        whose.add(module_of(called))
    if whose & {"jax", "jaxlib"}:
        return events.EAGER
    return events.NUMPY if "numpy" in whose else events.PYTHON
