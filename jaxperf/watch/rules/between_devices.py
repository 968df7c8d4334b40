"""Rules about several devices: copies between them in each call, and the division of work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from jaxperf.hlo import COLLECTIVES
from jaxperf.result.formatting import format_quantity
from jaxperf.result.intervals import difference, intersection, total_length
from jaxperf.watch.observe.compiles import Compiled
from jaxperf.watch.observe.executables import CONTAINERS, Facts
from jaxperf.watch.observe.sampler import DISPATCH, EAGER
from jaxperf.watch.observe.windows import ExecutedProgram
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules.idle import COPIED
from jaxperf.watch.rules.programs import called_programs
from jaxperf.watch.rules.table import DATA_PARALLEL, Cause, Finding, Form, rule

SENT = 0.3  # share of a program's time in collectives
UNEQUAL = 1.5  # the most work on one device over the mean; shared cores explain less


MOVED = Cause(
    "moved", "transfer",
    "arrays are copied between devices on each call", DATA_PARALLEL,
    Form(
        "Before the loop, call jax.device_put once for them with the sharding that {name} needs: "
        'NamedSharding(mesh, P()) gives each device a copy, P("data") a share.'
    ),
)  # fmt: skip


@rule(MOVED)
def find_moves(analysis: Analysis) -> Iterator[Finding]:
    """Find calls that each time copy large arrays from other devices to those of their program."""
    dispatching = analysis.idle_at(lambda s: s.kind in (DISPATCH, EAGER))
    for c, at in analysis.called:
        if (size := sum(c.elsewhere.values())) < COPIED:
            continue
        largest = max(c.elsewhere, key=lambda where: c.elsewhere[where])
        more = f" and {len(c.elsewhere) - 1} more arguments" if len(c.elsewhere) > 1 else ""
        count = max(len(facts.devices) for facts in analysis.programs[c.program])
        reason = (
            f"each call of {c.called} copies {format_quantity(size, 'bytes')}, {largest}{more}, to its "
            f"{count} devices: they lie on {_where(c.placements[largest].devices)} only"
        )
        waits = intersection(difference(analysis.steady, analysis.busy), analysis.record.activity.queued)
        seconds = dispatching.get(at, 0.0) + total_length(waits) * analysis.scale
        yield Finding("moved", at, seconds, reason, c.called, argument=largest)


REPLICATED = Cause(
    "replicated", "program",
    "each device computes the whole batch", DATA_PARALLEL,
    Form(
        "Divide the batch, and give each device a copy of the rest: jax.device_put(batch, "
        "NamedSharding(mesh, P('data'))), with the name of the mesh's axis."
    ),
)  # fmt: skip


@rule(REPLICATED)
def find_replicated_work(analysis: Analysis) -> Iterator[Finding]:
    """Find programs that compute the same on every device because all arguments are replicated."""
    for facts, c, _, program_s in called_programs(analysis):
        count = len(facts.devices)
        if count > 1 and _replicated(c, count) and _same_everywhere(facts):
            reason = (
                f"each of the {count} devices computes all of {c.called}: none of its arguments is divided"
            )
            yield Finding("replicated", c.at, program_s * (1 - 1 / count), reason, c.called)


def _replicated(c: Compiled, count: int) -> bool:
    """Return whether some arguments are on `count` devices, and all of these are replicated."""
    several = [p.split for p in c.placements.values() if len(p.devices) == count]
    return bool(several) and all("(" in split and "'" not in split for split in several)


def _same_everywhere(facts: Facts) -> bool:
    """Return whether a program has matrix products, but no collectives and no dependence on the device."""
    opcodes = {i.opcode.removesuffix("-start") for i in facts.instructions}
    return bool(facts.matrix_dtype) and not opcodes & {*COLLECTIVES, "partition-id"}


def device_notes(facts: Facts, c: Compiled, program: ExecutedProgram) -> Iterator[str]:
    """Yield notes on the share of a program's time in collectives, and on a device that delays the others.

    CPU devices share the host's cores, so their time in a collective is mostly waiting and does not count.
    """
    opcodes = {i.name: i for i in facts.instructions}
    sent: dict[str, float] = defaultdict(float)
    work: dict[str, float] = defaultdict(float)
    for (device, op), times in program.ops.items():
        opcode = opcodes[op].opcode.removesuffix("-start").removesuffix("-done") if op in opcodes else ""
        if opcode in COLLECTIVES:
            sent[op] += sum(times)
        elif opcode not in CONTAINERS:
            work[device] += sum(times)
    if len(facts.devices) < 2 or not work:
        return
    sent_s, work_s = sum(sent.values()), sum(work.values())
    share = sent_s / (sent_s + work_s)
    if share >= SENT and facts.platform != "cpu":
        most = opcodes[max(sent, key=lambda op: sent[op])]
        yield (
            f"devices spend {share:.0%} of {c.called} in what they send to each other, most of it in an "
            f"{most.opcode.removesuffix('-start')} for {facts.at(most) or c.at}"
        )
    slowest, mean = max(work, key=lambda device: work[device]), work_s / len(facts.devices)
    if work[slowest] >= UNEQUAL * mean:
        yield (
            f"{slowest} computes {work[slowest] / mean:.1f} times as long as the {len(facts.devices)} "
            f"devices of {c.called} in the mean, and the others wait for it: give all of them as much to do"
        )


def _where(devices: tuple[int, ...]) -> str:
    return f"device {devices[0]}" if len(devices) == 1 else f"{len(devices)} devices"
