"""Rules about functions that were traced and compiled again."""

from __future__ import annotations

import ast
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from jaxperf.result.intervals import total_length, union
from jaxperf.watch.advice.explanations import (
    Change,
    argument_changes,
    differing_part,
    shape_of,
    shorten_value,
)
from jaxperf.watch.finding import Finding
from jaxperf.watch.grouping import group_by
from jaxperf.watch.observe.compiles import COMPILE, Compiled
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.source import statements

REPEATS = 3  # traces that count as repeated
_ELSEWHERE = ("placement", "cleared")  # other rules report these
_TURNS = re.compile(r"known_trip_count[^}]*?(\d+)")
_NUMBER = re.compile(r"True|False|-?(\d[\d.e+-]*|inf)|nan")
_ANYWHERE = ("new function", "weak type")  # never intended, even if another line makes the call
# a single one may be intended: two functions, two values of a flag, two sizes
_HABITS = ("new function", "static value", "shape")


def find_retraces(analysis: Analysis) -> Iterator[Finding]:
    """Find the reader's functions that were traced and compiled again, one finding per reason.

    The first trace from a line and its callers does not count, since training and testing may differ.
    """
    traced = (c for c in analysis.record.compiled if c.explained and _kind(c) not in _ELSEWHERE)
    for group in group_by(traced, lambda c: c.defined or c.name).values():
        again: dict[str, list[Compiled]] = defaultdict(list)
        known = {(group[0].at, group[0].callers)}
        for c in group[1:]:
            kind, way = _kind(c), (c.at, c.callers)
            if way in known or kind in _ANYWHERE:
                again[kind].append(c)
            known.add(way)
        again["new function"] = _needless(group, again["new function"])
        if again["static value"] and _decides_form(analysis, group):
            del again["static value"]
        for kind, repeats in ((kind, repeats) for kind, repeats in again.items() if repeats):
            if kind not in _HABITS or _habit(repeats) or (kind == "shape" and _partial_batch(repeats)):
                finding = _retrace(kind, group[0], repeats)
                if finding.cause == "shape":
                    finding = replace(finding, seconds=finding.seconds * _saved_by_padding(group))
                if finding.seconds:
                    yield finding


def together_s(compiled: Iterable[Compiled]) -> float:
    """Return the seconds in which any of them was traced or compiled; threads may overlap."""
    return total_length(union(span for c in compiled for span in c.stages.values()))


def _usual_line(compiled: Iterable[Compiled]) -> Place:
    return Counter(c.at for c in compiled).most_common(1)[0][0]


def _needless(group: list[Compiled], repeats: list[Compiled]) -> list[Compiled]:
    """Return repeats whose argument types occurred before, so that one function object would be enough."""
    known, needless = {_call(group[0])}, []
    for c in group[1:]:
        if c in repeats and (_call(c) in known or not c.signature):
            needless.append(c)
        known.add(_call(c))
    return needless


def _decides_form(analysis: Analysis, group: list[Compiled]) -> bool:
    """Return whether a static value decides something that an ordinary argument cannot.

    That is the case if all programs differ in their shapes or numbers of iterations, or if a value that is
    not a number decides which operations there are.
    """
    lines = {(c.at.file, c.at.line) for c in group}
    named = [f for f in analysis.programs.get(group[0].program, ()) if f.text and not f.old]
    traced = [f for f in named if lines & {(p.file, p.line) for at in f.frames.values() for p in at}]
    programs = traced or named  # other functions may have the same name
    forms = {(*map(tuple, f.layout), *_TURNS.findall(f.text)) for f in programs}
    if len(forms) == len(programs) > 1:
        return True
    values = {change.now for c in group for change in c.changes if change.kind == "static value"}
    operations = {tuple(i.opcode for i in f.instructions) for f in programs}
    return len(operations) > 1 and not all(map(_NUMBER.fullmatch, values))


def _saved_by_padding(traces: list[Compiled]) -> float:
    """Return the share of the repeats that padding dimensions to powers of two would save.

    A program that doubles a size needs a new program each time in any case, for example.
    """
    calls = {_call(c) for c in traces}
    padded = {
        tuple((name, *((n - 1).bit_length() for n in shape_of(text))) for name, text in call)
        for call in calls
    }
    return (len(calls) - len(padded)) / (len(calls) - 1) if calls - {()} and len(calls) > 1 else 1.0


def _call(c: Compiled) -> tuple[tuple[str, str], ...]:
    return tuple((name, text) for name, text in c.signature.items() if "[" in text)


def _kind(c: Compiled) -> str:
    """Return the reason for a trace; if there are several, the one that explains the others."""
    kinds = {change.kind for change in c.changes}
    order = (*_ELSEWHERE, "structure", "static value", "shape", "dtype", "weak type", "setting", "other")
    return next((kind for kind in order if kind in kinds), "new function")


def _habit(repeats: list[Compiled]) -> bool:
    """Return whether one line has enough repeats; each of several lines may have one of its own."""
    return Counter(c.at for c in repeats).most_common(1)[0][1] >= REPEATS - 1


def _retrace(kind: str, first: Compiled, repeats: list[Compiled]) -> Finding:
    at, seconds = _usual_line(repeats), together_s(repeats)
    changes = [change for c in repeats for change in c.changes if change.kind == kind]
    times = f"{first.called} was traced {len(repeats) + 1} times, {seconds:.2g} s for the repeats"
    if kind == "static value" and all(map(_another_object, changes)):
        if differs := differing_part(changes[0].before, changes[0].now):
            made = statements.made_at(at, differs.owner)
            where = f", which {made} makes," if made else ""
            reason = (
                f"{times}: {differs.name} of the {differs.owner}{where} is another {differs.kind} each time, "
                "and is compared by identity"
            )
            return Finding("static part", at, seconds, reason, differs.owner, argument=differs.name)
        other = f"{changes[0].what} is another {shorten_value(_plain_value(changes[0].now))} each time"
        reason = f"{times}: static {other}"
        return Finding("static object", at, seconds, reason, first.called, argument=changes[0].what)
    if kind == "new function":
        reason, names = f"{times}: each call makes a new function object", _closed_over([first, *repeats])
        if names:
            reason += f", and {'; '.join(names.values())}"
        return Finding(kind, at, seconds, reason, first.called, argument=", ".join(names))
    descriptions = list(dict.fromkeys(map(str, changes)))
    shown = "; ".join(descriptions[:2]) + (
        f"; and {len(descriptions) - 2} more" if len(descriptions) > 2 else ""
    )
    reason = shown if kind == "other" else f"{kind} of {shown}"
    cause = "partial batch" if kind == "shape" and _partial_batch(repeats) else kind
    return Finding(cause, at, seconds, f"{times}: {reason}", first.called, argument=changes[0].what)


def _closed_over(traces: list[Compiled]) -> dict[str, str]:
    """Return the first difference of each closure variable or default of new functions, by name."""
    reasons: dict[str, str] = {}
    for old, new in itertools.pairwise(traces):
        for change in argument_changes(old.closure, new.closure) if old.closure else ():
            before, now = _plain_value(change.before), shorten_value(_plain_value(change.now))
            how = (
                f"is another {now}"
                if _another_object(change)
                else f"goes from {shorten_value(before)} to {now}"
            )
            reasons.setdefault(change.what, f"{change.what} in its closure {how}")
    return reasons


def _plain_value(value: str) -> str:
    """Return a printed value without its address and the enclosing functions of its class."""
    return re.sub(r" at 0x[0-9a-f]+|[\w.]+\.<locals>\.", "", value)


def _another_object(change: Change) -> bool:
    """Return whether a static value is another object that prints the same except for its address."""
    return _plain_value(change.before) == _plain_value(change.now)


def _partial_batch(repeats: list[Compiled]) -> bool:
    """Return whether the only repeat is for a smaller leading dimension, as of an epoch's last batch."""
    changes: list[Change] = [change for c in repeats for change in c.changes if change.kind == "shape"]
    pairs = [(shape_of(c.before), shape_of(c.now)) for c in changes]
    smaller = {(before[0], now[0]) for before, now in pairs if before and now and before[1:] == now[1:]}
    whole = all(before and now and before[1:] == now[1:] for before, now in pairs)
    return whole and len(repeats) == 1 and len(smaller) == 1 and all(now < before for before, now in smaller)


def find_placements(analysis: Analysis) -> Iterator[Finding]:
    """Find functions compiled again because arguments of equal types had another placement."""

    def placed(c: Compiled) -> bool:
        return any(change.kind == "placement" and change.what for change in c.changes)

    again = filter(placed, analysis.record.compiled)
    for group in group_by(again, lambda c: c.defined or c.name).values():
        at = _usual_line(group)
        seconds, changes = together_s(group), group[0].changes
        more = f"; and so for {len(changes) - 1} more arguments" if len(changes) > 1 else ""
        reason = (
            f"{group[0].called} was compiled {len(group) + 1} times for arguments of equal types on equal "
            f"devices, {seconds:.2g} s for the repeats: placement of {changes[0]}{more}"
        )
        if at:
            yield Finding("placement", at, seconds, reason, group[0].called, argument=changes[0].what)


def find_cleared_caches(analysis: Analysis) -> Iterator[Finding]:
    """Find calls of `jax.clear_caches` after which the same functions were compiled again."""
    for at, again in group_by(analysis.record.compiled, lambda c: c.cleared).items():
        if at is None:
            continue
        seconds, names = together_s(again), ", ".join({c.called: None for c in again})
        reason = (
            f"jax.clear_caches makes JAX forget its programs: {shorten_value(names)} took {seconds:.2g} s "
            f"to be traced and compiled {len(again)} times more"
        )
        yield Finding("cleared", at, seconds, reason, "clear_caches")


def find_eager_recompiles(analysis: Analysis) -> Iterator[Finding]:
    """Find operations outside `jit` that were compiled again and again at one line."""
    operations = (
        c
        for c in analysis.record.compiled
        if not c.explained and COMPILE in c.stages and c.at and c.cleared is None
    )
    for at, compiled in group_by(operations, lambda c: c.at).items():
        name, times = Counter(c.name for c in compiled).most_common(1)[0]
        if times >= 2 * REPEATS:
            cause = eager_cause([c for c in compiled if c.name == name])
            if cause == "eager recompiles" and _takes_by_mask(analysis, at):
                cause = "eager shapes"
            seconds = together_s(compiled)
            reason = f"{name}, outside of jit, was compiled {times} times here, for {EAGER_CAUSES[cause]}"
            yield Finding(cause, at, seconds * (1 - 1 / times), reason, name)


def _takes_by_mask(analysis: Analysis, at: Place) -> bool:
    """Return whether a line seems to index with a boolean array, which JAX reads to count the elements."""
    statement = statements.innermost(at, ast.stmt)
    read = any((x.at, x.kind) == (at, "np.asarray") and x.count >= REPEATS for x in analysis.lines)
    return read and any(isinstance(n, ast.Subscript) for n in ast.walk(statement or ast.Pass()))


EAGER_CAUSES = {
    "eager shapes": "new shapes",
    "new body": "a new body function each time",
    "eager recompiles": "new shapes or constants",  # a number in a library's call may be a size
}


def eager_cause(compiled: list[Compiled]) -> str:
    """Return what most often differs between consecutive calls of an operation outside jit."""
    causes = Counter(itertools.starmap(_eager_cause, itertools.pairwise(compiled)))
    return causes.most_common(1)[0][0] if causes else "eager recompiles"


def _eager_cause(before: Compiled, now: Compiled) -> str:
    if any(change.kind == "new body" for change in now.changes):
        return "new body"
    changes = argument_changes(before.signature, now.signature)
    sized = any(
        c.kind == "shape" or c.what.startswith("shape") or c.before == "nothing" or c.now.startswith("slice(")
        for c in changes
    )
    return "eager shapes" if sized else "eager recompiles"
