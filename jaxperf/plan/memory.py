"""What is in memory when a step needs most: the largest arrays, their lines, and what would remove them."""

import math
import re
from collections import defaultdict
from dataclasses import dataclass, replace

from jaxperf.hlo import Instruction, Module, Shape
from jaxperf.plan.arguments import Placed
from jaxperf.plan.collectives import source_of
from jaxperf.plan.deviceless import Program
from jaxperf.plan.kernels import FUSED_CALLS

LARGEST = 5  # kinds of arrays at the peak that are shown
SHOWN = 0.02  # share of the temporaries that a shown kind has at least
JAX_SHARE = 0.75  # of the card's memory, which JAX takes by default
USABLE = 0.95  # share of the card's memory that CUDA and NCCL leave to a program
# operations that move arrays, and make none
_STACKS = ("", "while", "dynamic_update_slice", "transpose", "squeeze", "reshape", "shard_map")
_SOFTMAX = ("exp", "sub", "div", "select_n", "max")
_REMAT = re.compile(r"\b(checkpoint|rematted_computation)\b")  # in JAX's names of operations
# what removes an array
CHECKPOINT, ANOTHER, FUSED, FSDP = "jax.checkpoint", "another checkpoint", "fused attention", "FSDP"
REMEDIES = {  # in a sentence
    FUSED: (
        "the scores of attention, which fused attention never stores "
        '(jax.nn.dot_product_attention(..., implementation="cudnn"))'
    ),
    CHECKPOINT: (
        "saved for the backward pass: jax.checkpoint around each layer, or a smaller batch per device"
    ),
    ANOTHER: (
        "saved for the backward pass, although made inside jax.checkpoint: a policy that saves less, "
        "jax.checkpoint around more layers at once, or a smaller batch per device"
    ),
    FSDP: "as large as a parameter that every device has whole: shard the parameters over the mesh (FSDP)",
    "": "take a smaller batch per device",
}


@dataclass(frozen=True)
class Live:
    """Temporary arrays of one shape, line and operation that are alive when a step needs most memory."""

    bytes: int  # of all of them, on one device
    shape: Shape
    source: str  # "file:line" of the user's code that made them; "" if unknown
    operation: str  # JAX's name, at most 12 letters of it
    remedy: str = ""  # of REMEDIES
    count: int = 1

    @property
    def shown(self) -> str:
        one = f"{self.shape.dtype}[{','.join(map(str, self.shape.dims))}]"
        return one if self.count == 1 else f"{self.count} x {one}"


def largest_arrays(program: Program, placed: Placed) -> tuple[Live, ...]:
    """Return the largest arrays at the peak that are no arguments, with those that are alike as one."""
    module = program.module
    by_name = {i.name: i for i in module.instructions}
    renamed = defaultdict(list)
    votes: dict[str, float] = defaultdict(float)
    read_back: set[str] = set()
    for i in by_name.values():
        # XLA reports before it makes some fusions asynchronous, under new names: bytes tell which they are
        if i.opcode == "fusion-start":
            renamed[i.shapes[-2].bytes].append(i)
        # most of the backward pass of a checkpointed line says so
        if "transpose(" in i.op_name:
            read_back.update(i.operands)
            votes[source_of(module, i)] += 1 if _REMAT.search(i.op_name) else -1
        # what a loop carries has the line of the loop
        if i.opcode == "while" and any(_REMAT.search(each.op_name) for each in module.inside(i)):
            votes[source_of(module, i)] = math.inf
    at_peak = []
    for name, size in program.live:
        instruction = by_name.get(name) or (renamed[size].pop() if renamed[size] else None)
        if instruction and instruction.opcode != "parameter" and instruction.shapes:
            at_peak.append((size, instruction, _made_by(module, instruction)))
    fused = any(i.target.startswith(FUSED_CALLS) for i in by_name.values())
    in_backward = any("transpose(" in origin.op_name for _, _, origin in at_peak)
    state = [leaf for leaf in placed.arrays(batch=False) if leaf.sharding]
    whole = {leaf.shape for leaf in state if leaf.sharding.is_fully_replicated}
    sizes: dict[Live, list[int]] = defaultdict(list)
    for size, instruction, origin in at_peak:
        shape = min(instruction.shapes, key=lambda s: abs(s.bytes - size))  # a tuple has a table of its own
        names = f"{instruction.op_name} {origin.op_name}"
        saved = "jvp(" in names and "transpose(" not in names
        source = source_of(module, origin)
        # (..., length, length), as softmax has them
        square = len(shape.dims) >= 4 and shape.dims[-1] == shape.dims[-2] >= 512
        attends = origin.operation in _SOFTMAX or re.search("attention|softmax", origin.op_name)
        remedy = ""
        if square and attends and not fused:
            remedy = FUSED
        elif saved and (in_backward or instruction.name in read_back or "dynamic_update_slice" in names):
            moved = origin.operation in _STACKS and max(votes.values(), default=0) > 0
            remedy = ANOTHER if moved or votes[source] > 0 else CHECKPOINT
        elif shape.dims in whole and placed.mesh.size > 1:
            remedy = FSDP
        operation = origin.op_name.partition(":")[0].rstrip(")").rpartition("/")[2]
        sizes[Live(0, shape, source, operation[:12], remedy)].append(size)
    live = [replace(each, bytes=sum(alike), count=len(alike)) for each, alike in sizes.items()]
    live.sort(key=lambda each: -each.bytes)
    return tuple(each for each in live[:LARGEST] if each.bytes >= SHOWN * program.costs.temp_bytes)


def _made_by(module: Module, instruction: Instruction) -> Instruction:
    """Return the instruction that made an array; of an update of a stack, that of what is put there."""
    at: Instruction | None = instruction
    for _ in range(8):  # back through reinterpretations, and out of fusions
        if at is None:
            break
        inside = module.inside(at) if "fusion" in at.opcode else ()
        for each in (at, *reversed(inside)):
            if each.operation not in _STACKS and each.opcode != "parameter" and source_of(module, each):
                return each
        update = next((i for i in inside if i.opcode == "dynamic-update-slice" and len(i.operands) > 1), None)
        put = module.operand(update, update.operands[1]) if update else None
        if put is not None and put.number is not None:
            at = module.operand(at, at.operands[put.number])
        else:
            at = next(iter(module.operands(at)), None)
    return instruction
