"""Read the profiler's trace: what each device, the front end and the copies did.

`jax.profiler.ProfileData` has planes (host, devices) of lines (threads, streams) of events:

- CPU (JAX 0.10.2 and 0.12): every executed instruction is an event with `hlo_op` and `device_ordinal`, on the
  thread that ran it, which may be Python's. An instruction that hands its work to other threads returns
  early; an event "end: ..." with the same number marks its end. A copy between CPU devices has no event, only
  a task of the client's thread pool without an instruction in it.
- GPU: one plane per device and one line per stream ("Stream #14(Compute)"), with kernels, and copies named
  MemcpyD2H, MemcpyH2D and so on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from jax.profiler import ProfileData

from jaxperf.errors import warnings_hidden
from jaxperf.result.values import Span

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


class Event(NamedTuple):
    """An event; times in nanoseconds since the profiler started."""

    name: str
    start: float
    end: float
    stats: Mapping[str, Any]


class TraceLine(NamedTuple):
    """A thread or a stream with its events in order."""

    plane: str
    name: str
    events: list[Event]


def read(data: ProfileData) -> tuple[list[Span], float]:
    """Return the spans of the run annotated as `RUN`, and its seconds; no spans and 0 without such a run.

    The run begins at 0. Spans are cut to it, and ordered by lane (Python's first, copies last), then by time.
    """
    every = list(lines(data))
    windows = [(line, event) for line in every for event in line.events if event.name == RUN]
    if not windows:
        return [], 0.0
    thread, window = windows[0]
    on_host = [line for line in every if not _DEVICE_PLANE.fullmatch(line.plane)]
    done = end_times(on_host)
    executed = (e for line in on_host for e in executed_instructions(line, done))
    in_lanes = [*_python(thread), *((e.device, e.name, e.start, e.end) for e in executed)]
    copies_between_cpus = any(e.name.startswith(ASKS_FOR_COPY) for line in every for e in line.events)
    for line in every:
        device = _DEVICE_PLANE.fullmatch(line.plane)
        if device:
            in_lanes += _on_stream(line, f"{device[1].lower()} {device[2]}")
            continue
        in_lanes += (_marked(e) for e in line.events if e.name.startswith(MARK))
        in_lanes += ((COPIES, e.name, e.start, e.end) for e in line.events if e.name.startswith(HOST_COPIES))
        if copies_between_cpus and line.name.startswith(CPU_POOL):
            in_lanes += _pool_copies(line, window.end)
    return _cut(in_lanes, window), (window.end - window.start) / 1e9


LaneEvent = tuple[str, str, float, float]  # lane, name, start, end


def lines(data: ProfileData) -> list[TraceLine]:
    # types of ProfileData lack a __module__, for which Python 3.12 warns
    with warnings_hidden(DeprecationWarning, "builtin type .* has no __module__"):
        return [
            TraceLine(plane.name, line.name, _events(plane.name, line))
            for plane in data.planes
            for line in plane.lines
        ]


def _events(plane: str, line: Any) -> list[Event]:
    """Return the events of a line in order, with the statistics of what may be an instruction."""
    on_device = bool(_DEVICE_PLANE.fullmatch(plane))
    events = []
    for e in line.events:
        name = e.name
        stats = dict(e.stats) if on_device or _INSTRUCTION.fullmatch(name) else {}
        events.append(Event(name, e.start_ns, e.end_ns, stats))
    return sorted(events, key=lambda e: (e.start, -e.end))


def _python(thread: TraceLine) -> Iterator[LaneEvent]:
    """Yield the outermost events of the recording thread, which are calls of JAX, without marked ones."""
    over = 0.0
    for e in thread.events:
        if e.name != RUN and e.start >= over and e.end > e.start:
            over = e.end
            if not e.name.startswith(MARK):
                yield PYTHON, e.name, e.start, e.end


def _marked(event: Event) -> LaneEvent:
    lane, _, name = event.name.removeprefix(MARK).partition("/")
    return lane, name, event.start, event.end


def end_times(every: Iterable[TraceLine]) -> dict[Any, float]:
    """Return the end of each instruction that handed its work to other threads, by its number."""
    return {
        e.stats["_c"]: e.start
        for line in every
        for e in line.events
        if e.name.startswith("end: ") and "_c" in e.stats
    }


class Executed(NamedTuple):
    """An instruction that a device executed; times in nanoseconds since the profiler started."""

    device: str
    program: str  # the compiled module's name, such as "jit_step"
    name: str
    start: float
    end: float
    run: str = ""  # id of the execution, which only CPU traces have


def executed_instructions(line: TraceLine, done: Mapping[Any, float]) -> Iterator[Executed]:
    """Yield the instructions of a thread or stream, without copies; `done` comes from `end_times`."""
    device = _DEVICE_PLANE.fullmatch(line.plane)
    if device and not line.name.startswith(_DEVICE_LINES):
        return
    for e in line.events:
        program, op = str(e.stats.get("hlo_module", "")), str(e.stats.get("hlo_op", e.name))
        if device and not _GPU_COPIES.match(e.name):
            yield Executed(f"{device[1].lower()} {device[2]}", program, op, e.start, e.end)
        elif not device and _is_instruction(e):
            device_name, run = f"cpu {e.stats['device_ordinal']}", str(e.stats.get("run_id", ""))
            end = max(e.end, done.get(e.stats.get("_p"), e.end))
            yield Executed(device_name, program, op, e.start, end, run)


def _is_instruction(event: Event) -> bool:
    """Return whether a CPU device executed an event; a GPU instruction's host part has "/gpu/" in `_src`."""
    stats = event.stats
    return "hlo_op" in stats and "device_ordinal" in stats and "/gpu/" not in str(stats.get("_src", ""))


def _on_stream(line: TraceLine, device: str) -> Iterator[LaneEvent]:
    if line.name.startswith(_DEVICE_LINES):
        for e in line.events:
            lane = COPIES if _GPU_COPIES.match(e.name) else device
            yield lane, e.name, e.start, e.end


def _pool_copies(line: TraceLine, end: float) -> Iterator[LaneEvent]:
    """Yield the thread pool's tasks without an instruction; one that the trace cuts off lasts until `end`."""
    began: float | None = None
    for e in [*line.events, Event("ThreadpoolListener::StopRegion", end, end, {})]:
        if e.name.endswith("::StartRegion"):
            began = e.start
        elif e.name.endswith("::StopRegion"):
            if began is not None and e.start > began:
                yield COPIES, "between devices", began, e.start
            began = None
        elif _is_instruction(e) or e.name.startswith(HOST_COPIES):
            began = None


def _cut(in_lanes: Iterable[LaneEvent], window: Event) -> list[Span]:
    spans = [
        Span(
            lane,
            name,
            (max(start, window.start) - window.start) / 1e9,
            (min(end, window.end) - window.start) / 1e9,
        )
        for lane, name, start, end in in_lanes
        if start < window.end and end > window.start
    ]
    places = {PYTHON: 0, WAIT: 1, COPIES: 3}
    return sorted(spans, key=lambda s: (places.get(s.lane, 2), s.lane, s.start_s, s.end_s))
