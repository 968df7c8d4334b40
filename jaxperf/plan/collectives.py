"""The collectives of a compiled program: bytes, devices, runs and line of each, and what it carries."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxperf.hlo import Instruction, Module, groups_of
from jaxperf.libraries import library_of
from jaxperf.plan.kernels import Kernel

# on a TPU, kernels between the start and the end of a collective each run a part of it
IN_PIECES, START = '"async_collective_fusion_config"', '"AsyncCollectiveStart"'
# JAX's names of collectives that a program asks for; XLA inserts the others
ASKED = {
    "psum", "psum2", "psum_invariant", "pmax", "pmin", "pmean", "all_gather", "all_gather_invariant",
    "reduce_scatter", "psum_scatter", "all_to_all", "ragged_all_to_all", "ppermute", "pbroadcast",
}  # fmt: skip
_HERE = str(Path(__file__).resolve().parent)
_INDEX = re.compile(r"index=(\d+)")
_HANDS_ON = ("while", "call", "conditional", "optimization-barrier", "opt-barrier")
ALL = -1  # the index of a value that is no tuple, or of which all parts count
GRADIENTS, ACTIVATIONS, PARAMETERS, STATE = "gradients", "activations", "parameters", "state"
CONSTANTS = "constants"

Group = tuple[int, ...]
Value = tuple[str, int]  # name of an instruction, and index of a part of its result


@dataclass(frozen=True)
class Collective:
    """A collective of a program. In a plan, equal ones are one, and `times` and `waits_s` are their sums."""

    kind: str  # "all-reduce", "all-gather", ...
    bytes: int  # of the whole array: an all-reduce's or reduce-scatter's input, an all-gather's result
    groups: tuple[Group, ...]  # numbers of the devices that exchange; of a permutation, (from, to)
    times: float  # runs in a step
    asynchronous: bool  # whether other work may run between its start and its end
    asked: bool  # whether the program asks for it, as by `jax.lax.psum`; else XLA has inserted it
    source: str  # "file:line" of the user's code that caused it; "" if unknown
    axes: tuple[str, ...] = ()  # the mesh's axes along which the devices exchange
    over_batch: bool = True  # whether these devices have different examples
    carries: str = ""  # GRADIENTS, ACTIVATIONS, PARAMETERS, STATE (what a step updates) or CONSTANTS
    each_s: float = 0.0  # predicted seconds of one run; 0 for a TPU
    waits_s: float = 0.0  # for which the step waits

    @property
    def group_size(self) -> int:
        return max(map(len, self.groups))

    @property
    def groups_in_short(self) -> str:
        """Return "all 8", "64 pairs", or "16 x 4 (model)", with the axes."""
        number, size = len(self.groups), self.group_size
        if self.kind == "collective-permute":
            return f"{number} pairs"
        return f"all {size}" if number == 1 else f"{number} x {size} ({', '.join(self.axes)})"

    @property
    def seconds(self) -> float:
        return self.times * self.each_s

    def nodes(self, per_node: int) -> int:
        """Return the largest number of nodes that a group spans."""
        return max(len({device // per_node for device in group}) for group in self.groups)


def collectives(module: Module, devices: int) -> dict[str, Collective]:
    """Return the collectives of a program for `devices` devices by instruction, as they first run."""
    found: dict[str, Collective] = {}
    for instruction, times in module.executed():
        if known := found.get(instruction.name):
            found[instruction.name] = dataclasses.replace(known, times=known.times + times)
        elif each := _described(module, instruction, devices, times):
            found[instruction.name] = each
    return found


def _described(module: Module, outer: Instruction, devices: int, times: float) -> Collective | None:
    """Return the collective that an instruction runs; None for others, and among single devices."""
    inner: Instruction | None = outer
    if outer.opcode in ("async-start", "fusion-start", "fusion"):  # the computation inside may have it
        inner = _wrapped(module.inside(outer))
    if inner is None or not inner.collective:
        return None
    kind = inner.collective
    if kind == "all-reduce" and inner.computation.startswith("all-reduce-scatter"):  # one kernel on a TPU
        kind = "reduce-scatter"
    groups = groups_of(inner.attributes, devices)
    if kind == "collective-permute":
        groups = tuple(pair for pair in groups if pair[0] != pair[-1])
    members = max(map(len, groups), default=0)
    if members < 2:
        return None
    read = sum(shape.bytes for shape in module.operand_shapes(inner))
    origin = next((each for each in (inner, outer) if each.op_name), None) or _origin(module, inner)
    started = outer.opcode.endswith("-start") or IN_PIECES in inner.attributes
    return Collective(
        kind=kind,
        bytes=read * (members if kind == "all-gather" else 1),
        groups=groups,
        times=times,
        asynchronous=started and '"is_sync":true' not in outer.attributes,
        asked=is_asked(origin.op_name),
        source=source_of(module, origin),
    )


def _origin(module: Module, instruction: Instruction) -> Instruction:
    """Return the nearest instruction with an `op_name` among an instruction's inputs, or itself."""
    level = [instruction]
    for _ in range(6):
        level = [each for reader in level for each in module.operands(reader)][:100]
        if named := next((each for each in level if each.op_name), None):
            return named
    return instruction


def is_asked(operation: str) -> bool:
    """Return whether an operation, by JAX's name or several with ":", is a collective of the program's own.

    Inside `jax.shard_map`, XLA inserts none, but may compute one that is asked for by several.
    """
    names = operation.split(":")
    return "/shard_map/" in operation or any(name.rpartition("/")[2] in ASKED for name in names)


def _wrapped(body: Sequence[Instruction]) -> Instruction | None:
    """Return the collective that a computation runs or starts; None if it has none, or only a part of one."""
    collective = next((i for i in body if i.collective), None)
    if collective and IN_PIECES in collective.attributes and not any(START in i.attributes for i in body):
        return None
    return collective


def source_of(module: Module, instruction: Instruction) -> str:
    """Return "file:line" of the user's code that an instruction comes from, or of jaxperf's; "" if unknown.

    It is the innermost frame that is in no library. Frames from `plan` outwards are left out.
    """
    inside = itertools.takewhile(lambda frame: _HERE not in frame.file, module.frames(instruction))
    owned = [(library_of(frame.file), frame) for frame in inside if frame.file]
    frames = [frame for owner, frame in owned if not owner] or [f for owner, f in owned if owner == "jaxperf"]
    return f"{Path(frames[0].file).name}:{frames[0].line}" if frames else ""


def axes_of(groups: Collection[Group], mesh: Mapping[str, int]) -> frozenset[str]:
    """Return the mesh's axes along which the devices of a group differ, by their places in the mesh."""
    places = np.unravel_index(next(iter(groups), (0,)), tuple(mesh.values()))
    return frozenset(name for name, place in zip(mesh, places) if len(set(place.tolist())) > 1)


class Flow:
    """The values of a program: from where a collective's come, and where they go.

    Values are followed through loops, calls and branches by their place in a tuple. A fusion is one step:
    each of its results depends on all that it reads. `batch` has the shapes of the batch on each device.
    """

    def __init__(
        self, module: Module, kernels: Mapping[str, Kernel], batch: Collection[tuple[int, ...]]
    ) -> None:
        self.module = module
        self.instructions = {i.name: i for i, _ in module.executed()}
        self.users: dict[Value, list[Value]] = defaultdict(list)
        sources: dict[Value, list[Value]] = defaultdict(list)
        for i in self.instructions.values():
            for source, user in self._edges(i):
                self.users[source].append(user)
                sources[user].append(source)
        products = [name for name, kernel in kernels.items() if kernel.flops or kernel.unknown]
        arguments = [i for i in module.computations.get(module.entry, ()) if i.opcode == "parameter"]
        examples = [i.name for i in arguments if any(shape.dims in batch for shape in i.shapes)]
        self._of_arguments = self._reached((i.name for i in arguments), self.users)
        self._computed = self._reached([*products, *examples], self.users)
        self._multiplied = self._reached(products, sources)

    def _edges(self, i: Instruction) -> Iterator[tuple[Value, Value]]:
        """Yield the values that an instruction reads, each with what it becomes."""
        if i.opcode == "tuple":
            yield from (((name, ALL), (i.name, k)) for k, name in enumerate(i.operands))
        elif i.opcode == "get-tuple-element" and (index := _INDEX.search(i.attributes)):
            yield from (((i.operands[0], k), (i.name, ALL)) for k in (int(index[1]), ALL))
        elif i.opcode in _HANDS_ON:
            for name, becomes in self._handed_on(i):
                yield from (((name, k), (becomes.name, k)) for k in _parts(becomes))
        else:
            for name in i.operands:
                yield from (((name, k), (i.name, ALL)) for k in (ALL, *_parts(self.module.operand(i, name))))

    def _handed_on(self, i: Instruction) -> Iterator[tuple[str, Instruction]]:
        """Yield operands with the parameters that they become, and results with those of a call or turn."""
        of_branches = [(name, i.operands[k : k + 1]) for k, name in enumerate(i.branches, start=1)]
        for called, operands in of_branches or [(i.called, i.operands)]:
            body = self.module.computations.get(called, ())
            results = [each.name for each in body if each.root] or operands[:1]  # a barrier calls nothing
            for each in body:
                if each.number is not None and each.number < len(operands):
                    yield operands[each.number], each
                    if i.opcode == "while":
                        yield results[0], each
            yield results[0], i

    def _reached(self, names: Iterable[str], edges: Mapping[Value, list[Value]]) -> set[str]:
        """Return what comes after some instructions along the edges."""
        todo = [(name, k) for name in names for k in (ALL, *_parts(self.instructions.get(name)))]
        seen: set[Value] = set()
        while todo:
            for value in edges.get(todo.pop(), ()):
                if value not in seen:
                    seen.add(value)
                    todo.append(value)
        return {name for name, _ in seen}

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

    def carried(self, name: str) -> str:
        """Return what a collective carries, by the products before and after it."""
        if name in self._computed:
            return ACTIVATIONS if name in self._multiplied else GRADIENTS
        if name not in self._of_arguments:
            return CONSTANTS
        return PARAMETERS if name in self._multiplied else STATE


def _parts(i: Instruction | None) -> Sequence[int]:
    """Return the indices of a value: those of a tuple, or the only one."""
    return range(len(i.shapes)) if i and i.type.startswith("(") else (ALL,)
