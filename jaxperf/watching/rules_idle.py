"""Rules about devices that are idle because of what the front end does."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace

from jaxperf.report.words import quantity
from jaxperf.watching.analysis import Analysis, Line
from jaxperf.watching.finding import IDLE_DOUBT, Finding
from jaxperf.watching.place import NOWHERE, Place
from jaxperf.watching.sampler import DATA, DISPATCH, EAGER, Sample
from jaxperf.watching.windows import plain

REPEATS = 3  # waits at one line that make a habit
OFTEN = 20  # calls of one operation in the windows: fewer are the program's beginning
A_SHARE = 0.2  # of the looks at a line within: a caller that dispatches so much has a part in it
COPIED = 1 << 20  # bytes of NumPy arrays per call


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
    reason = "devices are idle while this line waits for the next batch"
    for finding in by_function("data", analysis.data_idle, reason):
        yield replace(finding, reason=reason + mostly(analysis, DATA, finding.at))


def numpy(analysis: Analysis) -> Iterator[Finding]:
    """Functions in which NumPy computes while devices are idle, with the waits for what it computes from."""
    for finding in by_function("numpy", analysis.numpy_idle, "devices are idle while NumPy computes here"):
        lines = [
            x for x in analysis.lines if x.kind == "np.asarray" and _function(x.at) == _function(finding.at)
        ]
        yield replace(finding, seconds=max(finding.seconds, sum(line.lost_s for line in lines)))


def eager(analysis: Analysis) -> Iterator[Finding]:
    """Functions that dispatch one operation after the other while devices are idle."""
    explained = {plain(c.name) for c in analysis.record.compiled if c.explained}
    programs = analysis.record.seen.programs
    small = sum(p.calls for n, p in programs.items() if n not in explained and p.calls >= OFTEN)
    idle = analysis.idle_at(lambda s: s.kind == EAGER, _outermost(analysis))
    traced = Counter(c.at for c in analysis.record.compiled if c.explained)
    for at in [at for at in idle if "jit(" in at.source]:
        reason = "this line makes a jit object for each call, and so never takes the short way of later calls"
        seconds = idle.pop(at)
        if traced[at] <= REPEATS:  # else the rule `retraced` has it
            yield Finding("new function", at, seconds, reason, "function", doubt=IDLE_DOUBT)
    windows_s = sum(b - a for a, b in analysis.record.seen.windows)
    if windows_s and small / windows_s >= 200:  # per second; fewer are not what keeps devices idle
        rate = f"{small / windows_s:,.0f} operations per second"
        reason = f"{rate} are dispatched outside of jit, and devices are idle meanwhile"
        yield from by_function("eager", idle, reason)


def _outermost(analysis: Analysis) -> Callable[[Sample], Place]:
    """To which line an operation belongs: to a caller's, where that dispatches about as much by itself.

    `jax.grad(loss)(w)` dispatches what is in `loss` and what `grad` makes of it: one cause, on two lines.
    """
    looks = Counter(s.at for s in analysis.samples if s.kind == EAGER)

    def line(s: Sample) -> Place:
        return next((p for p in reversed(s.callers) if looks[p] >= A_SHARE * looks[s.at]), s.at)

    return line


def transfers(analysis: Analysis) -> Iterator[Finding]:
    """Calls that copy large NumPy arrays to the device while it is idle."""
    idle = analysis.idle_at(lambda s: s.kind in (DISPATCH, EAGER))  # pmap puts its arguments in Python
    for c in analysis.record.compiled:
        program = analysis.record.seen.programs.get(plain(c.name))
        if c.explained and c.host_bytes >= COPIED and program and program.copies and c.at in idle:
            copied = quantity(c.host_bytes, "bytes")
            reason = f"each call of {c.called} copies {copied} of NumPy arrays to the device"
            seconds = idle.pop(c.at)
            yield Finding(
                "transfer", c.at, seconds, reason, c.called, argument=c.host_argument, doubt=IDLE_DOUBT
            )


def mostly(analysis: Analysis, kind: str, at: Place) -> str:
    """The line in what a statement calls that it is at most of the time, in words; "" where it is its own."""
    inside = Counter(
        s.inside for s in analysis.samples if s.kind == kind and _function(s.at) == _function(at)
    )
    made = next((p for p, _ in inside.most_common() if p not in (at, NOWHERE)), NOWHERE)
    return f", most of the time at {made}: {made.source}" if made != NOWHERE else ""


def by_function(cause: str, idle: dict[Place, float], reason: str) -> Iterator[Finding]:
    """One finding per function, at its worst line: neighboring lines have one cause."""
    functions: dict[tuple[str, str], list[tuple[Place, float]]] = defaultdict(list)
    for at, seconds in idle.items():
        if at != NOWHERE:
            functions[_function(at)].append((at, seconds))
    for lines in functions.values():
        worst = max(lines, key=lambda item: item[1])[0]
        yield Finding(cause, worst, sum(s for _, s in lines), reason, worst.function, doubt=IDLE_DOUBT)
