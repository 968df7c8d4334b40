"""Read compiled programs: the text that `compiled.as_text()` returns, and what the compiler estimates.

    module = parse(compiled.as_text())
    for instruction, times in module.executed():
        print(instruction.opcode, instruction.shapes, times, module.frames(instruction)[:1])

`Module` has the program's computations, each a sequence of `Instruction`s. The entry computation is
scheduled: its instructions are in the order in which they run, and an asynchronous one overlaps those between
its start and its end. This is the only reader of such texts in jaxperf. It does not import JAX.
"""

import math
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple

from jaxperf.errors import JaxperfError
from jaxperf.libraries import Place

COLLECTIVES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast",
    "ragged-all-to-all",
)  # fmt: skip
# "ROOT %name = f32[2,3]{1,0} opcode(": the type, which may be a tuple, ends in one of three brackets
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%?([\w.-]+) = (.*?[\]})]) ([a-z][a-z0-9-]*)\(")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
_SHAPE = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,]*)\]")
_PRINTED = re.compile(r"(\w+)\[([\d,]*)\]")
_NAME = re.compile(r"%([\w.-]+)")
_BRACKET = re.compile(r"[()]")
_DIGITS = re.compile(r"(\d+)")
_OPERANDS = re.compile(r"\([^()]*\)")  # without brackets among them
# a pattern that begins with fixed text is found ten times as fast
_BODY = re.compile(r", body=%?([\w.-]+)")
_CALLED = re.compile(r", (?:calls|to_apply)=%?([\w.-]+)")
_INDEX = re.compile(r", index=(\d+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_KERNEL = re.compile(r"dim_labels=\w+_(\w+)->")
_MODULE = re.compile(r"^HloModule ([\w.-]+)")
_BRANCHES = re.compile(
    r"branch_computations=\{([^}]*)\}|true_computation=%?([\w.-]+), false_computation=%?([\w.-]+)"
)
_SOURCE = re.compile(r'source_file="([^"]*)"(?: source_line=(\d+))?')
_LAYOUT = re.compile(r"entry_computation_layout=\{\((.*?)\)->(.*?)\}(?:, \w+=|$)")
_ALIAS = re.compile(r"\{(\d*)[^}]*\}: \((\d+)")
_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]*\})\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}")
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_ROW = re.compile(r"(\d+) (.*)")
# NumPy's name of each of HLO's dtypes
_DTYPES = {"pred": "bool", "bf16": "bfloat16", "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2"} | {
    f"{letter}{bits}": f"{name}{bits}"
    for letter, name in (("f", "float"), ("s", "int"), ("u", "uint"), ("c", "complex"))
    for bits in (1, 2, 4, 8, 16, 32, 64, 128)
}
_HLO_DTYPES = {name: hlo for hlo, name in _DTYPES.items()}


def dtype_name(hlo: str) -> str:
    """Return NumPy's name of HLO's dtype: "float32" for "f32", "bool" for "pred"; others stay as they are."""
    return _DTYPES.get(hlo, hlo)


class Shape(NamedTuple):
    """An array's HLO dtype ("bf16") and its dimensions; it compares and hashes as a tuple."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.dims)

    @property
    def itemsize(self) -> float:
        if self.dtype in ("token", "opaque"):
            return 0
        return _bits(self.dtype) / 8

    @property
    def bytes(self) -> int:
        return math.ceil(self.size * self.itemsize)


def _first(pattern: re.Pattern[str], text: str) -> str:
    """Return the first group of the first match; "" if there is none."""
    match = pattern.search(text)
    return match[1] if match else ""


@cache
def _bits(dtype: str) -> int:
    return int(_first(_DIGITS, dtype) or 8)


@lru_cache(maxsize=4096)  # most instructions of a program have one of a few types
def shapes_in(text: str) -> tuple[Shape, ...]:
    """Return the shapes in a part of a program's text, such as "(f32[2,3]{1,0}, s32[])"."""
    return tuple(Shape(dtype, _dims(dims)) for dtype, dims in _SHAPE.findall(text))


def shape_of(described: str) -> Shape | None:
    """Return the shape of an array as JAX prints it, "float32[3,4]"; None for anything else."""
    match = _PRINTED.fullmatch(described)
    return Shape(_HLO_DTYPES[match[1]], _dims(match[2])) if match and match[1] in _HLO_DTYPES else None


def _dims(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


@dataclass(eq=False)  # frozen, it would take twice as long to make
class Instruction:
    """One line of a computation."""

    name: str  # without the percent sign
    opcode: str  # "fusion", "all-reduce-start", ...
    type: str  # the text of its results' types, "(f32[2]{0}, s32[])"
    computation: str  # the name of the computation that contains it
    root: bool  # whether it is that computation's result
    text: str  # the whole line
    start: int  # the position of the parenthesis before its operands

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        return shapes_in(self.type)

    @property
    def bytes(self) -> int:
        return sum(shape.bytes for shape in self.shapes)

    @cached_property
    def _end(self) -> int:
        if match := _OPERANDS.match(self.text, self.start):
            return match.end() - 1
        depth = 0
        for match in _BRACKET.finditer(self.text, self.start):
            depth += 1 if match[0] == "(" else -1
            if not depth:
                return match.start()
        return len(self.text)

    @property
    def inside(self) -> str:
        """Return the text between its parentheses: its operands, a parameter's number, a constant's value."""
        return self.text[self.start + 1 : self._end]

    @property
    def attributes(self) -> str:
        """Return the text after its operands: attributes, metadata, backend_config."""
        return self.text[self._end + 1 :]

    @cached_property
    def operands(self) -> tuple[str, ...]:
        return tuple(_NAME.findall(self.inside))

    @property
    def number(self) -> int | None:
        """Return the number of a parameter, or of the element that it takes from a tuple; else None."""
        if self.opcode == "get-tuple-element":
            return int(_first(_INDEX, self.attributes) or 0)
        return int(self.inside) if self.opcode == "parameter" and self.inside.isdecimal() else None

    @cached_property
    def called(self) -> str:
        """Return the computation that it calls or fuses, or the body of a loop; "" for none."""
        attributes = self.attributes
        return _first(_BODY, attributes) or _first(_CALLED, attributes)

    @property
    def branches(self) -> tuple[str, ...]:
        match = _BRANCHES.search(self.attributes)
        names = filter(None, match.groups()) if match else ()
        return tuple(name.strip().removeprefix("%") for group in names for name in group.split(","))

    @property
    def trips(self) -> int | None:
        return int(_first(_TRIPS, self.attributes) or 0) or None

    @cached_property
    def op_name(self) -> str:
        """Return the path of JAX's operation, as in "jit(step)/while/body/dot_general"; "" if it has none."""
        return sys.intern(_first(_OP_NAME, self.text))  # many instructions have the same

    @property
    def operation(self) -> str:
        """Return the last part of `op_name`, as in "dot_general"; "" if it has none."""
        return self.op_name.rpartition("/")[2]

    @property
    def target(self) -> str:
        """Return the function that a custom call calls; "" for other instructions."""
        return _first(_TARGET, self.text)

    @cached_property
    def frame(self) -> int | None:
        """Return the number of its stack frame in the module's tables; None if it has none."""
        number = _first(_FRAME, self.text)
        return int(number) if number else None

    @property
    def collective(self) -> str:
        """Return the kind of collective that it runs or starts, of `COLLECTIVES`; "" for none."""
        opcode = self.opcode.removesuffix("-start")
        return opcode if opcode in COLLECTIVES else ""


@dataclass(frozen=True, eq=False)
class Module:
    """A compiled program."""

    name: str  # the jitted function's name with the prefix "jit_"
    # instructions by computation, in the text's order: a computation comes before its callers
    computations: Mapping[str, tuple[Instruction, ...]]
    entry: str  # the name of the entry computation; "" if the text has none
    head: str = ""  # the first line, with the attributes of the whole program
    # the text's tables of files, functions, locations and stack frames; older versions have none
    tables: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    @cached_property
    def _by_name(self) -> dict[str, dict[str, Instruction]]:
        return {name: {i.name: i for i in body} for name, body in self.computations.items()}

    @property
    def instructions(self) -> Iterator[Instruction]:
        for body in self.computations.values():
            yield from body

    def inside(self, instruction: Instruction) -> tuple[Instruction, ...]:
        """Return the instructions of the computation that one calls: a fusion's, or a loop body's."""
        return self.computations.get(instruction.called, ())

    def operand(self, instruction: Instruction, name: str) -> Instruction | None:
        return self._by_name[instruction.computation].get(name)

    def operands(self, instruction: Instruction) -> list[Instruction]:
        read = (self.operand(instruction, name) for name in instruction.operands)
        return [each for each in read if each]

    def operand_shapes(self, instruction: Instruction) -> list[Shape]:
        return [shape for each in self.operands(instruction) for shape in each.shapes]

    def executed(self, computation: str = "", times: float = 1.0) -> Iterator[tuple[Instruction, float]]:
        """Yield (instruction, number of runs) of everything that runs, in order, also in loops.

        Fusions are not entered. A loop whose number of iterations XLA does not know counts once. All branches
        of a conditional count.
        """
        for instruction in self.computations.get(computation or self.entry, ()):
            yield instruction, times
            if instruction.opcode in ("while", "call"):
                yield from self.executed(instruction.called, times * (instruction.trips or 1))
            elif instruction.opcode == "conditional":
                for branch in instruction.branches:
                    yield from self.executed(branch, times)

    @cached_property
    def layout(self) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
        """Return the shapes of the program's arguments and of its results; empty if the text lacks them."""
        match = _LAYOUT.search(self.head)
        return (shapes_in(match[1]), shapes_in(match[2])) if match else ((), ())

    @cached_property
    def aliases(self) -> dict[int, int]:
        """Return the number of the argument whose memory a result takes over, by the number of the result."""
        return {int(m[1] or 0): int(m[2]) for m in _ALIAS.finditer(self.head)}

    @cached_property
    def _frames(self) -> dict[int, tuple[Place, ...]]:
        locations = {i: _numbers(row) for i, row in self.tables.get("FileLocations", {}).items()}
        files, functions = self.tables.get("FileNames", {}), self.tables.get("FunctionNames", {})
        frames: dict[int, tuple[Place, ...]] = {}
        for i, row in sorted(self.tables.get("StackFrames", {}).items()):
            numbers = _numbers(row)
            location = locations.get(numbers.get("file_location_id", 0), {})
            frame = Place(
                files.get(location.get("file_name_id", 0), ""),
                location.get("line", 0),
                functions.get(location.get("function_name_id", 0), ""),
            )
            # a parent is counted from 1, and 0 or itself means that there is none
            frames[i] = (frame, *frames.get(numbers.get("parent_frame_id", 1) - 1, ()))
        return frames

    def frames(self, instruction: Instruction) -> tuple[Place, ...]:
        """Return the stack frames that an instruction comes from, innermost first; none if it has no source.

        JAX before 0.8 records the innermost frame only, without its function.
        """
        if instruction.frame is not None:
            return self._frames.get(instruction.frame, ())
        source = _SOURCE.search(instruction.text)
        return (Place(source[1], int(source[2] or 0), ""),) if source else ()

    @cached_property
    def matrix_dtype(self) -> str:
        """Return the dtype of most operands of matrix products and convolutions ("float32"); else "".

        It may differ from the function's: CPUs multiply bfloat16 as float32.
        """
        read: Counter[str] = Counter()
        for instruction in self.instructions:
            if operation(instruction) in ("dot", "convolution"):
                read.update(shape.dtype for shape in self.operand_shapes(instruction)[:2])
        return dtype_name(read.most_common(1)[0][0]) if read else ""


def operation(instruction: Instruction) -> str:
    """Return what an instruction does: its opcode without "-start", or a library call's operation.

    A cuBLAS product is "dot", and a cuDNN convolution is "convolution"; other calls are "custom-call".
    """
    if instruction.opcode != "custom-call":
        return instruction.opcode.removesuffix("-start")
    target = instruction.target.lower()
    if "conv" in target and "convert" not in target:
        return "convolution"
    if any(part in target for part in ("gemm", "matmul", "dot")):
        return "dot"
    return "custom-call"


class Product(NamedTuple):
    """A matrix product or convolution as rows x inner times inner x columns, `batch` times."""

    batch: int
    rows: int
    columns: int
    inner: int
    dtype: str  # of its operands
    exact: bool = False  # whether it has the highest precision, for which float32 uses no tensor cores
    aligned: bool = True  # whether tensor cores can take it: channels must be multiples of 16 bytes

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.rows * self.columns * self.inner


def product_of(instruction: Instruction, read: list[Shape]) -> Product | None:
    """Return the matrix product of an instruction; None for other instructions."""
    name = operation(instruction)
    if len(read) < 2 or not instruction.shapes or name not in ("dot", "convolution"):
        return None
    attributes = instruction.attributes
    exact = "highest" in attributes.lower()
    if name == "convolution":
        return _convolution(instruction, read, instruction.target.lower(), exact)
    left, result = read[0], instruction.shapes[0]
    inner, many = (math.prod(_lengths(left, attributes, name)) for name in ("contracting", "batch"))
    rows = left.size // max(1, inner * many)
    columns = result.size // max(1, rows * many)
    return Product(many, rows, columns, inner, dtype_name(left.dtype), exact)


def _lengths(left: Shape, attributes: str, name: str) -> list[int]:
    """Return the lengths of the left side's axes of a kind, as XLA or cuBLAS's configuration lists them."""
    listed = re.compile(rf'lhs_{name}_dim\w*"?[=:][{{\[]([^\]}}]*)')
    axes = map(int, _DIGITS.findall(_first(listed, attributes)))
    return [left.dims[i] for i in axes if i < len(left.dims)]


def _convolution(instruction: Instruction, read: list[Shape], target: str, exact: bool) -> Product | None:
    """Return a convolution as the matrix product that libraries compute; None if it cannot be parsed."""
    kernel = _first(_KERNEL, instruction.attributes)
    weights, outputs = read[1], instruction.shapes[0]
    if "backwardfilter" in target:
        weights, outputs = outputs, weights
    elif "backwardinput" in target:
        outputs = read[0]
    if "o" not in kernel or len(kernel) != len(weights.dims):
        return None
    features, inputs = weights.dims[kernel.index("o")], weights.dims[kernel.index("i")]
    positions = outputs.size // features
    sides = positions, features, weights.size // features
    if "backwardfilter" in target:
        sides = features, weights.size // features, positions
    elif "backwardinput" in target:
        sides = positions, inputs, weights.size // inputs
    aligned = not any(channels * read[0].itemsize % 16 for channels in (features, inputs))
    return Product(1, *sides, dtype_name(read[0].dtype), exact, aligned)


@lru_cache(maxsize=256)
def groups_of(attributes: str, devices: int) -> tuple[tuple[int, ...], ...]:
    """Return the groups of devices in a collective's attributes; one of all devices if they name none."""
    import numpy as np  # its threads would be seen before a watched program imports it

    if match := _LISTED.search(attributes):
        return tuple(tuple(map(int, group.split(","))) for group in re.findall(r"\{([\d,]+)\}", match[1]))
    if match := _IOTA.search(attributes):  # "[2,4]<=[4,2]T(1,0)": 0 to 7 as 4 x 2, transposed, as 2 rows of 4
        shape, lengths, order = ([int(n) for n in part.split(",") if n] for part in match.groups(""))
        size = shape[-1]
    elif match := _MESH.search(attributes):
        # "mesh['data'=4,'model'=2] {'data'}": those that differ in these only
        axes = re.findall(r"'([^']+)'=(\d+)", match[1])
        lengths = [int(length) for _, length in axes]
        order = sorted(range(len(axes)), key=lambda i: f"'{axes[i][0]}'" in match[2])
        size = math.prod(lengths[i] for i in order if f"'{axes[i][0]}'" in match[2])
    else:
        return (tuple(range(devices)),)
    table = np.arange(math.prod(lengths)).reshape(lengths).transpose(order or None).reshape(-1, size)
    return tuple(map(tuple, table.tolist()))


def _numbers(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", text)}


def parse(text: str) -> Module:
    """Parse a program's text, `compiled.as_text()` or an executable's `hlo_modules()[0].to_string()`.

    Raises:
      JaxperfError: the text has no entry.
    """
    computations: dict[str, list[Instruction]] = {}
    tables: dict[str, dict[int, str]] = {}
    entry, table, name = "", "", ""
    body: list[Instruction] | None = None
    for line in text.splitlines():
        if body is not None:
            if match := _INSTRUCTION.match(line):
                body.append(
                    Instruction(match[2], match[4], match[3], name, bool(match[1]), line, match.end() - 1)
                )
            elif line.startswith("}"):
                body = None
        elif line in _TABLES:
            table = line
            tables[table] = {}
        elif table and (row := _ROW.match(line)):
            tables[table][int(row[1])] = row[2].strip('"')
        elif start := _COMPUTATION.match(line):
            name, table = start[2], ""
            body = computations.setdefault(name, [])
            if start[1]:
                entry = name
    if not entry:
        raise JaxperfError("the compiled program's text has no ENTRY; this JAX version prints it differently")
    head = text.partition("\n")[0]
    bodies = {name: tuple(instructions) for name, instructions in computations.items()}
    return Module(_first(_MODULE, head), bodies, entry, head, tables)


class Costs(NamedTuple):
    """The compiler's estimates for one execution on one device.

    Results that take over an argument's memory count in both arguments and outputs, and in aliases.
    """

    flops: float  # with one iteration of each loop, as the bytes; 0 if there is no estimate
    bytes_accessed: float
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    alias_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Return the bytes of arguments, outputs and temporaries, without counting aliased ones twice."""
        return self.argument_bytes + self.output_bytes + self.temp_bytes - self.alias_bytes


def costs(executable: Any) -> Costs:
    """Return the compiler's estimates, from a `jax.stages.Compiled` or one of a client's executables."""
    try:
        cost = executable.cost_analysis() or {}
    except (AttributeError, NotImplementedError, RuntimeError):  # a device that is not there has none
        cost = {}
    cost = cost[0] if isinstance(cost, list) else cost
    stats = getattr(executable, "memory_analysis", None) or executable.get_compiled_memory_stats
    memory, parts = stats(), ("argument", "output", "temp", "alias")
    flops, bytes_accessed = (max(0.0, float(cost.get(name, 0.0))) for name in ("flops", "bytes accessed"))
    return Costs(flops, bytes_accessed, *(int(getattr(memory, f"{part}_size_in_bytes", 0)) for part in parts))
