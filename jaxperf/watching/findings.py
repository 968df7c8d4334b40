"""Rules: what a program loses, where, and why. Each gives findings with the seconds that a change could save.

A rule reports nothing below a share of the run's time, so that programs without a fault have no findings.
Seconds are an estimate from this run: what was spent again, or how long devices were idle for that reason.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from jaxperf.report.words import quantity
from jaxperf.result.intervals import length
from jaxperf.watching.analysis import Analysis, Line
from jaxperf.watching.compiles import COMPILE, Change, Compiled, shape_of
from jaxperf.watching.place import NOWHERE, Place
from jaxperf.watching.programs import Facts
from jaxperf.watching.sampler import EAGER
from jaxperf.watching.windows import plain

LEAST_SHARE = 0.02  # of the time without compiling that a finding must be able to save
LEAST_OF_ALL = 0.005  # of the wall time
IDLE_DOUBT = 2.5  # times that share, where the estimate comes from samples of idle devices
REPEATS = 3  # traces of new function objects that make a habit
OFTEN = 20  # calls of one operation in the windows: fewer are the program's beginning
UNROLLED = 64  # equal operations from one line; fusing makes copies, so that ten turns may give 56
UNEQUAL = 1.3  # the busiest device's time over the mean
LARGE = 64 << 20  # bytes that are worth donating whatever they cost


@dataclass(frozen=True)
class Finding:
    """One cause of lost time.

    Attributes:
      cause: the rule's name, for `advice`.
      at: the line of code.
      seconds: what a change could save in this run.
      reason: what was seen, in one sentence.
      name: the function, call or operation that the advice names.
      memory_bytes: what a change would free; 0 where that is not the point.
      doubt: how many times the least share of the run's time the seconds must be to be reported.
    """

    cause: str
    at: Place
    seconds: float
    reason: str
    name: str = ""
    memory_bytes: int = 0
    doubt: float = 1.0


def find(analysis: Analysis) -> list[Finding]:
    """Everything that could save a share of the run's time, the most first."""
    r = analysis.record
    steady_s = r.wall_s - analysis.compiling.within(r.start, r.end)
    found = [f for rule in RULES for f in rule(analysis)]
    kept = [
        f
        for f in found
        if f.seconds >= max(LEAST_SHARE * steady_s * f.doubt, LEAST_OF_ALL * r.wall_s)
        or f.memory_bytes >= LARGE
    ]
    return sorted(kept, key=lambda f: (-f.seconds, f.at))


def retraced(analysis: Analysis) -> Iterator[Finding]:
    """Functions of the reader that were traced and compiled again, by the reason that cost most."""
    groups: dict[str, list[Compiled]] = defaultdict(list)
    for c in analysis.record.compiled:
        if c.explained:
            groups[c.defined or c.name].append(c)
    for group in groups.values():
        again: dict[str, list[Compiled]] = defaultdict(list)
        for c in group[1:]:
            again[_kind(c)].append(c)
        for kind, repeats in again.items():
            if kind != "new function" or _habit(repeats):
                yield _retrace(kind, group[0], repeats)


def _kind(c: Compiled) -> str:
    """The reason of a trace; of several, the one that explains the others."""
    kinds = {change.kind for change in c.changes}
    order = ("structure", "static value", "shape", "dtype", "weak type", "setting", "other")
    return next((kind for kind in order if kind in kinds), "new function")


def _habit(repeats: list[Compiled]) -> bool:
    """Whether one line made new functions again and again; several lines may each make their own."""
    return Counter(c.at for c in repeats).most_common(1)[0][1] >= REPEATS - 1


def _retrace(kind: str, first: Compiled, repeats: list[Compiled]) -> Finding:
    at = Counter(c.at for c in repeats).most_common(1)[0][0]
    seconds = sum(c.total_s for c in repeats)
    changes = [change for c in repeats for change in c.changes if change.kind == kind]
    cause = kind
    if kind == "shape" and _partial_batch(repeats):
        cause = "partial batch"
    times = f"{first.name} was traced {len(repeats) + 1} times, {seconds:.2g} s for the repeats"
    if kind == "new function":
        return Finding(cause, at, seconds, f"{times}: each call makes a new function object", first.name)
    said = list(dict.fromkeys(map(str, changes)))
    shown = "; ".join(said[:2]) + (f"; and {len(said) - 2} more" if len(said) > 2 else "")
    return Finding(cause, at, seconds, f"{times}: {kind} of {shown}", first.name)


def _partial_batch(repeats: list[Compiled]) -> bool:
    """Whether only one smaller leading dimension came up, as of the last batch of an epoch."""
    changes: list[Change] = [change for c in repeats for change in c.changes if change.kind == "shape"]
    pairs = [(shape_of(c.before), shape_of(c.now)) for c in changes]
    smaller = {(before[0], now[0]) for before, now in pairs if before and now and before[1:] == now[1:]}
    whole = all(before and now and before[1:] == now[1:] for before, now in pairs)
    return whole and len(repeats) == 1 and len(smaller) == 1 and all(now < before for before, now in smaller)


def eager_recompiles(analysis: Analysis) -> Iterator[Finding]:
    """Operations outside of `jit` that were compiled again and again at one line."""
    found: dict[Place, list[Compiled]] = defaultdict(list)
    for c in analysis.record.compiled:
        if not c.explained and COMPILE in c.stages and c.at != NOWHERE:
            found[c.at].append(c)
    for at, compiled in found.items():
        name, times = Counter(c.name for c in compiled).most_common(1)[0]
        if times >= 2 * REPEATS:
            seconds = sum(c.total_s for c in compiled)
            reason = f"{name}, outside of jit, was compiled {times} times here, for new shapes or constants"
            yield Finding("eager recompiles", at, seconds * (1 - 1 / times), reason, name)


def waits(analysis: Analysis) -> Iterator[Finding]:
    """Lines whose waiting keeps the front end from running ahead."""
    in_numpy = {_function(at) for at in analysis.numpy_idle}
    for line in analysis.lines:
        if line.kind == "np.asarray" and _function(line.at) in in_numpy:
            continue  # the value is wanted for NumPy: the rule `numpy` has it
        if line.count >= REPEATS and line.at != NOWHERE:
            cause = "logging" if line.kind == "print" or _prints(line) else "wait"
            yield Finding(cause, line.at, line.lost_s, _wait_reason(line), line.kind)


def _function(at: Place) -> tuple[str, str]:
    return at.file, at.function


def _prints(line: Line) -> bool:
    return line.at.source.startswith(("print(", "logging.", "logger.", "log."))


def _wait_reason(line: Line) -> str:
    each = line.total_s / line.count
    return (
        f"the front end waits {line.count} times in {line.kind}, {each * 1e3:.2g} ms each, "
        "and the device is idle until the next call comes"
    )


def data(analysis: Analysis) -> Iterator[Finding]:
    """Lines that wait for the next batch while devices are idle."""
    inside = Counter(s.inside for s in analysis.record.samples if s.inside != NOWHERE)
    for finding in _idle(
        "data", analysis.data_idle, "devices are idle while this line waits for the next batch"
    ):
        made = next((p for p, _ in inside.most_common() if p != finding.at), NOWHERE)
        where = f", most of the time at {made}: {made.source}" if made != NOWHERE else ""
        yield replace(finding, reason=finding.reason + where)


def numpy(analysis: Analysis) -> Iterator[Finding]:
    """Functions in which NumPy computes while devices are idle, with the waits for what it computes from."""
    for finding in _idle("numpy", analysis.numpy_idle, "devices are idle while NumPy computes here"):
        lines = [
            x for x in analysis.lines if x.kind == "np.asarray" and _function(x.at) == _function(finding.at)
        ]
        yield replace(finding, seconds=max(finding.seconds, sum(line.lost_s for line in lines)))


def eager(analysis: Analysis) -> Iterator[Finding]:
    """Functions that dispatch operation by operation while devices are idle."""
    explained = {plain(c.name) for c in analysis.record.compiled if c.explained}
    programs = analysis.record.seen.programs
    small = sum(p.calls for n, p in programs.items() if n not in explained and p.calls >= OFTEN)
    idle = analysis.idle_at(lambda s: s.kind == EAGER)
    windows_s = sum(b - a for a, b in analysis.record.seen.windows)
    if windows_s and small / windows_s >= 200:  # per second; fewer are not what keeps devices idle
        rate = f"{small / windows_s:,.0f} operations per second"
        reason = f"{rate} are dispatched outside of jit, and devices are idle meanwhile"
        yield from _idle("eager", idle, reason)


def _idle(cause: str, idle: dict[Place, float], reason: str) -> Iterator[Finding]:
    """One finding per function, at its worst line: neighboring lines have one cause."""
    functions: dict[tuple[str, str], list[tuple[Place, float]]] = defaultdict(list)
    for at, seconds in idle.items():
        if at != NOWHERE:
            functions[_function(at)].append((at, seconds))
    for lines in functions.values():
        worst = max(lines, key=lambda item: item[1])[0]
        yield Finding(cause, worst, sum(s for _, s in lines), reason, worst.function, doubt=IDLE_DOUBT)


def donation(analysis: Analysis) -> Iterator[Finding]:
    """Programs that copy an argument which the caller replaces by the result."""
    for facts, at, program_s in _called(analysis):
        shared = facts.unshared_bytes()
        if shared and replaces_argument(at.source):
            program = analysis.record.seen.programs[plain(facts.name)]
            copied_s = program.op_s(lambda op: "copy" in op) * analysis.scale
            reason = (
                f"{facts.name} returns {quantity(shared, 'bytes')} of the same types as arguments that "
                "the caller replaces, and each call makes new memory for them"
            )
            yield Finding("donation", at, min(copied_s, program_s), reason, facts.name, shared)


def replaces_argument(source: str) -> bool:
    """Whether a line assigns a call's result to a name that it passes, as in `w = step(w, x)`."""
    import ast

    try:
        tree = ast.parse(source).body
    except SyntaxError:
        return False
    for node in tree:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            targets = {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
            passed = {n.id for a in node.value.args for n in ast.walk(a) if isinstance(n, ast.Name)}
            return bool(targets & passed)
    return False


def float64(analysis: Analysis) -> Iterator[Finding]:
    """Programs in which a float that was 32 bits wide becomes 64 bits wide."""
    for facts, at, program_s in _called(analysis):
        lines = Counter(p for p in facts.widened())
        if lines:
            line = next((p for p, _ in lines.most_common() if p != NOWHERE), at)
            reason = (
                f"{facts.name} turns float32 into float64 here, which moves twice the bytes from there on"
            )
            yield Finding("float64", line, program_s / 2, reason, facts.name)


def unrolled(analysis: Analysis) -> Iterator[Finding]:
    """Python loops that were traced into one operation per turn."""
    explained = {plain(c.name) for c in analysis.record.compiled if c.explained}
    for facts in (f for f in analysis.record.programs if not f.old and plain(f.name) in explained):
        line, op, number = next(iter(facts.repeated()), (NOWHERE, "", 0))
        if number >= UNROLLED and line != NOWHERE:
            compiled = [c for c in analysis.record.compiled if plain(c.name) == plain(facts.name)]
            seconds = max((c.total_s for c in compiled), default=0.0) * (1 - 1 / number)
            reason = f"{facts.name} holds {number} copies of {op} from this line, a loop that Python unrolled"
            yield Finding("unrolled", line, seconds, reason, facts.name)


def callbacks(analysis: Analysis) -> Iterator[Finding]:
    """Programs that call back into Python, or that run on the CPU beside an accelerator."""
    for facts, at, program_s in _called(analysis):
        program = analysis.record.seen.programs[plain(facts.name)]
        for op, line in facts.callbacks():
            seconds = program.op_s(op.__eq__) * analysis.scale
            reason = f"each call of {facts.name} stops for Python on the host here"
            yield Finding("callback", line if line != NOWHERE else at, seconds, reason, facts.name)
        if facts.platform == "cpu" and any(f.platform != "cpu" for f in analysis.record.programs):
            reason = f"{facts.name} runs on the CPU although there is an accelerator"
            yield Finding("on the cpu", at, program_s, reason, facts.name)


def shards(analysis: Analysis) -> Iterator[Finding]:
    """Functions that were compiled for more work on one device than on the others."""
    work: dict[str, dict[tuple[int, ...], float]] = defaultdict(dict)
    for facts in analysis.record.programs:
        name = plain(facts.name)
        work[name][facts.devices] = max(facts.flops, work[name].get(facts.devices, 0.0))
    for name, flops in work.items():
        program, at = analysis.record.seen.programs.get(name), _call_line(analysis, name)
        apart = len({d for devices in flops for d in devices}) == sum(map(len, flops))
        if program is None or at == NOWHERE or len(flops) < 2 or not apart:
            continue
        most, mean = max(flops.values()), sum(flops.values()) / len(flops)
        if most >= UNEQUAL * mean:
            busy_s = max((length(spans) for spans in program.devices.values()), default=0.0) * analysis.scale
            reason = (
                f"{name} computes {quantity(most, 'FLOP')} per call on one device and "
                f"{quantity(mean, 'FLOP')} in the mean of {len(flops)}, and the others wait for it"
            )
            yield Finding("shards", at, busy_s * (1 - mean / most), reason, name)


def _called(analysis: Analysis) -> Iterator[tuple[Facts, Place, float]]:
    """Programs of the reader's functions that ran in windows: facts, line of the call, device seconds."""
    seen = set()
    for facts in analysis.record.programs:
        name = plain(facts.name)
        program = analysis.record.seen.programs.get(name)
        at = _call_line(analysis, name)
        if program and at != NOWHERE and name not in seen and program.devices:
            seen.add(name)
            busy_s = max(map(length, program.devices.values()))
            yield facts, at, busy_s * analysis.scale


def _call_line(analysis: Analysis, name: str) -> Place:
    return next((c.at for c in analysis.record.compiled if c.explained and plain(c.name) == name), NOWHERE)


RULES: tuple[Callable[[Analysis], Iterator[Finding]], ...] = (
    retraced, eager_recompiles, waits, data, numpy, eager, donation, float64, unrolled, callbacks, shards,
)  # fmt: skip
