"""The rule about operations outside jit, which are dispatched and computed one by one."""

import ast
import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from jaxperf.hlo import Shape
from jaxperf.known_faults import ynn_sums
from jaxperf.result.formatting import format_quantity
from jaxperf.result.intervals import difference, total_length
from jaxperf.watch.grouping import group_by
from jaxperf.watch.log import EAGER, PYTHON, StackSample
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.report.analysis import BRIEF_S, Analysis, IntervalSet, once
from jaxperf.watch.rules.elements import (
    element_read,
    elements_taken,
    read_lines,
    small_program_s,
    taken_apart,
)
from jaxperf.watch.rules.idle import (
    OFTEN,
    REPEATS,
    derived_calls,
    find_list_conversions,
    find_repeated_puts,
    find_small_puts,
    findings_by_function,
)
from jaxperf.watch.rules.jit_advice import (
    NO_WAY,
    WAYS,
    Line,
    best_way,
    in_one_program,
    lines_of,
    outermost,
)
from jaxperf.watch.rules.programs import find_eager_copies
from jaxperf.watch.rules.small_programs import (
    compiled_elsewhere_s,
    find_eager_recompiles,
    find_many_arrays,
)
from jaxperf.watch.rules.table import ONE_A_SHAPE, PERFORMANCE, Finding, cause, findings_of
from jaxperf.watch.source import statements
from jaxperf.watch.source.host_work import call_on_host

SHORT_S = 5e-5  # seconds of an operation that takes less than its dispatch
SEEN_S = 0.05  # of windows, below which samples alone say what the front end did
LITTLE_S = 0.02  # of windows, which say nothing: one call may take as long
SMALL = 1e6  # bytes and FLOPs of an operation that takes less than its dispatch
JIT_OBJECT_S = 1e-4  # that a call takes longer through a new jit object
FIRST_CALL_S = 3e-3  # that the first call of an operation takes besides its compilation
ALIKE = 0.5  # of an operation's bytes, from which on another one tells what they take in memory
RATE = 200  # operations per second at their lines; fewer do not explain idle devices
IN_A_ROW = 3  # consecutive light operations that are worth fusing
# opcodes that compute for longer than they go through memory
_COMPUTING = {
    "atan2", "cbrt", "cosine", "erf", "exponential", "exponential-minus-one", "log", "log-plus-one",
    "logistic", "power", "remainder", "shift-left", "shift-right-logical", "sine", "tan", "tanh", "xor",
}  # fmt: skip
# those of them that XLA computes for a CPU one element at a time, but many at a time in a kernel of YNN
_SLOW_ALONE = {"cosine", "sine"}
# the opcodes of a program that XLA does not fuse with others
_HEAVY = {
    "cholesky", "conditional", "convolution", "custom-call", "dot", "fft", "rng-bit-generator", "scatter",
    "sort", "triangular-solve", "while",
}  # fmt: skip

_LOOPS = {"scan", "fori_loop", "while_loop", "associative_scan"}  # of `jax.lax`


@cause(
    "eager", "eager", PERFORMANCE, "operations are dispatched one by one",
    "Put this line and its neighbors into one jitted function; float() and print() stay outside.",
    forms=WAYS,
)  # fmt: skip
def find_eager_operations(analysis: Analysis) -> Iterator[Finding]:
    """Find functions that dispatch operations one by one while devices are idle, or over large arrays."""
    line = outermost(analysis)
    # lines that other rules cover
    placing = (find_small_puts, find_list_conversions, find_repeated_puts)
    covered = {finding.at for rule in placing for finding in findings_of(analysis, rule)} | _waits(analysis)
    eager = analysis.of_kinds(EAGER)
    covered |= set(filter(statements.only_places, {s.at for s in eager}))
    eager = [s for s in eager if s.at not in covered]
    operations = [s for s in eager if s.start >= analysis.begin]
    derived = [s for s in derived_calls(analysis) if s.start >= analysis.begin]
    # one program of what runs once takes as long to compile as its calls take
    idle = _idle_during(analysis, line, [*filter(_runs_again(analysis), operations), *derived])
    yield from _new_jit_objects(analysis, {at: s for at, s in idle.items() if "jit(" in at.source})
    if _saw_little(analysis):
        idle = _seen_by_samples(analysis, line, [*operations, *derived])
    elif _rate(analysis) < RATE:
        idle = _idle_during(analysis, line, derived)
    # no program of the reader's ran yet
    before = _by_samples(analysis, line, [s for s in eager if s.end <= analysis.begin], 1.0)
    lost = _Lost(idle, before, _unfused(analysis, map(line, operations)))
    # their advice is to take the operation out of jit
    elsewhere = {
        finding.at
        for rule in (find_eager_recompiles, find_many_arrays)
        for finding in findings_of(analysis, rule)
        if finding.cause in ("eager shapes", "many arrays") and finding.form not in ONE_A_SHAPE
    }
    lost_s = {
        at: seconds
        for at, seconds in lost.total_s.items()
        # a line that makes a jit object is above, or a retrace; one program of what is made once would take
        # longer to compile
        if not ("jit(" in at.source or _makes_once(at) or at in elsewhere)
    }
    # what a call on the host takes is no part of a jitted function
    by_function = findings_by_function("eager", lost_s, "", lambda at: bool(call_on_host(at)))
    explained = [replace(f, reason=_reason(analysis, f.at, lost)) for f in by_function]
    findings = [_of_function(analysis, finding, lost_s) for finding in explained]
    yield from (f for f in findings if f.cause != "eager")
    whole = [f for f in findings if f.cause == "eager" and f.form != NO_WAY]
    yield from in_one_program(whole, analysis)


@dataclass(frozen=True)
class _Lost:
    """The seconds, by line, that operations outside of jit lose."""

    idle: Mapping[Place, float]  # in which devices had nothing to do
    before: Mapping[Place, float]  # the first jitted function runs
    unfused: Mapping[Place, float]  # in which devices go through memory again and again

    @property
    def parts(self) -> tuple[Mapping[Place, float], ...]:
        return self.idle, self.before, self.unfused

    @property
    def total_s(self) -> dict[Place, float]:
        return {at: sum(part.get(at, 0.0) for part in self.parts) for part in self.parts for at in part}

    def of_function(self, at: Place) -> tuple[float, ...]:
        """Return the seconds of each kind in the function around a line."""
        function = statements.function_of(at)
        return tuple(
            sum(s for p, s in part.items() if statements.function_of(p) == function) for part in self.parts
        )


def _idle_during(analysis: Analysis, line: Line, samples: Iterable[StackSample]) -> dict[Place, float]:
    """Return the seconds, by line, in which devices are idle while some operations run."""
    # an operation may wait in its call for the array that it takes
    return analysis.of_the_run(lambda s: _free(analysis).of(s) * s.awake, samples, line, alike=True)


def _of_function(analysis: Analysis, finding: Finding, lost_s: Mapping[Place, float]) -> Finding:
    """Return a function's finding with the way in which it becomes one program, or with another cause."""
    # all samples as they were taken, of a whole function, and of what it calls
    lines = lines_of(finding.at) if statements.defined_at(finding.at) else set()
    inside = [s for s in analysis.log.samples if lines and any(p[:2] in lines for p in (s.at, *s.callers))]
    here_s = defaultdict[tuple[Place, str], float](float)
    for s in inside:
        here_s[s.at, s.kind] += analysis.front(s)
    # not a line that mostly does something else, as a solver that JAX's hook of the collector interrupts
    looks = Counter(s.at for s in inside if s.kind == EAGER and here_s[s.at, EAGER] >= here_s[s.at, PYTHON])
    at = max(looks, key=looks.__getitem__, default=finding.at)
    if array := elements_taken(analysis, at):
        taken = (
            f"elements of {array} are taken one by one, each by programs of its own, and Python tests or "
            "prints them"
        )
        return Finding("element reads", at, finding.seconds, taken, argument=array)
    # a function that mostly does something else, such as drawing, is not jitted as a whole
    eager_s, python_s = (sum(s for (_, of), s in here_s.items() if of == kind) for kind in (EAGER, PYTHON))
    if python_s > eager_s:
        finding = replace(finding, at=at)
    statement = statements.innermost(finding.at, ast.stmt)
    there_s = (s for at, s in lost_s.items() if statements.innermost(at, ast.stmt) is statement)
    library = _libraries_called(analysis).get(finding.at, "")
    advised = best_way(finding, analysis, library, sum(there_s))
    costs_s = small_program_s(analysis) + compiled_elsewhere_s(analysis, advised.at)
    return replace(advised, costs_s=advised.costs_s + costs_s)


@once
def _libraries_called(analysis: Analysis) -> dict[Place, str]:
    """Return the libraries inside of which operations were compiled, by the line that calls them."""
    return {c.at: c.through for c in analysis.log.compiled if not c.explained and c.through}


@once
def _eager_seen_s(analysis: Analysis) -> float:
    """Return the seconds of the profiler's windows in operations outside of jit."""
    return sum(analysis.windows.of(s) for s in analysis.of_kinds(EAGER) if s.start >= analysis.begin)


def _saw_little(analysis: Analysis) -> bool:
    """Return whether windows saw too little of the operations outside of jit."""
    return total_length(analysis.steady) < SEEN_S or _eager_seen_s(analysis) < BRIEF_S


def _rate(analysis: Analysis) -> float:
    """Return how many operations outside of jit run in a second at their lines, by the profiler's windows."""
    programs, seen_s = analysis.log.activity.programs, _eager_seen_s(analysis)
    outside = [p.calls for name, p in programs.items() if name not in analysis.jitted]
    return sum(calls for calls in outside if calls >= OFTEN) / seen_s if seen_s else 0.0


def _reason(analysis: Analysis, at: Place, lost: _Lost) -> str:
    """Return what most of the seconds of a line's function are, by what windows and samples saw."""
    idle_s, before_s, unfused_s = lost.of_function(at)
    if unfused_s > idle_s + before_s:
        return (
            "operations outside of jit follow each other, and each goes through whole arrays; one program of "
            "them would go through memory once"
        )
    if before_s > idle_s:
        return "small operations are dispatched outside of jit, before a jitted function runs"
    with_body = getattr(statements.innermost(at, ast.stmt), "body", None)
    loops = sorted(statements.called_at(at) & _LOOPS)
    if loops and not with_body:
        return f"outside of jit, Python prepares {loops[0]} on each call, and devices have little to do then"
    if _saw_little(analysis):
        return (
            "small operations are dispatched outside of jit; windows of the profiler saw too little of it to "
            "tell what devices did meanwhile"
        )
    rate = _rate(analysis)
    # windows may have seen only what a transformation runs
    each = f", {format_quantity(1 / rate, 's')} each" if rate else ""
    return f"operations are dispatched outside of jit{each}, and devices are idle meanwhile"


def _new_jit_objects(analysis: Analysis, idle: dict[Place, float]) -> Iterator[Finding]:
    """Yield findings for lines that make a jit object for each call, given the idle seconds there."""
    reason = "this line makes a jit object for each call, and so never takes the short way of later calls"
    for at, idle_s in idle.items():
        made = [c for c, where in analysis.called if where == at]
        traced = sum(c.at == at for c, _ in analysis.called)
        if made and traced <= REPEATS:  # else `find_retraces` covers it
            ran = {run.name: run for run in map(analysis.ran, made) if run}.values()
            calls = sum(run.calls * analysis.scale(run) for run in ran)
            seconds = min(idle_s, calls * JIT_OBJECT_S)
            yield Finding("new function", at, seconds, reason, made[0].called)


def _makes_once(at: Place) -> bool:
    makes = statements.made_module(at) or statements.init_call(at)
    return bool(makes) and statements.innermost(at, statements.ROUND) is None


def _waits(analysis: Analysis) -> set[Place]:
    """Return the lines that `find_waits` or `find_iterated_arrays` cover."""
    # what a comprehension computes with elements that nobody reads is dispatched
    apart = {
        at: lines
        for at, lines in taken_apart(analysis).items()
        if lines & read_lines(analysis)
        or not lines
        or isinstance(statements.innermost(at, ast.stmt), ast.For)
    }
    elements = set().union(*apart.values())
    handling = {s.at for s in analysis.samples if (s.at.file, s.at.line) in elements}
    waiting = {
        at
        for at in (line.at for line in analysis.lines)
        if element_read(analysis, at)
        or isinstance(statements.innermost(at, ast.stmt), ast.If | ast.While)
        or not (at in analysis.outside_jit or statements.has_operations(at))
    }
    return {*apart, *handling, *waiting}


@once
def _begun(analysis: Analysis) -> Counter[Place]:
    """Return how often samples saw each line begin."""
    return Counter(b.at for a, b in itertools.pairwise(analysis.samples) if a.at != b.at)


def _runs_again(analysis: Analysis) -> Callable[[StackSample], bool]:
    """Return a test of whether a sample's line runs again and again, as far as loops and samples tell."""
    begun = _begun(analysis)
    return lambda s: (
        begun[s.at] >= REPEATS or any(statements.innermost(at, statements.ROUND) for at in (s.at, *s.callers))
    )


@once
def _free(analysis: Analysis) -> IntervalSet:
    """Return when, in windows, devices had nothing to do but short operations outside jit."""
    spans = ((name, span) for name, p in analysis.log.activity.programs.items() for span in p.spans)
    # of one program, operations on large arrays are long, and those on numbers are short
    busy = [(a, b) for name, (a, b) in spans if name in analysis.jitted or b - a > SHORT_S]
    others_s = [*busy, *analysis.waiting.stretches, *analysis.log.activity.queued]
    return IntervalSet(difference(analysis.steady, others_s))


def _seen_by_samples(analysis: Analysis, line: Line, operations: Iterable[StackSample]) -> dict[Place, float]:
    """Return the seconds, by line, in operations of loops where windows saw too little to tell.

    If the front end mostly waits for devices, they may have something to do while it dispatches.
    """
    seen_s = total_length(analysis.steady)
    if 2 * analysis.waiting.within(analysis.begin, analysis.log.end) > analysis.from_begin_s:
        return {}
    share = total_length(_free(analysis).stretches) / seen_s if seen_s >= LITTLE_S else 1.0
    return _by_samples(analysis, line, operations, share)


def _by_samples(
    analysis: Analysis,
    line: Line,
    operations: Iterable[StackSample],
    share: float,
) -> dict[Place, float]:
    """Return the seconds, by line, in small operations of loops, given the share in which devices are free.

    The first call of an operation takes longer, under jit, too.
    """
    heavy = {f.program for f in analysis.log.programs if f.bytes_accessed > SMALL or f.flops > SMALL}
    large = {c.at for c in analysis.log.compiled if c.program in heavy - analysis.jitted.keys()}
    # a caller's loop may go round once while the line runs, as one over whole experiments does
    begun = _begun(analysis)
    seconds: dict[Place, float] = defaultdict(float)
    for s in operations:
        chain = (s.at, *s.callers) if begun[s.at] >= REPEATS else (s.at,)
        looped = any(statements.innermost(at, statements.ROUND) for at in chain)
        if looped and s.at not in large:
            # while it waits for a core, a device may compute
            ran_s = max(0.0, s.end - s.start - s.slept_s - s.delayed_s)
            seconds[line(s)] += share * min(ran_s, analysis.front(s))
    first_s: dict[Place, float] = defaultdict(float)
    for c in analysis.log.compiled:
        if not c.explained:
            first_s[line(c)] += FIRST_CALL_S
    # a first call may take twice as long, as on a busy machine
    return {at: s - first_s[at] for at, s in seconds.items() if s > 2 * first_s[at]}


def _unfused(analysis: Analysis, lines: Iterable[Place]) -> dict[Place, float]:
    """Return the device seconds that fusing light operations outside jit would save, by line."""
    opcodes = {
        name: {i.opcode for facts in programs for i in facts.instructions}
        for name, programs in analysis.programs.items()
    }
    # fusing does not take away that a large array is copied to change a part of it
    copying = {finding.name for finding in findings_of(analysis, find_eager_copies)}
    others = copying.union(analysis.jitted)
    light = {name for name in opcodes.keys() - others if opcodes[name] and not opcodes[name] & _HEAVY}
    rows = [_in_a_row(analysis, device, light) for device in analysis.log.activity.devices]
    ran = {name for row in rows for _, _, name in row}
    layouts = {name: max((f.layout for f in analysis.programs[name]), key=_bytes_of) for name in ran}
    taken = _taken_by_sums(analysis, rows, layouts, {name for name in ran if opcodes[name] & _SLOW_ALONE})
    computing = {name for name in ran if opcodes[name] & _COMPUTING} - taken
    memory_s, inside = _memory_s(analysis, layouts, computing), _made_inside(layouts) | taken
    share = max((_saved_share(row, memory_s, inside) for row in rows), default=0.0)
    if not share:
        return {}
    # the devices of one host share its cores, and then do not compute at the same time; what is free counts
    # as the front end's
    spans = ((start, end) for row in rows for start, end, _ in row)
    seconds = analysis.in_run(difference(spans, _free(analysis).stretches)) * share
    looks = Counter(lines)
    return {at: seconds * count / looks.total() for at, count in looks.items()}


def _in_a_row(analysis: Analysis, device: str, light: Collection[str]) -> list[tuple[float, float, str]]:
    """Return the light operations that a device executed one after the other: begin, end and name of each."""
    executed = sorted(
        (start, end, name)
        for name, program in analysis.log.activity.programs.items()
        for start, end in program.devices.get(device, ())
        if start >= analysis.begin
    )
    rows = ([*row] for together, row in itertools.groupby(executed, lambda e: e[2] in light) if together)
    in_a_row = [execution for row in rows if len(row) >= IN_A_ROW for execution in row]
    return in_a_row if len(in_a_row) >= OFTEN else []


_Layout = tuple[tuple[Shape, ...], tuple[Shape, ...]]  # of a program: the shapes of arguments and of results


def _bytes_of(layout: _Layout) -> int:
    return sum(shape.bytes for shape in itertools.chain(*layout))


def _memory_s(
    analysis: Analysis, layouts: Mapping[str, _Layout], computing: Collection[str]
) -> dict[str, float]:
    """Return the seconds of an execution of each program that go to memory, which fusing could save.

    For those that also compute, the fastest program on arrays as large tells what these need.
    """
    spans = {name: analysis.log.activity.programs[name].spans for name in layouts}
    each_s = {name: statistics.fmean(end - start for start, end in here) for name, here in spans.items()}
    nbytes = {name: _bytes_of(layout) for name, layout in layouts.items()}
    return {
        name: min(
            each_s[other] * (nbytes[name] / nbytes[other] if nbytes[other] else 1.0)
            for other in each_s
            if other == name or (name in computing and nbytes[other] >= ALIKE * nbytes[name] > 0)
        )
        for name in each_s
    }


def _taken_by_sums(
    analysis: Analysis,
    rows: Iterable[list[tuple[float, float, str]]],
    layouts: Mapping[str, _Layout],
    slow_alone: Iterable[str],
) -> set[str]:
    """Return the programs, of those slow alone, that go into the kernel of a sum if one program holds both.

    So it is where only a sum takes their results, as the source says, and XLA made such a kernel of a sum of
    arrays as large, which runs as often.
    """

    def largest(name: str) -> int:
        return max(shape.bytes for shape in itertools.chain(*layouts[name]))

    summed = {c.program for c in analysis.log.compiled if statements.only_sums(c.at, c.name)}
    counts = Counter(name for row in rows for *_, name in row)
    sums = {name for name in layouts if any(any(ynn_sums(facts.module)) for facts in analysis.programs[name])}
    return {
        name
        for name in summed.intersection(slow_alone)
        if sum(counts[other] for other in sums if largest(other) >= largest(name)) >= counts[name]
    }


def _made_inside(layouts: Mapping[str, _Layout]) -> set[str]:
    """Return the programs whose large arrays begin as small ones, such as distances of all pairs of points.

    One program of all would not write these arrays at all.
    """
    made, inside = set[Shape](), set[str]()
    for _ in layouts:  # a chain may be as long
        for name, (arguments, results) in layouts.items():
            most = max((shape.bytes for shape in (*arguments, *results)), default=0)
            large = {shape for shape in arguments if shape.bytes >= ALIKE * most}
            if most and large <= made:
                inside.add(name)
                made.update(results)
    return inside


def _saved_share(
    in_a_row: list[tuple[float, float, str]], memory_s: dict[str, float], inside: Collection[str]
) -> float:
    """Return the share of a device's time that would be saved if consecutive light operations were fused."""
    if not in_a_row:
        return 0.0
    spans = group_by(in_a_row, lambda e: e[2]).values()
    # each operation goes through memory, and one program of them does so once: as the longest of a turn does
    turns = statistics.median_low(map(len, spans))
    kept_s = max((memory_s[name] for _, _, name in in_a_row if name not in inside), default=0.0)
    saved_s = sum(memory_s[name] for _, _, name in in_a_row) - turns * kept_s
    seconds = sum(end - start for start, end, _ in in_a_row)
    return max(0.0, min(1 - 1 / max(IN_A_ROW, len(spans)), saved_s / seconds))
