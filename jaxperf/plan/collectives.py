"""The collectives of a compiled program: bytes, devices, number of runs, and source line of each."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxperf.hlo import Instruction, Module
from jaxperf.libraries import library_of

_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]*\})\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}")
# on a TPU, kernels between the start and the end of a collective each run a part of it
IN_PIECES, START = '"async_collective_fusion_config"', '"AsyncCollectiveStart"'
# JAX's names of collectives that a program asks for; XLA inserts the others
ASKED = {
    "psum", "psum2", "psum_invariant", "pmax", "pmin", "pmean", "all_gather", "all_gather_invariant",
    "reduce_scatter", "psum_scatter", "all_to_all", "ragged_all_to_all", "ppermute", "pbroadcast",
}  # fmt: skip
_HERE = str(Path(__file__).resolve().parent)

Group = tuple[int, ...]


@dataclass(frozen=True)
class Collective:
    name: str  # of the instruction
    kind: str  # "all-reduce", "all-gather", ...
    bytes: int  # of the whole array: an all-reduce's or reduce-scatter's input, an all-gather's result
    dtype: str  # HLO's name of the dtype of its largest array
    arrays: int  # that were merged into it
    groups: tuple[Group, ...]  # numbers of the devices that exchange; of a permutation, (from, to)
    times: float  # runs in a step
    asynchronous: bool  # whether other work may run between its start and its end
    source: str  # "file:line" of the user's code that caused it; "" if unknown
    operation: str  # JAX's name, such as "jit(step)/transpose(jvp())/dot_general"

    @property
    def asked(self) -> bool:
        """Return whether the program asks for it, as by `jax.lax.psum`; else XLA has inserted it."""
        return any(name.rpartition("/")[2] in ASKED for name in self.operation.split(":"))

    @property
    def group_size(self) -> int:
        return max(map(len, self.groups))

    def nodes(self, per_node: int) -> int:
        """Return the largest number of nodes that a group spans."""
        return max(len({device // per_node for device in group}) for group in self.groups)


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
    )


def _wrapped(body: Sequence[Instruction]) -> Instruction | None:
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
    """Return "file:line" of the user's code that an instruction comes from, or of jaxperf's; "" if unknown.

    It is the innermost frame that is in no library. Frames from `plan` outwards are left out.
    """
    inside = itertools.takewhile(lambda frame: _HERE not in frame.file, module.frames(instruction))
    owned = [(library_of(frame.file), frame) for frame in inside if frame.file]
    frames = [frame for owner, frame in owned if not owner] or [f for owner, f in owned if owner == "jaxperf"]
    return f"{Path(frames[0].file).name}:{frames[0].line}" if frames else ""


@functools.lru_cache(maxsize=256)
def groups_of(text: str, devices: int) -> tuple[Group, ...]:
    """Return the groups of devices in a collective's attributes; one of all devices if they name none."""
    if match := _LISTED.search(text):
        return tuple(tuple(map(int, group.split(","))) for group in re.findall(r"\{([\d,]+)\}", match[1]))
    if match := _IOTA.search(text):  # "[2,4]<=[4,2]T(1,0)": 0 to 7 as 4 x 2, transposed, as 2 rows of 4
        shape, lengths, order = ([int(n) for n in part.split(",") if n] for part in match.groups(""))
        size = shape[-1]
    elif match := _MESH.search(text):  # "mesh['data'=4,'model'=2] {'data'}": those that differ in these only
        axes = re.findall(r"'([^']+)'=(\d+)", match[1])
        lengths = [int(length) for _, length in axes]
        order = sorted(range(len(axes)), key=lambda i: f"'{axes[i][0]}'" in match[2])
        size = math.prod(lengths[i] for i in order if f"'{axes[i][0]}'" in match[2])
    else:
        return (tuple(range(devices)),)
    table = np.arange(math.prod(lengths)).reshape(lengths).transpose(order or None).reshape(-1, size)
    return tuple(map(tuple, table.tolist()))


def axes_of(groups: Collection[Group], mesh: Mapping[str, int]) -> frozenset[str]:
    """Return the mesh's axes along which the devices of a group differ, by their places in the mesh."""
    places = np.unravel_index(next(iter(groups), (0,)), tuple(mesh.values()))
    return frozenset(name for name, place in zip(mesh, places) if len(set(place.tolist())) > 1)
