"""Parse an optimized program's text, `compiled.as_text()`, into computations of instructions.

The entry computation is scheduled: its lines are in the order of the kernels, and an asynchronous collective
overlaps the lines between its start and its end.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from jaxperf.errors import JaxperfError

_INSTRUCTION = re.compile(r"^\s*(ROOT )?%?([\w.-]+) = (.*?[\]})]) ([a-z][a-z0-9-]*)\(")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
_SHAPE = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,]*)\](?:\{([^}]*)\})?")
_NAME = re.compile(r"%([\w.-]+)")
_BITS = re.compile(r"\d+")
_BODY = re.compile(r"\bbody=%?([\w.-]+)")
_CALLED = re.compile(r"\b(?:calls|to_apply)=%?([\w.-]+)")
_BRANCHES = re.compile(
    r"branch_computations=\{([^}]*)\}|true_computation=%?([\w.-]+), false_computation=%?([\w.-]+)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")


@dataclass(frozen=True)
class Shape:
    """An array's HLO dtype ("bf16"), its dimensions, and whether it is in a TPU's vector memory."""

    dtype: str
    dims: tuple[int, ...]
    on_chip: bool = False

    @property
    def count(self) -> int:
        """Return the number of elements."""
        return math.prod(self.dims)

    @property
    def itemsize(self) -> float:
        """Return the bytes of an element: 0.5 for "s4", 1 for "pred", 0 for a token."""
        if self.dtype in ("token", "opaque"):
            return 0
        bits = _BITS.search(self.dtype)
        return (int(bits.group()) if bits else 8) / 8

    @property
    def bytes(self) -> int:
        """Return the bytes of the array."""
        return int(self.count * self.itemsize)

    @property
    def traffic(self) -> int:
        """Return the bytes that reading or writing it moves in the device's main memory."""
        return 0 if self.on_chip else self.bytes


@dataclass(frozen=True)
class HloInstruction:
    """One line of a computation.

    Attributes:
      name: its name without the percent sign.
      opcode: "fusion", "all-reduce-start", ...
      shapes: shapes of its results.
      operands: names of its operands.
      root: whether it is the computation's result.
      text: the text after its operands: attributes, metadata, backend_config.
      inside: the text between its parentheses.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    root: bool
    text: str
    inside: str = ""

    @property
    def bytes(self) -> int:
        """Return the bytes of all results."""
        return sum(shape.bytes for shape in self.shapes)

    @property
    def traffic(self) -> int:
        """Return the bytes that writing all results moves in the device's main memory."""
        return sum(shape.traffic for shape in self.shapes)

    @property
    def called(self) -> str:
        """Return the computation that it calls, or the body of a loop; "" for none."""
        match = _BODY.search(self.text) or _CALLED.search(self.text)
        return match[1] if match else ""

    @property
    def branches(self) -> tuple[str, ...]:
        """Return the branch computations of a conditional."""
        if not (match := _BRANCHES.search(self.text)):
            return ()
        return tuple(_NAME.findall(match[1]) or match[1].split(", ")) if match[1] else (match[2], match[3])

    @property
    def trips(self) -> int | None:
        """Return the number of iterations of a loop; None if XLA does not know it."""
        match = _TRIPS.search(self.text)
        return int(match[1]) if match else None

    def attribute(self, name: str) -> str:
        """Return the value of `name="..."` in its text; "" if there is none."""
        match = re.search(rf'\b{name}="([^"]*)"', self.text)
        return match[1] if match else ""


@dataclass(frozen=True)
class Module:
    """A compiled program.

    Attributes:
      name: the jitted function's name with the prefix "jit_".
      computations: instructions by computation, in order.
      entry: the name of the entry computation.
      tables: the text's tables of files, functions, locations and stack frames.
    """

    name: str
    computations: Mapping[str, tuple[HloInstruction, ...]]
    entry: str
    tables: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    @cached_property
    def _by_name(self) -> dict[str, dict[str, HloInstruction]]:
        return {name: {i.name: i for i in body} for name, body in self.computations.items()}

    def operand(self, computation: str, name: str) -> HloInstruction | None:
        """Return an instruction of a computation by its name; None if there is none."""
        return self._by_name[computation].get(name)

    def operand_shapes(self, computation: str, instruction: HloInstruction) -> list[Shape]:
        """Return the shapes of an instruction's operands."""
        read = (self.operand(computation, name) for name in instruction.operands)
        return [shape for each in read if each for shape in each.shapes]

    def stack(self, instruction: HloInstruction) -> list[tuple[str, int, str]]:
        """Return (file, line, function) of each stack frame of an instruction, innermost first."""
        match = re.search(r"stack_frame_id=(\d+)", instruction.text)
        frames = self.tables.get("StackFrames", {})
        stack_frames: list[tuple[str, int, str]] = []
        at = int(match[1]) if match else 0
        while at in frames and len(stack_frames) < 100:
            numbers = _numbers(frames[at])
            place = _numbers(self.tables["FileLocations"].get(numbers["file_location_id"], ""))
            file = self.tables["FileNames"].get(place.get("file_name_id", 0), "")
            function = self.tables["FunctionNames"].get(place.get("function_name_id", 0), "")
            stack_frames.append((file, place.get("line", 0), function))
            at = numbers.get("parent_frame_id", 0) - 1
        return stack_frames


def _numbers(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", text)}


def parse(text: str) -> Module:
    """Parse a program's text, `compiled.as_text()`.

    Raises:
      JaxperfError: the text has no entry.
    """
    computations: dict[str, list[HloInstruction]] = {}
    tables: dict[str, dict[int, str]] = {}
    entry, table, body = "", "", None
    for line in text.splitlines():
        if line in _TABLES:
            table = line
            tables[table] = {}
        elif table and (row := re.match(r"(\d+) (.*)", line)):
            tables[table][int(row[1])] = row[2].strip('"')
        elif start := _COMPUTATION.match(line):
            table, body = "", computations.setdefault(start[2], [])
            entry = start[2] if start[1] else entry
        elif line.startswith("}"):
            body = None
        elif body is not None and (instruction := _instruction(line)):
            body.append(instruction)
    if not entry:
        raise JaxperfError("the compiled program's text has no ENTRY; this JAX version prints it differently")
    name = re.match(r"HloModule ([\w.-]+)", text)
    return Module(name[1] if name else "", {k: tuple(v) for k, v in computations.items()}, entry, tables)


def _instruction(line: str) -> HloInstruction | None:
    match = _INSTRUCTION.match(line)
    if not match:
        return None
    shapes = tuple(
        Shape(dtype, tuple(map(int, filter(None, dims.split(",")))), "S(1)" in layout)
        for dtype, dims, layout in _SHAPE.findall(match[3])
    )
    end = _closing(line, match.end() - 1)
    inside = line[match.end() : end]
    return HloInstruction(
        match[2], match[4], shapes, tuple(_NAME.findall(inside)), bool(match[1]), line[end + 1 :], inside
    )


def _closing(line: str, start: int) -> int:
    """Return the position of the parenthesis that closes the one at `start`."""
    depth = 0
    for i in range(start, len(line)):
        depth += {"(": 1, ")": -1}.get(line[i], 0)
        if not depth:
            return i
    return len(line)


def executed_instructions(
    module: Module, computation: str = "", times: float = 1.0
) -> Iterator[tuple[str, HloInstruction, float]]:
    """Yield (computation, instruction, number of runs) of everything that runs, in order, also in loops.

    A loop whose number of iterations XLA does not know counts once. All branches of a conditional count.
    """
    name = computation or module.entry
    for instruction in module.computations.get(name, ()):
        yield name, instruction, times
        if instruction.opcode == "while":
            yield from executed_instructions(module, instruction.called, times * (instruction.trips or 1))
        elif instruction.opcode == "call":
            yield from executed_instructions(module, instruction.called, times)
        elif instruction.opcode == "conditional":
            for branch in instruction.branches:
                yield from executed_instructions(module, branch, times)
