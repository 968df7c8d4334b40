"""Model each kernel of a compiled program: its arithmetic, its memory traffic, and its time on a card.

A kernel's time is the larger of its arithmetic time and its memory time, plus a fixed overhead. Arithmetic is
that of matrix products and convolutions, from their shapes, with each side rounded up to the tiles of tensor
cores; everything else counts as memory traffic.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from jaxperf.plan.cards import Card
from jaxperf.plan.collectives import collective_of
from jaxperf.plan.hlo import HloInstruction, Module, Shape

# Two constants are fitted, on two of the seven steps measured on one H200 (data/steps.csv): the first on
# ResNet-18 in bfloat16 with a batch of 256, the other on LeNet in a loop. The other five are predictions.
KERNEL_S = 4.5e-6  # overhead of a kernel, in seconds
UNALIGNED_SHARE = 0.5  # share of the float32 units' peak, in products that tensor cores cannot compute
CALL_S = 27e-6  # overhead of a call, in seconds: an empty program, queued, on one H200
TILE = (64, 64, 32)  # tensor cores round rows, columns and inner length up to multiples of these
DTYPES = {
    "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "s8": "int8",
    "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2",
}  # fmt: skip
_FREE = {
    "parameter", "tuple", "get-tuple-element", "bitcast", "constant", "after-all", "iota", "partition-id",
    "replica-id", "while", "call", "conditional", "opt-barrier", "add-dependency", "domain", "async-update",
}  # fmt: skip
_SLICES = ("dynamic-slice", "gather", "slice")


@dataclass(frozen=True)
class Product:
    """A matrix product or convolution as rows x inner times inner x columns, `batch` times.

    Attributes:
      batch, rows, columns, inner: its dimensions.
      dtype: dtype of its operands.
      exact: whether it has the highest precision, for which float32 uses no tensor cores.
      aligned: whether tensor cores can compute it: a convolution's channels must be multiples of 16 bytes.
    """

    batch: int
    rows: int
    columns: int
    inner: int
    dtype: str
    exact: bool = False
    aligned: bool = True

    @property
    def flops(self) -> float:
        """Return the floating-point operations of the product itself."""
        return 2.0 * self.batch * self.rows * self.columns * self.inner

    @property
    def padded_flops(self) -> float:
        """Return the floating-point operations of tensor cores, with sides rounded up to tiles."""
        sides = (self.rows, self.columns, self.inner)
        return 2.0 * self.batch * math.prod(-(-side // tile) * tile for side, tile in zip(sides, TILE))


@dataclass(frozen=True)
class Kernel:
    """The work of one instruction on a device: bytes read and written, and matrix products."""

    name: str
    bytes: float
    products: tuple[Product, ...] = ()

    @property
    def flops(self) -> float:
        """Return the floating-point operations of its matrix products."""
        return sum(product.flops for product in self.products)

    def arithmetic_s(self, card: Card) -> float:
        """Return the seconds of its matrix products on a card."""
        return sum((p.padded_flops if p.aligned else p.flops) / rate(card, p) for p in self.products)

    def memory_s(self, card: Card) -> float:
        """Return the seconds of its memory traffic on a card."""
        return self.bytes / card.bandwidth

    def seconds(self, card: Card) -> float:
        """Return its seconds on a card."""
        return max(self.arithmetic_s(card), self.memory_s(card)) + KERNEL_S


def rate(card: Card, product: Product) -> float:
    """Return the FLOP/s that a card reaches in a product."""
    vector = 2.0 * card.cores * card.fp32_per_core * card.clock_ghz * 1e9
    if product.exact and product.dtype == "float32":
        return vector * card.matrix_share
    if not product.aligned:
        return vector * UNALIGNED_SHARE
    return card.matrix_flops(product.dtype)


def kernel_of(module: Module, computation: str, instruction: HloInstruction) -> Kernel | None:
    """Return the kernel of an instruction; None if it has none or is a collective."""
    opcode = instruction.opcode
    if opcode in _FREE or opcode.endswith("-done") or collective_of(opcode) or opcode == "async-start":
        return None
    read = module.operand_shapes(computation, instruction)
    if opcode in ("fusion", "fusion-start"):
        return _fusion(module, computation, instruction)
    product = product_of(instruction, read)
    moved = instruction.traffic + sum(shape.traffic for shape in read)
    if opcode in _SLICES:
        moved = instruction.traffic + (0 if read and read[0].on_chip else instruction.bytes)
    elif opcode in ("dynamic-update-slice", "scatter"):
        moved = 2 * sum(shape.traffic for shape in read[1:])
    elif opcode.endswith("-start"):  # of a copy or slice, whose result names both sides
        sides = instruction.shapes[:2]
        moved = sum(min(sides, key=lambda s: s.bytes).bytes for side in sides if not side.on_chip)
    return Kernel(instruction.name, moved, (product,) if product else ())


def _fusion(module: Module, computation: str, instruction: HloInstruction) -> Kernel:
    inner = module.computations.get(instruction.called, ())
    products = []
    for each in inner:
        if product := product_of(each, module.operand_shapes(instruction.called, each)):
            products.append(product)
        if each.opcode == "fusion":
            products += _fusion(module, instruction.called, each).products
    return Kernel(instruction.name, _traffic(module, computation, instruction, inner), tuple(products))


def _traffic(
    module: Module, computation: str, fusion: HloInstruction, inner: tuple[HloInstruction, ...]
) -> float:
    """Return the bytes that a fusion reads and writes.

    Of a parameter that it only slices, these are the slices. Of one that it changes in place, they are the
    changed parts, which a scatter also reads.
    """
    read = 0
    parameter_names = {i.name for i in inner if i.opcode == "parameter"}
    updates = [i for i in inner if i.opcode == "dynamic-update-slice" and i.operands]
    scatters = [i for i in inner if i.opcode == "scatter" and i.operands and i.operands[0] in parameter_names]
    updated = {i.operands[0] for i in (*updates, *scatters)}
    parameters = {int(i.inside): i for i in inner if i.opcode == "parameter" and i.inside.isdecimal()}
    for number, name in enumerate(fusion.operands):
        outer = module.operand(computation, name)
        size = outer.traffic if outer else 0
        if parameter := parameters.get(number):
            users = [i for i in inner if parameter.name in i.operands]
            if users and all(i.opcode in _SLICES and i.operands[0] == parameter.name for i in users):
                size = min(size, sum(i.bytes for i in users))
            elif parameter.name in updated:
                size = 0
        read += size
    written = fusion.traffic
    for update in updates:
        new = module.operand(fusion.called, update.operands[1])
        written -= update.bytes - (new.bytes if new else 0)
    for scatter in scatters:
        new = module.operand(fusion.called, scatter.operands[-1])
        written -= scatter.bytes - (new.bytes if new else 0)
        read += new.bytes if new else 0
    return read + max(0, written)


def product_of(instruction: HloInstruction, read: list[Shape]) -> Product | None:
    """Return the matrix product of an instruction; None for other instructions."""
    if len(read) < 2 or not instruction.shapes:
        return None
    target = instruction.attribute("custom_call_target").lower()
    exact = "highest" in instruction.text.lower()
    if instruction.opcode == "convolution" or "conv" in target:
        return _convolution(instruction, read, target, exact)
    if instruction.opcode == "dot":
        contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.text)
        batch = re.search(r"lhs_batch_dims=\{([\d,]*)\}", instruction.text)
    elif "gemm" in target or "matmul" in target:
        contracted = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', instruction.text)
        batch = re.search(r'"lhs_batch_dimensions":\[([^\]]*)\]', instruction.text)
    else:
        return None
    left, result = read[0], instruction.shapes[0]
    inner = math.prod(left.dims[i] for i in _axes(contracted) if i < len(left.dims))
    many = math.prod(left.dims[i] for i in _axes(batch) if i < len(left.dims))
    rows = left.count // max(1, inner * many)
    columns = result.count // max(1, rows * many)
    return Product(many, rows, columns, inner, DTYPES.get(left.dtype, "float32"), exact)


def _axes(match: re.Match[str] | None) -> list[int]:
    return [int(i) for i in re.findall(r"\d+", match[1])] if match else []


def _convolution(instruction: HloInstruction, read: list[Shape], target: str, exact: bool) -> Product | None:
    """Return a convolution as the matrix product that libraries compute; None if it cannot be parsed."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.text)
    if not labels:
        return None
    if "backwardfilter" in target:
        weights, outputs = instruction.shapes[0], read[1]
    elif "backwardinput" in target:
        weights, outputs = read[1], read[0]
    else:
        weights, outputs = read[1], instruction.shapes[0]
    kernel = labels[2]
    if "o" not in kernel or len(kernel) != len(weights.dims):
        return None
    features, inputs = weights.dims[kernel.index("o")], weights.dims[kernel.index("i")]
    positions = outputs.count // features
    if "backwardfilter" in target:
        sides = features, weights.count // features, positions
    elif "backwardinput" in target:
        sides = positions, inputs, weights.count // inputs
    elif target:
        sides = positions, features, weights.count // features
    else:
        taps = _taps(instruction.text, labels.groups(), (read[0], weights, outputs))
        sides = taps // features, features, inputs
    aligned = not any(channels * read[0].itemsize % 16 for channels in (features, inputs))
    return Product(1, *sides, DTYPES.get(read[0].dtype, "float32"), exact, aligned)


def _taps(text: str, labels: tuple[str, ...], shapes: tuple[Shape, Shape, Shape]) -> int:
    """Return the number of window positions over which a convolution sums, in total over its result.

    Padding does not count, nor do the zeros between elements with which TPUs express gradients and batched
    products as convolutions.
    """
    window = re.search(r"window=\{([^}]*)\}", text)
    options = dict(re.findall(r"(\w+)=(\S+)", window[1])) if window else {}
    taps = shapes[2].count
    for axis in (c for c in sorted(labels[1]) if c.isdigit()):
        inputs, size, outputs = (s.dims[label.index(axis)] for s, label in zip(shapes, labels))
        stride, dilated, spread, pad = (
            int(options[name].split("x")[int(axis)].split("_")[0]) if name in options else default
            for name, default in (("stride", 1), ("lhs_dilate", 1), ("rhs_dilate", 1), ("pad", 0))
        )
        at = np.arange(outputs)[:, None] * stride + np.arange(size) * spread - pad
        inside = (at >= 0) & (at <= (inputs - 1) * dilated) & (at % dilated == 0)
        taps = taps // outputs * int(inside.sum())
    return taps
