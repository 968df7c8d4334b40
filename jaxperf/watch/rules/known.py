"""The rule about known faults of the installed JAX: a program of the reader's that one of them hits."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator

from jaxperf.known_faults import FAULTS, Fault, faults_of
from jaxperf.watch.log import Compiled
from jaxperf.watch.observe.executables import Facts
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules.programs import called_programs
from jaxperf.watch.rules.table import VERSIONS, Finding, cause


def _way_out(fault: Fault) -> str:
    return f"{fault.way_out[0].upper()}{fault.way_out[1:]}.".replace("{", "{{").replace("}", "}}")


LARGE_FACTOR = 10  # from which on the whole program is slow, where no window saw which instructions are


@cause(
    "known fault", "version", VERSIONS,
    "the installed version of JAX has a fault that this program meets",
    "Take another version.",
    confidence="bound",
    forms={fault.issue: _way_out(fault) for fault in FAULTS if fault.pattern},
    choose=lambda f: f.argument,  # the issue
)  # fmt: skip
def find_known_faults(analysis: Analysis) -> Iterator[Finding]:
    for fault, facts, call, at in met_faults(analysis):
        if fault.factor:
            slow_s = _slow_s(analysis, fault, facts) * (1 - 1 / fault.factor)
            reason = _reason(fault, call)
            yield Finding("known fault", at, slow_s, reason, call.called, argument=fault.issue)


def _slow_s(analysis: Analysis, fault: Fault, facts: Facts) -> float:
    """Return the device seconds of the instructions that a fault hits.

    The profiler's windows may be shorter than one execution, and then see neither it nor its instructions.
    """
    module, hits = facts.module, fault.hits(facts.module)
    inside = {i.computation for i in hits}
    names = {i.name for i in hits} | {i.name for i in module.instructions if i.called in inside}
    seen = [(program, s) for f, _, program, s in called_programs(analysis) if f is facts]
    seconds = sum(program.op_s(names.__contains__) for program, _ in seen) * analysis.scale
    if seconds or fault.factor < LARGE_FACTOR:
        return min([seconds, *(program_s for _, program_s in seen)])
    return max((program_s for _, program_s in seen), default=analysis.computing_s)


def fault_notes(analysis: Analysis) -> Iterator[str]:
    """Yield a note on each program that a known fault may give wrong values or end."""
    for fault, _, call, at in met_faults(analysis):
        if not fault.factor:
            yield f"{_reason(fault, call)} ({at}); {fault.way_out}"


def _reason(fault: Fault, call: Compiled) -> str:
    version = importlib.metadata.version("jaxlib")
    times = f", up to {fault.factor:g} times longer" if fault.factor else ""
    return f"{call.called} has {fault.name}; with jaxlib {version} {fault.symptom}{times} ({fault.issue})"


def met_faults(analysis: Analysis) -> Iterator[tuple[Fault, Facts, Compiled, Place]]:
    """Yield the faults that the reader's programs meet, each once a line: with the call and the line."""
    done: set[tuple[str, Place]] = set()
    for facts in analysis.log.programs:
        call = analysis.jitted.get(facts.program)
        faults = faults_of(importlib.metadata.version("jaxlib"), facts.platform, _device_kind(facts.platform))
        if not call or not facts.text:
            continue
        for fault in faults:
            for instruction in fault.hits(facts.module):
                at = facts.at(instruction) or call.at
                if (fault.issue, at) not in done:
                    done.add((fault.issue, at))
                    yield fault, facts, call, at


def _device_kind(platform: str) -> str:
    """Return the kind of the first device of a platform, where JAX runs; else ""."""
    jax = sys.modules.get("jax")
    try:
        return str(jax.local_devices(backend=platform)[0].device_kind) if jax else ""
    except RuntimeError:
        return ""
