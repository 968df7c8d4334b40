"""Rules about devices that are idle because of what the front end does."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from jaxperf.result.formatting import format_quantity
from jaxperf.watch.finding import Finding
from jaxperf.watch.grouping import group_by
from jaxperf.watch.observe.compiles import Compiled
from jaxperf.watch.observe.sampler import DATA, DISPATCH, EAGER
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.report.analysis import Analysis, WaitingLine
from jaxperf.watch.source import loop_body

REPEATS = 3  # waits at one line that count as repeated
OFTEN = 20  # calls of one operation in the windows; fewer belong to the program's startup
SLOW = 1.5  # ratio of waits for data to computing from which on one thread that reads ahead is not enough
COPIED = 1 << 20  # bytes per call that are large
LARGE_ARRAYS = "large arrays"  # `argument` of a wait for large arrays
_FROM_THREAD = re.compile(r"\.(get|get_nowait|result)\(")  # of a queue or of a future


def find_waits(analysis: Analysis) -> Iterator[Finding]:
    """Find lines whose waits keep the front end from running ahead."""
    for line in analysis.lines:
        if any(_for_numpy(line, at) for at in analysis.numpy_idle):
            continue  # `find_numpy_work` covers it
        if line.count >= REPEATS and (array := loop_body.element_read(line.at)):
            yield _element_reads(analysis, line, array)
        elif line.count >= REPEATS and line.at:
            prints = line.at.source.startswith(("print(", "logging.", "logger.", "log."))
            cause = "logging" if line.kind == "print" or prints else "wait"
            reason = (
                f"the front end waits {line.count} times in {line.kind}, "
                f"{line.total_s / line.count * 1e3:.2g} ms each, "
                "and the device is idle until the next call comes"
            )
            large = LARGE_ARRAYS if line.nbytes >= COPIED * line.count else ""
            yield Finding(cause, line.at, line.lost_s, reason, line.kind, argument=large)


def _element_reads(analysis: Analysis, line: WaitingLine, array: str) -> Finding:
    """Return the finding for a line that reads elements one by one, each of which JAX slices first.

    The median wait counts, since the first one may be for the array itself.
    """
    waits = [w.end - w.start for w in analysis.waits if (w.at, w.kind) == (line.at, line.kind)]
    sliced_s = sum(analysis.front(s) for s in analysis.samples if (s.kind, s.at) == (EAGER, line.at))
    compiled_s = sum(c.total_s for c in analysis.record.compiled if not c.explained and c.at == line.at)
    seconds = statistics.median(waits) * line.count + sliced_s + compiled_s
    reason = (
        f"{line.count} elements of {array} come to the host one by one, and each is sliced by a program of "
        "its own and waited for"
    )
    return Finding("element reads", line.at, seconds, reason, line.kind, argument=array)


def _for_numpy(line: WaitingLine, at: Place) -> bool:
    """Return whether NumPy uses, at `at` in the same function, the value for which `line` waits."""
    return line.kind == "np.asarray" and loop_body.reads_from(at, line.at)


def _function(at: Place) -> tuple[str, str]:
    return at.file, at.function


def find_data_waits(analysis: Analysis) -> Iterator[Finding]:
    """Find lines that wait for the next batch while devices are idle.

    One thread that reads ahead can save at most the time in which devices compute. If the waits are longer,
    `argument` says that reading itself must become faster.
    """
    reason = "devices are idle while this line waits for the next batch"
    idle = analysis.idle_at(lambda s: s.kind == DATA)
    for finding in findings_by_function("data", idle, reason):
        inside, slow = describe_longest_inside(analysis, DATA, finding.at), ""
        if finding.seconds > SLOW * analysis.computing_s:
            computing = format_quantity(analysis.computing_s, "s")
            slow = f"; they compute for only {computing}, and one thread that reads ahead saves no more"
        argument = "slower than the steps" if slow or _FROM_THREAD.search(inside) else ""
        yield replace(finding, reason=reason + inside + slow, argument=argument)


def find_numpy_work(analysis: Analysis) -> Iterator[Finding]:
    """Find functions in which NumPy computes while devices are idle, including waits for its inputs."""
    for finding in findings_by_function(
        "numpy", analysis.numpy_idle, "devices are idle while NumPy computes here"
    ):
        here = [at for at in analysis.numpy_idle if _function(at) == _function(finding.at)]
        lost = [line.lost_s for line in analysis.lines if any(_for_numpy(line, at) for at in here)]
        yield replace(finding, seconds=max(finding.seconds, sum(lost)))


def find_transfers(analysis: Analysis) -> Iterator[Finding]:
    """Find calls that copy large NumPy arrays to the device while it is idle."""
    idle = analysis.idle_at(lambda s: s.kind in (DISPATCH, EAGER))  # pmap puts its arguments in Python
    for c, at in analysis.called:
        if c.host_bytes >= COPIED and copies_much(analysis, c) and at in idle:
            copied, argument = format_quantity(c.host_bytes, "bytes"), c.host_argument
            reason = f"each call of {c.called} copies {copied} of NumPy arrays to the device"
            yield Finding("transfer", at, idle.pop(at), reason, c.called, argument=argument)


def copies_much(analysis: Analysis, c: Compiled) -> bool:
    """Return whether calls of a program copy large NumPy arrays, or may do so if their size is unknown."""
    program = analysis.ran(c)
    sizes = (facts.argument_bytes for facts in analysis.programs.get(c.program, ()))
    return bool(program and program.copies) and (c.host_bytes or max(sizes, default=0)) >= COPIED


def describe_longest_inside(analysis: Analysis, kind: str, at: Place) -> str:
    """Return a phrase with the line, inside the functions that a statement calls, that takes most time."""
    inside = Counter(
        s.inside for s in analysis.samples if s.kind == kind and _function(s.at) == _function(at)
    )
    made = next((p for p, _ in inside.most_common() if p not in (at, NOWHERE)), NOWHERE)
    return f", most of the time at {made}: {made.source}" if made else ""


def findings_by_function(cause: str, idle: dict[Place, float], reason: str) -> Iterator[Finding]:
    """Yield one finding per function, at its costliest line, since neighboring lines share one cause."""
    for lines in group_by(filter(None, idle), _function).values():
        worst = max(lines, key=lambda at: idle[at])
        yield Finding(cause, worst, sum(idle[at] for at in lines), reason, worst.function)
