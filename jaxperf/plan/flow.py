"""Follow values through a compiled program: what a collective carries, from where it comes and where it goes.

Values are followed through loops, calls and branches by their place in a tuple. A fusion is one step: each of
its results depends on all that it reads.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

from jaxperf.hlo import Instruction, Module, operation
from jaxperf.plan.collectives import source_of
from jaxperf.plan.kernels import FUSED_CALLS

_INDEX = re.compile(r"index=(\d+)")
_PASSES = ("optimization-barrier", "opt-barrier")
ALL = -1  # the index of a value that is no tuple, or of which all parts count
Value = tuple[str, int]  # name of an instruction, and index of a part of its result

GRADIENTS, ACTIVATIONS, PARAMETERS, STATE = "gradients", "activations", "parameters", "state"


class Flow:
    """The values of a program and their dependencies."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.users: dict[Value, list[Value]] = defaultdict(list)
        self.sources: dict[Value, list[Value]] = defaultdict(list)
        self.instructions: dict[str, Instruction] = {}
        self._enter(module.entry)

    def _edge(self, source: Value, user: Value) -> None:
        self.users[source].append(user)
        self.sources[user].append(source)

    def _parts(self, name: str, beside: Instruction) -> range:
        """Return the indices of a value of the computation of `beside`: those of a tuple, or the only one."""
        found = self.module.operand(beside, name)
        return range(len(found.shapes)) if found and found.type.startswith("(") else range(ALL, 0)

    def _enter(self, computation: str) -> None:
        for i in self.module.computations.get(computation, ()):
            if i.name in self.instructions:
                continue
            self.instructions[i.name] = i
            for source, user in self._edges(i):
                self._edge(source, user)

    def _edges(self, i: Instruction) -> Iterator[tuple[Value, Value]]:
        """Yield the dependencies of an instruction, and enter what it calls."""
        if i.opcode == "tuple":
            yield from (((name, ALL), (i.name, k)) for k, name in enumerate(i.operands))
        elif i.opcode == "get-tuple-element" and (index := _INDEX.search(i.attributes)):
            yield (i.operands[0], int(index[1])), (i.name, ALL)
            yield (i.operands[0], ALL), (i.name, ALL)
        elif i.opcode in _PASSES:
            for k in self._parts(i.name, i):
                yield (i.operands[0], k), (i.name, k)
        elif i.opcode == "while":
            yield from self._called(i, i.called, i.operands[:1], loop=True)
        elif i.opcode == "call":
            yield from self._called(i, i.called, i.operands)
        elif i.opcode == "conditional":
            for branch, name in zip(i.branches, i.operands[1:]):
                yield from self._called(i, branch, (name,))
        else:
            for name in i.operands:
                for k in {ALL, *self._parts(name, i)}:
                    yield (name, k), (i.name, ALL)

    def _called(
        self, i: Instruction, called: str, operands: Sequence[str], *, loop: bool = False
    ) -> Iterator[tuple[Value, Value]]:
        self._enter(called)
        body = self.module.computations.get(called, ())
        root = next((each for each in body if each.root), None)
        for parameter in (each for each in body if each.opcode == "parameter"):
            if (number := parameter.number) is None or number >= len(operands):
                continue
            for k in self._parts(parameter.name, parameter):
                yield (operands[number], k), (parameter.name, k)
                if loop and root:
                    yield (root.name, k), (parameter.name, k)
        if root:
            yield from (((root.name, k), (i.name, k)) for k in self._parts(root.name, root))

    @cached_property
    def _products(self) -> frozenset[str]:
        """The names of instructions that multiply matrices or run a kernel, also in fusions."""
        return frozenset(name for name, i in self.instructions.items() if self._multiplies(i))

    def _multiplies(self, i: Instruction) -> bool:
        if operation(i) in ("dot", "convolution") or _kernel(i):
            return True
        return "fusion" in i.opcode and any(map(self._multiplies, self.module.inside(i)))

    def _reach(self, start: str, edges: Mapping[Value, list[Value]]) -> tuple[bool, set[str]]:
        """Return whether a product is reached from an instruction, and the parameters reached without one."""
        begin = self.instructions[start]
        todo = [(start, k) for k in {ALL, *self._parts(start, begin)}]
        seen, product, parameters = set(todo), False, set()
        while todo:
            for value in edges.get(todo.pop(), ()):
                name = value[0]
                if value in seen:
                    continue
                seen.add(value)
                if name in self._products:
                    product = True
                    continue
                instruction = self.instructions[name]
                if instruction.opcode == "parameter" and instruction.computation == self.module.entry:
                    parameters.add(name)
                todo.append(value)
        return product, parameters

    def used_at(self, name: str) -> str:
        """Return the reader's line of the first instruction with one that uses a result; "" for none."""
        todo, seen = [(name, ALL)], {(name, ALL)}
        while todo and len(seen) < 100:
            for value in self.users.get(todo.pop(0), ()):
                if line := source_of(self.module, self.instructions[value[0]]):
                    return line
                if value not in seen:
                    seen.add(value)
                    todo.append(value)
        return ""

    def carried(self, name: str, batch: Collection[tuple[int, ...]]) -> str:
        """Return what a collective carries; `batch` are the shapes of the batch's arrays on each device."""
        if name not in self.instructions:
            return ""
        computed, read = self._reach(name, self.sources)
        multiplied, _ = self._reach(name, self.users)
        of_batch = any(shape.dims in batch for each in read for shape in self.instructions[each].shapes)
        if computed or of_batch:
            return ACTIVATIONS if multiplied else GRADIENTS
        return PARAMETERS if multiplied else STATE


def _kernel(instruction: Instruction) -> bool:
    return instruction.opcode == "custom-call" and instruction.target.startswith(FUSED_CALLS)
