"""Python loops that became one operation per turn, as opposed to layers that have weights of their own.

In an optimized program's text, the turns of a loop are equal operations from one line. They could share one
body if each turn reads what the one before made, and everything else that it reads is the same. Layers of a
network read weights of their own, and updates of many arrays do not read each other.
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

from jaxperf.watch.grouping import group_by
from jaxperf.watch.observe import source_location
from jaxperf.watch.observe.executables import Facts
from jaxperf.watch.observe.instructions import ProgramInstruction
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.source import statements

LEAST = 64  # equal operations; fusing makes copies, so that ten turns may give 56
FEW = 16  # consecutive operations, which are turns and not copies; if compiling takes long
LAYERS = 8  # this many sets of weights are not of one body, and this many operations in a row are a loop
_CALLED = re.compile(r"\b(?:calls|to_apply)=%?([\w.-]+)")
_ORIGIN = re.compile(r"stack_frame_id=\d+")
_CALLS = ("fusion", "call")  # they pass each operand to a parameter, and are described by what is inside
_SEVERAL = re.compile(r"\[\d")  # the type of an array with dimensions
_ROUNDS = "threefry"  # of a random number generator, which JAX unrolls on a GPU
_BODIES = {"closed_call", "eval_jaxpr"}  # what JAX calls the body of a scan; the second from 0.12 on
_LOOPS = ast.For | ast.While | ast.ListComp | ast.GeneratorExp


class Loop(NamedTuple):
    """A loop that Python unrolled, at its `for`; `share` is how much of the program comes from its lines."""

    at: Place
    operation: str
    copies: int
    turns: int  # at least
    share: float


class _Kind(NamedTuple):
    """What equal operations have in common."""

    opcode: str  # JAX's erf_inv alone is 36 operations, of which 9 in a row add
    op_name: str
    origin: str
    result: str


class _Instruction(NamedTuple):
    name: str
    within: str  # the computation that it is in
    opcode: str
    operands: list[str]
    number: int  # for a parameter
    called: str  # the computation inside; "" for none
    several: bool  # whether its result is more than a number
    kind: _Kind | None  # None if it is not an operation of its own, or if its result is a number


def unrolled_loops(facts: Facts, *, few: bool = False, outside: Collection[Place] = ()) -> list[Loop]:
    """Find the unrolled loops of a program: those with a loop at their lines first, then by copies.

    Args:
      facts: the program.
      few: also report loops with few turns.
      outside: lines that call the program, whose loops are not part of it.
    """
    least, instructions = FEW if few else LEAST, list(map(_instruction, facts.instructions))
    equal = group_by((i for i in instructions if i.kind), lambda i: i.kind)
    if all(len(members) < least for members in equal.values()):
        return []
    # called computations come before their callers, the entry is the last
    program = group_by(instructions, lambda i: i.within)
    read, described = _read(program), sum(map(len, equal.values()))
    loops: list[tuple[bool, Loop]] = []
    for at, kinds in group_by(filter(None, equal), lambda kind: facts.at(kind.origin)).items():
        most = max(kinds, key=lambda kind: len(equal[kind]))
        sets = {kind: Counter(read[i.name] for i in equal[kind]) for kind in kinds}
        if not at or max(sets[most].values()) < least or any(map(_layers, sets.values())):
            continue
        around = list(_source_loops(_way(facts, most.origin, outside)))
        if _BODIES & {*most.op_name.split("/")} and not around:
            continue  # copies that `scan` made, as it was told to
        copies, turns = len(equal[most]), _chain(program, most)
        written = math.prod(n for _, n in around) if around else math.inf
        if written < LAYERS:
            continue  # several operations of one turn, or copies that fusing made
        if turns >= (LAYERS if max(sets[most].values()) >= LEAST else FEW):
            share = sum(len(equal[kind]) for kind in kinds) / described
            at = max(around, key=lambda loop: loop[1])[0] if around else at
            operation = most.op_name.rpartition("/")[2]
            loops.append((bool(around), Loop(at, operation, copies, int(min(turns, written)), share)))
    return [loop for _, loop in sorted(loops, key=lambda pair: (not pair[0], -pair[1].copies))]


def _way(facts: Facts, origin: str, outside: Collection[Place]) -> Iterator[Place]:
    """Return the reader's lines in a program from which an operation comes, the innermost first."""
    ends = {(p.file, p.line) for p in outside}
    inside = itertools.takewhile(lambda p: (p.file, p.line) not in ends, facts.around(origin))
    return (p for p in inside if not source_location.library_of(p.file))


def _source_loops(places: Iterable[Place]) -> Iterator[tuple[Place, float]]:
    """Yield the loops around some lines, each within its own function, and their turns; inf if unknown."""
    for at in places:
        function = getattr(statements.innermost(at, ast.FunctionDef), "lineno", 0)
        for loop in reversed(statements.enclosing_nodes(at, _LOOPS)):
            if loop.lineno > function:
                yield at._replace(line=loop.lineno), statements.turns_written(loop)


def _layers(sets: Counter[tuple[int, ...]]) -> bool:
    """Return whether equal operations read many different things, as layers with their own weights do."""
    return len(sets) >= LAYERS and max(sets.values()) < sets.total() / 2


def _instruction(i: ProgramInstruction) -> _Instruction:
    number = int(i.text.partition(" parameter(")[2].partition(")")[0]) if i.opcode == "parameter" else 0
    called, op_name, origin = _CALLED.search(i.text), i.op_name, _ORIGIN.search(i.text)
    several, kind = bool(_SEVERAL.search(i.type)), None
    if several and i.opcode not in _CALLS and op_name and origin and _ROUNDS not in op_name:
        kind = _Kind(i.opcode, op_name, origin[0], i.type.partition("{")[0])
    return _Instruction(
        i.name, i.within, i.opcode, i.operands, number, called[1] if called else "", several, kind
    )


def _read(program: dict[str, list[_Instruction]]) -> dict[str, tuple[int, ...]]:
    """Return the arguments and constants behind each instruction's operands, one bit for each.

    Callers come after what they call, so in reverse order a computation's parameters are known before it.
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
    """Count how many operations of a kind follow each other on a path through the program."""
    until: dict[str, int] = {}
    inside: dict[str, int] = defaultdict(int)
    for name, computation in program.items():
        for i in computation:
            count = inside[i.called] if i.opcode in _CALLS else int(i.kind == kind)
            until[i.name] = count + max((until.get(operand, 0) for operand in i.operands), default=0)
            inside[name] = max(inside[name], until[i.name])
    return max(inside.values(), default=0)
