"""Facts about compiled programs: FLOPs, bytes, aliased memory, instructions, and what calls copy first.

`unrolled_loops` finds Python loops that tracing has unrolled. In an optimized program's text, iterations of
such a loop are equal operations from one line. They could share one loop body if each reads the result of the
one before, and otherwise the same arrays. Layers of a network read their own weights, and updates of many
arrays do not read each other.
"""

import ast
import functools
import itertools
import math
import operator
import re
import statistics
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, NamedTuple

from jaxperf import hlo
from jaxperf.errors import JaxperfError
from jaxperf.hlo import Instruction, Module, Shape, shape_of
from jaxperf.watch.grouping import group_by
from jaxperf.watch.log import Compiled, Log, canonical_name
from jaxperf.watch.observe import hooks, source_location
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.source import statements

WORTH_READING_S = 0.02  # seconds of a program, below which it does not matter what it consists of
MOST_READ = 8  # programs of a compile report that are read
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
_VARYING = ("parameter", "rng", "rng-bit-generator", "infeed", "recv", "partition-id", "replica-id")


@dataclass(frozen=True)
class Facts:
    """One compiled program; FLOPs and bytes are the compiler's estimates for one execution on one device."""

    name: str
    platform: str
    flops: float
    bytes_accessed: float
    peak_bytes: int = 0  # of arguments, outputs and temporaries
    devices: tuple[int, ...] = ()  # their ids
    text: str = ""
    old: bool = False  # whether it existed before the watch began
    temporary_bytes: int = 0

    @functools.cached_property
    def module(self) -> Module:
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

    @functools.cached_property
    def steps(self) -> frozenset[str]:
        """Return the names of the entry computation's instructions: an execution runs each of them once."""
        return frozenset(i.name for i in self.module.computations.get(self.module.entry, ()))

    @property
    def layout(self) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
        return self.module.layout

    @functools.cached_property
    def places(self) -> frozenset[Place]:
        return frozenset(itertools.chain.from_iterable(map(self.module.frames, self.instructions)))

    def at(self, instruction: Instruction) -> Place:
        return own_line(self.module.frames(instruction))

    def callbacks(self) -> Iterator[tuple[str, Place]]:
        for i in self.instructions:
            if i.opcode == "custom-call" and "callback" in i.target:
                yield i.name, self.at(i)

    def constants(self) -> Iterator[Shape]:
        return (i.shapes[0] for i in self.instructions if i.opcode == "constant" and i.shapes)

    def unshared_bytes(self, among: Iterable[Shape] | None = None) -> int:
        """Return the bytes of results that could alias an argument (`among` these types), but do not."""
        (arguments, results), aliases = self.layout, self.module.aliases
        free = Counter(a for i, a in enumerate(arguments) if i not in aliases.values())
        if among is not None:
            free &= Counter(among)
        fresh = Counter(shape for i, shape in enumerate(results) if i not in aliases)
        return sum(shape.bytes for shape in (free & fresh).elements())


def own_line(frames: Iterable[Place]) -> Place:
    """Return the innermost line of the reader's own code among some frames; NOWHERE if there is none."""
    return next((f for f in frames if not source_location.library_of(f.file)), NOWHERE)


def independent_instructions(
    facts: Facts, computation: str, passed: Collection[int] = ()
) -> Iterator[Instruction]:
    """Yield the instructions of a computation, and of its branches, that give the same in each run of it.

    So do the elements of its parameter that are `passed` on. Instructions that only fill memory, such as a
    buffer that a loop will write, are left out, except at the lines of others.
    """
    module, depends, same = facts.module, set[str](), list[Instruction]()
    for i in module.computations.get(computation, ()):
        if i.opcode == "get-tuple-element" and i.number in passed and _of_parameter(module, i):
            continue
        if not _varies(i) and not {*i.operands} & depends:
            same.append(i)
            continue
        depends.add(i.name)
        for branch, given in zip(i.branches, module.operands(i)[1:], strict=False):
            elements = enumerate(given.operands if given.opcode == "tuple" else ())
            alike = {n for n, element in elements if element not in depends}
            yield from independent_instructions(facts, branch, alike)
    work = {i for i in same if not {i.opcode, *(j.opcode for j in module.inside(i))} <= _FILLING}
    lines = {*map(facts.at, work)} - {NOWHERE}
    yield from (i for i in same if i in work or facts.at(i) in lines)


def same_in_each_turn(facts: Facts, loop: Instruction) -> Iterator[Instruction]:
    """Yield the instructions of a loop's body that compute the same in each turn.

    XLA moves most of these out of the loop. It leaves what `jax.checkpoint` computes again, and branches.
    """
    module = facts.module
    root = next((i for i in module.inside(loop) if i.root and i.opcode == "tuple"), None)
    elements = enumerate(module.operands(root) if root else ())
    passed = {n for n, element in elements if element.number == n and _of_parameter(module, element)}
    return independent_instructions(facts, loop.called, passed)


def _of_parameter(module: Module, element: Instruction) -> bool:
    return any(i.opcode == "parameter" for i in module.operands(element))


def _varies(i: Instruction) -> bool:
    if i.opcode == "custom-call":
        return "callback" in i.target or "custom_call_has_side_effect=true" in i.attributes
    return i.opcode in _VARYING


def compiler_variables(frame: FrameType) -> dict[str, Any]:
    """Return the variables of the function of JAX that compiles, on a frame's stack; empty if it is not."""
    for f in source_location.frames_outwards(frame):
        if f.f_code.co_name == "_cached_compilation":
            return f.f_locals
    return {}


class Programs:
    """The compiled programs: `keep` takes each one from JAX when it is compiled, and `look` reads those.

    A program is freed together with its function, so it is read soon after, in the sampler's thread. The
    compile report needs only the programs of the slowest functions (`slow_only`).
    """

    def __init__(self, log: Log, *, slow_only: bool = False) -> None:
        self.log, self._slow_only = log, slow_only
        self.new: deque[tuple[Compiled | None, Any]] = deque()  # not read yet
        # by the program's fingerprint: the program, from which its text is printed, and who compiled it
        self._read: dict[Any, tuple[Facts, Any, list[Compiled]]] = {}
        self._numbers: Counter[tuple[str, bool]] = Counter()
        self._taken, self._missed = 0, 0  # programs that `keep` could take, and could not

    def look_at_live(self, *, old: bool = True) -> None:
        """Read every live program, by default as one that was compiled before the watch."""
        import jax

        for client in {id(d.client): d.client for d in (*jax.devices(), *jax.devices("cpu"))}.values():
            for executable in client.live_executables():
                self._note(None, executable, old)

    def keep(self, c: Compiled, frame: FrameType) -> None:
        if self._slow_only and (c.total_s < WORTH_READING_S or not (c.explained or c.owner)):
            return
        variables = compiler_variables(frame).values()
        executable = next((v for v in variables if hasattr(type(v), "hlo_modules")), None)
        if executable is None:
            self._missed += 1
        else:
            self._taken += 1
            self.new.append((c, executable))

    def look(self) -> None:
        while self.new:
            self._note(*self.new.popleft(), old=False)

    def close(self) -> None:
        """Write the programs into the log, with their texts."""
        self.look()
        if (self._missed or not self._taken) and not self._slow_only and hooks.is_running():
            self.look_at_live(old=False)
        read = list(self._read.values())
        if self._slow_only:
            read.sort(key=lambda each: -each[2][0].total_s)
            functions = group_by(read, lambda each: (each[2][0].called, each[2][0].defined))
            read = [same[0] for same in functions.values()][:MOST_READ]
        for facts, module, compiled in read:
            text = module.to_string() if module is not None else ""
            if len(text) > LONGEST:
                remark = f"the text of {facts.name} is too long to be read, so its instructions are unknown"
                self.log.remarks.append(remark)
                text = ""
            facts = replace(facts, text=text)
            self.log.programs.append(facts)
            for c in compiled:
                c.facts = facts
        self._read.clear()

    def _note(self, c: Compiled | None, executable: Any, old: bool) -> None:
        key = executable.fingerprint or id(executable)
        if key not in self._read:
            module = executable.hlo_modules()[0]
            name = module.name.removeprefix("jit_")
            costs, devices = hlo.costs(executable), executable.local_devices()
            self._numbers[name, old] += 1
            facts = Facts(
                name, devices[0].platform, costs.flops, costs.bytes_accessed, costs.peak_bytes,
                tuple(d.id for d in devices), old=old, temporary_bytes=costs.temp_bytes,
            )  # fmt: skip
            self._read[key] = facts, module if self._numbers[name, old] <= PER_NAME else None, []
        if c:
            self._read[key][2].append(c)


def note_copied_arguments(log: Log) -> None:
    """Set `moved` of each `Compiled`, and keep in it and in `host` only what later calls copy, too.

    Parameters are often NumPy arrays in the first call only. The profiler's windows count the arrays (and
    Python numbers) that a later call copies, but not their sizes. So the smallest arrays are kept, which
    gives a lower bound.
    """
    known = {f.program: f for f in log.programs if not f.old}
    for c in log.compiled:
        program, facts = log.activity.programs.get(c.program), known.get(c.program)
        arrays = {where: shape for where, text in c.signature.items() if (shape := shape_of(text))}
        if program and facts:
            c.moved = {
                where: arrays[where].bytes
                for where, placement in c.placements.items()
                if where in arrays and {*placement.devices} != {*facts.devices}
            }
        if program and program.calls:
            numbers = max(0, (len(facts.layout[0]) if facts else 0) - len(arrays))
            sizes = {**c.host, **c.moved}
            copied = max(0, round(program.copies / program.calls) - numbers)
            for where in sorted(sizes, key=sizes.__getitem__)[copied:]:
                c.host.pop(where, None)
                c.moved.pop(where, None)


_TAKES_ROW = ("slice", "squeeze")  # JAX's operations
ROW = re.compile(r" slice=\{\[(\d+):")  # of an instruction that takes a part of an array
EQUAL_COUNT = 64  # equal operations; fusion copies them, so that ten iterations may give 56
IN_A_ROW = 16  # consecutive operations, which are iterations rather than copies; used if compiling takes long
LAYERS = 8  # operations that read so many different weights are layers; so many in a chain are a loop
_CALLS = ("fusion", "call")  # each operand is a parameter of the computation inside
_ENTERS = (*_CALLS, "while")  # opcodes whose computation inside is a part of the program's path
_SIZE = re.compile(r"(?<=[\[,])\d+")  # of a dimension in a type
_SEVERAL = re.compile(r"\[\d")  # the type of an array with dimensions
_ROUNDS = "threefry"  # a random number generator whose rounds JAX unrolls on a GPU
_LOOPS = ast.For | ast.While | ast.ListComp | ast.GeneratorExp


class Loop(NamedTuple):
    """A loop that Python unrolled, at its `for`; `share` is the fraction of operations in it."""

    at: Place
    operation: str
    iterations: int  # at least
    share: float


def unrolled_loops(facts: Facts, *, few: bool = False, outside: Collection[Place] = ()) -> list[Loop]:
    """Return the unrolled loops of a program, the largest share first; `few` also those of few iterations.

    Loops around the lines `outside`, which call the program, are not part of it.
    """
    least, module = IN_A_ROW if few else EQUAL_COUNT, facts.module
    operations = [i for i in facts.instructions if _is_operation(i) and module.frames(i)]
    # one JAX operation may be many: erf_inv is 36, of which 9 in a chain are additions
    # each use of an array adds to its gradient, also uses in layers that have weights of their own
    evidence = (i for i in operations if i.operation != "add_any")
    equal = group_by(evidence, lambda i: (i.opcode, i.op_name, module.frames(i), _kind(i.type)))
    if all(len(same) < least for same in equal.values()):
        return []
    read, loops = _read(module), list[Loop]()
    bodies = module.computations.items()
    entered = {name: {i.called for i in body if i.opcode in _ENTERS} for name, body in bodies}
    for at_line in group_by(equal.values(), lambda same: facts.at(same[0])).values():
        most = max(at_line, key=len)
        # how many of the equal operations read the same arrays, most equal ones first
        counts = [Counter(read[i.name] for i in same) for same in (most, *at_line)]
        alike = max(counts[0].values())
        around = list(_source_loops(module.frames(most[0]), outside))
        written = math.prod(turns for _, turns in around)
        # equal operations that read many different arrays are layers with their own weights
        own = [c for c in counts if len(c) >= LAYERS and max(c.values()) < c.total() / 2]
        # in a loop over all layers, each layer reads its weights in every turn
        turns_of_own = min((statistics.median_low([c[key] for key in c.elements()]) for c in own), default=0)
        layers = own and (turns_of_own < LAYERS or len(around) < 2)
        # few turns are several operations of one iteration, or copies that fusion made
        if not around or written < LAYERS or alike < least or layers:
            continue
        iterations = turns_of_own if own else _chain(module, set(most), entered)
        if iterations >= (LAYERS if alike >= EQUAL_COUNT else IN_A_ROW):
            share = sum(map(len, at_line)) / len(operations)
            if own:
                at, _ = min(reversed(around), key=lambda loop: abs(loop[1] - turns_of_own))
            else:
                at, _ = max(around, key=lambda loop: loop[1])
            loops.append(Loop(at, most[0].operation, int(min(iterations, written)), share))
    # one turn may have several equal operations
    turns = {at: min(x.iterations for x in same) for at, same in group_by(loops, lambda x: x.at).items()}
    # all operations of a loop go with it, also those that no other turn needs
    held = Counter[Place]()
    for same in group_by(operations, lambda i: i.frame or module.frames(i)).values():
        within = _source_loops(module.frames(same[0]), outside)
        innermost = next((at for at, _ in within if at in turns), NOWHERE)
        held[innermost] += len(same)
    # the line with the most equal operations stands for all lines of its loop
    dearest = {x.at: x for x in sorted(loops, key=lambda loop: loop.share)}
    loops = [x._replace(iterations=turns[at], share=held[at] / len(operations)) for at, x in dearest.items()]
    return sorted(loops, key=lambda loop: -loop.share)


def loops_over_rows(facts: Facts, *, few: bool = False, outside: Collection[Place] = ()) -> list[Loop]:
    """Return the unrolled loops each turn of which takes another part of an array, the most turns first.

    The turns may need nothing of each other, so that no chain of operations tells them from layers.
    """
    module, rows, within, known = facts.module, defaultdict[Place, set[str]](set), Counter[Place](), 0
    for same in group_by(facts.instructions, lambda i: i.frame or module.frames(i)).values():
        around = [at for at, _ in _source_loops(module.frames(same[0]), outside)]
        within.update(dict.fromkeys(around, len(same)))
        known += len(same) if module.frames(same[0]) else 0
        for at in around[:1]:
            rows[at].update(row for i in same if i.operation in _TAKES_ROW for row in ROW.findall(i.text))
    least = IN_A_ROW if few else EQUAL_COUNT
    loops = (Loop(at, "slice", len(taken), within[at] / known) for at, taken in rows.items())
    return sorted((x for x in loops if x.iterations >= least), key=lambda x: -x.iterations)


def _source_loops(origin: tuple[Place, ...], outside: Collection[Place]) -> Iterator[tuple[Place, float]]:
    """Yield the reader's loops inside a program around an operation, and their iterations; inf if unknown."""
    ends = {(p.file, p.line) for p in outside}
    inside = itertools.takewhile(lambda p: (p.file, p.line) not in ends, origin)
    for at in (p for p in inside if not source_location.library_of(p.file)):
        # a line may contain a lambda that runs elsewhere
        function = ast.FunctionDef | ast.Lambda if at.function.endswith(">") else ast.FunctionDef
        outwards = reversed(statements.enclosing_nodes(at, _LOOPS | function))
        for loop in itertools.takewhile(lambda node: isinstance(node, _LOOPS), outwards):
            yield at._replace(line=loop.lineno), statements.turns_written(loop, at.file)


@functools.lru_cache(maxsize=4096)  # many instructions have one type
def _kind(array_type: str) -> str:
    """Return an array's type without its layout and its sizes, which may grow from turn to turn."""
    return _SIZE.sub("n", array_type.partition("{")[0])


def _is_operation(i: Instruction) -> bool:
    """Return whether an operation of JAX made an instruction whose result is no scalar."""
    called = i.opcode in _CALLS or _ROUNDS in i.op_name
    return bool(i.op_name and not called and _SEVERAL.search(i.type))


def _read(module: Module) -> dict[str, tuple[int, ...]]:
    """Return which arrays among arguments and constants each operand depends on, as a bit set.

    In reverse order, callers come first, so the sources of a computation's parameters are known before it.
    Numbers are no weights of layers. XLA copies constants into the bodies of loops, where all of one type
    count as one.
    """
    read: dict[str, tuple[int, ...]] = {}
    sources: dict[str, int] = {}
    passed: dict[tuple[str, int | None], int] = defaultdict(int)  # by computation and parameter
    bits = (1 << n for n in itertools.count())
    turns = {i.called for body in module.computations.values() for i in body if i.opcode == "while"}
    copied: dict[str, int] = defaultdict(lambda: next(bits))  # by type
    for name, body in reversed(list(module.computations.items())):
        for i in body:
            operands = read[i.name] = tuple([sources.get(operand, 0) for operand in i.operands])
            if i.opcode == "parameter" and name != module.entry:
                sources[i.name] = passed[name, i.number]
            elif i.opcode in ("parameter", "constant") and not _SEVERAL.search(i.type):
                sources[i.name] = 0
            elif i.opcode in ("parameter", "constant"):
                sources[i.name] = copied[i.type] if name in turns else next(bits)
            else:
                sources[i.name] = functools.reduce(operator.or_, operands, 0)
            if i.opcode in _ENTERS:
                for number, source in enumerate(operands):
                    passed[i.called, number] |= source
    return read


def _chain(module: Module, wanted: set[Instruction], entered: Mapping[str, set[str]]) -> int:
    """Return the largest number of some instructions on a path through the program.

    `entered` has the names of the computations that instructions of each computation enter.
    """
    until: dict[str, int] = {}  # those of 0 are left out
    inside: dict[str, int] = {}
    own = {i.computation for i in wanted}
    for name, body in module.computations.items():
        if name not in own and entered[name].isdisjoint(inside):
            continue
        longest = 0
        for i in body:
            count = 0
            for operand in i.operands:  # `max` takes three times as long
                if operand in until and until[operand] > count:
                    count = until[operand]
            if i in wanted:
                count += 1
            elif i.opcode in _ENTERS:
                count += inside.get(i.called, 0)
            if count:
                until[i.name] = count
                longest = max(longest, count)
        inside[name] = longest
    return max(inside.values(), default=0)
