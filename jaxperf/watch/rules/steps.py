"""Rules about what the front end does between two steps while devices are idle."""

from __future__ import annotations

import itertools
import re
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from jaxperf.result.formatting import format_quantity
from jaxperf.result.intervals import Interval, difference, intersection, total_length, union
from jaxperf.watch.grouping import group_by
from jaxperf.watch.observe.compiles import Compiled
from jaxperf.watch.observe.sampler import BETWEEN, DISPATCH, EAGER, WRITE
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.observe.transfers import Put
from jaxperf.watch.report.analysis import Analysis, IntervalSet
from jaxperf.watch.report.top_programs import hottest_programs
from jaxperf.watch.rules.idle import (
    OFTEN,
    REPEATS,
    copies_much,
    describe_longest_inside,
    findings_by_function,
)
from jaxperf.watch.rules.table import AHEAD, COMMUNICATE, SYNCHRONIZE, Cause, Finding, Form, rule
from jaxperf.watch.source import loop_body, statements

SLOWEST = 0.5e9  # bytes/s of the slowest copy, which bounds the seconds of a finding
SHORT_TURN_S = 2e-4  # a turn of a loop in which what a call costs is much
SHORT_TURNS_S = 0.2  # seconds of such turns that are worth another program
WRITTEN = 10_000  # bytes that make a file
WALK = 2  # ratio of `nnx.jit`'s time to JAX's own dispatch that is worth a change
SMALL_PUTS = 5  # small puts per step that are worth combining


SLOW_DISPATCH = Cause(
    "dispatch", "python",
    "dispatching a step takes longer than computing it", AHEAD,
    Form(
        "Make many steps one program, with jax.lax.scan if a step needs the one before, and with jax.vmap "
        "otherwise:",
        """\
import jax
w, _ = jax.lax.scan(lambda w, _: (w - 0.1 * w, None), 1.0, length=100)    # 100 steps""",
    ),
)  # fmt: skip
MODULE_DISPATCH = Cause(
    "module dispatch", "python",
    "nnx.jit takes modules apart in each call", AHEAD,
    Form(
        "Bind {argument} to {name} once, before the loop, with nnx.cached_partial, and call the result in "
        "the loop without them. Or call nnx.split once, and jit a function of the state.",
        """\
from flax import nnx
model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
forward = nnx.cached_partial(nnx.jit(lambda model, x: model(x)), model)    # once
forward(model.bias[...])    # in the loop: what the module learns stays in it""",
    ),
)  # fmt: skip


@rule(SLOW_DISPATCH, MODULE_DISPATCH)
def find_slow_dispatch(analysis: Analysis) -> Iterator[Finding]:
    """Find calls whose dispatch takes longer than their computation."""
    idle = analysis.idle_at(lambda s: s.kind == DISPATCH, itself=True)
    hot = {row.name: row for row in hottest_programs(analysis)}
    for c, at in analysis.called:
        program = analysis.ran(c)
        if (
            program is None
            or program.name not in hot
            or program.calls < REPEATS
            or at not in idle
            or copies_much(analysis, c)
        ):
            continue
        # as in the table of programs, so that report and finding agree
        call_s, device_s = statistics.median(program.dispatch_s), hot[program.name].device_s
        module_s = _front_s(analysis, at) / program.calls if c.through == "flax" else 0.0
        turn_s = total_length(analysis.steady) / program.calls
        device = f"the device {format_quantity(device_s, 's')}"
        if max(device_s, WALK * call_s) < module_s and (modules := _modules(c, at)):
            reason = (
                f"a call of {c.called} takes the front end {format_quantity(module_s, 's')} and {device}: "
                f"nnx.jit takes {modules} apart in Python and puts them together again in each call, and "
                f"JAX's own dispatch is {format_quantity(call_s, 's')} of it"
            )
            saved_s = idle.pop(at) * (1 - call_s / module_s)
            yield Finding("module dispatch", at, saved_s, reason, c.called, argument=modules)
        elif program.calls >= OFTEN and (device_s < call_s or device_s < turn_s < SHORT_TURN_S):
            turn = f", in turns of {format_quantity(turn_s, 's')}" if device_s >= call_s else ""
            reason = (
                f"a call of {c.called} takes the front end {format_quantity(call_s, 's')} and {device}"
                f"{turn}, so the device waits for the next call"
            )
            seconds = idle.pop(at)
            if device_s < call_s or seconds >= SHORT_TURNS_S:
                yield Finding("dispatch", at, seconds, reason, c.called)


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


LIST = Cause(
    "list", "transfer",
    "an array is made of Python's numbers on each turn of a loop", COMMUNICATE,
    Form(
        "JAX takes the numbers of a list one by one: before the loop, make one NumPy array of them all with "
        "np.array(..., np.float32), and give each turn its rows."
    ),
)  # fmt: skip


@rule(LIST)
def find_list_conversions(analysis: Analysis) -> Iterator[Finding]:
    """Find lines that repeatedly make an array from a list of many numbers."""
    for at, made in group_by((p for p in analysis.record.puts if p.numbers), lambda put: put.at).items():
        steady = IntervalSet(analysis.steady)
        seen_s = sum(steady.within(put.start, put.end) for put in made)
        idle_s = sum(analysis.idle.within(put.start, put.end) for put in made)
        lost_s = idle_s / seen_s * sum(put.end - put.start for put in made) if seen_s else 0.0
        reason = f"{made[0].numbers} numbers of Python's become an array here, {len(made)} times"
        if len(made) >= REPEATS:
            yield Finding("list", at, lost_s, reason)


PUT_AGAIN = Cause(
    "put again", "transfer",
    "the same array is copied to the device on each turn of a loop", COMMUNICATE,
    Form(
        "Copy it once, before the loop."
    ),
    forms={
        "function": Form(
            "Call this once for what does not change, before the loop, and keep the array."
        ),
    },
    choose=lambda f: "" if statements.innermost(f.at, loop_body.LOOP) else "function",
)  # fmt: skip


@rule(PUT_AGAIN)
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
            seconds = total_length(intersection(idle, union(lost))) * analysis.scale
            if again[0].elsewhere:
                seconds = max(seconds, _copied_between_devices_s(analysis, at, again))
            yield Finding("put again", at, seconds, reason)


def _copied_between_devices_s(analysis: Analysis, at: Place, again: list[Put]) -> float:
    """Return the seconds in which the function of a put waited, or called, while no device computed.

    A copy between devices has no event of its own. The calls behind it wait until it has arrived.
    """
    here = [spans for line, spans in analysis.blocked.items() if (line.file, line.function) == at[::2]]
    waited = union([*itertools.chain(*here), *((put.start, put.end) for put in again)])
    seen = intersection(waited, analysis.steady)
    busy_s, seen_s = total_length(intersection(seen, analysis.busy)), total_length(seen)
    copied_s = total_length(waited) * (1 - busy_s / seen_s) if seen_s else 0.0
    return min(copied_s, sum(put.nbytes for put in again) / SLOWEST)


PUTS_ONE_BY_ONE = Cause(
    "puts one by one", "transfer",
    "small arrays are put on devices one by one", COMMUNICATE,
    Form(
        "Give jax.device_put the whole dictionary or list, and one sharding that is made once."
    ),
)  # fmt: skip


@rule(PUTS_ONE_BY_ONE)
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


FILE_WRITTEN = Cause(
    "write", "python",
    "devices wait while a file is written", SYNCHRONIZE,
    Form(
        "Write less often (if step % 100 == 0), or behind the next steps: the CheckpointManager of "
        "orbax.checkpoint writes in threads of its own."
    ),
)  # fmt: skip


@rule(FILE_WRITTEN)
def find_writes(analysis: Analysis) -> Iterator[Finding]:
    """Find lines that write files, such as checkpoints, while devices are idle."""
    idle = analysis.idle_at(lambda s: s.kind == WRITE)
    written: Counter[tuple[str, str]] = Counter()
    for s in analysis.samples:
        if s.kind == WRITE:
            written[s.at.file, s.at.function] += s.written
    known = any(s.written for s in analysis.samples)  # not on all systems
    for finding in findings_by_function("write", idle, "devices are idle while this line writes"):
        # a method called `save` may write nothing
        if not known or written[finding.at.file, finding.at.function] >= WRITTEN:
            yield finding


PYTHON = Cause(
    "python", "python",
    "Python between two steps keeps devices idle", AHEAD,
    Form(
        "Do it less often (if step % 100 == 0), or all of it after the loop."
    ),
    forms={
        "next step": Form(
            "Dispatch what does not need this first, or make it part of the jitted step, so that the device "
            "has something to compute meanwhile."
        ),
    },
    choose=lambda f: "next step" if statements.gives_a_value(f.at) else "",
)  # fmt: skip


@rule(PYTHON)
def find_python_work(analysis: Analysis) -> Iterator[Finding]:
    """Find the reader's Python code between two steps, which delays the dispatch of the next step."""
    idle = analysis.idle_at(lambda s: s.kind == BETWEEN, itself=True)
    idle = {at: s for at, s in idle.items() if not loop_body.element_read(at)}  # `find_waits` covers these
    reason = "devices have done all steps that were dispatched, and are idle while Python runs here"
    for finding in findings_by_function("python", idle, reason):
        yield replace(finding, reason=reason + describe_longest_inside(analysis, BETWEEN, finding.at))
