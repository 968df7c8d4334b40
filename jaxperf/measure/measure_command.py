"""`jaxperf measure`: the user's functions, measured with the instruments and reported like a section."""

import functools
import math
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from jaxperf.errors import JaxperfError, to_one_line
from jaxperf.measure import MemorySampler, Program, block, device_memory, interleaved
from jaxperf.measure.compile_log import refuse_debug_flags
from jaxperf.measure.environment import current_environment
from jaxperf.measure.roofline import MISSING, Position, Roofline, stored_roofline
from jaxperf.measure.stages import build_program, is_jitted
from jaxperf.measure.user_function import EXAMPLE, Arguments, load_arguments, load_function, user_errors_shown
from jaxperf.process import forced_end
from jaxperf.result import About, Measurement, interval, ratio, save_result, terminal
from jaxperf.result.formatting import format_list, format_on_page, format_scalar
from jaxperf.result.recorder import Recorder
from jaxperf.result.store import check_writable

LOOK_S = 0.001  # between two memory samples during a call
ABOVE = 1.05  # of the roofline; noise explains less than this
EXPLAINS = 0.5  # share of the time from which on a limit explains it, as in section 8.0
ALIKE = 0.05  # two functions whose ratio is known to be within this of 1 count as equally fast


@dataclass
class Row:
    """What the first call of a function showed, and then the others."""

    stages: Sequence[Measurement]  # of the first call; what is not jitted has one stage only
    program: Program | None  # what it was compiled to, if it is jitted
    donates: bool  # whether it donates its arguments, so that every call must get copies
    time: Measurement = field(init=False)  # of a warm call
    added_bytes: int = field(init=False)  # that a warm call needs
    position: Position | None = None  # under the roofline


@forced_end()
def main(options: Any) -> int:
    """Measure functions, print the result, and write it to a file.

    `options` are the flags of `jaxperf measure`, whose help explains them.
    """
    path = check_writable(options.json) if options.json else None
    refuse_debug_flags()
    environment = current_environment()
    by_name = _named(options.functions, jit=options.jit)
    arguments = load_arguments(options.args, options.setup)
    config = {name: value for name, value in vars(options).items() if name != "json"}
    title = format_list(list(by_name)) if len(by_name) <= 3 else f"{len(by_name)} functions"
    about = About("measure", "", title, "Where does the time of a call go, and what limits it?")
    recorder = Recorder(about, environment, config, command=shlex.join(["jaxperf", *sys.argv[1:]]))
    terminal.print_all([recorder.result()])
    roofline = stored_roofline(environment)
    rows = _measure(recorder, options, by_name, arguments, roofline)
    _record_programs(recorder, rows)
    _record_verdicts(recorder, rows)
    _record_remarks(recorder, rows, roofline)
    if path:
        save_result(recorder.result(), path)
    print(to_one_line(f"result: {options.json or 'not kept; give --json PATH to keep it'}"))
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


def _measure(
    recorder: Recorder,
    options: Any,
    functions: Mapping[str, Callable[..., Any]],
    arguments: Arguments,
    roofline: Roofline | None,
) -> dict[str, Row]:
    rows = {name: _first_call(name, fn, arguments) for name, fn in functions.items()}
    stages = [stage for row in rows.values() for stage in row.stages]
    recorder.table(stages, title="Once, before the program is warm")
    # Only the user's code is between the readings of the clock
    parts: dict[str, Callable[..., Any]] = {
        name: functools.partial(fn, *arguments.by_position, **arguments.by_name)
        for name, fn in functions.items()
    }
    before: dict[str, Callable[[], Any]] = {}
    if any(row.donates for row in rows.values()):
        # Then all get copies, made outside the clock: a value of one call takes longer than the mean of many,
        # whichever function is called.
        before = dict.fromkeys(functions, arguments.fresh)
        parts = {name: lambda copies, fn=fn: copies.passed_to(fn) for name, fn in functions.items()}
    with user_errors_shown("a later call"):
        timed = interleaved(parts, count=options.rounds, budget_s=options.budget_s, before=before)
    base = next(iter(timed)) if len(timed) > 1 else ""
    recorder.table(timed.values(), title="Seconds per call, in turns", base=base)
    for name, row in rows.items():
        row.time, row.added_bytes = timed[name], _added_bytes(parts[name], before.get(name))
        if row.program and roofline:
            row.position = roofline.position(row.program, seconds=row.time.median)
    return rows


def _first_call(name: str, fn: Callable[..., Any], arguments: Arguments) -> Row:
    seconds: dict[str, float] = {}
    program = None
    copies = block(arguments.fresh())
    with user_errors_shown(name):
        if is_jitted(fn):
            built = build_program(fn, *copies.by_position, **copies.by_name)
            seconds = {"trace": built.trace_s, "lower": built.lower_s, "compile": built.compile_s}
            program = built.program
        began = time.perf_counter()
        block(copies.passed_to(fn))
        seconds["first run" if program else "first call"] = time.perf_counter() - began
    stages = [Measurement(f"{name}: {stage}", "s", (taken_s,)) for stage, taken_s in seconds.items()]
    return Row(stages, program, copies.used_up)


def _added_bytes(part: Callable[..., Any], prepare: Callable[[], Any] | None) -> int:
    """Return the bytes that a warm call adds, by samples of the device's memory, or of resident memory."""
    prepared = (block(prepare()),) if prepare else ()
    read = (lambda: device_memory()["bytes_in_use"]) if "bytes_in_use" in device_memory() else None
    with user_errors_shown("a later call"), MemorySampler(LOOK_S, read) as sampler:
        block(part(*prepared))
    return sampler.increase_bytes


def _record_programs(recorder: Recorder, rows: Mapping[str, Row]) -> None:
    columns = [_numbers(row.program, row.position, row.added_bytes) for row in rows.values()]
    for name, column in zip(rows, columns):
        for label, (value, unit) in column.items():
            recorder.fact(f"{name}: {label}", value, unit=unit, in_table=True)
    labels = dict.fromkeys([*max(columns, key=len), *(label for column in columns for label in column)])
    cells = [[label, *(format_scalar(*column.get(label, ("",))) for column in columns)] for label in labels]
    recorder.grid(["", *rows], cells, title="The program, as the compiler sees it")


def _numbers(
    program: Program | None, position: Position | None, added_bytes: int
) -> dict[str, tuple[float | str, str]]:
    numbers: dict[str, tuple[float | str, str]] = {}
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
    # a call that adds less than the temporaries got memory that the C library had kept
    if not program or added_bytes >= program.temp_bytes:
        numbers["memory that a warm call adds"] = (added_bytes, "bytes")
    return numbers


def _record_verdicts(recorder: Recorder, rows: Mapping[str, Row]) -> None:
    for name, row in rows.items():
        text = f"{name}: {format_on_page(row.time.median, 's')} per call"
        low, high = interval(row.time.values)
        if math.isfinite(low):
            text += f" ({format_on_page(low, 's')} to {format_on_page(high, 's')})"
        if row.position:
            text += f"; {_limit(row.position)}"
        recorder.text(text)
    base, *others = rows
    for name in others:
        compared = ratio(rows[name].time, rows[base].time)
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


def _record_remarks(recorder: Recorder, rows: Mapping[str, Row], roofline: Roofline | None) -> None:
    remarks: dict[str, Callable[[Row], Any]] = {
        "called as it is; only what jax.jit returned has stages, and --jit jits it":
            lambda row: not row.program,
        "arguments are donated, so each value is one call, on copies of them":
            lambda row: row.donates,
        "the compiler counts a loop's body once, so the program does more than it says":
            lambda row: row.program and row.program.loops,
        "faster than the roofline allows; either the machine was busy when that was measured (run `jaxperf "
        "roofline` again), or the compiler's estimate is too large":
            lambda row: row.position and row.position.share > ABOVE,
    }  # fmt: skip
    for remark, applies in remarks.items():
        names = [name for name, row in rows.items() if applies(row)]
        if names:
            recorder.note(f"{format_list(names)}: {remark}")
    differences = roofline.differences(recorder.environment) if roofline else []
    if roofline is None:
        recorder.note(MISSING)
    elif differences:
        recorder.note(f"the roofline was measured under other conditions: {'; '.join(differences)}")
