"""The collectives of a compiled program: bytes, devices, number of runs, and source line of each."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass
from pathlib import Path

from jaxperf.hlo import Instruction, Module

GROUPS = re.compile(
    r"replica_groups=(\{\{[\d,{}]*\}\}|\{\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?|mesh\[[^\]]*\][^{]*\{[^}]*\})"
)
_PAIRS = re.compile(r"source_target_pairs=(\{\{[\d,{}]*\}\})")
# on a TPU, kernels between the start and the end of a collective each run a part of it
IN_PIECES, START = '"async_collective_fusion_config"', '"AsyncCollectiveStart"'
_LIBRARIES = ("site-packages", "dist-packages", "<frozen", "<string>")
# JAX's names of collectives that a program asks for; XLA inserts the others
ASKED = {
    "psum", "psum2", "psum_invariant", "pmax", "pmin", "pmean", "all_gather", "all_gather_invariant",
    "reduce_scatter", "psum_scatter", "all_to_all", "ragged_all_to_all", "ppermute", "pbroadcast",
}  # fmt: skip
_HERE = str(Path(__file__).resolve().parent)
_PACKAGE = str(Path(__file__).resolve().parents[1])

Group = tuple[int, ...]


@dataclass(frozen=True)
class Collective:
    """One collective of a program.

    Attributes:
      name: the instruction's name in the program's text.
      kind: "all-reduce", "all-gather", ...
      bytes: bytes of the whole array: the input of an all-reduce or a reduce-scatter, or the result of an
        all-gather, on each device.
      dtype: HLO's name of the dtype of its largest array.
      arrays: number of arrays that were merged into it.
      groups: the numbers of the devices that exchange, one tuple per group.
      times: number of runs in a step.
      asynchronous: whether other work may run between its start and its end.
      source: "file:line" of the reader's code that caused it; "" if unknown.
      operation: JAX's name of the operation, such as "jit(step)/transpose(jvp())/dot_general".
      inside: the computation that contains it.
    """

    name: str
    kind: str
    bytes: int
    dtype: str
    arrays: int
    groups: tuple[Group, ...]
    times: float
    asynchronous: bool
    source: str
    operation: str
    inside: str = ""

    @property
    def asked(self) -> bool:
        """Return whether the program asks for it, as by `jax.lax.psum`; else XLA has inserted it."""
        return any(name.rpartition("/")[2] in ASKED for name in self.operation.split(":"))

    @property
    def group_size(self) -> int:
        """Return the number of devices in the largest group."""
        return max((len(group) for group in self.groups), default=1)

    def nodes(self, per_node: int) -> int:
        """Return the largest number of nodes that a group spans."""
        return max((len({device // per_node for device in group}) for group in self.groups), default=1)

    @property
    def shown_groups(self) -> str:
        """Return the groups in short, such as "8 x 4 (0,1,2,3)"."""
        if not self.groups:
            return "none"
        if self.kind == "collective-permute":
            return f"{len(self.groups)} pairs"
        if len(self.groups) == 1:
            return f"all {self.group_size}"
        first = ",".join(map(str, self.groups[0][:4])) + (",..." if self.group_size > 4 else "")
        return f"{len(self.groups)} x {self.group_size} ({first})"


def collectives(module: Module, devices: int) -> list[Collective]:
    """Return the collectives of a program for `devices` devices, in the order in which they run."""
    return [
        each
        for instruction, times in module.executed()
        if (each := describe_collective(module, instruction, devices, times))
    ]


def describe_collective(
    module: Module, instruction: Instruction, devices: int, times: float = 1.0
) -> Collective | None:
    """Return the collective that an instruction runs; None for others, and among single devices."""
    outer, inner = instruction, instruction
    if outer.opcode in ("async-start", "fusion-start", "fusion"):  # the computation inside may have it
        found = _wrapped(module.inside(outer))
        if found is None:
            return None
        inner = found
    if not (kind := inner.collective):
        return None
    if kind == "all-reduce" and inner.computation.startswith("all-reduce-scatter"):  # one kernel on a TPU
        kind = "reduce-scatter"
    groups = groups_of(inner.attributes, devices)
    if kind == "collective-permute":
        groups = tuple(pair for pair in groups if pair[0] != pair[-1])
    if max(map(len, groups), default=0) < 2:
        return None
    read = module.operand_shapes(inner)
    size = sum(shape.bytes for shape in read)
    if kind == "all-gather":
        size *= max(map(len, groups))
    origin = inner
    if not inner.op_name:
        origin = outer if outer.op_name else _origin(module, inner)
    return Collective(
        name=outer.name,
        kind=kind,
        bytes=size,
        dtype=max(read, key=lambda shape: shape.bytes).dtype if read else "",
        arrays=len(read) if len(read) != 1 else _concatenated(module, inner),
        groups=groups,
        times=times,
        asynchronous=(outer.opcode.endswith("-start") or IN_PIECES in inner.attributes)
        and '"is_sync":true' not in outer.attributes,
        source=source_of(module, origin),
        operation=origin.op_name,
        inside=outer.computation,
    )


def _wrapped(body: tuple[Instruction, ...]) -> Instruction | None:
    """Return the collective that a computation runs or starts; None if it has none, or only a part of one."""
    collective = next((i for i in body if i.collective), None)
    if collective and IN_PIECES in collective.attributes and not any(START in i.attributes for i in body):
        return None
    return collective


def _origin(module: Module, instruction: Instruction, depth: int = 5) -> Instruction:
    """Return the nearest instruction with an `op_name` among an instruction's inputs, or itself."""
    read = module.operands(instruction)
    for each in read:
        if each.op_name:
            return each
    for each in read if depth else ():
        if (origin := _origin(module, each, depth - 1)).op_name:
            return origin
    return instruction


def _concatenated(module: Module, instruction: Instruction) -> int:
    """Return how many arrays XLA concatenated for one collective."""
    read = module.operands(instruction)[:1]
    return len(read[0].operands) if read and "concatenate" in read[0].name else 1


def source_of(module: Module, instruction: Instruction) -> str:
    """Return "file:line" of the reader's code that an instruction comes from, or of jaxperf's; "" if unknown.

    It is the innermost frame that is in no installed package. Frames from `plan` outwards are left out.
    """
    inside = itertools.takewhile(lambda frame: _HERE not in frame.file, module.frames(instruction))
    frames = [frame for frame in inside if frame.file and not any(x in frame.file for x in _LIBRARIES)]
    reader_frames = [frame for frame in frames if not frame.file.startswith(_PACKAGE)]
    chosen = (reader_frames or frames)[:1]
    return f"{Path(chosen[0].file).name}:{chosen[0].line}" if chosen else ""


def groups_of(text: str, devices: int) -> tuple[Group, ...]:
    """Return the groups of devices in a collective's attributes; one of all devices if they name none."""
    if pairs := _PAIRS.search(text):
        return _listed(pairs[1])
    match = GROUPS.search(text)
    if not match or match[1] == "{}":
        return (tuple(range(devices)),)
    notation = match[1]
    if notation.startswith("{{"):
        return _listed(notation)
    return _of_mesh(notation) if notation.startswith("mesh") else _of_iota(notation)


def _listed(notation: str) -> tuple[Group, ...]:
    return tuple(tuple(map(int, group.split(","))) for group in re.findall(r"\{([\d,]+)\}", notation))


def _of_iota(notation: str) -> tuple[Group, ...]:
    """Return the groups of "[2,4]<=[4,2]T(1,0)": 0 to 7 as 4 x 2, transposed, and split into 2 rows of 4."""
    shape, dims, order = re.match(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", notation).groups()  # type: ignore[union-attr]
    lengths = _ints(dims)
    flat = _transposed(lengths, _ints(order) if order else tuple(range(len(lengths))))
    size = _ints(shape)[-1]
    return tuple(tuple(flat[i : i + size]) for i in range(0, len(flat), size))


def _ints(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _transposed(dims: tuple[int, ...], order: tuple[int, ...]) -> list[int]:
    strides = [math.prod(dims[i + 1 :]) for i in range(len(dims))]
    ranges = [range(dims[axis]) for axis in order]
    return [sum(i * strides[axis] for i, axis in zip(place, order)) for place in itertools.product(*ranges)]


def _of_mesh(notation: str) -> tuple[Group, ...]:
    """Return the groups of "mesh['data'=4,'model'=2] {'data'}": devices that differ in these axes only."""
    axes = [(name, int(size)) for name, size in re.findall(r"'([^']+)'=(\d+)", notation)]
    named = re.findall(r"'([^']+)'", notation[notation.rindex("{") :])
    dims = tuple(size for _, size in axes)
    inside = [i for i, (name, _) in enumerate(axes) if name in named]
    outside = [i for i in range(len(axes)) if i not in inside]
    flat = _transposed(dims, (*outside, *inside))
    size = math.prod(dims[i] for i in inside)
    return tuple(tuple(flat[i : i + size]) for i in range(0, len(flat), size))
