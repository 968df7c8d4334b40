"""Facts about compiled programs: FLOPs, bytes, aliased memory, and instructions.

They come from `live_executables()` of each device's client. It is called while the program runs, because a
compiled program is freed together with its function.

`note_copied_arguments` finds what each call has to copy first: NumPy arrays, and arrays on other devices.

`unrolled_loops` finds Python loops that tracing has unrolled, as opposed to layers with their own weights.

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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from jaxperf import hlo
from jaxperf.errors import JaxperfError
from jaxperf.hlo import Frame, Instruction, Module, Shape, shape_of
from jaxperf.watch.grouping import group_by
from jaxperf.watch.log import Compiled, ExecutedProgram, Log, canonical_name
from jaxperf.watch.observe import source_location
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.source import statements


def note_copied_arguments(
    compiled: Iterable[Compiled], executed: Mapping[str, ExecutedProgram], programs: Iterable[Facts]
) -> None:
    """Set `elsewhere` of each `Compiled`, and keep in it and in `host` only what later calls copy, too.

    Parameters are often NumPy arrays in the first call only. The profiler's windows count the arrays (and
    Python numbers) that a later call copies, but not their sizes. So the smallest arrays are kept, which
    gives a lower bound.
    """
    facts = {f.program: f for f in programs if not f.old}
    for c in compiled:
        program, known = executed.get(c.program), facts.get(c.program)
        c.elsewhere = _elsewhere(c, known) if program and known else {}
        if program and program.calls:
            arrays = sum(shape_of(text) is not None for text in c.signature.values())
            numbers = max(0, (len(known.layout[0]) if known else 0) - arrays)
            sizes = {**c.host, **c.elsewhere}
            smallest = sorted(sizes, key=lambda where: sizes[where])
            copied = set(smallest[: max(0, round(program.copies / program.calls) - numbers)])
            c.host = {where: size for where, size in c.host.items() if where in copied}
            c.elsewhere = {where: size for where, size in c.elsewhere.items() if where in copied}


def _elsewhere(c: Compiled, facts: Facts) -> dict[str, int]:
    arrays = {where: shape_of(c.signature.get(where, "")) for where in c.placements}
    return {
        where: array.bytes
        for where, array in arrays.items()
        if array and {*c.placements[where].devices} != {*facts.devices}
    }


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


PER_NAME = 3  # texts kept per program name, before the watch and again during it
LONGEST = 24_000_000  # characters; longer texts are not kept
CONTAINERS = ("while", "call", "conditional")  # their times include those of the instructions inside
MULTIPLYING = ("dot", "convolution", "custom-call")  # opcodes of products
PRODUCTS = ("dot_general", "conv_general_dilated")  # JAX's operations
_FILLING = {
    "constant", "broadcast", "iota", "bitcast", "reshape", "copy", "tuple", "get-tuple-element", "fusion",
    "parameter", "call", "pad", "convert",
    # of numbers that are made in place, such as an identity: no more than reading them from memory
    "compare", "select", "add", "subtract", "multiply", "and", "or", "not", "slice", "concatenate",
    "transpose", "dynamic-slice", "dynamic-update-slice",
}  # fmt: skip
_VARYING = ("parameter", "rng", "rng-bit-generator", "custom-call", "infeed", "partition-id", "replica-id")


@dataclass(frozen=True)
class Facts:
    """One compiled program; FLOPs and bytes are the compiler's estimates for one execution on one device.

    `peak_bytes` are arguments, outputs and temporaries; `devices` are the ids of its devices; `old` is
    whether it existed before the watch began.
    """

    name: str
    platform: str
    flops: float
    bytes_accessed: float
    peak_bytes: int = 0
    devices: tuple[int, ...] = ()
    text: str = ""
    old: bool = False
    temporary_bytes: int = 0

    @functools.cached_property
    def module(self) -> Module:
        """Return the parsed program; an empty one if there is no text that can be read."""
        try:
            return hlo.parse(self.text)
        except JaxperfError:
            return Module("", {}, "", self.text.partition("\n")[0])

    @property
    def program(self) -> str:
        return canonical_name(self.name)

    @functools.cached_property
    def instructions(self) -> list[Instruction]:
        return list(self.module.instructions)

    @property
    def loops(self) -> int:
        """Return the number of loops; the compiler's estimates count one iteration of each."""
        return sum(i.opcode == "while" for i in self.instructions)

    @property
    def matrix_dtype(self) -> str:
        """Return the dtype of matrix products and convolutions ("float32"); "" if there are none."""
        return self.module.matrix_dtype

    @functools.cached_property
    def steps(self) -> frozenset[str]:
        """Return the names of the entry computation's instructions: an execution runs each of them once."""
        return frozenset(i.name for i in self.module.computations.get(self.module.entry, ()))

    @property
    def layout(self) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
        return self.module.layout

    @property
    def argument_bytes(self) -> int:
        return sum(shape.bytes for shape in self.layout[0])

    @functools.cached_property
    def places(self) -> frozenset[Place]:
        return frozenset(
            Place(*f) for frames in {*map(self.module.frames, self.instructions)} for f in frames
        )

    def at(self, instruction: Instruction) -> Place:
        """Return the innermost line of the reader's own code that an instruction comes from."""
        return own_line(self.module.frames(instruction))

    def around(self, instruction: Instruction) -> list[Place]:
        return [Place(*frame) for frame in self.module.frames(instruction)]

    def callbacks(self) -> Iterator[tuple[str, Place]]:
        """Yield the name and line of each instruction that calls back into Python."""
        for i in self.instructions:
            if i.opcode == "custom-call" and "callback" in i.target:
                yield i.name, self.at(i)

    def constants(self) -> Iterator[Shape]:
        for i in self.instructions:
            if i.opcode == "constant" and i.shapes:
                yield i.shapes[0]

    def unshared_bytes(self, among: Iterable[Shape] | None = None) -> int:
        """Return the bytes of results that could alias an argument of their type, but do not.

        Args:
          among: types of the arguments to consider; None for all of them.
        """
        (arguments, results), aliases = self.layout, self.module.aliases
        free = Counter(a for i, a in enumerate(arguments) if i not in aliases.values())
        free = free if among is None else free & Counter(among)
        total = 0
        for i, shape in enumerate(results):
            if i not in aliases and free[shape]:
                free[shape] -= 1
                total += shape.bytes
        return total


def own_line(frames: Iterable[Frame]) -> Place:
    """Return the innermost line of the reader's own code among some frames; NOWHERE if there is none."""
    return next((Place(*f) for f in frames if not source_location.library_of(f.file)), NOWHERE)


def independent_instructions(instructions: Sequence[Instruction], entry: frozenset[str]) -> set[str]:
    """Return the names of the `entry` instructions whose results are the same in each execution.

    Instructions that only fill memory, such as a buffer that a loop will write, are left out.
    """
    opcodes: dict[str, set[str]] = defaultdict(set)
    for i in instructions:
        opcodes[i.computation].add(i.opcode)
    depends: set[str] = set()
    fixed: set[str] = set()
    for i in instructions:
        if i.name not in entry:
            continue
        if i.opcode in _VARYING or {*i.operands} & depends:
            depends.add(i.name)
        elif not opcodes[i.called] | {i.opcode} <= _FILLING:
            fixed.add(i.name)
    return fixed


class Programs:
    """The compiled programs seen so far; `look` adds the new ones, and `close` writes them into the log.

    Args:
      log: the log of the watch.
      texts: how many texts are kept per program name, before the watch and again during it.
    """

    def __init__(self, log: Log, texts: int = PER_NAME) -> None:
        self.log, self.watching = log, False
        self._numbers: Counter[tuple[str, bool]] = Counter()
        self._texts = texts
        self._seen: list[tuple[Facts, Any]] = []  # the second is the program, whose text takes long to print
        self._known: set[Any] = set()
        self._trouble = ""

    def look(self) -> None:
        """Add every live program that is not known yet."""
        import jax

        try:
            for client in {id(d.client): d.client for d in (*jax.devices(), *jax.devices("cpu"))}.values():
                for executable in client.live_executables():
                    self._note(executable)
        except Exception as e:  # such as a method that this JAX version lacks
            self._trouble = f"{type(e).__name__}: {e}".splitlines()[0]

    def close(self) -> None:
        """Print the programs' texts, and say what is missing."""
        too_long: dict[str, None] = {}
        for facts, module in self._seen:
            text = module.to_string() if module is not None else ""
            if len(text) > LONGEST:
                too_long[facts.name] = None
                text = ""
            self.log.programs.append(replace(facts, text=text))
        self._seen.clear()
        if self._trouble:
            self.log.remarks.append(f"no FLOPs and bytes: {self._trouble}")
        self.log.remarks += [
            f"the text of {name} is too long to be read, so findings about its instructions lack it"
            for name in too_long
        ]

    def _note(self, executable: Any) -> None:
        key = executable.fingerprint or id(executable)
        if key in self._known:
            return
        self._known.add(key)
        module = executable.hlo_modules()[0]
        cost = executable.cost_analysis() or {}
        cost = cost[0] if isinstance(cost, list) else cost
        sizes = executable.get_compiled_memory_stats()  # takes milliseconds
        facts = Facts(
            module.name.removeprefix("jit_"),
            executable.local_devices()[0].platform,
            max(0.0, float(cost.get("flops", 0.0))),
            max(0.0, float(cost.get("bytes accessed", 0.0))),
            _peak_bytes(sizes),
            tuple(d.id for d in executable.local_devices()),
            old=not self.watching,
            temporary_bytes=int(sizes.temp_size_in_bytes),
        )
        self._numbers[facts.name, facts.old] += 1
        kept = self._numbers[facts.name, facts.old] <= self._texts
        self._seen.append((facts, module if kept else None))


def _peak_bytes(sizes: Any) -> int:
    """Return the bytes of arguments, outputs and temporaries, without counting aliased ones twice."""
    named = (getattr(sizes, f"{part}_size_in_bytes") for part in ("argument", "output", "temp"))
    return int(sum(named) - sizes.alias_size_in_bytes)
