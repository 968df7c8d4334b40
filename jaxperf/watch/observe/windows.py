"""Read what windows of JAX's profiler saw: device activity, dispatches, and copies of arguments."""

from __future__ import annotations

import bisect
import itertools
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from jaxperf.result.intervals import Interval, clip
from jaxperf.watch.log import DeviceActivity, ExecutedProgram, Log, canonical_name

__all__ = ["MARK", "DeviceActivity", "ExecutedProgram", "canonical_name", "queued_intervals", "read_window"]

MARK = "jaxperf watch"
_COPIES = ("DevicePut", "cpp_pjit_shard_arg_fallback")  # to one device, to several
_DISPATCH = re.compile(r"PjitFunction\((.*)\)")


def read_window(profile: bytes, tied: float, ended: float, log: Log) -> None:
    """Add to the log what one window saw; `tied` is when its event `MARK` was, and `ended` its end."""
    from jax.profiler import ProfileData

    from jaxperf.measure import trace  # which imports JAX

    lines = list(trace.lines(ProfileData.from_serialized_xspace(profile)))
    marks = [e.start for line in lines for e in line.events if e.name == MARK]
    if not marks:
        return

    def clock(ns: float) -> float:
        return tied + (ns - marks[0]) / 1e9

    done = trace.end_times(lines)
    executed = [list(trace.executed_instructions(line, done)) for line in lines]
    # on a CPU, work that was queued before the window has no events, so the window begins at the first event
    first = min((clock(e[3]) for events in executed for e in events), default=tied)
    window, activity = (max(first, tied), ended), log.activity
    # an instruction that began before a window has no event in it: the device for which one waits is busy
    if any(executed) or not any(wait.start < ended and tied < wait.end for wait in log.waits):
        activity.windows.append(window)
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
            calls[record.name].append((clock(start), clock(end)))
    for name, spans in calls.items():
        starts = sorted(start for start, _ in spans)
        activity.program(name).turns_s += [later - start for start, later in itertools.pairwise(starts)]
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
