"""Analyze a record: shares of the time, and what the front end does while devices are idle.

Devices are visible only in the profiler's windows. Seconds in them are scaled to the time since the reader's
first function was compiled, less the time in which something was traced or compiled.

`reclassified_samples` looks at the loops around lines. A sample has the reader's line and what it called.
Whether that is data for the next step, bookkeeping or part of the step itself depends on the loop around
the line, and on which lines of the loop call jitted functions.
"""

import ast
import bisect
import functools
import itertools
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import psutil

from jaxperf.result.intervals import Interval, clip, difference, intersection, total_length, union
from jaxperf.retraces import dimensions
from jaxperf.watch.grouping import group_by
from jaxperf.watch.log import (
    ARRAY_OF,
    BETWEEN,
    DATA,
    DISPATCH,
    EAGER,
    IMPORT,
    LIST_OF,
    NUMPY,
    OBJECT_OF,
    PYTHON,
    SETTINGS,
    WRITE,
    Compiled,
    ExecutedProgram,
    Log,
    Put,
    StackSample,
    Wait,
)  # fmt: skip
from jaxperf.watch.observe.executables import Facts
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.observe.waits import NUMBERS
from jaxperf.watch.source import call_sites, loop_body, statements
from jaxperf.watch.source.call_sites import CallSite

_T = TypeVar("_T")
MANY_LENGTHS = 5  # of a list or of what is joined, for each of which jit would compile a program
MANY_ELEMENTS = 50  # of an array over which a loop goes, which jit would unroll
FULL_QUEUE, UFUNC, COMPUTING_CALL = "a full queue", "a NumPy function", "a call that computes"
LONG_CALL_S = 0.1  # of calls in windows that saw nothing: no call takes so long to dispatch
SILENT_SHARE = 0.3  # of the time of calls at a line in windows, in which windows saw no call that ends
BLOCKED, BLOCKED_S = 3, 1.0  # so many intervals at a line, or so many seconds, show a full queue
BRIEF_S = 0.005  # seconds in windows that say little about a line
ALL = "all samples"
SEEN = 20  # waits in windows whose mean stands for all
LONG_WAIT_S = 0.02  # a wait this long is for a computation; copies to the host and calls take less
_WRITES = re.compile(r"b?[wax][bt+]*")  # the mode of a file to write


def reclassified_samples(log: Log) -> list[StackSample]:
    """Return the samples of a log, reclassified by their loops.

    In a loop of steps, a statement that could run ahead of the steps becomes `DATA`, and other Python code
    becomes `BETWEEN`; both get the line in the loop. Whatever runs at the call of a jitted function is its
    `DISPATCH`. Where a loop has no jitted step, its operations outside jit are its steps; Python among them
    may be theirs, and stays as it is.
    """
    calls: list[Compiled | CallSite] = [*(c for c in log.compiled if c.explained), *log.call_sites]
    steps = frozenset(p for call in calls for p in (call.at, *call.callers) if p)
    dispatching = {call.at for call in calls if isinstance(call, Compiled) or call.program}
    batches = {p.at for p in log.puts} - {p.at for p in log.puts if p.again or not p.nbytes}
    operations = [s for s in log.samples if s.kind == EAGER and s.at not in batches]
    eager_steps = frozenset(p for s in operations for p in (s.at, *s.callers))
    # Python at a line that mostly dispatches operations, such as a split of a key, is theirs
    looks, others = Counter(s.at for s in operations), Counter(s.at for s in log.samples if s.kind != EAGER)
    of_operations = {at for at, count in looks.items() if count > others[at]}

    @functools.cache
    def classify(kind: str, at: Place, callers: tuple[Place, ...], in_iterator: bool) -> tuple[str, Place]:
        # `find_eager_operations` reports a line that makes a jit object
        if kind in (EAGER, PYTHON, WRITE) and at in dispatching and "jit(" not in at.source:
            return DISPATCH, at
        preparing = kind in (PYTHON, NUMPY, DATA, WRITE) or (kind == EAGER and at in batches)
        if not preparing or in_iterator or at in of_operations:
            return kind, at
        for stepping in (steps, eager_steps):
            in_loop, called = _in_loop((at, *callers), stepping)
            file = _file_written(at, kind) if in_loop and kind in (WRITE, PYTHON) else NOWHERE
            if file or (in_loop and kind == WRITE):
                return WRITE, file or at
            if in_loop and loop_body.could_run_ahead(in_loop, stepping, called):
                return DATA, in_loop
            if in_loop and stepping is steps:
                return (BETWEEN, in_loop) if kind == PYTHON else (kind, at)
        # a file that is written outside of loops does not matter
        return (PYTHON if kind == WRITE else kind), at

    found = ((s, *classify(s.kind, s.at, s.callers, bool(s.inside))) for s in log.samples)
    return [s._replace(kind=kind, at=at, inside=s.inside if at == s.at else s.at) for s, kind, at in found]


def _in_loop(chain: tuple[Place, ...], steps: frozenset[Place]) -> tuple[Place, str]:
    """Return a stack's statement in a loop of steps; if it is a step, also the function in its arguments.

    The body of a function that a loop calls as its step counts as a part of the loop.
    """
    repeated = False
    for i in reversed(range(len(chain))):  # the outermost line first
        at = chain[i]
        repeated = repeated or loop_body.stepping_loop(at, steps) is not None
        if not loop_body.is_step(at, steps):
            return (at if repeated else NOWHERE), ""
        inner = chain[i - 1] if i else NOWHERE
        # an argument of the step
        if i and statements.function_of(inner) not in map(statements.function_of, steps):
            return (at if repeated else NOWHERE), inner.function
    return NOWHERE, ""


def _file_written(at: Place, kind: str) -> Place:
    """Return the line of the `with open(path, "wb")` that a line of a loop is in, or begins."""
    loop = statements.innermost(at, loop_body.LOOP)
    for node in statements.enclosing_nodes(at, ast.With):
        meant = node.lineno == at.line if kind == PYTHON else not loop or loop.lineno < node.lineno
        if meant and any(_opens_to_write(item.context_expr) for item in node.items):
            return at._replace(line=node.lineno)
    return NOWHERE


def _opens_to_write(call: ast.expr) -> bool:
    """Return whether an expression is `open(path, "wb")`, `path.open("wb")` or `gzip.open(path, "wb")`."""
    if not isinstance(call, ast.Call) or statements.last_name(call.func) != "open":
        return False
    # The first argument of the function itself is the path
    modes = call.args[1:2] if isinstance(call.func, ast.Name) else call.args[:2]
    modes = [*modes, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    return any(isinstance(mode, ast.Constant) and _WRITES.fullmatch(str(mode.value)) for mode in modes)


def _lines_by_file(places: Iterable[Iterable[Place]]) -> dict[str, frozenset[int]]:
    files = group_by(set[Place]().union(*places), lambda at: at.file)
    return {file: frozenset(at.line for at in here) for file, here in files.items()}


class IntervalSet:
    """Computes quickly how much of a set of intervals lies between two times, in seconds."""

    def __init__(self, stretches: Iterable[Interval]) -> None:
        self.stretches = union(stretches)
        self._starts = [a for a, _ in self.stretches]
        self._sums = [0.0, *itertools.accumulate(b - a for a, b in self.stretches)]

    def _until(self, moment: float) -> float:
        i = bisect.bisect_right(self._starts, moment)
        if not i:
            return 0.0
        a, b = self.stretches[i - 1]
        return self._sums[i - 1] + min(moment, b) - a

    def within(self, start: float, end: float) -> float:
        return self._until(end) - self._until(start)

    def of(self, event: StackSample | Wait | Put) -> float:
        return self.within(event.start, event.end)

    def containing(self, moment: float) -> Interval | None:
        i = bisect.bisect_right(self._starts, moment) - 1
        return self.stretches[i] if i >= 0 and moment <= self.stretches[i][1] else None


def _around(chain: tuple[Place, ...]) -> list[Any]:
    """Return the loops around a line and its callers, and functions called in them, the innermost first."""
    scopes = list[Any]()
    for at in chain:
        scopes += [*reversed(statements.enclosing_nodes(at, statements.ROUND)), statements.function_of(at)]
    looped = [i for i, scope in enumerate(scopes) if isinstance(scope, statements.ROUND)]
    return scopes[: max(looped, default=-1) + 1]


@dataclass(frozen=True)
class WaitingLine:
    """One line at which the front end waits: how often, for how long, and at what cost."""

    at: Place
    kind: str  # the call that waits
    count: int  # 0 if it is unknown
    total_s: float
    nbytes: int  # copied to the host
    # t3, the median seconds from the end of the device's work to the wait's; None if no window saw it
    after_s: float | None
    lost_s: float  # seconds of the whole run in which the device was idle because of these waits


class Analysis:
    def __init__(self, log: Log) -> None:
        self.log = log
        self.answers: dict[Any, Any] = {}  # to the questions that are asked `once`

    # --- the program

    @functools.cached_property
    def called(self) -> list[tuple[Compiled, Place]]:
        """Return the reader's jitted functions, each with the line that calls it again and again."""
        log = self.log
        return call_sites.called_at(log.compiled, log.call_sites, log.activity.programs)

    @functools.cached_property
    def jitted(self) -> dict[str, Compiled]:
        """Return the reader's jitted functions by program name; other programs are operations outside jit."""
        return {c.program: c for c, _ in self.called}

    @functools.cached_property
    def outside_jit(self) -> dict[Place, set[str]]:
        """Return the programs of operations outside jit, by the line that compiled them."""
        lines = group_by((c for c in self.log.compiled if not c.explained), lambda c: c.at)
        return {at: {c.program for c in compiled} for at, compiled in lines.items()}

    @functools.cached_property
    def programs(self) -> dict[str, list[Facts]]:
        return group_by(self.log.programs, lambda facts: facts.program)

    def ran(self, program: Compiled | Facts) -> ExecutedProgram | None:
        return self.log.activity.programs.get(program.program)

    def static_parameters(self, file: str, function: str) -> tuple[str, ...]:
        """Return the parameters of a function that `jit` needs as static arguments, as far as samples saw it.

        A number that stays the same may be a size; one that varies is data.
        """
        known = self.log.parameters.get((file, function), {})
        return tuple(
            name
            for name, values in known.items()
            if len(values) == 1 or not any(value.removeprefix("-").isdigit() for value in values)
            if not any(value.startswith((LIST_OF, ARRAY_OF, OBJECT_OF, SETTINGS)) for value in values)
        )

    def settings_passed(self, file: str, function: str) -> list[str]:
        """Return the parameters of a function that were dictionaries with numbers or texts of Python."""
        known = self.log.parameters.get((file, function), {})
        return [name for name, values in known.items() if SETTINGS in values]

    def data_passed(self, at: Place) -> frozenset[str]:
        """Return the parameters of the function around a line that were arrays, or long lists, in samples."""
        known = self.log.parameters.get((at.file, at.function), {})
        arrays = {name for name, values in known.items() for value in values if value.startswith(ARRAY_OF)}
        lists = self.list_lengths(at.file, at.function).items()
        return frozenset(arrays.union(name for name, ns in lists if max(ns) > loop_body.FEW))

    @functools.cached_property
    def iterated_lines(self) -> dict[str, frozenset[int]]:
        """Return the lines that were seen to iterate over arrays, by file."""
        return _lines_by_file(self.log.iterated.values())

    @functools.cached_property
    def long_iterations(self) -> dict[str, frozenset[int]]:
        """Return those of `iterated_lines` that were seen to iterate over many elements."""
        return _lines_by_file(
            at for kind, at in self.log.iterated.items() if dimensions(kind)[:1] >= (MANY_ELEMENTS,)
        )

    def lists_of_many_lengths(self, file: str, function: str) -> list[str]:
        lengths = self.list_lengths(file, function)
        return [name for name, values in lengths.items() if len(values) >= MANY_LENGTHS]

    def list_lengths(self, file: str, function: str) -> dict[str, list[int]]:
        """Return the lengths of the lists that a function got, by parameter."""
        lengths = defaultdict[str, list[int]](list)
        for name, values in self.log.parameters.get((file, function), {}).items():
            for value in values:
                if value.startswith(LIST_OF):
                    lengths[name].append(int(value.removeprefix(LIST_OF)))
        return lengths

    def objects_passed(self, file: str, function: str) -> dict[str, tuple[str, str]]:
        """Return the parameters of a function that were objects of the program's classes, with their class.

        That is its file and its name.
        """
        classes = dict[str, tuple[str, str]]()
        for name, values in self.log.parameters.get((file, function), {}).items():
            for value in values:
                if value.startswith(OBJECT_OF) and name != "self":
                    where, _, kind = value.removeprefix(OBJECT_OF).rpartition(":")
                    classes[name] = where, kind
        return classes

    @functools.cached_property
    def joins_many_lengths(self) -> set[tuple[str, str, int]]:
        """The functions in which an operation outside jit takes ever other numbers of arrays."""
        operations = group_by((c for c in self.log.compiled if not c.explained), lambda c: (c.at, c.name))
        return {
            statements.function_of(at)
            for (at, _), compiled in operations.items()
            if len({len(c.signature) for c in compiled}) >= MANY_LENGTHS
        }

    def reads_inside(self, at: Place, library: str) -> bool:
        """Return whether a library that a line calls reads single values itself, which no trace has."""
        return library in (self.log.waiting_libraries.get((kind, at)) for kind in NUMBERS)

    # --- the front end

    @functools.cached_property
    def samples(self) -> list[StackSample]:
        return reclassified_samples(self.log)

    @functools.cached_property
    def compiling(self) -> IntervalSet:
        spans = (span for c in self.log.compiled for span in c.stages.values())
        return IntervalSet(clip(spans, self.log.start, self.log.end))

    @functools.cached_property
    def waits(self) -> list[Wait]:
        return [w for w in self.log.waits if not self.compiling.of(w)]

    @functools.cached_property
    def blocked(self) -> dict[Place, list[Interval]]:
        """Return the intervals in which calls wait for a full queue or compute, or NumPy waits, by line.

        A thread may also sleep for a lock or a file, so a few short intervals do not count.
        """
        others = [*self.compiling.stretches, *(w.span for w in self.waits)]
        lines = group_by(
            (s for s in self.samples if s.blocked or (s.kind == DISPATCH and s.at in self.computing_calls)),
            lambda s: s.at,
        )
        spans = {at: difference([(s.start, s.end) for s in seen], others) for at, seen in lines.items()}
        return {at: s for at, s in spans.items() if len(s) >= BLOCKED or total_length(s) >= BLOCKED_S}

    @functools.cached_property
    def computing_calls(self) -> set[Place]:
        """Return the lines whose calls end after the computation, and so late that windows saw nothing of it.

        A CPU device executes a program that seems small to XLA in the thread that calls it, as a loop of many
        turns.
        """
        windows, silent = IntervalSet(self.log.activity.windows), IntervalSet(self.log.activity.silent)
        lines = group_by((s for s in self.samples if s.kind == DISPATCH), lambda s: s.at)
        seconds = {at: (sum(map(silent.of, here)), sum(map(windows.of, here))) for at, here in lines.items()}
        return {
            at for at, (unseen, seen) in seconds.items() if unseen >= max(LONG_CALL_S, SILENT_SHARE * seen)
        }

    @functools.cached_property
    def waiting(self) -> IntervalSet:
        return IntervalSet([*(w.span for w in self.waits), *itertools.chain(*self.blocked.values())])

    def front(self, sample: StackSample) -> float:
        """Return the seconds of a sample in which the front end neither compiled nor waited."""
        seconds = sample.end - sample.start - self.compiling.of(sample) - self.waiting.of(sample)
        return max(0.0, seconds) * self.undelayed_by_others(sample)

    def undelayed_by_others(self, sample: StackSample) -> float:
        """Return the share of a sample's time in which it did not wait for a core that other programs had.

        The threads of a CPU device delay the front end, too. That is a part of what its work costs.
        """
        return 1 - (1 - sample.undelayed) * self._share_of_others

    def dispatched_s(self, at: Place) -> float:
        """Return the seconds that calls of jitted functions at a line take the front end."""
        return sum(self.front(s) for s in self.of_kinds(DISPATCH) if s.at == at)

    @functools.cached_property
    def front_s(self) -> dict[str, float]:
        kinds = group_by(self.samples, lambda s: s.kind).items()
        return defaultdict(float, {kind: sum(map(self.front, samples)) for kind, samples in kinds})

    @functools.cached_property
    def run_s(self) -> float:
        """Return the seconds of the run in which neither the front end nor a compiler waited for a core."""
        delayed_s = sum(
            (s.end - s.start - self.compiling.of(s)) * (1 - self.undelayed_by_others(s)) for s in self.samples
        )
        return self.log.wall_s - delayed_s - self._without_cores_s(self.log.compiled)

    @functools.cached_property
    def alone(self) -> float:
        """Return the share of the front end's time in which it did not wait for a core that others had."""
        return 1 - self.delayed * self._share_of_others

    @functools.cached_property
    def delayed(self) -> float:
        """Return the share of the front end's time in which it waited for a core."""
        seen_s = sum(s.end - s.start for s in self.log.samples)
        return sum(s.delayed_s for s in self.log.samples) / seen_s if seen_s else 0.0

    @functools.cached_property
    def alone_beside(self) -> float:
        """Return the share of the time in which the front end has a core for work beside devices.

        Beside a CPU device that takes another core, which other programs may have.
        """
        return min(self.alone, self.share_of_cores(1.0)) if self._on_cpu else self.alone

    def _without_cores_s(self, compiled: Iterable[Compiled]) -> float:
        """Return the seconds of tracing and compiling for which the process had no core.

        It then used less processor time. On a GPU, it may have waited for a trial of kernels.
        """
        if self.log.backend not in ("", "cpu"):
            return 0.0
        watched = [c for c in compiled if c.thread in (0, self.log.thread_id)]
        return sum(max(0.0, c.seconds(stage) - used_s) for c in watched for stage, used_s in c.used_s.items())

    def compiling_s(self, compiled: Iterable[Compiled]) -> float:
        """Return the seconds that the program would save if none of them were traced and compiled.

        Meanwhile, devices work off what was dispatched before.
        """
        compiled = list(compiled)
        spans = union(span for c in compiled for span in c.stages.values())
        seconds = total_length(spans)
        saved_s = max(0.0, min(seconds * self.alone, seconds - self._without_cores_s(compiled)))
        behind_s = sum(self._behind_calls.within(start, end) for start, end in spans)
        return saved_s * (1 - self.beside * behind_s / seconds) if seconds else 0.0

    @functools.cached_property
    def _behind_calls(self) -> IntervalSet:
        """Return the intervals after calls of jitted functions for as long as an execution is queued."""
        queued_s = statistics.median([b - a for a, b in self.log.activity.queued] or [0.0])
        calls = [(s.start, s.end) for s in self.of_kinds(DISPATCH)]
        ends = (end for _, end in difference(calls, union(self.compiling.stretches, gap=queued_s)))
        return IntervalSet((end, end + queued_s) for end in ends)

    # --- devices

    @functools.cached_property
    def begin(self) -> float:
        """Return when the reader's first function (else anything) was compiled; before that is preparation.

        A function that was compiled before the watch counts from its first run. If JAX does not report what
        it compiles, this is the start of the watch.
        """
        older = [self.log.activity.programs[c.program] for c, _ in self.called if not c.stages]
        ran = [start for program in older for start, _ in program.spans]
        compiled = [c for c, _ in self.called if c.stages] or ([] if ran else self.log.compiled)
        none = self.log.start if self.log.activity.devices else self.log.end
        return min([*ran, *(max(b for _, b in c.stages.values()) for c in compiled)], default=none)

    @functools.cached_property
    def steady(self) -> list[Interval]:
        """Return the profiler's windows from `begin` on, without tracing and compiling."""
        windows = clip(self.log.activity.windows, self.begin, self.log.end)
        return difference(windows, self.compiling.stretches)

    @property
    def from_begin_s(self) -> float:
        """Return the seconds of the run from `begin` on in which nothing was traced or compiled."""
        return self.log.end - self.begin - self.compiling.within(self.begin, self.log.end)

    @functools.cached_property
    def _stands_for(self) -> list[tuple[Interval, float]]:
        """Return each window, with the seconds of the run that one of its seconds stands for.

        Windows come more often at first. So each one stands for the time until half way to the next one, and
        those before `begin` for what comes before it.
        """
        windows = sorted(self.log.activity.windows)
        edges = [
            self.begin if before[1] <= self.begin <= after[0] else (before[1] + after[0]) / 2
            for before, after in itertools.pairwise(windows)
        ]
        start, parts = min([self.begin, *(a for a, _ in windows)]), []
        for window, end in zip(windows, [*edges, self.log.end]):
            seen_s = total_length(difference([window], self.compiling.stretches))
            if seen_s:
                parts.append((window, (end - start - self.compiling.within(start, end)) / seen_s))
            start = end
        return parts

    def in_run(self, seen: Iterable[Interval]) -> float:
        """Return the seconds of the run for intervals of windows, which windows stand for."""
        intervals = IntervalSet(seen)
        return sum(intervals.within(*window) * each for window, each in self._stands_for)

    def scale(self, program: ExecutedProgram) -> float:
        """Return the seconds of the run per second in which windows saw a program."""
        return _scale_of(self, program.name)

    @functools.cached_property
    def mean_scale(self) -> float:
        """Return the seconds of the run per second of `steady`, from `begin` on, without compiling."""
        windows_s = total_length(self.steady)
        return self.from_begin_s / windows_s if windows_s else 0.0

    @functools.cached_property
    def busy(self) -> list[Interval]:
        return union(span for program in self.log.activity.programs.values() for span in program.spans)

    @functools.cached_property
    def computing_s(self) -> float:
        """Return the seconds of the run in which a device computed.

        During a long wait of the front end, a device computes, also where no window saw it. The rest of the
        run is taken to be as the rest of the windows.
        """
        rest = difference(self.steady, self.long_waits.stretches)
        seen_s, busy_s = self.in_run(rest), self.in_run(intersection(rest, self.busy))
        waited_s = self.long_waits.within(self.begin, self.log.end)
        rest_s = max(0.0, self.from_begin_s - waited_s)
        return waited_s + (busy_s / seen_s * rest_s if seen_s else 0.0)

    @functools.cached_property
    def long_waits(self) -> IntervalSet:
        """Return the waits so long that they must be for a computation, and waits for a full queue."""
        waits = [(w.start, w.end) for w in self.waits if w.end - w.start >= LONG_WAIT_S]
        return IntervalSet([*waits, *itertools.chain(*self.blocked.values())])

    def shares(self) -> dict[str, float]:
        """Return fractions of the wall time: the first five add up to 1, the last two are from windows."""
        log, wall_s = self.log, self.log.wall_s
        compiled, waited = (spans.within(log.start, log.end) for spans in (self.compiling, self.waiting))
        imports, data = self.front_s[IMPORT], self.front_s[DATA]
        works = max(0.0, wall_s - imports - compiled - waited - data)
        seconds = {
            "front end imports modules": imports,
            "front end traces and compiles": compiled,
            "front end waits for devices": waited,
            "front end waits for data": data,
            "front end runs Python and dispatches": works,
        }
        most = max(0.0, wall_s - imports - compiled)
        computing_s = min(self.computing_s, most)
        if log.activity.windows or self.long_waits.stretches:
            seconds["devices compute"] = computing_s
        if log.activity.windows:  # which may be short, and stand for a long run
            idle_s = sum(self.idle_at(*(self.front_s.keys() - {DATA})).values())
            seconds["devices idle while the front end works"] = min(idle_s, works, most - computing_s)
        return {name: part / wall_s for name, part in seconds.items()}

    # --- idle devices

    @functools.cached_property
    def idle(self) -> IntervalSet:
        """Return the intervals in `steady` in which no device computed or had work queued.

        A device that has work queued but does not compute lacks a processor, which other programs use.
        """
        return IntervalSet(difference(self.steady, [*self.busy, *self.log.activity.queued]))

    @functools.cached_property
    def _idle_alone(self) -> IntervalSet:
        return IntervalSet(difference(self.idle.stretches, self.waiting.stretches))

    @functools.cached_property
    def _idle_itself(self) -> IntervalSet:
        """Return idle intervals outside of waits and, after each wait, for longer than it took.

        Idle time while a list becomes an array is left out, because another rule reports it.
        """
        longer = [(w.start, w.start + 2 * w.total_s) for w in self.waits]
        longer += [(p.start, p.end) for p in self.log.puts if p.numbers]
        longer += itertools.chain(*self.blocked.values())
        return IntervalSet(difference(self.idle.stretches, longer))

    @functools.cached_property
    def _overlapped(self) -> IntervalSet:
        """Return the intervals in `steady` in which the front end worked beside devices."""
        return IntervalSet(difference(self.steady, [*self.idle.stretches, *self.waiting.stretches]))

    @functools.cached_property
    def windows(self) -> IntervalSet:
        return IntervalSet(self.steady)

    def of_kinds(self, *kinds: str) -> list[StackSample]:
        return [s for s in self.samples if s.kind in kinds]

    def idle_at(self, *kinds: str, itself: bool = False) -> dict[Place, float]:
        """Return the seconds of the run in which devices were idle during samples of some kinds, by line.

        The most seconds come first; `itself` leaves out idle time that a wait just before has caused.
        """
        idle = self._idle_itself if itself else self._idle_alone
        return self.of_the_run(idle.of, self.of_kinds(*kinds))

    def saved_at(
        self, work: Collection[StackSample], *, itself: bool = False, needless: bool = False
    ) -> dict[Place, float]:
        """Return the seconds of the run that would be saved without some of the front end's work, by line.

        While devices are idle, that is all of the work. Work beside devices that compute delays the next
        calls: where devices then wait for those, the loop is as slow as its front end, and each second of
        this work costs one of that wait. The rest of it is free, but for what `crowding` says. That counts if
        the program could leave the work out (`needless`), rather than do it elsewhere or at another time.
        """
        idle = self._idle_itself if itself else self._idle_alone
        crowding = self.crowding if needless else 0.0
        left_out = {(s.at, s.start) for s in work}
        calls = [s for s in self.of_kinds(DISPATCH) if (s.at, s.start) not in left_out]
        late_s = self._by_window(calls, self._idle_itself.of)
        # a device may also be idle because other programs delay the front end
        delayed_s = self._by_window(self.samples, lambda s: s.delayed_s * self._share_of_others)
        late = {
            window: min(1.0, max(0.0, late_s[window] - delayed_s[window]) / seconds)
            for window, seconds in self._by_window(work, self._overlapped.of).items()
            if seconds
        }

        def lost_s(s: StackSample) -> float:
            share = late.get(self._window(s), 0.0)
            return idle.of(s) + self._overlapped.of(s) * (share + (1 - share) * crowding)

        return self.of_the_run(lost_s, work)

    def _by_window(
        self, samples: Iterable[StackSample], seconds: Callable[[StackSample], float]
    ) -> dict[Interval, float]:
        windows = group_by(samples, self._window)
        return defaultdict(float, {window: sum(map(seconds, here)) for window, here in windows.items()})

    def _window(self, sample: StackSample) -> Interval:
        """Return the part of `steady` that has a sample's middle; (0, 0) for none."""
        return self.windows.containing((sample.start + sample.end) / 2) or (0.0, 0.0)

    def of_the_run(
        self,
        seen_s: Callable[[StackSample], float],
        samples: Iterable[StackSample],
        where: Callable[[StackSample], Place] = lambda s: s.at,
        *,
        alike: bool = False,
    ) -> dict[Place, float]:
        """Return the seconds of the run for what windows saw of samples, by line, the most first.

        A line's seconds in the whole run are known from its samples. The share of them that was seen is that
        of the windows. Of a line that windows saw for less than `BRIEF_S`, the rest is taken to be as all
        samples, and a line that no window saw gets nothing. With `alike`, as of the operations of one loop,
        the rest, or all, is taken to be as in the innermost loop around it, or function called in a loop, of
        which windows saw as much.
        """
        seconds: dict[Place, float] = {}
        lines = group_by((s for s in samples if s.end > self.begin), where)
        seen = {at: (sum(map(self.windows.of, here)), sum(map(seen_s, here))) for at, here in lines.items()}
        scopes = dict[Place, list[Any]]()  # which may tell of the rest of a line
        in_windows_s, in_lost_s = defaultdict[Any, float](float), defaultdict[Any, float](float)
        for at, (windows_s, lost_s) in seen.items():
            first = lines[at][0]
            scopes[at] = _around((first.at, *first.callers)) if alike else []
            if windows_s:
                scopes[at].append(ALL)
            for scope in scopes[at]:
                in_windows_s[scope] += windows_s
                in_lost_s[scope] += lost_s
        for at, here in lines.items():
            run_s = sum((s.end - s.start - self.compiling.of(s)) * self.undelayed_by_others(s) for s in here)
            windows_s, lost_s = seen[at]
            scope = next((scope for scope in scopes[at] if in_windows_s[scope] >= BRIEF_S), None)
            if scope is not None:
                unseen_s = max(0.0, BRIEF_S - windows_s)
                lost_s += unseen_s * in_lost_s[scope] / in_windows_s[scope]
                seconds[at] = max(0.0, run_s) * lost_s / (windows_s + unseen_s)
        return {at: s for at, s in sorted(seconds.items(), key=lambda item: -item[1]) if s > 0}

    @functools.cached_property
    def crowding(self) -> float:
        """Return the seconds that devices lose for each second in which the front end works beside them.

        The threads of a CPU device and the front end share the cores. The scheduler is fair: while one thread
        waits for a core, another one gets it, which has to wait as long at another time. So devices lose as
        many seconds as the front end waited for a core because of them, and at most those of one core.
        """
        overlapped = [s for s in self.samples if 2 * self._overlapped.of(s) > s.end - s.start]
        seconds = sum((s.end - s.start) * self.undelayed_by_others(s) for s in overlapped)
        if not self._on_cpu or not seconds:
            return 0.0
        ran_s = sum((s.end - s.start) * s.undelayed for s in overlapped)
        delayed_s = sum(s.delayed_s for s in overlapped)
        return self.share_of_cores(0.0) * min(ran_s * (1 - self.beside), delayed_s) / seconds

    def share_of_cores(self, otherwise: float) -> float:
        """Return the process's share of all processor time; `otherwise` if it used none."""
        used_s = self.log.closed_s - self.log.opened_s
        return used_s / (used_s + self.log.others_s) if used_s else otherwise

    @functools.cached_property
    def _share_of_others(self) -> float:
        """Return the share of all processor time that other programs used; 1 if this one used none."""
        return 1 - self.share_of_cores(0.0)

    @property
    def _on_cpu(self) -> bool:
        return all(device.startswith("cpu") for device in self.log.activity.devices)

    @functools.cached_property
    def beside(self) -> float:
        """Return the share of idle time that is won by work beside devices: on a CPU, that takes a core."""
        if not self._on_cpu or not hasattr(psutil.Process, "cpu_affinity"):
            return 1.0
        return 1 - 1 / len(psutil.Process().cpu_affinity())

    @functools.cached_property
    def lost_to_numpy(self) -> dict[Place, float]:
        """Return the seconds that would be saved, by line, if NumPy did not compute, leaving out its waits.

        Nothing could run beside what happens once, so only lines in loops count.
        """
        samples = self.of_kinds(NUMPY)
        converting = set(filter(statements.only_converts, {s.at for s in samples}))
        computing = [
            s
            for s in samples
            if not self.waiting.containing(s.end)
            and s.at not in converting
            and any(statements.innermost(at, statements.ROUND) for at in (s.at, *s.callers))
        ]
        return self.saved_at(computing)

    # --- lines at which the front end waits

    @functools.cached_property
    def lines(self) -> list[WaitingLine]:
        groups = group_by(self.waits, lambda wait: (wait.at, wait.kind))
        lines = [self._line(at, kind, waits) for (at, kind), waits in groups.items()]
        return sorted(lines, key=lambda line: -line.total_s)

    @property
    def blocked_lines(self) -> list[WaitingLine]:
        """Return every line whose calls wait for a full queue or compute, or NumPy waits; none loses time."""
        kinds = {s.at: FULL_QUEUE for s in self.samples if s.blocked and s.kind in (DISPATCH, EAGER)}
        kinds |= dict.fromkeys(self.computing_calls, COMPUTING_CALL)
        return [
            WaitingLine(
                at, kinds.get(at, UFUNC), 0 if at in self.computing_calls else len(spans),
                total_length(spans), 0, None, 0.0,
            )
            for at, spans in self.blocked.items()
        ]  # fmt: skip

    def _line(self, at: Place, kind: str, waits: list[Wait]) -> WaitingLine:
        lost, after = [], []
        last_start = self.busy[-1][0] if self.busy else 0.0
        for wait in waits:
            if not any(a <= wait.start and wait.end <= b for a, b in self.log.activity.windows):
                continue
            gap = self.idle.containing(wait.end)
            if gap is None:
                lost.append(0.0)
                continue
            begin = max(gap[0], wait.start)
            idle_s = self.beside * self.alone_beside * (gap[1] - begin)
            lost.append(min(wait.end - wait.start, idle_s) if gap[1] - 1e-9 <= last_start else 0.0)
            after.append(wait.end - begin)
        count, waited_s = sum(w.times for w in waits), sum(w.total_s for w in waits)
        # the waits in windows may be longer than most, and of a few, one is not the mean
        each_s = 0.0
        if lost:
            each_s = statistics.fmean(lost) if len(lost) >= SEEN else statistics.median(lost)
        lost_s = min(each_s * count, waited_s)
        nbytes, after_s = sum(w.times * w.nbytes for w in waits), statistics.median(after) if after else None
        return WaitingLine(at, kind, count, waited_s, nbytes, after_s, lost_s)


def once(question: Callable[..., _T]) -> Callable[..., _T]:
    """Keep what a question about a run was answered, since several rules ask it."""

    @functools.wraps(question)
    def answer(analysis: Analysis, *about: Any) -> Any:
        if (question, *about) not in analysis.answers:
            analysis.answers[question, *about] = question(analysis, *about)
        return analysis.answers[question, *about]

    return answer


@once
def _scale_of(analysis: Analysis, name: str) -> float:
    spans = analysis.log.activity.programs[name].spans
    seen_s = total_length(spans)
    return analysis.in_run(spans) / seen_s if seen_s else analysis.mean_scale
