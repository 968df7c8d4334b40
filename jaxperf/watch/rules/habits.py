"""What programs do around JAX: what they keep, how they time, fork, where they run, and how Keras trains."""

import ast
import functools
import inspect
import sys
from collections import Counter
from collections.abc import Iterator

from jaxperf.result.formatting import format_quantity
from jaxperf.retraces import dimensions
from jaxperf.watch.grouping import group_by
from jaxperf.watch.log import BETWEEN, NUMPY, PYTHON, ExecutedProgram, LiveArrays, Memory
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.report.analysis import Analysis, once
from jaxperf.watch.report.top_programs import hottest_programs
from jaxperf.watch.rules.table import COMMITTED, SYNCHRONIZE, Finding, cause, find_causes
from jaxperf.watch.source import statements

GROWN = 32 << 20  # bytes of growth that are worth a note
GROWN_SHARE = 0.1  # of the peak
# without arrays of JAX that explain it: a list that is built, or a start that compiles, takes less
UNKNOWN_GROWN, UNKNOWN_S = 256 << 20, 10.0
STEADY = 3.0  # the most ratio of what two thirds of the time grew by, for memory that grows steadily
LONG_ENOUGH_S = 1.0  # seconds of a run in which growth is judged
MANY = 8  # arrays more than before
COMPILED = 20  # programs compiled meanwhile that may be what memory holds
LATER = 2.0  # ratio of t2 to t1 from which on the time of a call says little about the work
OFTEN = 20  # calls in windows
AROUND = 1.5  # ratio of a turn of Keras to its step that is worth a note
FASTER = 1.5  # ratio of a turn to its program on the CPU that is worth a change
PYTHON_SHARE, LINE_SHARE = 0.2, 0.05  # of the run, in Python outside of JAX, and at one of its lines
ONE_LINE_SHARE = 0.1  # at one line, which is enough by itself
MOST_LINES = 3
# SciPy's solvers that estimate derivatives if they get none, and the argument that gives them
_DERIVATIVES = {
    "minimize": "jac", "root": "jac", "least_squares": "jac", "fsolve": "fprime", "leastsq": "Dfun",
    "fmin_bfgs": "fprime", "fmin_cg": "fprime",
}  # fmt: skip
_OF_NUMBERS = {"minimize", "fmin_bfgs", "fmin_cg"}  # those of functions that return one number
_WITHOUT = {"nelder-mead", "powell", "cobyla", "cobyqa"}  # methods that need no derivatives
GRADIENT = 5  # calls of a function that take as long as its value and gradient, at most
_CLOCKS = {"time", "perf_counter", "monotonic", "time_ns", "perf_counter_ns", "monotonic_ns"}


def growth_notes(analysis: Analysis) -> Iterator[str]:
    """Yield a note if memory grows steadily, with the arrays that fill it and what holds them."""
    log, begin = analysis.log, analysis.begin
    readings = [m for m in log.memory if m.when >= begin]
    if len(readings) < MANY:
        return
    peak = max(readings, key=_used)  # later, a function that returns may drop what it kept
    length_s, most = peak.when - begin, _used(peak)
    thirds = [begin + length_s / 3, begin + length_s * 2 / 3]
    first, second = (_used(min(readings, key=lambda m: abs(m.when - moment))) for moment in thirds)
    grown, parts = most - first, sorted((second - first, most - second))
    if (
        length_s < max(LONG_ENOUGH_S, (log.end - begin) / 2)
        or grown < max(GROWN, GROWN_SHARE * most)
        or not 0 < parts[0] <= parts[1] <= STEADY * parts[0]
    ):
        return
    message = (
        f"{'device' if peak.device else 'resident'} memory grows all the time: by "
        f"{format_quantity(grown, 'bytes')} in {format_quantity(length_s * 2 / 3, 's')}"
    )
    compiled = sum(min(a for a, _ in c.stages.values()) >= begin for c in log.compiled if c.stages)
    more, live = _grown_arrays(log.memory, thirds[0], peak.when)
    if live and more * live.nbytes / live.number >= grown / 2:
        made = f", made at {live.at}" if live.at else ""
        held = f" in {live.held} ({live.held_at})" if live.held else ""
        yield (
            f"{message}, since {more} more arrays {live.kind}{made}, stay alive{held}: keep what is read "
            "later (a number of each, or every hundredth), or bring them to the host in blocks, with "
            "jax.device_get, and drop them"
        )
    elif grown >= UNKNOWN_GROWN and length_s >= UNKNOWN_S:
        why = "arrays of JAX do not explain it, so look for what else the loop keeps"
        if compiled >= COMPILED:
            why = f"{compiled} programs were compiled meanwhile, which JAX keeps"
        yield f"{message}; {why}"


def _used(reading: Memory) -> int:
    return reading.device or reading.resident


def _grown_arrays(readings: list[Memory], since: float, until: float) -> tuple[int, LiveArrays | None]:
    """Return how many more arrays there are of the type that grew most between two times, and the type."""
    listed = [m for m in readings if m.arrays and m.when <= until]
    before = [m for m in listed if m.when <= since][-1:] or listed[:1]
    known = {live.kind: live.number for m in before for live in m.arrays}
    more = [(live.number - known.get(live.kind, 0), live) for m in listed[-1:] for live in m.arrays]
    grown = [(count, live) for count, live in more if count >= MANY]
    return max(grown, key=lambda pair: pair[0] * pair[1].nbytes / pair[1].number, default=(0, None))


def timing_notes(analysis: Analysis) -> Iterator[str]:
    """Yield a note where a program times a call without waiting for its result."""
    hot, noted = {row.name: row for row in hottest_programs(analysis)}, set[tuple[str, int, int]]()
    for c, at in analysis.called:
        row, program = hot.get(c.program), analysis.ran(c)
        if row is None or program is None or row.dispatch_s is None:
            continue
        call_s = row.dispatch_s + program.computed_s / program.calls
        start, end = _timing_around(at)
        if row.device_s < LATER * call_s or not start or _keeps_up(at, start, program, row.device_s):
            continue
        calls = statements.calls_in(statements.syntax_tree(at.file))
        timed = {statements.last_name(call.func) for call in calls if start <= call.lineno <= end}
        waits = (line.at for line in analysis.lines)
        waited = any(w.function in timed or (w.file == at.file and start <= w.line <= end) for w in waits)
        if waited or (at.file, start, end) in noted:
            continue
        noted.add((at.file, start, end))
        yield (
            f"the time that {at._replace(line=end)} takes, from line {start} on, is that of dispatching "
            f"{c.called} (line {at.line}), not of computing it: a call returns after "
            f"{format_quantity(call_s, 's')}, and the device takes {format_quantity(row.device_s, 's')}. "
            "Call jax.block_until_ready on the result first"
        )


def _keeps_up(at: Place, start: int, program: ExecutedProgram, device_s: float) -> bool:
    """Return whether a loop that a program times takes at least as long as the device needs for its calls.

    Something in each turn then waits for the device, or takes longer.
    """
    loop = statements.innermost(at, statements.LOOP)
    return bool(loop and loop.lineno > start and program.turn_s and program.turn_s >= device_s)


def _timing_around(at: Place) -> tuple[int, int]:
    """Return the lines next to a call at which its function reads Python's clocks for a difference; or 0s."""
    begins, ends = _clock_reads(
        statements.innermost(at, statements.FUNCTION) or statements.syntax_tree(at.file)
    )
    start = max((line for line in begins if line < at.line), default=0)
    end = min((line for line in ends if line >= at.line), default=0)
    return (start, end) if start and end else (0, 0)


@functools.cache
def _clock_reads(scope: ast.AST) -> tuple[list[int], list[int]]:
    """Return the lines that keep the time of a clock, which is later subtracted, and all that read one."""
    differences = [n for n in statements.nodes_in(scope, ast.BinOp) if isinstance(n.op, ast.Sub)]
    subtracted = {ast.unparse(n.right) for n in differences}
    kept = [n for n in statements.nodes_in(scope, ast.Assign) if _reads_clock(n.value)]
    begins = [n.lineno for n in kept if {*map(ast.unparse, n.targets)} & subtracted]
    return begins, [call.lineno for call in statements.calls_in(scope) if _reads_clock(call)]


def _reads_clock(value: ast.expr) -> bool:
    owner, _, name = statements.dotted_name(getattr(value, "func", None)).rpartition(".")
    return isinstance(value, ast.Call) and not value.args and owner in ("", "time") and name in _CLOCKS


def fork_notes(analysis: Analysis) -> Iterator[str]:
    for at, count in Counter(analysis.log.forks).items():
        times = "a process was" if count == 1 else f"{count} processes were"
        yield (
            f"{times} forked at {at or NOWHERE} after JAX had started: a child has none of JAX's threads, so "
            "a call of JAX there may never return. Start workers before JAX is used, or with "
            'multiprocessing.get_context("spawn") (of a DataLoader: multiprocessing_context="spawn")'
        )


@cause(
    "faster on the cpu", "program", COMMITTED, "this runs faster on the CPU",
    "Give the accelerator many of them at once, with jax.vmap over {name}, or many steps in one program with "
    "jax.lax.scan. Otherwise run {name} on the CPU: give it arrays that jax.device_put has put on "
    'jax.devices("cpu")[0], or start the program with JAX_PLATFORMS=cpu.',
)  # fmt: skip
def find_faster_on_cpu(analysis: Analysis) -> Iterator[Finding]:
    """Find an accelerator's programs that the CPU was seen to execute in less time than a turn takes."""
    log = analysis.log
    for c, at in analysis.called:
        program, cpu_s = analysis.ran(c), log.on_cpu.get(c.program)
        if program is None or cpu_s is None or program.turn_s is None:
            continue
        if FASTER * cpu_s <= program.turn_s:
            reason = (
                f"a turn with {c.called} takes {format_quantity(program.turn_s, 's')} with the "
                f"{log.backend}, and this machine's CPU executes its program in "
                f"{format_quantity(cpu_s, 's')}, as a trial after the run has shown"
            )
            seconds = (program.turn_s - cpu_s) * program.calls * analysis.scale(program)
            yield Finding("faster on the cpu", at, seconds, reason, c.called)


def python_notes(analysis: Analysis) -> Iterator[str]:
    """Yield a note with the lines at which Python runs for much of the run without a finding."""
    named = {f.at for f in find_causes(analysis)}
    outside = group_by((s for s in analysis.of_kinds(PYTHON, NUMPY, BETWEEN) if s.at), lambda s: s.at)
    seconds = {at: sum(map(analysis.front, samples)) for at, samples in outside.items()}
    total_s = sum(seconds.values())
    most = sorted(seconds, key=lambda at: -seconds[at])[:MOST_LINES]
    lines = [at for at in most if seconds[at] >= LINE_SHARE * analysis.run_s and at not in named]
    much = total_s >= PYTHON_SHARE * analysis.run_s
    if lines and (much or seconds[lines[0]] >= ONE_LINE_SHARE * analysis.run_s):
        where = "; ".join(f"{format_quantity(seconds[at], 's')} at {at}: {at.source[:60]}" for at in lines)
        yield f"Python runs outside of JAX for {format_quantity(total_s, 's')}, most of it here: {where}"


def keras_notes(analysis: Analysis) -> Iterator[str]:
    hot = {row.name: row for row in hottest_programs(analysis)}
    for c in {c.program: c for c in analysis.log.compiled if c.owner == "keras"}.values():
        program, row = analysis.ran(c), hot.get(c.program)
        if program is None or row is None or program.calls < OFTEN or "train_step" not in c.name:
            continue
        turn_s, step_s = program.turn_s or 0.0, max(row.device_s, row.dispatch_s or 0.0)
        if turn_s >= AROUND * step_s:
            yield (
                f"Keras takes {format_quantity(turn_s, 's')} from one step to the next at {c.at}, of which "
                f"the step is {format_quantity(step_s, 's')}; the rest is its own Python, for data, "
                "callbacks and metrics: model.compile(..., steps_per_execution=10) goes through callbacks "
                "and metrics once for ten steps"
            )


@cause(
    "finite differences", "python", SYNCHRONIZE, "a solver estimates derivatives by calling a function again",
    "Give {name} the derivative as {argument}, made once: jax.jit(jax.grad(f)) of the function f that it "
    "calls, or jax.jit(jax.jacfwd(f)) if f returns an array.",
    confidence="bound",
    forms={
        "gradient": "Give {name} value and gradient from one function under jax.jit, and jac=True.\n"
        "import jax, numpy as np\n"
        "from scipy.optimize import minimize\n"
        "def fit(both):    # value and gradient, as float64\n"
        "    return minimize(lambda w: [np.asarray(a, float) for a in both(w)], np.zeros(3), jac=True)\n"
        "fit(jax.jit(jax.value_and_grad(lambda w: ((w - 1) ** 2).sum())))",
    },
    choose=lambda f: "gradient" if f.name == "minimize" else "",
)  # fmt: skip
def find_finite_differences(analysis: Analysis) -> Iterator[Finding]:
    for at, (solver, argument) in estimating(analysis).items():
        under = [s for s in analysis.samples if at in (s.at, *s.callers)]
        lines = {s.at for s in under}
        # the parameters are the first array that the solver's function passes on
        first = [dimensions(c.arrays[0][1]) for c, line in analysis.called if line in lines and c.arrays]
        sizes = [dims[0] for dims in first if len(dims) == 1]
        calls = max(sizes, default=0) + 1
        seconds, gradient = sum(map(analysis.front, under)), solver in _OF_NUMBERS
        # a gradient takes the device as long as a few calls, and a Jacobian as long as all of them
        if gradient:
            seconds += sum(analysis.waiting.of(s) * analysis.undelayed_by_others(s) for s in under)
        reason = (
            f"{solver} gets no {argument}, and so calls the function {calls} times for each derivative, "
            "once for each parameter"
        )
        least = GRADIENT if gradient else 1
        saved_s = seconds * (1 - min(1.0, least / calls))
        yield Finding("finite differences", at, saved_s, reason, solver, argument=argument)


@once
def estimating(analysis: Analysis) -> dict[Place, tuple[str, str]]:
    """Return the lines that call a solver without a derivative: its name, and the argument for it."""
    if "scipy.optimize" not in sys.modules:
        return {}
    places = {at for s in analysis.samples for at in (s.at, *s.callers)}
    known = {at: _estimates(at) for at in places}
    return {at: solver for at, solver in known.items() if solver}


@once
def lines_of_solvers(analysis: Analysis) -> set[Place]:
    """Return the lines that a function of SciPy runs, which needs each value before it goes on."""
    places = {at for s in analysis.samples for at in (s.at, *s.callers)}
    solvers = {*estimating(analysis), *filter(_calls_scipy, places)}
    return {s.at for s in analysis.samples if not solvers.isdisjoint((s.at, *s.callers))}


def _calls_scipy(at: Place) -> bool:
    names = (statements.imported_name(at.file, call.func) for call in statements.calls_at(at))
    return any(name.startswith("scipy.") for name in names)


def _estimates(at: Place) -> tuple[str, str] | None:
    for call in statements.calls_at(at):
        module, _, solver = statements.imported_name(at.file, call.func).rpartition(".")
        if module != "scipy.optimize" or solver not in _DERIVATIVES:
            continue
        parameters = inspect.signature(getattr(sys.modules[module], solver))
        keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        given = parameters.bind_partial(*call.args, **keywords).arguments
        none, argument = ast.Constant(None), _DERIVATIVES[solver]
        derivative, method = (ast.unparse(given.get(name, none)) for name in (argument, "method"))
        unknown = len(keywords) < len(call.keywords) or any(isinstance(a, ast.Starred) for a in call.args)
        estimated = derivative.strip("'") in ("None", "False", "2-point", "3-point")
        if estimated and not unknown and method.strip("'").lower() not in _WITHOUT:
            return solver, argument
    return None
