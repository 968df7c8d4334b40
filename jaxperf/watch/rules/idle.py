"""Rules about devices that are idle because of what the front end does."""

from __future__ import annotations

import ast
import re
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from jaxperf.result.formatting import format_quantity
from jaxperf.watch.grouping import group_by
from jaxperf.watch.observe.compiles import Compiled
from jaxperf.watch.observe.sampler import DATA, DISPATCH, EAGER
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.report.analysis import Analysis, WaitingLine
from jaxperf.watch.rules.table import COMMUNICATE, SYNCHRONIZE, Cause, Finding, Form, rule
from jaxperf.watch.source import loop_body, statements

REPEATS = 3  # waits at one line that count as repeated
OFTEN = 20  # calls of one operation in the windows; fewer belong to the program's startup
SLOW = 1.5  # ratio of waits for data to computing from which on one thread that reads ahead is not enough
COPIED = 1 << 20  # bytes per call that are large
_NEEDLESS = ("block_until_ready", "effects_barrier")
LARGE_ARRAYS = "large arrays"  # `argument` of a wait for large arrays
_FROM_THREAD = re.compile(r"\.(get|get_nowait|result)\(")  # of a queue or of a future


def _wait_form(finding: Finding) -> str:
    """Return the form of advice that fits a wait's call, the arrays that come, and its statement."""
    if finding.name in _NEEDLESS:
        return "needless"
    if finding.argument:
        return "large"
    if loop_body.comes_back(finding.at):
        return "next turn"
    if isinstance(statements.innermost(finding.at, ast.stmt), ast.Return):
        return "returned"
    if loop_body.decides(finding.at) or statements.is_branch(finding.at):
        return "test"
    return statements.statement_rows(finding.at)[0].partition(" ")[0].removeprefix("el")


WAIT = Cause(
    "wait", "sync",
    "the front end waits on each turn of a loop", SYNCHRONIZE,
    Form(
        "Keep the array in the loop, for which nobody waits, and fetch all of them once after it, with "
        "jax.device_get."
    ),
    forms={
        "while": Form(
            "Give jax.lax.while_loop the test and a turn as functions of the arrays, or test every tenth "
            "turn, so that the device has the next ones to do meanwhile."
        ),
        "if": Form(
            "Choose with jnp.where, or with jax.lax.cond, which computes one side only."
        ),
        "next turn": Form(
            "The next turn needs the value: let one wait serve many turns (a batch of them under jax.vmap), "
            "or write what needs it in jax.numpy, so that the whole loop is one program, with jax.lax.scan."
        ),
        "test": Form(
            "A test in the loop needs the value: start the next turn before it, and test what the turn "
            "before has given, or test every tenth turn."
        ),
        "returned": Form(
            "If nothing needs the value before the loop ends, return the array itself, and fetch all of them"
            " once after it. If the next turn needs it, write what needs it in jax.numpy, so that many turns"
            " are one program, or let one wait serve many turns (a batch of them under jax.vmap)."
        ),
        "large": Form(
            "Let a jitted function compute on the device what the host needs of them, such as an average or "
            "a norm, and fetch that; or fetch them every hundredth turn (if step % 100 == 0)."
        ),
        "needless": Form(
            "Leave out {name} here, and wait once, after the loop."
        ),
    },
    choose=_wait_form,
)  # fmt: skip
ELEMENT_READS = Cause(
    "element reads", "sync",
    "elements of an array are read one by one", SYNCHRONIZE,
    Form(
        "Before the loop, bring {argument} to the host once, with numpy.asarray({argument}), and read the "
        "elements of that."
    ),
)  # fmt: skip
LOGGING = Cause(
    "logging", "sync",
    "logging waits for the device on each step", SYNCHRONIZE,
    Form(
        "Log every hundredth step (if step % 100 == 0). An f-string is formatted even if its level is off, "
        "log.debug('%s', x) is not."
    ),
)  # fmt: skip


@rule(WAIT, ELEMENT_READS, LOGGING)
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


DATA_AWAITED = Cause(
    "data", "data",
    "devices wait for data", COMMUNICATE,
    Form(
        "Read the next batch in a thread during a step.",
        """\
import concurrent.futures    # a thread reads the next batch during a step
thread, batches = concurrent.futures.ThreadPoolExecutor(1), iter(range(100))    # your batches
coming = thread.submit(next, batches, None)
while (batch := coming.result()) is not None:
    coming = thread.submit(next, batches, None)
    x = batch    # then the step with x""",
    ),
    forms={
        "slow": Form(
            "Reading takes longer than the steps. If it computes, do that once before the loop, or for a "
            "whole batch with NumPy; what must stay Python goes into processes (grain, or torch's DataLoader"
            " with workers). If it waits for a disk or a network, let several threads read at once:",
            """\
import concurrent.futures    # eight reads at once; abs(i) stands for reading batch i
with concurrent.futures.ThreadPoolExecutor(8) as threads:
    for batch in threads.map(abs, range(100)):    # from Python 3.14 on, buffersize bounds them
        x = batch    # then the step with x""",
        ),
    },
    choose=lambda f: "slow" if f.argument else "",
)  # fmt: skip


@rule(DATA_AWAITED)
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


NUMPY = Cause(
    "numpy", "data",
    "NumPy computes between two programs", SYNCHRONIZE,
    Form(
        "Do the same with jnp inside the jitted step: the values never leave the device."
    ),
)  # fmt: skip


@rule(NUMPY)
def find_numpy_work(analysis: Analysis) -> Iterator[Finding]:
    """Find functions in which NumPy computes while devices are idle, including waits for its inputs."""
    for finding in findings_by_function(
        "numpy", analysis.numpy_idle, "devices are idle while NumPy computes here"
    ):
        here = [at for at in analysis.numpy_idle if _function(at) == _function(finding.at)]
        lost = [line.lost_s for line in analysis.lines if any(_for_numpy(line, at) for at in here)]
        yield replace(finding, seconds=max(finding.seconds, sum(lost)))


TRANSFER = Cause(
    "transfer", "transfer",
    "large NumPy arrays are copied to the device on each call", COMMUNICATE,
    Form(
        "Call jax.device_put({argument}) once, or, where it varies, ahead of time for the next call."
    ),
)  # fmt: skip


@rule(TRANSFER)
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
