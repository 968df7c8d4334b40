"""Facts about compiled programs: FLOPs, bytes, aliased memory, and instructions.

They come from `live_executables()` of each device's client. It is called while the program runs, because a
compiled program is freed together with its function.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxperf import hlo
from jaxperf.errors import JaxperfError
from jaxperf.hlo import Frame, Instruction, Module, Shape
from jaxperf.watch.observe import source_location
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.observe.windows import canonical_name

PER_NAME = 3  # texts kept per program name, before the watch and again during it
LONGEST = 24_000_000  # characters; longer texts are not kept
CONTAINERS = ("while", "call", "conditional")  # their times include those of the instructions inside
MULTIPLYING = ("dot", "convolution", "custom-call")  # opcodes of products
PRODUCTS = ("dot_general", "conv_general_dilated")  # JAX's operations
_FILLING = {
    "constant", "broadcast", "iota", "bitcast", "reshape", "copy", "tuple", "get-tuple-element", "fusion",
    "parameter", "call", "pad", "convert",
    # of numbers that are made in place, such as an identity: no more than reading them from memory
    "compare", "select", "add", "subtract", "multiply", "and", "or", "not", "slice", "concatenate",
    "transpose", "dynamic-slice", "dynamic-update-slice",
}  # fmt: skip
_VARYING = ("parameter", "rng", "rng-bit-generator", "custom-call", "infeed", "partition-id", "replica-id")


@dataclass(frozen=True)
class Facts:
    """One compiled program; FLOPs and bytes are the compiler's estimates for one execution on one device.

    `peak_bytes` are arguments, outputs and temporaries; `devices` are the ids of its devices; `old` is
    whether it existed before the watch began.
    """

    name: str
    platform: str
    flops: float
    bytes_accessed: float
    peak_bytes: int = 0
    devices: tuple[int, ...] = ()
    text: str = ""
    old: bool = False
    temporary_bytes: int = 0

    @functools.cached_property
    def module(self) -> Module:
        """Return the parsed program; an empty one if there is no text that can be read."""
        try:
            return hlo.parse(self.text)
        except JaxperfError:
            return Module("", {}, "", self.text.partition("\n")[0])

    @property
    def program(self) -> str:
        """Return the program's name in the profiler's windows."""
        return canonical_name(self.name)

    @functools.cached_property
    def instructions(self) -> list[Instruction]:
        """Return all instructions, including those inside fusions and loops; none if `text` is empty."""
        return list(self.module.instructions)

    @property
    def loops(self) -> int:
        """Return the number of loops; the compiler's estimates count one iteration of each."""
        return sum(i.opcode == "while" for i in self.instructions)

    @property
    def matrix_dtype(self) -> str:
        """Return the dtype of matrix products and convolutions ("float32"); "" if there are none."""
        return self.module.matrix_dtype

    @functools.cached_property
    def steps(self) -> frozenset[str]:
        """Return the names of the entry computation's instructions: an execution runs each of them once."""
        return frozenset(i.name for i in self.module.computations.get(self.module.entry, ()))

    @property
    def layout(self) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
        """Return the arguments and the results of the program; empty if the text lacks them."""
        return self.module.layout

    @property
    def argument_bytes(self) -> int:
        """Return the bytes of all arguments."""
        return sum(shape.bytes for shape in self.layout[0])

    @functools.cached_property
    def places(self) -> frozenset[Place]:
        """Return all lines that instructions come from."""
        return frozenset(
            Place(*f) for frames in {*map(self.module.frames, self.instructions)} for f in frames
        )

    def at(self, instruction: Instruction) -> Place:
        """Return the innermost line of the reader's own code that an instruction comes from."""
        return own_line(self.module.frames(instruction))

    def around(self, instruction: Instruction) -> list[Place]:
        """Return all lines that an instruction comes from, the innermost first."""
        return [Place(*frame) for frame in self.module.frames(instruction)]

    def callbacks(self) -> Iterator[tuple[str, Place]]:
        """Yield the name and line of each instruction that calls back into Python."""
        for i in self.instructions:
            if i.opcode == "custom-call" and "callback" in i.target:
                yield i.name, self.at(i)

    def constants(self) -> Iterator[Shape]:
        """Yield the shape of each array that is a constant of the program."""
        for i in self.instructions:
            if i.opcode == "constant" and i.shapes:
                yield i.shapes[0]

    def unshared_bytes(self, among: Iterable[Shape] | None = None) -> int:
        """Return the bytes of results that could alias an argument of their type, but do not.

        Args:
          among: types of the arguments to consider; None for all of them.
        """
        (arguments, results), aliases = self.layout, self.module.aliases
        free = Counter(a for i, a in enumerate(arguments) if i not in aliases.values())
        free = free if among is None else free & Counter(among)
        total = 0
        for i, shape in enumerate(results):
            if i not in aliases and free[shape]:
                free[shape] -= 1
                total += shape.bytes
        return total


def own_line(frames: Iterable[Frame]) -> Place:
    """Return the innermost line of the reader's own code among some frames; NOWHERE if there is none."""
    return next((Place(*f) for f in frames if not source_location.library_of(f.file)), NOWHERE)


def independent_instructions(instructions: Sequence[Instruction], entry: frozenset[str]) -> set[str]:
    """Return the names of the `entry` instructions whose results are the same in each execution.

    Instructions that only fill memory, such as a buffer that a loop will write, are left out.
    """
    opcodes: dict[str, set[str]] = defaultdict(set)
    for i in instructions:
        opcodes[i.computation].add(i.opcode)
    depends: set[str] = set()
    fixed: set[str] = set()
    for i in instructions:
        if i.name not in entry:
            continue
        if i.opcode in _VARYING or {*i.operands} & depends:
            depends.add(i.name)
        elif not opcodes[i.called] | {i.opcode} <= _FILLING:
            fixed.add(i.name)
    return fixed


class Programs:
    """The compiled programs seen so far; `look` adds the new ones."""

    def __init__(self) -> None:
        self.watching = False
        self.facts: list[Facts] = []
        self.trouble = ""
        self.too_long: list[str] = []
        self._known: set[Any] = set()
        self._texts: Counter[tuple[str, bool]] = Counter()

    def look(self) -> None:
        """Add every live program that is not known yet."""
        import jax

        try:
            for client in {id(d.client): d.client for d in (*jax.devices(), *jax.devices("cpu"))}.values():
                for executable in client.live_executables():
                    self._note(executable)
        except Exception as e:  # such as a method that this JAX version lacks
            self.trouble = f"{type(e).__name__}: {e}".splitlines()[0]

    def _note(self, executable: Any) -> None:
        key = executable.fingerprint or id(executable)
        if key in self._known:
            return
        self._known.add(key)
        module = executable.hlo_modules()[0]
        cost = executable.cost_analysis() or {}
        cost = cost[0] if isinstance(cost, list) else cost
        text = ""
        if self._texts[module.name, self.watching] < PER_NAME:
            self._texts[module.name, self.watching] += 1
            text = module.to_string()
            if len(text) > LONGEST:
                self.too_long.append(module.name.removeprefix("jit_"))
        self.facts.append(
            Facts(
                module.name.removeprefix("jit_"),
                executable.local_devices()[0].platform,
                max(0.0, float(cost.get("flops", 0.0))),
                max(0.0, float(cost.get("bytes accessed", 0.0))),
                _peak_bytes(executable),
                tuple(d.id for d in executable.local_devices()),
                text if len(text) <= LONGEST else "",
                old=not self.watching,
                temporary_bytes=int(executable.get_compiled_memory_stats().temp_size_in_bytes),
            )
        )


def _peak_bytes(executable: Any) -> int:
    """Return the bytes of arguments, outputs and temporaries, without counting aliased ones twice."""
    sizes = executable.get_compiled_memory_stats()
    named = (getattr(sizes, f"{part}_size_in_bytes") for part in ("argument", "output", "temp"))
    return int(sum(named) - sizes.alias_size_in_bytes)
