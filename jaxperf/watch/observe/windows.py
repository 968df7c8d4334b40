"""Read what windows of JAX's profiler saw: device activity, dispatches, and copies of arguments."""

import bisect
import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from jaxperf.result.intervals import Interval, clip
from jaxperf.watch.grouping import group_by
from jaxperf.watch.log import DeviceActivity, Log, canonical_name

MARK = "jaxperf watch"
_COPIES = ("DevicePut", "cpp_pjit_shard_arg_fallback")  # to one device, to several
FEW_CALLS = 20  # a call and the one inside of it count as two
_DISPATCH = re.compile(r"PjitFunction\((.*)\)")


@dataclass
class Execution:
    """One execution of a program on a device, as far as a window saw it."""

    device: str
    program: str
    start: float
    end: float
    last_op: str  # the instruction that ended last
    ops: set[str] = field(default_factory=set)  # the instructions


@dataclass
class Dispatch:
    """A call of a jitted function; times in nanoseconds of the profiler's clock."""

    program: str
    start: float
    end: float
    copies: int = 0  # arrays that it copied
    computed: float = 0.0  # a CPU device executes what seems small to XLA in the thread that calls it


def read_window(profile: bytes, tied: float, ended: float, log: Log, share: float = 1.0) -> None:
    """Add to the log what one window saw; `tied` is when its event `MARK` was, and `ended` its end.

    The first `share` of it is read, or more if that has only few calls.
    """
    from jax.profiler import ProfileData

    from jaxperf.measure import timeline  # which imports JAX

    data, until = ProfileData.from_serialized_xspace(profile), math.inf
    if share < 1.0:
        named = timeline.starts(data, MARK, "PjitFunction(")
        began = min((start for start, name in named if name == MARK), default=0.0)
        calls_at = [start for start, name in named if name != MARK][:FEW_CALLS]
        until = max([began + share * (ended - tied) * 1e9, *calls_at])
    lines = timeline.lines(data, until)
    marks = [e.start for line in lines for e in line.events if e.name == MARK]
    if not marks:
        return

    def clock(ns: float) -> float:
        return tied + (ns - marks[0]) / 1e9

    ended = min(ended, clock(until))
    instructions = list(timeline.executed_instructions(lines))
    # on a CPU, work that was queued before the window has no events, so the window begins at the first event
    first = clock(min(e.start for e in instructions)) if instructions else tied
    window, activity = (max(first, tied), ended), log.activity
    # an instruction that began before a window has no event in it: the device for which one waits is busy
    if instructions or not any(wait.start < ended and tied < wait.end for wait in log.waits):
        activity.windows.append(window)
    copied = timeline.copies_between_devices(lines, marks[0] + (ended - tied) * 1e9)
    activity.copying += clip([(clock(a), clock(b)) for a, b in copied], *window)
    executions: dict[tuple[str, str, str], Execution] = {}
    for e in instructions:  # there may be a hundred thousand
        name, start, end = canonical_name(e.program), clock(e.start), clock(e.end)
        record = activity.program(name)
        spans, times = record.devices[e.device], record.ops[e.device, e.name]
        begin, until = max(start, window[0]), min(end, window[1])
        if begin < until:
            spans.append((begin, until))
            times.append(until - begin)
        known = executions.get((e.device, name, e.run))
        if known:
            known.start = min(start, known.start)
            known.end, known.last_op = max((known.end, known.last_op), (end, e.name))
        elif e.run:
            known = executions[e.device, name, e.run] = Execution(e.device, name, start, end, e.name)
        if known:
            known.ops.add(e.name)
    calls: dict[str, list[Interval]] = defaultdict(list)
    called = [*itertools.chain.from_iterable(map(dispatches, lines))]
    if not instructions and not called:
        activity.silent.append(window)
    for call in called:
        record = activity.program(canonical_name(call.program))
        record.calls += 1
        record.copies += call.copies
        record.dispatch_s.append((call.end - call.start - call.computed) / 1e9)
        record.computed_s += call.computed / 1e9
        calls[record.name].append((clock(call.start), clock(call.end)))
    for name, spans in calls.items():
        starts = sorted(start for start, _ in spans)
        activity.program(name).turns_s += [later - start for start, later in itertools.pairwise(starts)]
    add_executions(activity, executions.values(), calls, window)


def add_executions(
    activity: DeviceActivity,
    executions: Iterable[Execution],
    calls: Mapping[str, list[Interval]],
    window: Interval,
) -> None:
    """Add the executions of a window, and the intervals in which some were queued.

    An instruction that is still running when the window ends has no event. So if the last execution lacks its
    last instruction, the device was busy until the end.
    """
    in_order, (_, ended) = sorted(executions, key=lambda e: (e.start, e.end)), window
    for same in group_by(in_order, lambda e: (e.device, e.program)).values():
        called = calls.get(same[0].program)
        # executions that are shorter than their calls are not queued: they wait for the dispatch
        if called and median(e.end - e.start for e in same) >= median(end - start for start, end in called):
            activity.queued += clip(queued_intervals(called, (e.start for e in same)), *window)
    for device, on_device in group_by(in_order, lambda e: e.device).items():
        number = Counter(e.program for e in on_device)
        for i, e in enumerate(on_device):
            record, called = activity.program(e.program), calls.get(e.program, [])
            record.run_s.append(min(e.end, ended) - e.start)
            record.runs[frozenset(e.ops)] += record.run_s[-1]
            began_inside = i > 0 or (len(called) >= number[e.program] and min(called)[0] <= e.start)
            record.whole += began_inside and i < len(on_device) - 1
        *others, last = sorted(on_device, key=lambda e: e.end)
        for e in others:
            activity.program(e.program).last_ops.add(e.last_op)
        record = activity.program(last.program)
        if record.last_ops and last.last_op not in record.last_ops and last.end < ended:
            record.devices[device].append((last.end, ended))


def queued_intervals(calls: Iterable[Interval], starts: Iterable[float]) -> list[Interval]:
    """Return the intervals from the end of each call of a program to the start of its execution.

    Executions are in the order of calls. The first ones may belong to calls before the window. Only so many
    are skipped that no execution begins before its call, so the intervals are a lower bound.
    """
    in_order, runs = sorted(calls), sorted(starts)
    before = max((bisect.bisect_left(runs, start) - k for k, (start, _) in enumerate(in_order)), default=0)
    pairs = zip(in_order, runs[max(0, before) :])
    return [(end, start) for (_, end), start in pairs if end < start]


def dispatches(line: Any) -> Iterator[Dispatch]:
    """Yield the outermost calls in a thread."""
    from jaxperf.measure import timeline

    call: Dispatch | None = None
    computed_until = 0.0
    for e in line.events:
        inside = call is not None and e.start < call.end
        if not inside and (match := _DISPATCH.fullmatch(e.name)):
            if call is not None:
                yield call
            call = Dispatch(match[1], e.start, e.end)
        elif call is None or not inside:
            continue
        elif e.name in _COPIES:
            call.copies += 1
        elif e.start >= computed_until and e.stats and timeline.is_instruction(e):
            computed_until = min(e.end, call.end)
            call.computed += computed_until - e.start
    if call is not None:
        yield call
