"""Read what windows of JAX's profiler saw: device activity, dispatches, and copies of arguments."""

from __future__ import annotations

import bisect
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxperf.result.intervals import Interval, clip, total_length, union

MARK = "jaxperf watch"
_COPIES = ("DevicePut", "cpp_pjit_shard_arg_fallback")  # to one device, to several
_DISPATCH = re.compile(r"PjitFunction\((.*)\)")


@dataclass
class ExecutedProgram:
    """What windows saw of one program.

    Attributes:
      name: the program's canonical name.
      calls, dispatch_s: calls from Python, and the seconds that each took to return.
      copies: arrays that these calls had to copy first, from the host or from other devices.
      devices: the intervals in which each device computed it.
      ops: seconds of each run of an instruction, by device and instruction name.
      run_s: seconds of each execution, as far as a window saw it; empty if the trace has no run ids.
      whole: the number of executions that lie inside a window.
      last_ops: the last instructions of executions that no window cut off at its end.
    """

    name: str
    calls: int = 0
    dispatch_s: list[float] = field(default_factory=list)
    copies: int = 0
    devices: dict[str, list[Interval]] = field(default_factory=lambda: defaultdict(list))
    ops: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    run_s: list[float] = field(default_factory=list)
    whole: int = 0
    last_ops: set[str] = field(default_factory=set)

    @property
    def cut_off(self) -> bool:
        """Return whether no execution is known to lie inside a window."""
        return bool(self.run_s) and not self.whole

    @property
    def spans(self) -> list[Interval]:
        """Return the intervals of all devices."""
        return [span for spans in self.devices.values() for span in spans]

    @property
    def busiest_s(self) -> float:
        """Return the seconds of the busiest device."""
        return max(map(total_length, self.devices.values()), default=0.0)

    def op_s(self, wanted: Callable[[str], bool]) -> float:
        """Return the seconds, on all devices, of instructions for whose names `wanted` is true."""
        return sum(sum(times) for (_, op), times in self.ops.items() if wanted(op))


@dataclass
class DeviceActivity:
    """What all windows saw; times are of `time.perf_counter`."""

    windows: list[Interval] = field(default_factory=list)
    programs: dict[str, ExecutedProgram] = field(default_factory=dict)
    queued: list[Interval] = field(default_factory=list)  # between a call's end and its execution's start
    empty: list[Interval] = field(default_factory=list)  # windows in which no instruction began

    def program(self, name: str) -> ExecutedProgram:
        """Return the program of a name; add it if it is new."""
        return self.programs.setdefault(name, ExecutedProgram(name))

    @property
    def busy(self) -> dict[str, list[Interval]]:
        """Return the intervals in which each device computed anything."""
        spans_by_device: dict[str, list[Interval]] = defaultdict(list)
        for program in self.programs.values():
            for device, spans in program.devices.items():
                spans_by_device[device] += spans
        return {device: union(spans) for device, spans in sorted(spans_by_device.items())}

    def drop_unseen(self, waits: Iterable[Interval]) -> None:
        """Drop the empty windows in which the front end waited for a device.

        The device was busy then: an instruction that began before a window has no event in it.
        """
        waited = list(waits)
        unseen = [w for w in self.empty if any(a < w[1] and w[0] < b for a, b in waited)]
        self.windows = [w for w in self.windows if w not in unseen]


def read_window(file: Path, tied: float, ended: float, activity: DeviceActivity) -> None:
    """Add to `activity` what one window saw.

    Args:
      file: the profiler's file.
      tied: the time of the event `MARK`, by `time.perf_counter`.
      ended: the end of the window, by `time.perf_counter`.
      activity: what earlier windows saw.
    """
    from jax.profiler import ProfileData

    from jaxperf.measure import trace  # which imports JAX

    lines = list(trace.lines(ProfileData.from_file(str(file))))
    marks = [e.start for line in lines for e in line.events if e.name == MARK]
    if not marks:
        return

    def clock(ns: float) -> float:
        return tied + (ns - marks[0]) / 1e9

    done = trace.end_times(lines)
    executed = [list(trace.executed_instructions(line, done)) for line in lines]
    # on a CPU, work that was queued before the window has no events, so the window begins at the first event
    first = min((clock(e[3]) for events in executed for e in events), default=tied)
    window = (max(first, tied), ended)
    activity.windows.append(window)
    if not any(executed):
        activity.empty.append(window)
    calls: dict[str, list[Interval]] = defaultdict(list)
    runs: dict[tuple[str, str], dict[str, Interval]] = defaultdict(dict)
    last: dict[tuple[str, str, str], tuple[float, str]] = {}  # each execution's last instruction and its end
    for line, events in zip(lines, executed):
        for device, program, op, start, end, run in events:
            spans = clip([(clock(start), clock(end))], *window)
            record = activity.program(canonical_name(program))
            record.devices[device] += spans
            record.ops[device, op] += [b - a for a, b in spans]
            if run:
                known = runs[device, canonical_name(program)]
                began, until = known.get(run, (ended, tied))
                known[run] = min(clock(start), began), max(min(clock(end), ended), until)
                at = device, canonical_name(program), run
                last[at] = max(last.get(at, (tied, "")), (clock(end), op))
        for name, start, end, copies in _dispatches(line):
            record = activity.program(canonical_name(name))
            record.calls += 1
            record.copies += copies
            record.dispatch_s.append((end - start) / 1e9)
            calls[canonical_name(name)].append((clock(start), clock(end)))
    _add_executions(activity, runs, calls, window)
    _add_tails(activity, last, ended)


def _add_tails(
    activity: DeviceActivity, last: dict[tuple[str, str, str], tuple[float, str]], ended: float
) -> None:
    """Count the end of a window as busy if the last execution in it lacks its last instruction.

    An instruction that is still running when the window ends has no event.
    """
    for device in {device for device, _, _ in last}:
        in_order = sorted((moment, op, name) for (at, name, _), (moment, op) in last.items() if at == device)
        for _, op, name in in_order[:-1]:
            activity.program(name).last_ops.add(op)
        moment, op, name = in_order[-1]
        if activity.program(name).last_ops and op not in activity.program(name).last_ops and moment < ended:
            activity.program(name).devices[device].append((moment, ended))


def _add_executions(
    activity: DeviceActivity,
    runs: dict[tuple[str, str], dict[str, Interval]],
    calls: dict[str, list[Interval]],
    window: Interval,
) -> None:
    """Add the executions of a window, by device and program, and the intervals in which some were queued.

    Executions that are shorter than their calls are not queued: they wait for the dispatch.
    """
    for (_, name), known in runs.items():
        spans = known.values()
        if calls[name] and _median_s(spans) >= _median_s(calls[name]):
            activity.queued += clip(queued_intervals(calls[name], (start for start, _ in spans)), *window)
    for device in {device for device, _ in runs}:
        in_order = sorted(
            (*span, name) for (at, name), known in runs.items() if at == device for span in known.values()
        )
        number = Counter(name for _, _, name in in_order)
        for i, (start, end, name) in enumerate(in_order):
            ran = activity.program(name)
            ran.run_s.append(end - start)
            called = len(calls[name]) >= number[name] and min(calls[name])[0] <= start
            # the last execution may have an instruction that was still running at the end, without an event
            ran.whole += (i > 0 or called) and i < len(in_order) - 1


def _median_s(spans: Iterable[Interval]) -> float:
    return statistics.median(end - start for start, end in spans)


def queued_intervals(calls: Iterable[Interval], starts: Iterable[float]) -> list[Interval]:
    """Return the intervals from the end of each call of a program to the start of its execution.

    Executions are in the order of calls. The first ones may belong to calls before the window. Only so many
    are skipped that no execution begins before its call, so the intervals are a lower bound.
    """
    in_order, runs = sorted(calls), sorted(starts)
    before = max((bisect.bisect_left(runs, start) - k for k, (start, _) in enumerate(in_order)), default=0)
    pairs = zip(in_order, runs[max(0, before) :])
    return [(end, start) for (_, end), start in pairs if end < start]


def _dispatches(line: Any) -> Iterator[tuple[str, float, float, int]]:
    """Yield name, start and end (ns) of each outermost call in a thread, and the arrays that it copied."""
    over, name, start, copies = 0.0, "", 0.0, 0
    for e in line.events:
        if e.start >= over and (match := _DISPATCH.fullmatch(e.name)):
            if name:
                yield name, start, over, copies
            name, start, over, copies = match[1], e.start, e.end, 0
        elif e.name in _COPIES and e.start < over:
            copies += 1
    if name:
        yield name, start, over, copies


def canonical_name(name: str) -> str:
    """Return one name for "jit__lambda", "jit__lambda_", "jit(<lambda>)", "<lambda>" and "lambda"."""
    return re.sub(r"\W+", "_", name).removeprefix("jit_").strip("_")
