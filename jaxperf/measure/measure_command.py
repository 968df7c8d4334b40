"""`jaxperf measure`: the user's functions, measured with the instruments and reported like a section."""

from __future__ import annotations

import functools
import inspect
import math
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from jaxperf.errors import JaxperfError, to_one_line
from jaxperf.measure import MemorySampler, Program, block, device_memory, interleaved
from jaxperf.measure.compile_log import refuse_debug_flags
from jaxperf.measure.environment import current_environment
from jaxperf.measure.roofline import MISSING, Position, Roofline, stored_roofline
from jaxperf.measure.stages import build_program
from jaxperf.measure.user_function import EXAMPLE, Arguments, load_arguments, load_function, user_errors_shown
from jaxperf.process import forced_end
from jaxperf.result import About, Measurement, interval, ratio, save_result, terminal
from jaxperf.result.formatting import format_list, format_on_page
from jaxperf.result.recorder import Recorder
from jaxperf.result.store import check_writable

LOOK_S = 0.001  # between two memory samples during a call
ABOVE = 1.05  # of the roofline; noise explains less than this
EXPLAINS = 0.5  # share of the time from which on a limit explains it, as in section 8.0
ALIKE = 0.05  # two functions whose ratio is known to be within this of 1 count as equally fast


@dataclass(frozen=True)
class First:
    """What the first call of a function showed."""

    paid: Mapping[str, float]  # seconds by stage; what is not jitted has only one, its first call
    program: Program | None  # what it was compiled to, if it is jitted
    donates: bool  # whether it donates its arguments, so that every call must get copies


@forced_end()
def main(
    functions: Sequence[str],
    *,
    args: Sequence[str],
    setup: str,
    jit: bool,
    rounds: int,
    budget_s: float,
    json: Path | None,
) -> int:
    """Measure functions, print the result, and write it to `json`; its help says more."""
    path = check_writable(json) if json else None
    refuse_debug_flags()
    environment = current_environment()
    by_name = _named(functions, jit=jit)
    call_arguments = load_arguments(args, setup)
    config = {
        "functions": tuple(functions), "args": tuple(args), "setup": setup, "jit": jit,
        "rounds": rounds, "budget_s": budget_s,
    }  # fmt: skip
    title = format_list(list(by_name)) if len(by_name) <= 3 else f"{len(by_name)} functions"
    about = About("measure", "", title, "Where does the time of a call go, and what limits it?")
    recorder = Recorder(about, environment, config, command=shlex.join(["jaxperf", *sys.argv[1:]]))
    record_all(recorder, by_name, call_arguments, rounds=rounds, budget_s=budget_s)
    if path:
        save_result(recorder.result(), path)
    print(to_one_line(f"result: {json or 'not kept; give --json PATH to keep it'}"))
    return 0


def _named(targets: Sequence[str], *, jit: bool) -> dict[str, Callable[..., Any]]:
    """Return the functions by name, or by the arguments that name them if two have the same name."""
    if not targets:
        raise JaxperfError(f"no function named; {EXAMPLE}")
    if len(set(targets)) < len(targets):
        raise JaxperfError(f"{max(targets, key=list(targets).count)} is named twice; name each function once")
    short = [target.rpartition(":")[2] for target in targets]
    names = targets if len(set(short)) < len(short) else short
    functions = {name: load_function(target) for name, target in zip(names, targets)}
    return {name: jax.jit(fn) if jit and not is_jitted(fn) else fn for name, fn in functions.items()}


def is_jitted(fn: Callable[..., Any]) -> bool:
    """Return whether `fn` is what `jax.jit` returned, whose stages can be taken one by one.

    A bound method of a jitted function is not: its stages are those of the function, which lack `self`.
    """
    return hasattr(fn, "trace") and hasattr(fn, "clear_cache") and not inspect.ismethod(fn)


def record_all(
    recorder: Recorder,
    functions: Mapping[str, Callable[..., Any]],
    call_arguments: Arguments,
    *,
    rounds: int,
    budget_s: float = 0.0,
) -> None:
    """Measure the functions with the same arguments, compare them with the first, and record all about them.

    `rounds` and `budget_s` are `count` and `budget_s` of `interleaved`.
    """
    terminal.print_all([recorder.result()])
    firsts = {name: first_call(name, fn, call_arguments) for name, fn in functions.items()}
    rows = [Measurement(f"{n}: {stage}", "s", (s,)) for n, f in firsts.items() for stage, s in f.paid.items()]
    recorder.table(rows, title="Once, before the program is warm")
    parts, before = _parts(functions, firsts, call_arguments)
    with user_errors_shown("a later call"):
        timed = interleaved(parts, count=rounds, budget_s=budget_s, before=before)
    base = next(iter(timed))
    recorder.table(timed.values(), title="Seconds per call, in turns", base=base if len(timed) > 1 else "")
    roofline = stored_roofline(recorder.environment)
    positions: dict[str, Position | None] = dict.fromkeys(parts)
    for name, first in firsts.items():
        if first.program and roofline:
            positions[name] = roofline.position(first.program, seconds=timed[name].median)
    used = {name: memory_of(parts[name], before.get(name)) for name in parts}
    _record_programs(recorder, firsts, positions, used)
    _record_verdicts(recorder, timed, positions)
    _record_remarks(recorder, firsts, positions, roofline)


def first_call(name: str, fn: Callable[..., Any], call_arguments: Arguments) -> First:
    """Call `fn` for the first time, stage by stage if it is jitted."""
    paid: dict[str, float] = {}
    program = None
    arguments = block(call_arguments.fresh())
    with user_errors_shown(name):
        if is_jitted(fn):
            built = build_program(fn, *arguments.by_position, **arguments.by_name)
            paid |= {"trace": built.trace_s, "lower": built.lower_s, "compile": built.compile_s}
            program = built.program
        began = time.perf_counter()
        block(arguments.passed_to(fn))
        paid["first run" if program else "first call"] = time.perf_counter() - began
    return First(paid, program, arguments.used_up)


def _parts(
    functions: Mapping[str, Callable[..., Any]], firsts: Mapping[str, First], call_arguments: Arguments
) -> tuple[dict[str, Callable[..., Any]], dict[str, Callable[[], Any]]]:
    """Return what `interleaved` calls, and what it prepares, untimed, if a function donates.

    Then all get copies: a value of one call takes longer than the mean of many, whichever function is called.
    """
    if any(first.donates for first in firsts.values()):
        parts: dict[str, Callable[..., Any]] = {
            name: functools.partial(lambda fn, arguments: arguments.passed_to(fn), fn)
            for name, fn in functions.items()
        }
        return parts, dict.fromkeys(functions, call_arguments.fresh)
    # No function of ours between the clock and theirs
    by_position, by_name = call_arguments
    return {name: functools.partial(fn, *by_position, **by_name) for name, fn in functions.items()}, {}


def memory_of(part: Callable[..., Any], prepare: Callable[[], Any] | None) -> int:
    """Return the bytes that one warm call uses above the level before it, as far as samples show.

    They are from the device's own statistics or, if there are none, from this process's resident memory.
    """
    prepared = (block(prepare()),) if prepare else ()
    statistics = device_memory()
    read = (lambda: device_memory()["bytes_in_use"]) if "bytes_in_use" in statistics else None
    with user_errors_shown("a later call"), MemorySampler(LOOK_S, read) as sampler:
        block(part(*prepared))
    return sampler.increase_bytes


def _record_programs(
    recorder: Recorder,
    firsts: Mapping[str, First],
    positions: Mapping[str, Position | None],
    used: Mapping[str, int],
) -> None:
    """Show each program in numbers, with one column per function, and keep the numbers as facts."""
    columns = [_numbers(f.program, positions[name], used[name]) for name, f in firsts.items()]
    for name, column in zip(firsts, columns):
        for label, (value, unit) in column.items():
            recorder.fact(f"{name}: {label}", value, unit=unit, in_table=True)
    names = dict.fromkeys([*max(columns, key=len), *(label for column in columns for label in column)])
    rows = [[label, *(_cell(column.get(label)) for column in columns)] for label in names]
    recorder.grid(["", *firsts], rows, title="The program, as the compiler sees it")


Number = tuple[float | int | str, str]


def _numbers(program: Program | None, position: Position | None, used: int) -> dict[str, Number]:
    numbers: dict[str, Number] = {}
    if program:
        numbers |= {
            "arithmetic": (program.flops, "FLOP"),
            "memory read and written": (program.bytes_accessed, "bytes"),
            "arguments": (program.argument_bytes, "bytes"),
            "outputs": (program.output_bytes, "bytes"),
            "temporaries": (program.temp_bytes, "bytes"),
            "peak of these": (program.peak_bytes, "bytes"),
            "equations, traced": (program.jaxpr_equations, ""),
            "fusions": (program.fusions, ""),
            "matrix products": (program.dots, ""),
            "convolutions": (program.convolutions, ""),
        }
        numbers |= {name: (count, "") for name, count in program.collectives.items()}
    if position:
        numbers |= {
            "arithmetic per second": (position.flops_per_s, "FLOP/s"),
            "memory per second": (position.bytes_per_s, "bytes/s"),
            "least time under the roofline": (position.bound_s, "s"),
            "nearest limit": (position.limit, ""),
        }
    if program and used < program.temp_bytes:  # the call got memory that the C library had kept
        return numbers
    return numbers | {"memory that a warm call adds": (used, "bytes")}


def _cell(number: Number | None) -> str:
    if number is None:
        return ""
    return number[0] if isinstance(number[0], str) else format_on_page(number[0], number[1])


def _record_verdicts(
    recorder: Recorder, timed: Mapping[str, Measurement], positions: Mapping[str, Position | None]
) -> None:
    """Say in one line for each: the time with its interval and what limits it, then how it compares."""
    base = next(iter(timed))
    for name, m in timed.items():
        text = f"{name}: {format_on_page(m.median, 's')} per call"
        low, high = interval(m.values)
        if math.isfinite(low):
            text += f" ({format_on_page(low, 's')} to {format_on_page(high, 's')})"
        position = positions[name]
        if position:
            text += f"; {_limit(position)}"
        recorder.text(text)
    for name, m in list(timed.items())[1:]:
        compared = ratio(m, timed[base])
        verdict = f"{compared.word} than {base}"
        if compared.word == "undecided":
            alike = compared.within(ALIKE)
            verdict = f"as fast as {base} within {ALIKE:.0%}" if alike else f"not decided against {base}"
        recorder.text(f"{name} is {verdict}: {compared} of its time")


def _limit(position: Position) -> str:
    share = f"{position.share:.0%}"
    if position.share >= EXPLAINS:
        return f"limited by {position.limit}, {share} of what this machine can do"
    return f"{share} of its nearest limit, {position.limit}, so that other costs take most of the time"


def _record_remarks(
    recorder: Recorder,
    firsts: Mapping[str, First],
    positions: Mapping[str, Position | None],
    roofline: Roofline | None,
) -> None:
    remarks = (
        ([name for name, f in firsts.items() if not f.program],
         "called as it is; only what jax.jit returned has stages, and --jit jits it"),
        ([name for name, f in firsts.items() if f.donates],
         "arguments are donated, so each value is one call, on copies of them"),
        ([name for name, f in firsts.items() if f.program and f.program.loops],
         "the compiler counts a loop's body once, so the program does more than it says"),
        ([name for name, position in positions.items() if position and position.share > ABOVE],
         "faster than the roofline allows; either the machine was busy when that was measured (run `jaxperf "
         "roofline` again), or the compiler's estimate is too large"),
    )  # fmt: skip
    for names, remark in remarks:
        if names:
            recorder.note(f"{format_list(names)}: {remark}")
    if roofline is None:
        recorder.note(MISSING)
        return
    differences = roofline.differences(recorder.environment)
    if differences:
        recorder.note(f"the roofline was measured under other conditions: {'; '.join(differences)}")
