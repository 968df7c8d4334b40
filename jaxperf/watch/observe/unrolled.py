"""Find Python loops that tracing has unrolled, as opposed to layers with their own weights.

In an optimized program's text, the iterations of such a loop are equal operations from one line. They could
share one loop body if each reads the result of the one before, and otherwise the same arrays. Layers of a
network read their own weights, and updates of many arrays do not read each other.
"""

from __future__ import annotations

import ast
import functools
import itertools
import math
import operator
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from jaxperf.hlo import Frame, Instruction
from jaxperf.watch.grouping import group_by
from jaxperf.watch.observe import source_location
from jaxperf.watch.observe.executables import Facts, own_line
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.source import statements

EQUAL_COUNT = 64  # equal operations; fusion copies them, so that ten iterations may give 56
IN_A_ROW = 16  # consecutive operations, which are iterations rather than copies; used if compiling takes long
LAYERS = 8  # operations that read so many different weights are layers; so many in a chain are a loop
_CALLS = ("fusion", "call")  # each operand is a parameter of the computation inside
_SEVERAL = re.compile(r"\[\d")  # the type of an array with dimensions
_ROUNDS = "threefry"  # a random number generator whose rounds JAX unrolls on a GPU
_BODIES = {"closed_call", "eval_jaxpr"}  # JAX's names of a scan's body; the second from JAX 0.12 on
_LOOPS = ast.For | ast.While | ast.ListComp | ast.GeneratorExp


class Loop(NamedTuple):
    """A loop that Python unrolled, at its `for`; `share` is the fraction of operations from its lines."""

    at: Place
    operation: str
    copies: int
    iterations: int  # at least
    share: float


class _Kind(NamedTuple):
    """What equal operations have in common."""

    opcode: str  # one JAX operation may be many: erf_inv is 36, of which 9 in a chain are additions
    op_name: str
    origin: tuple[Frame, ...]
    result: str


class _Instruction(NamedTuple):
    name: str
    within: str  # the computation that contains it
    opcode: str
    operands: tuple[str, ...]
    number: int  # for a parameter
    called: str  # the computation inside; "" for none
    several: bool  # whether its result is an array with dimensions
    kind: _Kind | None  # None for a scalar, a call, or an instruction that no JAX operation made


def unrolled_loops(facts: Facts, *, few: bool = False, outside: Collection[Place] = ()) -> list[Loop]:
    """Return the unrolled loops of a program; those with a loop in the source come first, then by copies.

    Args:
      facts: the program.
      few: also report loops with few iterations.
      outside: lines that call the program, whose loops are not part of it.
    """
    least = IN_A_ROW if few else EQUAL_COUNT
    instructions = [_instruction(facts, i) for i in facts.instructions]
    equal = group_by((i for i in instructions if i.kind), lambda i: i.kind)
    if all(len(members) < least for members in equal.values()):
        return []
    # called computations come before their callers, and the entry computation is the last
    program = group_by(instructions, lambda i: i.within)
    read, described = _read(program), sum(map(len, equal.values()))
    loops: list[tuple[bool, Loop]] = []
    for at, kinds in group_by(filter(None, equal), lambda kind: own_line(kind.origin)).items():
        most = max(kinds, key=lambda kind: len(equal[kind]))
        sets = {kind: Counter(read[i.name] for i in equal[kind]) for kind in kinds}
        if not at or max(sets[most].values()) < least or any(map(_layers, sets.values())):
            continue
        way = list(_way(most.origin, outside))
        around = list(_source_loops(way))
        if not around and _is_a_librarys(most.origin, way):
            continue  # nothing in the reader's code to change
        if _BODIES & {*most.op_name.split("/")} and not around:
            continue  # copies that `scan` made for its argument `unroll`
        copies, iterations = len(equal[most]), _chain(program, most)
        written = math.prod(n for _, n in around) if around else math.inf
        if written < LAYERS:
            continue  # several operations of one iteration, or copies that fusion made
        if iterations >= (LAYERS if max(sets[most].values()) >= EQUAL_COUNT else IN_A_ROW):
            share = sum(len(equal[kind]) for kind in kinds) / described
            at = max(around, key=lambda loop: loop[1])[0] if around else at
            operation = most.op_name.rpartition("/")[2]
            loops.append((bool(around), Loop(at, operation, copies, int(min(iterations, written)), share)))
    return [loop for _, loop in sorted(loops, key=lambda pair: (not pair[0], -pair[1].copies))]


def _is_a_librarys(origin: tuple[Frame, ...], way: list[Place]) -> bool:
    """Return whether a library other than JAX unrolled a loop; a recursion is the reader's own."""
    functions = [(p.file, p.function) for p in way]
    owners = [source_location.library_of(frame.file) for frame in origin]
    inside = {*itertools.takewhile(bool, owners)} - {"jax"}
    return len({*functions}) == len(functions) and bool(inside)


def _way(origin: tuple[Frame, ...], outside: Collection[Place]) -> Iterator[Place]:
    """Return the reader's lines inside a program that an operation comes from, the innermost first."""
    ends = {(p.file, p.line) for p in outside}
    inside = itertools.takewhile(lambda f: (f.file, f.line) not in ends, origin)
    return (Place(*f) for f in inside if not source_location.library_of(f.file))


def _source_loops(places: Iterable[Place]) -> Iterator[tuple[Place, float]]:
    """Yield the source loops around lines within their functions, and their iterations; inf if unknown."""
    for at in places:
        function = getattr(statements.innermost(at, ast.FunctionDef), "lineno", 0)
        for loop in reversed(statements.enclosing_nodes(at, _LOOPS)):
            if loop.lineno > function:
                yield at._replace(line=loop.lineno), statements.turns_written(loop)


def _layers(sets: Counter[tuple[int, ...]]) -> bool:
    """Return whether equal operations read many different arrays, as layers with their own weights do."""
    return len(sets) >= LAYERS and max(sets.values()) < sets.total() / 2


def _instruction(facts: Facts, i: Instruction) -> _Instruction:
    origin, several, kind = facts.module.frames(i), bool(_SEVERAL.search(i.type)), None
    if several and i.opcode not in _CALLS and i.op_name and origin and _ROUNDS not in i.op_name:
        kind = _Kind(i.opcode, i.op_name, origin, i.type.partition("{")[0])
    called = i.called if i.opcode in _CALLS else ""
    return _Instruction(i.name, i.computation, i.opcode, i.operands, i.number or 0, called, several, kind)


def _read(program: dict[str, list[_Instruction]]) -> dict[str, tuple[int, ...]]:
    """Return which arguments and constants each operand of an instruction depends on, as a bit set.

    In reverse order, callers come first, so the sources of a computation's parameters are known before it.
    """
    read: dict[str, tuple[int, ...]] = {}
    sources: dict[str, int] = {}
    parameter_sources: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    entry, bits = next(reversed(program), ""), (1 << n for n in itertools.count())
    for name in reversed(program):
        for i in program[name]:
            operands = tuple(sources.get(operand, 0) for operand in i.operands)
            read[i.name] = operands
            if i.opcode == "parameter":
                sources[i.name] = next(bits) if name == entry else parameter_sources[name][i.number]
            elif i.opcode == "constant" and i.several:
                sources[i.name] = next(bits)
            else:
                sources[i.name] = functools.reduce(operator.or_, operands, 0)
            for number, source in enumerate(operands if i.opcode in _CALLS else ()):
                parameter_sources[i.called][number] |= source
    return read


def _chain(program: dict[str, list[_Instruction]], kind: _Kind) -> int:
    """Return the largest number of operations of a kind on a path through the program."""
    until: dict[str, int] = {}
    inside: dict[str, int] = defaultdict(int)
    for name, computation in program.items():
        for i in computation:
            count = inside[i.called] if i.opcode in _CALLS else int(i.kind == kind)
            until[i.name] = count + max((until.get(operand, 0) for operand in i.operands), default=0)
            inside[name] = max(inside[name], until[i.name])
    return max(inside.values(), default=0)
