"""Model each kernel of a compiled program: its arithmetic, its memory traffic, and its time on a card.

A kernel's time is the larger of its arithmetic time and its memory time, plus a fixed overhead. Arithmetic is
that of matrix products and convolutions, from their shapes, with each side rounded up to the tiles of tensor
cores; everything else counts as memory traffic.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from jaxperf.hlo import Instruction, Module, Product, Shape, dtype_name, product_of
from jaxperf.plan.cards import Card

# Two constants are fitted, on two of the seven steps measured on one H200 (data/steps.csv): the first on
# ResNet-18 in bfloat16 with a batch of 256, the other on LeNet in a loop. The other five are predictions.
KERNEL_S = 4.5e-6  # overhead of a kernel, in seconds
UNALIGNED_SHARE = 0.5  # share of the float32 units' peak, in products that tensor cores cannot compute
CALL_S = 27e-6  # overhead of a call, in seconds: an empty program, queued, on one H200
TILE = (64, 64, 32)  # tensor cores round rows, columns and inner length up to multiples of these
ATTENTION_SHARE = 0.7  # a guess: share of a large product's rate that fused attention reaches
KERNEL = "jaxperf_kernel"  # the custom call that stands for a kernel that is not compiled
FUSED_CALLS = ("__cudnn$fmha", KERNEL)  # custom calls that multiply matrices, and store no scores
Costs = Mapping[str, tuple[float, float]]  # what users say of custom calls by name: FLOPs and bytes of a run
_FREE = {
    "parameter", "tuple", "get-tuple-element", "bitcast", "constant", "after-all", "iota", "partition-id",
    "replica-id", "while", "call", "conditional", "opt-barrier", "optimization-barrier", "add-dependency",
    "domain", "async-update",
}  # fmt: skip
_SLICES = ("dynamic-slice", "gather", "slice")
_UPDATES = ("dynamic-update-slice", "scatter")
# custom calls whose work is known, or is that of their arrays
_KNOWN = ("__cub", "__cudnn", "__gpu$", "__triton", "AllocateBuffer", "SliceToDynamic", "PadToStatic", "Topk")
_GIVEN = re.compile(r'\b(name|flops|bytes) = (?:"([^"]*)"|([\d.]+(?:[eE][-+]?\d+)?))')
_ATTENTION = re.compile(r'"intermediate_tensor_shape":.*?"dimensions":\s*\[([^\]]*)\]')


@dataclass(frozen=True)
class Kernel:
    bytes: float  # that it reads and writes
    products: tuple[Product, ...] = ()
    fused_flops: float = 0.0  # further FLOPs, of a kernel such as fused attention
    dtype: str = "bfloat16"  # of those
    unknown: str = ""  # the name of a custom call whose FLOPs nobody has said

    @property
    def flops(self) -> float:
        return self.fused_flops + sum(product.flops for product in self.products)

    def arithmetic_s(self, card: Card) -> float:
        fused = self.fused_flops / (ATTENTION_SHARE * card.matrix_flops(self.dtype))
        return fused + sum(_seconds(card, product) for product in self.products)

    def memory_s(self, card: Card) -> float:
        return self.bytes / card.bandwidth

    def seconds(self, card: Card) -> float:
        return max(self.arithmetic_s(card), self.memory_s(card)) + KERNEL_S


def _seconds(card: Card, product: Product) -> float:
    vector = 2.0 * card.cores * card.fp32_per_core * card.clock_ghz * 1e9
    flops, rate = product.flops, card.matrix_flops(product.dtype)
    if product.aligned:
        sides = (product.rows, product.columns, product.inner)
        flops = 2.0 * product.batch * math.prod(-(-side // tile) * tile for side, tile in zip(sides, TILE))
    else:
        rate = vector * UNALIGNED_SHARE
    if product.exact and product.dtype == "float32":
        rate = vector * card.matrix_share
    return flops / rate


def kernels_of(module: Module, costs: Costs = MappingProxyType({})) -> dict[str, Kernel]:
    """Return the kernels of a program by the names of their instructions."""
    kernels = {}
    for i in {i.name: i for i, _ in module.executed()}.values():
        free = i.opcode in _FREE or i.opcode.endswith("-done")
        if not free and not any(each.collective for each in (i, *module.inside(i))):
            kernels[i.name] = _kernel(module, i, costs)
    return kernels


def _kernel(module: Module, instruction: Instruction, costs: Costs) -> Kernel:
    opcode = instruction.opcode
    products = tuple(_products(module, instruction))
    if opcode in ("fusion", "fusion-start", "async-start"):
        return Kernel(_traffic(module, instruction), products)
    read = module.operand_shapes(instruction)
    moved = instruction.bytes + sum(shape.bytes for shape in read)
    if opcode == "custom-call" and (call := _custom_call(instruction, read, moved, costs)):
        return call
    if opcode in _SLICES:
        moved = 2 * instruction.bytes
    elif opcode in _UPDATES:
        moved = 2 * sum(shape.bytes for shape in read[1:])
    elif opcode.endswith("-start"):  # of a copy or slice, whose result names both sides
        moved = 2 * min((shape.bytes for shape in instruction.shapes[:2]), default=0)
    return Kernel(moved, products)


def _custom_call(instruction: Instruction, read: list[Shape], moved: float, costs: Costs) -> Kernel | None:
    """Return the kernel of a custom call that is no matrix product or convolution of a library; else None."""
    target = instruction.target
    dtype = dtype_name(read[0].dtype) if read else "float32"
    if target.startswith("__cudnn$fmha") and (scores := _ATTENTION.search(instruction.attributes)):
        batch, heads, rows, columns = (int(n) for n in re.findall(r"\d+", scores[1]))
        flops = 4.0 * batch * heads * rows * columns * read[0].dims[-1]
        if "CAUSAL" in instruction.text:
            flops /= 2
        if "Backward" in target:  # five products in place of two
            flops *= 2.5
        return Kernel(moved, (), flops, dtype)
    written = _GIVEN.findall(instruction.attributes) if target == KERNEL else ()
    given = {key: text or number for key, text, number in written}
    name = given.get("name", target)
    if name in costs or "flops" in given:
        flops, moved = costs.get(name) or (float(given["flops"]), float(given["bytes"]))
        return Kernel(moved, (), flops, dtype)
    return None if target.startswith(_KNOWN) else Kernel(moved, unknown=name)


def _products(module: Module, instruction: Instruction) -> Iterator[Product]:
    """Yield the matrix products of an instruction, and of those that it fuses."""
    if product := product_of(instruction, module.operand_shapes(instruction)):
        yield product
    for each in module.inside(instruction):
        yield from _products(module, each)


def _traffic(module: Module, fusion: Instruction) -> float:
    """Return the bytes that a fusion reads and writes.

    Of a parameter that it only slices, these are the slices. Of one that it changes in place, they are the
    changed parts, which a scatter also reads. What it writes is the result of its computation: the type of an
    asynchronous fusion names its operands, too.
    """
    inner = module.inside(fusion)
    same: dict[str, str] = {}  # what is behind reinterpretations of the same bytes
    users: dict[str, list[tuple[Instruction, int]]] = defaultdict(list)
    for each in inner:
        if each.opcode == "bitcast":
            same[each.name] = same.get(each.operands[0], each.operands[0])
        for place, name in enumerate(each.operands):
            if each.name not in same:
                users[same.get(name, name)].append((each, place))
    parameters = {i.number: i.name for i in inner if i.opcode == "parameter"}
    moved = 0
    for number, name in enumerate(fusion.operands):
        outer = module.operand(fusion, name)
        size = outer.bytes if outer else 0
        if number in parameters:
            read = 0
            for user, place in users[parameters[number]]:
                if place == 0 and user.opcode in _SLICES:
                    read += user.bytes
                elif place or user.opcode not in _UPDATES:
                    read += size
            size = min(size, read)
        moved += size
    written = next((i for i in inner if i.root), fusion).bytes
    for update in (i for i in inner if i.opcode in _UPDATES and i.operands):
        changed = module.operand(update, same.get(update.operands[0], update.operands[0]))
        scatters = update.opcode == "scatter"
        if scatters and (changed is None or changed.opcode != "parameter"):
            continue
        new = module.operand(update, update.operands[-1 if scatters else 1])
        size = new.bytes if new else 0
        written -= update.bytes - size
        moved += size if scatters else 0
    return moved + max(0, written)
