"""Reclassify samples by the loops around their lines.

A sample has the reader's line and what it called. Whether that is data for the next step, bookkeeping or part
of the step itself depends on the loop around the line, and on which lines of the loop call jitted functions.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable

from jaxperf.watch.observe.compiles import Compiled
from jaxperf.watch.observe.sampler import BETWEEN, DATA, DISPATCH, EAGER, NUMPY, PYTHON, WRITE, StackSample
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.observe.transfers import Put
from jaxperf.watch.source import loop_body, statements
from jaxperf.watch.source.call_sites import CallSite


def step_lines(compiled: Iterable[Compiled], sites: Iterable[CallSite] = ()) -> frozenset[Place]:
    """Return the lines that call the reader's jitted functions, directly or indirectly."""
    calls: list[Compiled | CallSite] = [*(c for c in compiled if c.explained), *sites]
    return frozenset(p for call in calls for p in (call.at, *call.callers) if p)


def reclassified_samples(
    samples: Iterable[StackSample],
    compiled: Collection[Compiled],
    puts: Collection[Put] = (),
    sites: Collection[CallSite] = (),
) -> list[StackSample]:
    """Return the samples, reclassified by their loops.

    In a loop of steps, a statement that could run ahead of the steps becomes `DATA`, and other Python code
    becomes `BETWEEN`; both get the line in the loop. Whatever runs at the call of a jitted function is its
    `DISPATCH`.
    """
    lines = step_lines(compiled, sites)
    dispatching = {c.at for c in compiled if c.explained} | {s.at for s in sites if s.program}
    batches = {p.at for p in puts} - {p.at for p in puts if p.again or p.numbers}
    known: dict[tuple[str, Place, tuple[Place, ...]], tuple[str, Place]] = {}
    results = []
    for s in samples:
        key = s.kind, s.at, s.callers
        if key not in known:
            known[key] = _reclassify(s, lines, dispatching, batches)
        kind, at = known[key]
        results.append(s._replace(kind=kind, at=at, inside=s.inside if at == s.at else s.at))
    return results


def _reclassify(
    s: StackSample, lines: frozenset[Place], dispatching: Collection[Place], batches: Collection[Place]
) -> tuple[str, Place]:
    makes_jit = "jit(" in s.at.source  # `find_eager_operations` reports it
    if s.kind in (EAGER, PYTHON, WRITE) and s.at in dispatching and not makes_jit:
        return DISPATCH, s.at
    preparing = s.kind in (PYTHON, NUMPY, DATA) or (s.kind == EAGER and s.at in batches)
    if not (preparing or s.kind == WRITE) or s.inside:
        return s.kind, s.at
    at, called = _in_loop(s, lines)
    if not at:  # a file that is written outside of loops does not matter
        return (PYTHON if s.kind == WRITE else s.kind), s.at
    file = _file_written(s.at, s.kind) if s.kind in (WRITE, PYTHON) else NOWHERE
    if s.kind == WRITE or file:
        return WRITE, file or s.at
    if loop_body.could_run_ahead(at, lines, called):
        return DATA, at
    return (BETWEEN, at) if s.kind == PYTHON else (s.kind, s.at)


def _in_loop(s: StackSample, steps: frozenset[Place]) -> tuple[Place, str]:
    """Return a sample's statement in a loop of steps; if it is a step, also the function in its arguments.

    The body of a function that a loop calls as its step counts as a part of the loop.
    """
    chain, repeated = (s.at, *s.callers), False
    on_the_way = {(p.file, p.function) for p in steps}
    for i in reversed(range(len(chain))):  # the outermost line first
        at = chain[i]
        repeated = repeated or loop_body.stepping_loop(at, steps) is not None
        if not loop_body.is_step(at, steps):
            return (at if repeated else NOWHERE), ""
        inner = chain[i - 1] if i else NOWHERE
        if i and (inner.file, inner.function) not in on_the_way:  # an argument of the step
            return (at if repeated else NOWHERE), inner.function
    return NOWHERE, ""


def _file_written(at: Place, kind: str) -> Place:
    """Return the `with` that opens the file that a line writes or closes; NOWHERE for none."""
    loop = statements.innermost(at, loop_body.LOOP)
    for node in statements.enclosing_nodes(at, ast.With):
        meant = node.lineno == at.line if kind == PYTHON else not loop or loop.lineno < node.lineno
        if meant and any(_opens_to_write(item.context_expr) for item in node.items):
            return at._replace(line=node.lineno)
    return NOWHERE


def _opens_to_write(call: ast.expr) -> bool:
    """Return whether an expression is `open(path, "wb")` or `path.open("wb")`."""
    match call:
        case ast.Call(func=ast.Name(id="open"), args=[_, ast.Constant(value=str(mode))]):
            return bool({*mode} & {*"wax"})
        case ast.Call(func=ast.Attribute(attr="open"), args=[ast.Constant(value=str(mode)), *_]):
            return bool({*mode} & {*"wax"})
    return False
