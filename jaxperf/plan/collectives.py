"""The collectives of a compiled program: bytes, devices, runs and line of each, and what it carries."""

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from jaxperf.hlo import Instruction, Module, groups_of
from jaxperf.libraries import library_of
from jaxperf.plan.kernels import Kernel

# on a TPU, kernels between the start and the end of a collective each run a part of it
IN_PIECES, START = '"async_collective_fusion_config"', '"AsyncCollectiveStart"'
_HERE = str(Path(__file__).resolve().parent)
_ASKED = re.compile(r"\bshard_map\b")  # also jax.pmap is one; for its products, XLA inserts no collective
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
    axes: tuple[str, ...]  # the mesh's axes along which the devices exchange
    carries: str = ""  # GRADIENTS, ACTIVATIONS, PARAMETERS, STATE (what a step updates) or CONSTANTS
    each_s: float = 0.0  # predicted seconds of one run; 0 for a TPU
    waits_s: float = 0.0  # for which the step waits

    @property
    def group_size(self) -> int:
        return max(map(len, self.groups))

    @property
    def seconds(self) -> float:
        return self.times * self.each_s

    def nodes(self, per_node: int) -> int:  # that the widest group spans
        return max(len({device // per_node for device in group}) for group in self.groups)


def collectives(module: Module, mesh: Mapping[str, int]) -> dict[str, Collective]:
    """Return the collectives of a program for a mesh of these lengths by instruction, as they first run."""
    by_name: dict[str, Collective] = {}
    for instruction, runs in module.executed():
        name = instruction.name
        if name in by_name:
            by_name[name] = replace(by_name[name], times=by_name[name].times + runs)
        elif each := _described(module, instruction, mesh, runs):
            by_name[name] = each
    return by_name


def _described(
    module: Module, outer: Instruction, mesh: Mapping[str, int], times: float
) -> Collective | None:
    """Return the collective that an instruction runs; None for others, and among single devices."""
    inner: Instruction | None = outer
    if outer.opcode in ("async-start", "fusion-start", "fusion"):  # the computation inside may have it
        body = module.inside(outer)
        inner = next((i for i in body if i.collective), None)
        if inner and IN_PIECES in inner.attributes and not any(START in i.attributes for i in body):
            return None
    if inner is None or not inner.collective:
        return None
    kind = inner.collective
    groups = groups_of(inner.attributes, math.prod(mesh.values()))
    if kind == "all-reduce" and inner.computation.startswith("all-reduce-scatter"):  # one kernel on a TPU
        kind = "reduce-scatter"
    elif kind == "collective-permute":
        groups = tuple(pair for pair in groups if pair[0] != pair[-1])
    members = max(map(len, groups), default=0)
    if members < 2:
        return None
    read = sum(shape.bytes for shape in module.operand_shapes(inner))
    named = next((each for each in (inner, outer) if each.op_name), None) or _before(module, inner)
    places = np.unravel_index(groups[0], tuple(mesh.values()))
    return Collective(
        kind=kind,
        bytes=read * (members if kind == "all-gather" else 1),
        groups=groups,
        times=times,
        asynchronous=outer.opcode.endswith("-start") and '"is_sync":true' not in outer.attributes,
        asked=bool(_ASKED.search(named.op_name)),
        source=source_of(module, named),
        axes=tuple(name for name, place in zip(mesh, places) if len(set(place.tolist())) > 1),
    )


def _before(module: Module, instruction: Instruction) -> Instruction:
    """Return the nearest instruction with an `op_name` among an instruction's inputs, or itself."""
    level = [instruction]
    for _ in range(6):
        level = [each for reader in level for each in module.operands(reader)][:100]
        if named := next((each for each in level if each.op_name), None):
            return named
    return instruction


def source_of(module: Module, instruction: Instruction) -> str:
    """Return "file:line" of the user's code behind an instruction, or of jaxperf's; "" if unknown."""
    # the innermost frame that is in no library; those from `plan` outwards are left out
    inside = itertools.takewhile(lambda frame: _HERE not in frame.file, module.frames(instruction))
    owned = [(library_of(frame.file), frame) for frame in inside if frame.file]
    frames = [frame for owner, frame in owned if not owner] or [f for owner, f in owned if owner == "jaxperf"]
    return f"{Path(frames[0].file).name}:{frames[0].line}" if frames else ""


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
            new = set(edges.get(todo.pop(), ())) - seen
            seen |= new
            todo += new
        return {name for name, _ in seen}

    def line_after(self, name: str) -> str:
        """Return the line of the first instruction with one that uses a result; "" for none."""
        todo = [(name, ALL)]
        for at in todo:  # which grows
            if line := source_of(self.module, self.instructions[at[0]]):
                return line
            todo += [value for value in self.users.get(at, ()) if value not in todo][: 100 - len(todo)]
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
