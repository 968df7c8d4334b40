"""Rules about devices that are idle because of what the front end does: waits, data, dispatch, Python."""

import ast
import itertools
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from jaxperf.result.formatting import format_list, format_quantity
from jaxperf.result.intervals import Interval, difference, intersection, total_length, union
from jaxperf.watch.grouping import group_by
from jaxperf.watch.log import (
    BETWEEN,
    DATA,
    DISPATCH,
    EAGER,
    NUMPY,
    WRITE,
    Compiled,
    ExecutedProgram,
    Put,
    StackSample,
)
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.report.analysis import Analysis, WaitingLine, once
from jaxperf.watch.report.top_programs import hottest_programs
from jaxperf.watch.rules.elements import element_read, element_reads, only_keys, taken_apart
from jaxperf.watch.rules.habits import lines_of_solvers
from jaxperf.watch.rules.table import AHEAD, COMMUNICATE, SYNCHRONIZE, Finding, cause
from jaxperf.watch.source import loop_body, statements

SLOWEST = 0.5e9  # bytes/s of the slowest copy, which bounds the seconds of a finding
SHORT_TURN_S = 2e-4  # a turn of a loop in which what a call costs is much
SHORT_TURN_SHARE = 0.15  # of such turns in which a device must be idle
TURN_SHARE = 0.25  # of longer turns: where a turn does much else, that comes first
SHORT_TURNS_S = 0.05  # seconds that another program must save: it takes as long to compile
WRITTEN = 10_000  # bytes that make a file
WALK = 2  # ratio of `nnx.jit`'s time to JAX's own dispatch that is worth a change
SMALL_PUTS = 5  # small puts per step that are worth combining
PUT_SAVED = 0.4  # of what they take; measured for 8 and 60 arrays on 1, 2 and 4 CPU devices: 0.25 to 0.46
REPEATS = 3  # waits at one line that count as repeated
ALONE = 0.9  # share of the front end's time, below which other programs delay most of its calls
OFTEN = 20  # calls of one operation in the windows; fewer belong to the program's startup
LATE_S = 0.005  # from the begin of some work until a sample sees it, at most
HANDED_S = 6e-5  # that one thread takes to hand a batch to another one
SLOW = 1.5  # ratio of waits for data to computing from which on one thread that reads ahead is not enough
COPIED = 1 << 20  # bytes per call that are large
_SHOWING = ("print(", "logging.", "logger.", "log.")
_NEEDLESS = ("block_until_ready", "effects_barrier")
_COMPRESSES = re.compile(r"savez_compressed|gzip|bz2|lzma")
_FROM_THREAD = re.compile(r"\.(get|get_nowait|result)\(")  # of a queue or of a future


def _tests_a_loop(at: Place) -> bool:
    """Return whether a line belongs to the test of a `while`."""
    loop = statements.innermost(at, statements.LOOP)
    return isinstance(loop, ast.While) and loop.test.lineno <= at.line <= (loop.test.end_lineno or 0)


@cause(
    "dispatch", "python", AHEAD, "devices wait for each step to be dispatched",
    "Make many steps one program, in a function under jax.jit that is made once, outside of all loops: with "
    "jax.lax.scan or fori_loop if a step needs the one before{steps}, and with jax.vmap otherwise:\n"
    "import jax\n"
    "step = lambda w, rate: w - rate * w\n"
    "many = jax.jit(lambda w, rate: jax.lax.fori_loop(0, 100, lambda i, w: step(w, rate), w))\n"
    "w = many(1.0, 0.1)    # 100 steps",
    forms={
        "while": (
            "Make the loop one program with jax.lax.while_loop, whose condition is the loop's test, in a "
            "function under jax.jit that is made once, outside of all loops:\n"
            "import jax\n"
            "test = lambda x, t: ((x - t * x) ** 2).sum() > (x * x).sum() / 2\n"
            "halve = lambda x, t: jax.lax.while_loop(lambda t: test(x, t), lambda t: t / 2, t)\n"
            "t = jax.jit(halve)(1.0, 4.0)    # all steps"
        ),
    },
    choose=lambda f: "while" if _tests_a_loop(f.at) else "",
)  # fmt: skip
@cause(
    "module dispatch", "python", AHEAD, "nnx.jit takes modules apart in each call",
    "Bind {argument} to {name} once, before the loop, with nnx.cached_partial, and call the result in the "
    "loop without them. Or call nnx.split once, and jit a function of the state.\n"
    "from flax import nnx\n"
    "model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))\n"
    "forward = nnx.cached_partial(nnx.jit(lambda model, x: model(x)), model)    # once\n"
    "forward(model.bias[...])    # in the loop: what the module learns stays in it",
)  # fmt: skip
def find_slow_dispatch(analysis: Analysis) -> Iterator[Finding]:
    idle = analysis.idle_at(DISPATCH, itself=True)
    hot, solved = {row.name: row for row in hottest_programs(analysis)}, lines_of_solvers(analysis)
    derived = {s.at for s in derived_calls(analysis)}
    for c, at in analysis.called:
        row, program = hot.get(c.program), analysis.ran(c)
        if row is None or program is None or row.dispatch_s is None or program.calls < REPEATS:
            continue
        if at not in idle or at in solved | derived or copies_much(analysis, c):
            continue
        call_s, device_s, module_s = row.dispatch_s, row.device_s, 0.0
        if c.through == "flax":
            looks = (s for s in analysis.of_kinds(DISPATCH) if s.at == at and s.end > s.start)
            walks_s = (analysis.front(s) * analysis.windows.of(s) / (s.end - s.start) for s in looks)
            module_s = sum(walks_s) / program.calls
        turn_s = program.turn_s or total_length(analysis.steady) / program.calls
        device = f"the device {format_quantity(device_s, 's')}"
        if WALK * call_s < module_s and (modules := _modules(c, at)):
            reason = (
                f"a call of {c.called} takes the front end {format_quantity(module_s, 's')} and {device}: "
                f"nnx.jit takes {modules} apart in Python and puts them together again in each call, and "
                f"JAX's own dispatch is {format_quantity(call_s, 's')} of it"
            )
            saved_s = idle.pop(at) * (1 - call_s / module_s)
            yield Finding("module dispatch", at, saved_s, reason, c.called, argument=modules)
        elif program.calls >= OFTEN:
            calls = program.calls * analysis.scale(program)
            called = [program, *_called_before(analysis, c, at, program)]
            quick_s = sum(_quick_s(analysis, each) for each in called)
            beside = _operations_beside(analysis, c, at, program)
            # one program of many turns saves the calls, or what short turns take beyond the device
            if device_s < call_s or beside:
                turn, much = "", quick_s >= TURN_SHARE * turn_s
                seconds = min(idle[at], calls * max(quick_s, module_s))
                if beside:  # they go into the program, too, with what Python does for them
                    much = much or _share_of_loop(analysis, at) >= TURN_SHARE
                    seconds = idle[at]
                del idle[at]
                least_s = SHORT_TURNS_S if much else float("inf")
            else:
                calls_s = analysis.dispatched_s(at)
                if not device_s * calls < calls_s < SHORT_TURN_S * calls:
                    continue
                turn = f", in turns of {format_quantity(calls_s / calls, 's')}"
                least_s = max(SHORT_TURNS_S, SHORT_TURN_SHARE * calls_s)
                seconds = min(idle.pop(at) + _started_late_s(analysis), calls_s - device_s * calls)
            reason = (
                f"a call of {c.called} takes the front end {format_quantity(call_s, 's')} and {device}"
                f"{turn}, so the device waits for the next call"
            )
            if beside:
                reason += f"; beside it, {format_list(beside)} run outside of jit"
            if seconds >= least_s:
                yield Finding("dispatch", at, seconds, reason, c.called)


@once
def derived_calls(analysis: Analysis) -> list[StackSample]:
    """Return samples of calls to which a loop applies `vmap` or `grad` anew, outside of jit.

    Such a call of a jitted function never takes the short way of later calls.
    """
    looped = (s for s in analysis.of_kinds(DISPATCH) if s.under or statements.transforms(s.at))
    return [s for s in looped if any(statements.innermost(at, statements.ROUND) for at in (s.at, *s.callers))]


def _quick_s(analysis: Analysis, program: ExecutedProgram) -> float:
    """Return what a call takes alone: other programs that have the cores delay most calls, or nearly all."""
    if not program.dispatch_s:
        return 0.0
    in_order = sorted(program.dispatch_s)
    return in_order[0] if analysis.alone < ALONE else in_order[len(in_order) // 4]


def _operations_beside(analysis: Analysis, c: Compiled, at: Place, program: ExecutedProgram) -> list[str]:
    """Return the operations that a line runs outside of jit in each turn, such as slices of its arguments."""
    programs = analysis.log.activity.programs
    names = sorted(analysis.outside_jit.get(at, set()) & programs.keys() - {c.program})
    called = [name for name in names if programs[name].calls > 0.9 * program.calls]
    # JAX's own copy of an argument is a part of the call
    copies = {ran.name for ran in _called_before(analysis, c, at, program) if ran.copies}
    return [name for name in called if name not in copies]


def _share_of_loop(analysis: Analysis, at: Place) -> float:
    """Return the share of the time in the loop around a line, without compiling, that goes to the line."""
    loop = statements.innermost(at, statements.LOOP)
    inside = [
        s
        for s in analysis.samples
        if loop is not None and s.at.file == at.file and statements.innermost(s.at, statements.LOOP) is loop
    ]
    lines = group_by(inside, lambda s: s.at == at)
    here_s, elsewhere_s = (
        sum((s.end - s.start - analysis.compiling.of(s)) * analysis.undelayed_by_others(s) for s in of_lines)
        for of_lines in (lines.get(True, []), lines.get(False, []))
    )
    return here_s / (here_s + elsewhere_s) if here_s else 0.0


def _called_before(
    analysis: Analysis, c: Compiled, at: Place, program: ExecutedProgram
) -> Iterator[ExecutedProgram]:
    """Yield what a line calls in each turn besides its function, such as JAX's own copy of an argument."""
    programs = analysis.log.activity.programs
    for name in {other.program for other in analysis.log.compiled if other.at == at} - {c.program}:
        if name in programs and 0.9 * program.calls < programs[name].calls < 1.1 * program.calls:
            yield programs[name]


@once
def _started_late_s(analysis: Analysis) -> float:
    """Return the seconds of the run in which devices were about to begin, unless others had the cores.

    An execution begins microseconds after its call. For one program of many turns, that happens once.
    """
    waited = intersection(difference(analysis.steady, analysis.busy), analysis.log.activity.queued)
    return analysis.in_run(waited) * analysis.share_of_cores(1.0)


def _modules(c: Compiled, at: Place) -> str:
    """Return the variables of the modules that a call passes, such as "model, optimizer"."""
    matches = (re.match(r"((?:argument )?\w+)\.", where) for where in c.signature)
    arguments = dict.fromkeys(match[1] for match in matches if match)
    return ", ".join(statements.variable_passed(at, c.called, argument) for argument in arguments)


@cause(
    "list", "transfer", COMMUNICATE, "an array is made of Python's numbers on each turn of a loop",
    "JAX takes the numbers of a list one by one: make a NumPy array of them first, np.array(..., np.float32) "
    "or np.int32 for integers, and before the loop if they are known there; then each turn takes its rows.",
)  # fmt: skip
def find_list_conversions(analysis: Analysis) -> Iterator[Finding]:
    puts = [p for p in analysis.log.puts if p.numbers]
    lost_s = _needless_s(analysis, puts)
    for at, made in group_by(puts, lambda put: put.at).items():
        reason = f"{made[0].numbers} numbers of Python's become an array here, {len(made)} times"
        if len(made) >= REPEATS:
            yield Finding("list", at, lost_s[at], reason)


def _needless_s(analysis: Analysis, puts: list[Put]) -> dict[Place, float]:
    """Return the seconds that would be saved without some puts, by line."""
    delayed = analysis.delayed  # a put is too short to know how long it waited for a core
    samples = [StackSample(EAGER, p.at, p.start, p.end, delayed_s=delayed * (p.end - p.start)) for p in puts]
    lost_s = defaultdict[Place, float](float, analysis.saved_at(samples, needless=True))
    # before the first jitted function runs, devices have little to compute
    for s in samples:
        if s.end <= analysis.begin:
            lost_s[s.at] += analysis.front(s)
    return lost_s


@cause(
    "put again", "transfer", COMMUNICATE, "the same array is copied to the device on each turn of a loop",
    "Copy it once, before the loop.",
    forms={
        "function": "Call this once for what does not change, before the loop, and keep the array.",
    },
    choose=lambda f: "" if statements.innermost(f.at, loop_body.LOOP) else "function",
)  # fmt: skip
def find_repeated_puts(analysis: Analysis) -> Iterator[Finding]:
    programs = analysis.log.activity.programs
    computing = [span for name in analysis.jitted.keys() & programs.keys() for span in programs[name].spans]
    idle = difference(analysis.steady, computing)  # the copy itself may run then
    for at, made in group_by((p for p in analysis.log.puts if p.nbytes), lambda put: put.at).items():
        again = [put for put in made if put.again]
        if not again:
            continue
        calls, copies = [(put.start, put.end) for put in again], list[Interval]()
        if len(again) > len(made) / 2:
            # JAX's own programs that copy this line's arrays
            names = {c.program for c in analysis.log.compiled if c.at == at} - analysis.jitted.keys()
            ran = (programs[name] for name in names & programs.keys() if programs[name].copies)
            copies += itertools.chain(*(program.spans for program in ran))
        if again[0].moved:  # a called program waits for the copy
            calls += analysis.log.activity.queued
        # the device copies behind the call, which may work beside the device
        copied_s = analysis.in_run(intersection(idle, difference(copies, calls)))
        called_s = analysis.in_run(intersection(idle, calls))
        seconds = copied_s + max(called_s, _needless_s(analysis, again)[at])
        if again[0].moved:
            seconds = max(seconds, _copied_between_devices_s(analysis, at, again))
        copied = format_quantity(again[0].nbytes, "bytes")
        reason = f"the same {copied} are copied to the device {len(again) + 1} times here"
        yield Finding("put again", at, seconds, reason)


def _copied_between_devices_s(analysis: Analysis, at: Place, again: list[Put]) -> float:
    """Return the seconds in which calls waited for copies, which have no event, between devices."""
    function = statements.function_of(at)
    here = [spans for line, spans in analysis.blocked.items() if statements.function_of(line) == function]
    waited = union([*itertools.chain(*here), *((put.start, put.end) for put in again)])
    seen = intersection(waited, analysis.steady)
    busy_s, seen_s = total_length(intersection(seen, analysis.busy)), total_length(seen)
    copied_s = total_length(waited) * (1 - busy_s / seen_s) if seen_s else 0.0
    return min(copied_s, sum(put.nbytes for put in again) / SLOWEST)


@cause(
    "puts one by one", "transfer", COMMUNICATE, "small arrays are put on devices one by one",
    "Give jax.device_put the whole dictionary or list, and one sharding that is made once.",
)  # fmt: skip
def find_small_puts(analysis: Analysis) -> Iterator[Finding]:
    activity = analysis.log.activity
    steps = max((p.calls for name, p in activity.programs.items() if name in analysis.jitted), default=0)
    idle = analysis.idle_at(EAGER)
    for at, times in analysis.log.small_puts.items():
        count = sum(any(a <= t <= b for a, b in activity.windows) for t in times)
        if at in idle and count >= max(OFTEN, SMALL_PUTS * steps):
            each = count / max(1, steps)
            reason = (
                f"jax.device_put is called {len(times)} times here, about {each:.0f} for each step, and "
                "devices are idle meanwhile"
            )
            yield Finding("puts one by one", at, idle[at] * PUT_SAVED, reason)


def _compresses(at: Place) -> bool:
    opened = [item for node in statements.enclosing_nodes(at, ast.With) for item in node.items]
    return bool(_COMPRESSES.search("".join([*statements.statement_rows(at), *map(ast.unparse, opened)])))


@cause(
    "write", "python", SYNCHRONIZE, "devices wait while a file is written",
    "Write less often (if step % 100 == 0), or behind the next steps: the CheckpointManager of "
    "orbax.checkpoint writes in threads of its own.",
    forms={
        "compressed": (
            "Leave out the compression: floats hardly become smaller, and numpy.savez writes them so. "
            "Then write less often (if step % 100 == 0), or behind the next steps, in a thread."
        ),
    },
    choose=lambda f: "compressed" if _compresses(f.at) else "",
)  # fmt: skip
def find_writes(analysis: Analysis) -> Iterator[Finding]:
    writing = analysis.of_kinds(WRITE)
    functions = group_by(writing, lambda s: statements.function_of(s.at))
    known = any(s.written for s in analysis.samples)  # not on all systems
    lost_s = analysis.saved_at(writing, needless=True)
    for finding in findings_by_function("write", lost_s, "devices are idle while this line writes"):
        # a method called `save` may write nothing
        if not known or sum(s.written for s in functions[statements.function_of(finding.at)]) >= WRITTEN:
            yield finding


@cause(
    "python", "python", AHEAD, "Python between two steps keeps devices idle",
    "Do less of it (if step % 100 == 0), make it faster, as with NumPy in place of a loop, or give it to "
    'another process (concurrent.futures.ProcessPoolExecutor, with the context "spawn").',
    forms={
        "next step": (
            "Dispatch what does not need this first, or make it part of the jitted step, so that the device "
            "has something to compute meanwhile."
        ),
    },
    choose=lambda f: "next step" if isinstance(statements.innermost(f.at, ast.stmt), ast.Assign) else "",
)  # fmt: skip
def find_python_work(analysis: Analysis) -> Iterator[Finding]:
    """Find the reader's Python code between two steps, which delays the dispatch of the next step."""
    # other rules cover lines that handle arrays
    waiting = [line for line in analysis.lines if line.count >= OFTEN]
    arrays = {line.at for line in waiting} | set(analysis.outside_jit)
    between = analysis.of_kinds(BETWEEN)
    by_line = group_by(between, lambda s: s.at)
    python_s = {at: sum(map(analysis.front, samples)) for at, samples in by_line.items()}
    # a line that mostly waits would not hold up the next step without its wait
    waits = {line.at for line in waiting if line.total_s >= python_s.get(line.at, 0.0)}
    between = [s for s in between if s.inside not in arrays and (s.inside or s.at not in waits)]
    steps = {at for _, at in analysis.called}
    # `find_waits` covers the first, `find_numpy_work` the second, and the third cannot run beside devices
    lost_s = {
        at: seconds
        for at, seconds in analysis.saved_at(between, itself=True).items()
        if not loop_body.element_read(at) and at not in analysis.lost_to_numpy
        if not loop_body.between_steps(at, steps)
    }
    reason = "devices have done all steps that were dispatched, and are idle while Python runs here"
    for finding in findings_by_function("python", lost_s, reason):
        inside = describe_longest_inside(analysis, BETWEEN, finding.at)
        seconds = finding.seconds * _seen_at_calls(analysis, finding.at)
        yield replace(finding, reason=reason + inside, seconds=seconds)


def _seen_at_calls(analysis: Analysis, at: Place) -> float:
    """Return by how much Python takes longer than its samples say, since some are at the calls behind it."""
    # Python keeps its lock until such a call releases it, and on a busy machine the sampler comes late
    function = statements.function_of(at)
    here = [(c, line) for c, line in analysis.called if statements.function_of(line) == function]
    here = [(c, line) for c, line in here if c.through in ("", "jax")]  # other libraries work in Python
    lines = {line for _, line in here}
    seen = (
        s for s in analysis.log.samples if s.kind == DISPATCH and s.at in lines and s.end > analysis.begin
    )
    ran = [program for c, _ in here if (program := analysis.ran(c)) and program.dispatch_s]
    short = any(p.turn_s and p.turn_s < LATE_S for p in ran)
    # the median where turns are long, since the sampler holds up a few calls; of short ones, those are few
    typical = statistics.fmean if short else statistics.median
    calls_s = sum((typical(p.dispatch_s) * len(p.dispatch_s) + p.computed_s) * analysis.scale(p) for p in ran)
    samples = (s for s in analysis.of_kinds(BETWEEN, DATA) if statements.function_of(s.at) == function)
    before = [*filter(None, map(analysis.front, samples))]
    late_s = sum(map(analysis.front, seen)) - calls_s
    if not before:
        return 1.0
    # what takes longer than the sampler needs to come is seen where it runs; a sample may stand for many
    # short turns
    longest_s = min([statistics.median(before), *(p.turn_s for p in ran if p.turn_s)])
    return 1 + max(0.0, min(late_s / sum(before), LATE_S / longest_s))


def _wait_form(finding: Finding) -> str:
    statement = statements.innermost(finding.at, ast.stmt)
    if finding.name in _NEEDLESS:
        written = statement is None or finding.name in ast.unparse(statement)
        return "needless" if written else "inside"
    use = loop_body.use_in_loop(finding.at)
    if isinstance(statement, ast.If | ast.While):
        return use or "test"
    return "returned" if isinstance(statement, ast.Return) else use


@cause(
    "wait", "sync", SYNCHRONIZE, "the front end waits on each turn of a loop",
    "Keep the array in the loop, for which nobody waits, and fetch all of them once after it, with "
    "jax.device_get, or in a long run every hundredth turn. If each turn shows the value, read that of the "
    "turn before.",
    forms={
        "next turn": (
            "The next turn needs the value: let one wait serve many turns (a batch of them under jax.vmap), "
            "or write what needs it in jax.numpy, so that the whole loop is one program, with jax.lax.scan."
        ),
        "test": (
            "A test in the loop needs the value: choose with jnp.where or jax.lax.cond, give it to "
            "jax.lax.while_loop, or test every tenth turn, so that the device has the next ones to do."
        ),
        "returned": (
            "If nothing needs the value before the loop ends, return the array itself, and fetch all of "
            "them once after it. If the next turn needs it, write what needs it in jax.numpy, so that many "
            "turns are one program, or let one wait serve many turns (a batch of them under jax.vmap)."
        ),
        "large": (
            "Let a jitted function compute on the device what the host needs of them, such as an average or "
            "a norm, and fetch that; or fetch them every hundredth turn (if step % 100 == 0)."
        ),
        "needless": "Leave out {name} here, and wait once, after the loop.",
        "inside": (
            "What this line calls waits by itself, as functions under eqx.filter_jit do: let one call do "
            "several turns, with jax.lax.scan inside of it, and it waits once for all of them."
        ),
    },
    choose=_wait_form,
)  # fmt: skip
@cause(
    "element reads", "sync", SYNCHRONIZE, "elements of an array are read one by one",
    "Before the loop, bring {argument} to the host once, with numpy.asarray({argument}), and read the "
    "elements of that.",
    forms={
        "several": (
            "Before the loop, bring {argument} to the host once, with {argument} = "
            "jax.device_get(({argument})), and read the elements of these."
        ),
    },
    choose=lambda f: "several" if "," in f.argument else "",
)  # fmt: skip
@cause(
    "logging", "sync", SYNCHRONIZE, "logging waits for the device on each step",
    "Log every hundredth step (if step % 100 == 0). An f-string is formatted even if its level is off, "
    "log.debug('%s', x) is not.",
)  # fmt: skip
def find_waits(analysis: Analysis) -> Iterator[Finding]:
    apart, solved = taken_apart(analysis), lines_of_solvers(analysis)
    dispatching = analysis.idle_at(EAGER)
    # one change serves all lines of a loop
    reads: dict[Any, list[tuple[WaitingLine, str]]] = defaultdict(list)
    for line in analysis.lines:
        loop = statements.innermost(line.at, loop_body.LOOP)
        # `find_iterated_arrays` covers the first, `find_numpy_work` the second
        iterated = loop is not None and line.at._replace(line=loop.lineno) in apart
        elsewhere = iterated or line.at in solved
        if line.count < REPEATS or elsewhere or any(_for_numpy(line, at) for at in analysis.lost_to_numpy):
            continue
        if array := element_read(analysis, line.at):
            reads[loop or line.at].append((line, array))
        elif line.at:
            prints = line.kind == "print" or line.at.source.startswith(_SHOWING)
            large = line.nbytes >= COPIED * line.count and line.kind not in _NEEDLESS
            reason = (
                f"the front end waits {line.count} times in {line.kind}, "
                f"{line.total_s / line.count * 1e3:.2g} ms each, "
                "and the device is idle until the next call comes"
            )
            others = sorted(
                other.at.line
                for other in analysis.lines
                if other.at != line.at and loop is not None and 2 * other.count >= line.count
                and other.at.file == line.at.file and statements.innermost(other.at, loop_body.LOOP) is loop
            )  # fmt: skip
            if others:
                lines = format_list([f"line {number}" for number in others])
                reason += f"; {lines} in the same loop would wait in its place, so change them together"
            # what an `if` computes for its test is no other rule's
            tests = isinstance(statements.innermost(line.at, ast.stmt), ast.If | ast.While)
            seconds = line.lost_s + (dispatching.get(line.at, 0.0) if tests else 0.0)
            yield Finding(
                "logging" if prints else "wait", line.at, seconds, reason, line.kind,
                form="large" if large else "",
            )  # fmt: skip
    for of_a_loop in reads.values():
        yield element_reads(analysis, of_a_loop)


def _for_numpy(line: WaitingLine, at: Place) -> bool:
    """Return whether NumPy uses, at `at` in the same function, the value for which `line` waits."""
    return line.kind == "np.asarray" and loop_body.reads_from(at, line.at)


@cause(
    "data", "data", COMMUNICATE, "devices wait for data",
    "Read the next batch in a thread during a step.\n"
    "import concurrent.futures    # a thread reads the next batch during a step\n"
    "thread, batches = concurrent.futures.ThreadPoolExecutor(1), iter(range(100))    # your batches\n"
    "coming = thread.submit(next, batches, None)\n"
    "while (batch := coming.result()) is not None:\n"
    "    coming = thread.submit(next, batches, None)\n"
    "    x = batch    # then the step with x",
    forms={
        "slow": (
            "Reading takes longer than the steps. If it computes, do that once before the loop, or for a "
            "whole batch with NumPy; what must stay Python goes into processes (grain, or torch's "
            "DataLoader with workers). If it waits for a disk or a network, and may be called from several "
            "threads, let a concurrent.futures.ThreadPoolExecutor read some batches ahead."
        ),
    },
)  # fmt: skip
def find_data_waits(analysis: Analysis) -> Iterator[Finding]:
    """Find lines that wait for the next batch while devices are idle.

    One thread that reads ahead can save at most the time in which devices compute, less what it takes to hand
    over each batch. If the waits are longer, reading itself must become faster.
    """
    # a line that mostly dispatches operations is `find_eager_operations`'
    eager, loading = Counter(s.at for s in analysis.of_kinds(EAGER)), analysis.of_kinds(DATA)
    looks = Counter(s.inside for s in loading)
    loading = [s for s in loading if not s.inside or eager[s.inside] <= looks[s.inside]]
    lost_s = analysis.saved_at(loading)
    lost_s = {at: seconds for at, seconds in lost_s.items() if not only_keys(analysis, at)}
    reason = "devices are idle while this line waits for the next batch"
    for finding in findings_by_function("data", lost_s, reason):
        seconds, computing_s = finding.seconds * _seen_at_calls(analysis, finding.at), analysis.computing_s
        inside = describe_longest_inside(analysis, DATA, finding.at)
        what, form = reason + inside, "slow"
        if seconds > SLOW * computing_s:
            computing = format_quantity(computing_s, "s")
            what += f"; they compute for only {computing}, and one thread that reads ahead saves no more"
        elif not _FROM_THREAD.search(inside or finding.at.source):  # else a thread reads ahead already
            seconds, form = min(seconds, computing_s) - HANDED_S * _turns(analysis, finding.at), ""
        yield replace(finding, reason=what, seconds=seconds, form=form)


def _turns(analysis: Analysis, at: Place) -> float:
    """Return how often the loop around a line goes round, by the calls of jitted functions in it."""
    loop = statements.innermost(at, statements.LOOP)
    inside = (c for c, line in analysis.called if loop in statements.enclosing_nodes(line, statements.LOOP))
    ran = (program for c in inside if (program := analysis.ran(c)))
    return min((program.calls * analysis.scale(program) for program in ran), default=0.0)


@cause(
    "numpy", "data", SYNCHRONIZE, "NumPy computes between two programs",
    "Do the same with jnp inside the jitted step: the values never leave the device.",
)  # fmt: skip
def find_numpy_work(analysis: Analysis) -> Iterator[Finding]:
    converted = analysis.idle_at(NUMPY)
    operators = analysis.idle_at(BETWEEN)  # which samples cannot tell from Python's
    idle = {at: s + operators.get(at, 0.0) for at, s in analysis.lost_to_numpy.items()}
    for finding in findings_by_function("numpy", idle, "devices are idle while NumPy computes here"):
        function = statements.function_of(finding.at)
        here = [at for at in analysis.lost_to_numpy if statements.function_of(at) == function]
        waits = [line for line in analysis.lines if any(_for_numpy(line, at) for at in here)]
        converting_s = sum(converted.get(line.at, 0.0) for line in waits if line.at not in here)
        lost_s = sum(line.lost_s for line in waits)
        yield replace(finding, seconds=max(finding.seconds + converting_s, lost_s))


@cause(
    "transfer", "transfer", COMMUNICATE, "large NumPy arrays are copied to the device on each call",
    "Call jax.device_put({argument}) once, or, where it varies, ahead of time for the next call. On a CPU, "
    "the result may share NumPy's memory: do not change that afterwards, or call jnp.array.",
)  # fmt: skip
def find_transfers(analysis: Analysis) -> Iterator[Finding]:
    idle = analysis.idle_at(DISPATCH, EAGER)  # pmap puts its arguments in Python
    for c, at in analysis.called:
        if c.host_bytes >= COPIED and copies_much(analysis, c) and at in idle:
            copied = format_quantity(c.host_bytes, "bytes")
            argument = max(c.host, key=lambda name: c.host[name])
            reason = f"each call of {c.called} copies {copied} of NumPy arrays to the device"
            yield Finding("transfer", at, idle.pop(at), reason, c.called, argument=argument)


def copies_much(analysis: Analysis, c: Compiled) -> bool:
    """Return whether calls of a program copy large NumPy arrays, or may do so if their size is unknown."""
    program = analysis.ran(c)
    sizes = (sum(shape.bytes for shape in f.layout[0]) for f in analysis.programs.get(c.program, ()))
    return bool(program and program.copies) and (c.host_bytes or max(sizes, default=0)) >= COPIED


def describe_longest_inside(analysis: Analysis, kind: str, at: Place) -> str:
    """Return a phrase with the line, inside the functions that a statement calls, that takes most time.

    "" if no such line takes half of the time.
    """
    function, inside_s = statements.function_of(at), defaultdict[Place, float](float)
    for s in analysis.of_kinds(kind):
        if statements.function_of(s.at) == function:
            inside_s[s.inside] += analysis.front(s)
    made = max(inside_s, key=lambda place: inside_s[place], default=NOWHERE)
    most = made not in (at, NOWHERE) and 2 * inside_s[made] >= sum(inside_s.values())
    return f", most of the time at {made}: {made.source}" if most else ""


def findings_by_function(
    cause: str,
    idle: dict[Place, float],
    reason: str,
    kind: Callable[[Place], Any] = lambda at: None,  # of a line; lines of two kinds need different changes
) -> Iterator[Finding]:
    """Yield one finding per function, at its costliest line, since neighboring lines share one cause."""
    for lines in group_by(filter(None, idle), lambda at: (statements.function_of(at), kind(at))).values():
        worst = max(lines, key=lambda at: idle[at])
        yield Finding(cause, worst, sum(idle[at] for at in lines), reason, worst.function)
