"""Run JAX's profiler in short windows.

The profiler keeps every event, about ten per operation. So it runs only in short windows, while nothing
compiles. A window is shorter after one that was costly. It is longer after one that saw almost nothing while
the front end stayed at one line: devices then execute instructions that take longer than the window. Such a
window ends when the front end goes on, since many short instructions may follow. The pause after a window
keeps the cost at a small share of the run, and grows with the time that the program has run. A function that
runs for the first time begins a new part of the program, of which no window has seen anything yet. Windows
use JAX's internal session, since `jax.profiler.stop_trace` also writes a file for the browser, which takes
five times as long as all else.

On a CUDA device, windows begin and end in the main thread, while the device is idle. XLA ends a profile with
`cuptiFinalize`. If another thread launches kernels meanwhile, every later call to the GPU in that process can
fail with CUDA_ERROR_LAUNCH_FAILED (https://github.com/jax-ml/jax/issues/40260).
"""

import contextlib
import ctypes
import functools
import inspect
import itertools
import operator
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

from jaxperf import jax_internals
from jaxperf.watch.log import Compiled, Log
from jaxperf.watch.observe.hooks import Replacements
from jaxperf.watch.observe.source_location import NOWHERE
from jaxperf.watch.observe.windows import MARK, read_window

_functions: deque[Callable[[], object]] = deque()


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
def _run_next(_: object) -> int:
    if _functions:
        _functions.popleft()()
    return 0


def call_in_main_thread(function: Callable[[], object]) -> bool:
    """Make the main thread call a function once; return False if too many calls are pending."""
    _functions.append(function)
    if ctypes.pythonapi.Py_AddPendingCall(_run_next, None) == 0:
        return True
    _functions.remove(function)
    return False


@functools.cache
def cuda_driver() -> ctypes.CDLL | None:
    for name in ("libcuda.so.1", "nvcuda.dll"):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)  # its calls release the GIL
    return None


def _cuda_devices() -> list[int]:
    """Return the driver's numbers of the devices that JAX uses; none without CUDA."""
    import jax

    if jax.default_backend() != "gpu" or cuda_driver() is None:
        return []
    return [device.local_hardware_id or 0 for device in jax.local_devices()]


def wait_for_cuda_devices() -> None:
    """Wait until the devices have executed all work of this process."""
    driver: Any = cuda_driver()
    for number in _cuda_devices():
        context = ctypes.c_void_p()
        if driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number):
            continue  # no such device
        driver.cuCtxPushCurrent_v2(context)
        driver.cuCtxSynchronize()
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))
        driver.cuDevicePrimaryCtxRelease_v2(number)


def _work_s() -> float:
    """Return the time of the clock on a GPU, whose thread waits; else the thread's processor time."""
    return time.perf_counter() if _cuda_devices() else time.thread_time()


SHORTEST_S, SHORT_S, LONG_S, LONGEST_S = 0.02, 0.1, 0.25, 2.0  # length of a window
FIRST_S = 0.03  # the same of what has just begun, which may have very many events
FEW_BYTES = 20_000  # of a window that saw about fifty calls, or less; the next one is `LONGER` times as long
LONGER = 4
COST_SHARE = 0.05  # cost of a window over the pause after it, at most
EARLY_S, LATER_SHARE = 3.0, 0.01  # so long after a part of the program began, this replaces `COST_SHARE`
SLOWDOWN = 0.05  # of a program in a window, roughly
PAUSE = 0.02  # shortest pause over the time since the first window
KEPT_BYTES = 12_000_000  # of windows: of more, some are dropped
# of windows that are read, and per second since the first one; to read 1 MB takes about 0.15 s
READ_BYTES, READ_BYTES_PER_S = 500_000, 40_000


class Profiler:
    """Opens and closes windows while nothing compiles: one thread calls `look` every few milliseconds."""

    def __init__(self, log: Log, replacements: Replacements, compiling: Callable[[], bool]) -> None:
        self.log, self._replacements = log, replacements
        self.windows: list[tuple[bytes, float, float]] = []
        # to open and close each window: processor time, or the time of the clock on a GPU
        self.windows_s: list[float] = []
        self._compiling = compiling
        self._session: Any = None
        self._opened = self._first = self._part = self._next = self._opening_s = 0.0
        self._length_s = FIRST_S
        self._line = NOWHERE  # at which the front end stayed during the last window
        self._functions = set[str]()  # of the program, that have run
        # asked: the main thread has yet to open or close a window
        self._ended = self._asked = False
        self._lock = threading.RLock()  # `end` runs in the program's thread

    def open(self, jax: Any) -> None:
        """Leave the profiler to the program as soon as it starts one itself, in whichever way."""
        module, _, name = jax_internals.PROFILER.attribute.rpartition(".")
        owner = operator.attrgetter(module)(sys.modules[jax_internals.PROFILER.module])
        end = self.log.losses.guarded("a window of the profiler", self.end)
        self._replacements.call_before(owner, name, end)

    def look(self) -> bool:
        """Open or close a window if it is time to; return whether one is open that is not yet long.

        In such a window, the front end goes from line to line, and samples should follow it closely.
        """
        with self._lock:
            now = time.perf_counter()
            if self._asked:
                pass
            elif self._session is None:
                if not self._compiling() and not self._ended and now >= self._next:
                    self._do(self._open_window)
            elif self._compiling() or now - self._opened >= self._planned_s():
                self._do(self._close_window)
            return self._session is not None and now - self._opened < LONG_S

    def _planned_s(self) -> float:
        samples = self.log.samples
        stays = not samples or samples[-1].at == self._line
        return self._length_s if stays else min(self._length_s, SHORT_S)

    def end(self) -> None:
        self._ended = True
        with self._lock:
            self._close_window()

    def _do(self, work: Callable[[], None]) -> None:
        if not _cuda_devices():
            self._do_now(work)
        elif self.log.thread_id == threading.main_thread().ident:
            self._asked = call_in_main_thread(functools.partial(self._do_now, work))
        else:
            self._give_up("on a GPU they need a program that runs in the main thread")

    def _do_now(self, work: Callable[[], None]) -> None:
        with self._lock:
            self._asked = False
            try:
                work()
            except Exception as e:  # such as another profiler session, or a full disk; the program goes on
                self._give_up(str(e).partition("\n")[0])

    def _give_up(self, why: str) -> None:
        self._ended = True
        self.log.remarks.append(f"windows of the profiler are missing: {why}")

    def _open_window(self) -> None:
        if self._ended or self._compiling():  # it has changed since `look` asked the main thread
            return
        import jax

        options = jax.profiler.ProfileOptions()
        options.python_tracer_level, options.host_tracer_level = 0, 1
        options.enable_hlo_proto = False
        wait_for_cuda_devices()
        began = _work_s()
        self._session = inspect.unwrap(jax_internals.get(jax_internals.PROFILER))(options)
        self._opened = time.perf_counter()
        self._opening_s = _work_s() - began
        self._first, self._part = self._first or self._opened, self._part or self._opened
        with jax.profiler.TraceAnnotation(MARK):  # relates the profiler's clock to `time.perf_counter`
            self._tied = time.perf_counter()

    def begin_anew(self, c: Compiled, _: FrameType) -> None:
        """Open a window when a function runs for the first time, unless windows have cost too much already.

        What devices did before the first one does not count.
        """
        if not c.explained or c.defined in self._functions:
            return
        now = time.perf_counter()
        if not self._functions or sum(self.windows_s) <= COST_SHARE * (now - self._first):
            self._part, self._next, self._length_s = now, 0.0, min(self._length_s, FIRST_S)
        self._functions.add(c.defined)

    def _close_window(self) -> None:
        if self._session is None:
            return
        wait_for_cuda_devices()
        ended, began = time.perf_counter(), _work_s()
        session, self._session = self._session, None
        profile = session.stop()
        self.windows.append((profile, self._tied, ended))
        self._drop_windows()
        now, cost_s = time.perf_counter(), self._opening_s + _work_s() - began
        self.log.overhead_s["profiler"] += cost_s
        self.windows_s.append(cost_s)
        recent = itertools.takewhile(lambda s: s.end > self._opened, reversed(self.log.samples))
        lines, was_s = {sample.at for sample in recent}, ended - self._opened
        self._line = min(lines, default=NOWHERE)
        if self._compiling():  # what runs next is new
            self._length_s = FIRST_S
        elif len(profile) > FEW_BYTES:
            # a window should not hold more than is read
            length_s = READ_BYTES * was_s / len(profile)
            most_s = SHORT_S if cost_s >= SHORT_S or length_s < LONG_S else LONG_S
            self._length_s = min(most_s, max(SHORTEST_S, length_s))
        elif len(lines) <= 1:
            self._length_s = min(LONGER * self._length_s, LONGEST_S)
        else:
            self._length_s = max(self._length_s, SHORT_S)
        share = COST_SHARE if now - self._part < EARLY_S else LATER_SHARE
        # what the next one will cost, which may be shorter
        shorter = min(1.0, self._length_s / was_s)
        pause_s = shorter * (cost_s + SLOWDOWN * was_s) / share
        self._next = now + max(pause_s, PAUSE * (now - self._first))

    def _drop_windows(self) -> None:
        """Drop every second window if they have too many bytes, or the one that has most of these."""
        sizes = [len(profile) for profile, _, _ in self.windows]
        if sum(sizes) <= KEPT_BYTES or len(sizes) == 1:
            return
        if 2 * max(sizes) > KEPT_BYTES:
            del self.windows[sizes.index(max(sizes))]
        else:
            del self.windows[1::2]

    def close(self) -> None:
        """Close the open window, and write what the windows saw into the log."""
        with self.log.losses.guard("a window of the profiler"):
            self.end()
        ran_s = time.perf_counter() - self._first
        # each window gets the same part, or less if it is smaller: one with few events may be of long steps
        left, part = READ_BYTES + READ_BYTES_PER_S * ran_s, 0.0
        for i, size in enumerate(sorted(len(profile) for profile, _, _ in self.windows)):
            part = left / (len(self.windows) - i)
            left -= min(part, size)
        for profile, tied, ended in self.windows:
            read_window(profile, tied, ended, self.log, share=min(1.0, part / len(profile)))
