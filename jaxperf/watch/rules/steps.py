"""Rules about what the front end does between two steps while devices are idle."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator
from dataclasses import replace

from jaxperf.result.formatting import format_quantity
from jaxperf.result.intervals import Interval, difference, intersection, total_length, union
from jaxperf.watch.finding import Finding
from jaxperf.watch.grouping import group_by
from jaxperf.watch.observe.compiles import Compiled
from jaxperf.watch.observe.sampler import BETWEEN, DISPATCH, EAGER, WRITE
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.observe.windows import ExecutedProgram
from jaxperf.watch.report.analysis import Analysis, IntervalSet
from jaxperf.watch.rules.idle import (
    OFTEN,
    REPEATS,
    copies_much,
    describe_longest_inside,
    findings_by_function,
)
from jaxperf.watch.source import loop_body, statements

WALK = 2  # ratio of `nnx.jit`'s time to JAX's own dispatch that is worth a change
SMALL_PUTS = 5  # small puts per step that are worth combining


def find_slow_dispatch(analysis: Analysis) -> Iterator[Finding]:
    """Find calls whose dispatch takes longer than their computation."""
    idle = analysis.idle_at(lambda s: s.kind == DISPATCH, itself=True)
    for c, at in analysis.called:
        program = analysis.ran(c)
        if program is None or program.calls < REPEATS or at not in idle or copies_much(analysis, c):
            continue
        call_s, device_s = statistics.quantiles(program.dispatch_s, n=4)[0], _device_s(program)
        module_s = _front_s(analysis, at) / program.calls if c.through == "flax" else 0.0
        device = f"the device {format_quantity(device_s, 's')}"
        if max(device_s, WALK * call_s) < module_s and (modules := _modules(c, at)):
            reason = (
                f"a call of {c.called} takes the front end {format_quantity(module_s, 's')} and {device}: "
                f"nnx.jit takes {modules} apart in Python and puts them together again in each call, and "
                f"JAX's own dispatch is {format_quantity(call_s, 's')} of it"
            )
            saved_s = idle.pop(at) * (1 - call_s / module_s)
            yield Finding("module dispatch", at, saved_s, reason, c.called, argument=modules)
        elif device_s < call_s and program.calls >= OFTEN:
            reason = (
                f"a call of {c.called} takes the front end {format_quantity(call_s, 's')} and {device}, so "
                "the device waits for the next call"
            )
            yield Finding("dispatch", at, idle.pop(at), reason, c.called)


def _front_s(analysis: Analysis, at: Place) -> float:
    """Return the seconds in windows that the front end spent in calls of jitted functions at a line."""
    windows = IntervalSet(analysis.steady)
    calls = [s for s in analysis.samples if s.kind == DISPATCH and s.at == at]
    shares = [(s, windows.within(s.start, s.end) / (s.end - s.start)) for s in calls if s.end > s.start]
    return sum(analysis.front(s) * share for s, share in shares)


def _modules(c: Compiled, at: Place) -> str:
    """Return the variables of the modules that a call passes, such as "model, optimizer"."""
    arguments = {m[1]: None for where in c.signature if (m := re.match(r"((?:argument )?\w+)\.", where))}
    return ", ".join(statements.variable_passed(at, c.called, argument) for argument in arguments)


def _device_s(program: ExecutedProgram) -> float:
    """Return the seconds that a device takes for a call, without occasional waits for other programs."""
    return min(program.busiest_s / program.calls, statistics.median(program.run_s or [math.inf]))


def find_list_conversions(analysis: Analysis) -> Iterator[Finding]:
    """Find lines that repeatedly make an array from a list of many numbers."""
    for at, made in group_by((p for p in analysis.record.puts if p.numbers), lambda put: put.at).items():
        lost_s = sum(analysis.idle.within(put.start, put.end) for put in made) * analysis.scale
        reason = f"{made[0].numbers} numbers of Python's become an array here, {len(made)} times"
        if len(made) >= REPEATS:
            yield Finding("list", at, lost_s, reason)


def find_repeated_puts(analysis: Analysis) -> Iterator[Finding]:
    """Find lines that put the same large array on a device again and again."""
    programs = analysis.record.activity.programs
    busy = [span for name in analysis.jitted.keys() & programs.keys() for span in programs[name].spans]
    idle = difference(analysis.steady, busy)  # the copy itself may run then
    for at, made in group_by((p for p in analysis.record.puts if p.nbytes), lambda put: put.at).items():
        again = [put for put in made if put.again]
        copying = _copying(analysis, at) if len(again) > len(made) / 2 else []
        lost = [(put.start, put.end) for put in again] + copying
        if again and again[0].elsewhere:  # a called program waits for the copy
            lost += analysis.record.activity.queued
        if again:
            copied = format_quantity(again[0].nbytes, "bytes")
            reason = f"the same {copied} are copied to the device {len(again) + 1} times here"
            yield Finding(
                "put again", at, total_length(intersection(idle, union(lost))) * analysis.scale, reason
            )


def find_small_puts(analysis: Analysis) -> Iterator[Finding]:
    """Find lines that put many small arrays on devices for each step, one by one."""
    activity = analysis.record.activity
    steps = max((p.calls for name, p in activity.programs.items() if name in analysis.jitted), default=0)
    idle = analysis.idle_at(lambda s: s.kind == EAGER)
    for at, times in analysis.record.small_puts.items():
        count = sum(any(a <= t <= b for a, b in activity.windows) for t in times)
        if at in idle and count >= max(OFTEN, SMALL_PUTS * steps):
            each = count / max(1, steps)
            reason = (
                f"jax.device_put is called {len(times)} times here, about {each:.0f} for each step, and "
                "devices are idle meanwhile"
            )
            yield Finding("puts one by one", at, idle[at] * (1 - 1 / each), reason)


def _copying(analysis: Analysis, at: Place) -> list[Interval]:
    """Return the intervals in which devices ran JAX's own programs that copy this line's arrays."""
    names = {c.program for c in analysis.record.compiled if c.at == at} - analysis.jitted.keys()
    programs = (p for n, p in analysis.record.activity.programs.items() if n in names and p.copies)
    return [span for program in programs for span in program.spans]


def find_writes(analysis: Analysis) -> Iterator[Finding]:
    """Find lines that write files, such as checkpoints, while devices are idle."""
    idle = analysis.idle_at(lambda s: s.kind == WRITE, itself=True)
    yield from findings_by_function("write", idle, "devices are idle while this line writes")


def find_python_work(analysis: Analysis) -> Iterator[Finding]:
    """Find the reader's Python code between two steps, which delays the dispatch of the next step."""
    idle = analysis.idle_at(lambda s: s.kind == BETWEEN, itself=True)
    idle = {at: s for at, s in idle.items() if not loop_body.element_read(at)}  # `find_waits` covers these
    reason = "devices have done all steps that were dispatched, and are idle while Python runs here"
    for finding in findings_by_function("python", idle, reason):
        yield replace(finding, reason=reason + describe_longest_inside(analysis, BETWEEN, finding.at))
