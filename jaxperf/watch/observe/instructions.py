"""The instructions in a compiled program's text, and their dependencies."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jaxperf import hlo

_CALLS = re.compile(r"calls=%?([\w.-]+)")
_FILLING = {
    "constant", "broadcast", "iota", "bitcast", "reshape", "copy", "tuple", "get-tuple-element", "fusion",
    "parameter", "call", "pad", "convert",
}  # fmt: skip
COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute")
CONTAINERS = ("while", "call", "conditional")  # their times include those of the instructions inside
PRODUCTS = ("dot_general", "conv_general_dilated")  # JAX's operations
_OP_NAME = re.compile(r'op_name="([^"]*)"')
OPERANDS = re.compile(r"%([\w.-]+)")


class ProgramInstruction(NamedTuple):
    """One instruction of a program: its name, opcode, type, computation and line of text."""

    name: str
    opcode: str
    type: str
    within: str
    text: str

    @property
    def op_name(self) -> str:
        """Return the path of JAX's operation, as in "jit(step)/while/body/dot_general"; "" if it has none."""
        match = _OP_NAME.search(self.text)
        return match[1] if match else ""

    @property
    def operation(self) -> str:
        """Return the last part of `op_name`, as in "dot_general"; "" if it has none."""
        return self.op_name.rpartition("/")[2]

    @property
    def operands(self) -> list[str]:
        """Return the names of its operands."""
        return OPERANDS.findall(self.text.partition(f" {self.opcode}(")[2].partition("), ")[0])


def parse_instructions(text: str) -> Iterator[ProgramInstruction]:
    """Yield the instructions of a program's text, each with the name of its computation."""
    for i in hlo.parse(text).instructions if text else ():
        yield ProgramInstruction(i.name, i.opcode, i.type, i.computation, i.text)


def independent_instructions(instructions: Sequence[ProgramInstruction], entry: frozenset[str]) -> set[str]:
    """Return the names of the `entry` instructions whose results are the same in each execution.

    Instructions that only fill memory, such as a buffer that a loop will write, are left out.
    """
    varying = ("parameter", "rng", "rng-bit-generator", "custom-call", "infeed", "partition-id", "replica-id")
    opcodes: dict[str, set[str]] = defaultdict(set)
    for i in instructions:
        opcodes[i.within].add(i.opcode)
    depends: set[str] = set()
    fixed: set[str] = set()
    for i in instructions:
        if i.name not in entry:
            continue
        operands = set(OPERANDS.findall(i.text.partition(" = ")[2])) & entry
        if i.opcode in varying or operands & depends:
            depends.add(i.name)
            continue
        inside = {op for name in _CALLS.findall(i.text) for op in opcodes[name]} | {i.opcode}
        if not inside <= _FILLING:
            fixed.add(i.name)
    return fixed
