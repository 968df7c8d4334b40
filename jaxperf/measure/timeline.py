"""Record a `Timeline` under JAX's profiler: when the front end, each device and the copies worked.

Recording adds about ten events of 1 us each per operation on a CPU, so times of tiny operations are mostly
overhead. Use `measure` to time operations.

`jax.profiler.ProfileData` has planes (host, devices) of lines (threads, streams) of events:

- CPU (JAX 0.10.2 and 0.12): every executed instruction is an event with `hlo_op` and `device_ordinal`, on the
  thread that ran it, which may be Python's. An instruction that hands its work to other threads returns
  early; an event "end: ..." with the same number marks its end. A copy between CPU devices has no event, only
  a task of the client's thread pool without an instruction in it.
- GPU: one plane per device and one line per stream ("Stream #14(Compute)"), with kernels, and copies named
  MemcpyD2H, MemcpyH2D and so on.
"""

import functools
import math
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.profiler import ProfileData

from jaxperf.errors import JaxperfError, first_line, warnings_hidden
from jaxperf.measure.timing import block
from jaxperf.result.intervals import Interval, intersection, total_length, union
from jaxperf.result.values import Span, Timeline

PYTHON, WAIT, COPIES = "python", "wait", "copies"
RUN = "jaxperf run"  # the annotation around the recorded run
MARK = "jaxperf mark: "  # prefix of an annotation, followed by LANE/NAME
CPU_POOL = "tf_XLAPjRtCpuClient"  # threads that copy between CPU devices
ASKS_FOR_COPY = "CopyToMemorySpace"
HOST_COPIES = ("H2D Dispatch", "CommonPjRtClient::LinearizeInto")  # host to a CPU device
_GPU_COPIES = re.compile(r"Memcpy(H2D|D2H|P2P)")
_DEVICE_PLANE = re.compile(r"/device:(GPU|TPU):(\d+)")
_INSTRUCTION = re.compile(r"(?:end: )?[\w.-]+")
_DEVICE_LINES = ("Stream", "XLA Ops")  # on GPU and TPU; other lines group the same events


def record(fn: Callable[..., Any], *args: Any, name: str = "", warmup_calls: int = 1) -> Timeline:
    """Run `fn(*args)` under the profiler, wait for all its outputs, and return what every lane did.

    Lanes: "python", in which the calling thread works in JAX; "wait", in which it waits for the outputs; one
    per device ("cpu 0", "gpu 0"); and "copies", between devices and between device and host. `wall_s` is
    from the process's clock, and `traced_s` is the same interval by the profiler's clock.
    The name is the function's own by default. `warmup_calls` come before the recorded one, so that nothing is
    compiled in it. Raises JaxperfError if another profile is being taken.
    """
    label = name or str(getattr(fn, "__name__", type(fn).__name__))
    for _ in range(warmup_calls):
        block(fn(*args))
    spans, traced_s = list[Span](), 0.0
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Python's calls are costly to record
    with tempfile.TemporaryDirectory(prefix="jaxperf-") as scratch:
        with ExitStack() as stack:
            try:
                stack.enter_context(jax.profiler.trace(scratch, profiler_options=options))
            except RuntimeError as e:
                raise JaxperfError(f"no timeline: {first_line(e)} Stop the other profile") from None
            stack.enter_context(jax.profiler.TraceAnnotation(RUN))
            began = time.perf_counter()
            outputs = fn(*args)
            with mark("outputs"):
                block(outputs)
            wall_s = time.perf_counter() - began
        del outputs
        for profile in Path(scratch).rglob("*.xplane.pb"):
            spans, traced_s = read(ProfileData.from_file(str(profile)))
    return Timeline(label, tuple(spans), wall_s, traced_s=traced_s)


def mark(name: str, *, lane: str = WAIT) -> AbstractContextManager[Any]:
    """Return a context manager that marks this thread's work as a span of `lane` in a recorded timeline.

    The profiler itself does not know that Python waits or copies.
    """
    return jax.profiler.TraceAnnotation(f"{MARK}{lane}/{name}")


def busy(timeline: Timeline, lane: str) -> list[Interval]:
    """Return the intervals in which `lane` was busy: disjoint, in order, in seconds."""
    return union(timeline.intervals(lane))


def lane_of(device: jax.Device) -> str:
    return f"{device.platform} {device.id}"


def overlap(timeline: Timeline, a: str, b: str) -> float:
    """Return the share of the less busy lane's time, 0 to 1, in which the other lane is busy, too.

    Compare the wall time as well: devices that share cores may overlap fully and gain nothing.
    """
    shared = intersection(timeline.intervals(a), timeline.intervals(b))
    least_busy_s = min(total_length(timeline.intervals(lane)) for lane in (a, b))
    return total_length(shared) / least_busy_s if least_busy_s else 0.0


class Event(NamedTuple):
    """An event; times in nanoseconds since the profiler started."""

    name: str
    start: float
    end: float
    stats: Mapping[str, Any]


class TraceLine(NamedTuple):
    device: str  # "gpu 0", which executed the events; "" for a thread of the host
    name: str
    events: list[Event]


LaneEvent = tuple[str, str, float, float]  # lane, name, start, end


def read(data: ProfileData) -> tuple[list[Span], float]:
    """Return the spans of the run annotated as `RUN`, and its seconds; no spans and 0 without such a run.

    The run begins at 0. Spans are cut to it, and ordered by lane (Python's first, copies last), then by time.
    """
    threads = lines(data)
    windows = [(line, event) for line in threads for event in line.events if event.name == RUN]
    if not windows:
        return [], 0.0
    thread, window = windows[0]
    work = list(_python(thread))
    work += ((e.device, e.name, e.start, e.end) for e in executed_instructions(threads))
    for line in threads:
        for e in line.events:
            if (line.device and _GPU_COPIES.match(e.name)) or e.name.startswith(HOST_COPIES):
                work.append((COPIES, e.name, e.start, e.end))
            elif e.name.startswith(MARK) and not line.device:
                lane, _, name = e.name.removeprefix(MARK).partition("/")
                work.append((lane, name, e.start, e.end))
    hosts = [line for line in threads if not line.device]  # copies between GPUs have their own names
    work += ((COPIES, "between devices", *span) for span in copies_between_devices(hosts, window.end))
    began, ended = window.start, window.end
    spans = [
        Span(lane, name, max(start - began, 0.0) / 1e9, (min(end, ended) - began) / 1e9)
        for lane, name, start, end in work
        if start < ended and end > began
    ]
    order = {PYTHON: 0, WAIT: 1, COPIES: 3}
    spans.sort(key=lambda s: (order.get(s.lane, 2), s.lane, s.start_s, s.end_s))
    return spans, (ended - began) / 1e9


def starts(data: ProfileData, *prefixes: str) -> list[tuple[float, str]]:
    """Return when the host's events whose names begin with one of `prefixes` began, and these names."""
    hosts = (plane for plane in data.planes if not _DEVICE_PLANE.fullmatch(plane.name))
    found = []
    with _types_lack_modules():
        for plane in hosts:
            for line in plane.lines:
                for e in line.events:
                    name = e.name
                    if name.startswith(prefixes):
                        found.append((e.start_ns, name))
    return sorted(found)


def _types_lack_modules() -> AbstractContextManager[Any]:
    """Hide the warning of Python 3.12 that types of ProfileData have no `__module__`."""
    return warnings_hidden(DeprecationWarning, "builtin type .* has no __module__")


def lines(data: ProfileData, until: float = math.inf) -> list[TraceLine]:
    """Return the host's threads, and the devices' streams; other lines of a device group the same events.

    Events that begin after `until` are left out. Events have statistics where they may be instructions.
    """
    threads = []
    instruction_like = functools.cache(_INSTRUCTION.fullmatch)  # there are few names, and many events
    with _types_lack_modules():
        for plane in data.planes:
            match = _DEVICE_PLANE.fullmatch(plane.name)
            device = f"{match[1].lower()} {match[2]}" if match else ""
            for line in plane.lines:
                if device and not line.name.startswith(_DEVICE_LINES):
                    continue
                events = []
                for e in line.events:
                    name, start = e.name, e.start_ns
                    if start > until:
                        continue
                    stats = dict(e.stats) if device or instruction_like(name) else {}
                    # to ask for `end_ns` takes five times as long
                    events.append(Event(name, start, start + e.duration_ns, stats))
                events.sort(key=lambda e: (e.start, -e.end))
                threads.append(TraceLine(device, line.name, events))
    return threads


def _python(thread: TraceLine) -> Iterator[LaneEvent]:
    """Yield the outermost events of the recording thread, which are calls of JAX, without marked ones."""
    over = 0.0
    for e in thread.events:
        if e.name != RUN and e.start >= over and e.end > e.start:
            over = e.end
            if not e.name.startswith(MARK):
                yield PYTHON, e.name, e.start, e.end


class Executed(NamedTuple):
    """An instruction that a device executed; times in nanoseconds since the profiler started."""

    device: str
    program: str  # the compiled module's name, such as "jit_step"
    name: str
    start: float
    end: float
    run: str = ""  # id of the execution, which only CPU traces have


def executed_instructions(lines: Iterable[TraceLine]) -> Iterator[Executed]:
    """Yield the instructions that devices executed, without copies.

    One that handed its work to other threads lasts until the event "end: ..." of its number.
    """
    lines = list(lines)
    events = (e for line in lines for e in line.events if e.stats)
    ends = {e.stats["_c"]: e.start for e in events if "_c" in e.stats and e.name.startswith("end: ")}
    for line in lines:
        for e in line.events:
            stats = e.stats
            program, op = stats.get("hlo_module", ""), stats.get("hlo_op", e.name)
            if line.device and not _GPU_COPIES.match(e.name):
                yield Executed(line.device, str(program), str(op), e.start, e.end)
            elif stats and not line.device and is_instruction(e):
                cpu, run = f"cpu {stats['device_ordinal']}", str(stats.get("run_id", ""))
                end = max(e.end, ends.get(stats.get("_p"), e.end))
                yield Executed(cpu, str(program), str(op), e.start, end, run)


def is_instruction(event: Event) -> bool:
    """Return whether a CPU device executed an event; a GPU instruction's host part has "/gpu/" in `_src`."""
    stats = event.stats
    return "hlo_op" in stats and "device_ordinal" in stats and "/gpu/" not in str(stats.get("_src", ""))


def copies_between_devices(threads: Iterable[TraceLine], end: float) -> Iterator[tuple[float, float]]:
    """Yield the start and end of each copy between devices; one that the trace cuts off lasts until `end`."""
    threads = list(threads)
    asked = any(e.name.startswith(ASKS_FOR_COPY) for line in threads for e in line.events)
    for line in threads:
        if line.device:
            yield from ((e.start, e.end) for e in line.events if e.name.startswith("MemcpyP2P"))
        elif asked and line.name.startswith(CPU_POOL):
            yield from _pool_copies(line, end)


def _pool_copies(line: TraceLine, end: float) -> Iterator[tuple[float, float]]:
    """Yield the thread pool's tasks without events, up to where they schedule what waited for them."""
    began: float | None = None
    for e in [*line.events, Event("ThreadpoolListener::StopRegion", end, end, {})]:
        if e.name.endswith("::StartRegion"):
            began = e.start
            continue
        if began is not None and e.start > began and e.name.endswith(("::StopRegion", "::Record")):
            yield began, e.start
        began = None  # other tasks execute a program, or copy from the host
