"""Facts about compiled programs: FLOPs, bytes, aliased memory, and instructions.

They come from `live_executables()` of each device's client. It is called while the program runs, because a
compiled program is freed together with its function.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from jaxperf import hlo
from jaxperf.watch.observe import source_location
from jaxperf.watch.observe.instructions import ProgramInstruction, parse_instructions
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.observe.windows import canonical_name

Array = tuple[str, str]  # element type and shape of an array in a program's text: ("f32", "3,4")
PER_NAME = 3  # texts kept per program name, before the watch and again during it
LONGEST = 24_000_000  # characters; longer texts are not kept
_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f32": 4, "s32": 4, "u32": 4,
          "f64": 8, "s64": 8, "u64": 8, "c64": 8, "c128": 16}  # fmt: skip
_TYPES = {"float": "f", "bfloat": "bf", "int": "s", "uint": "u", "complex": "c", "bool": "pred"}
_DESCRIBED = re.compile(r"([a-z]+)(\d*)\[([\d,]*)\]")
_ARRAY = re.compile(r"([a-z]+\d*)\[([\d,]*)\]")
_LAYOUT = re.compile(r"entry_computation_layout=\{\((.*?)\)->(.*?)\}, \w+=", re.S)
_ALIAS = re.compile(r"\{(\d*)[^}]*\}: \((\d+)")
_ROW = re.compile(r"^(\d+) (?:\"(.*)\"|\{(.*)\})$")
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_INSTRUCTION = re.compile(r"%?([\w.-]+) = ")


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
    def frames(self) -> dict[int, list[Place]]:
        """Return the lines of each stack frame that instructions refer to, the innermost first."""
        return _frames(self.text)

    @property
    def program(self) -> str:
        """Return the program's name in the profiler's windows."""
        return canonical_name(self.name)

    @functools.cached_property
    def instructions(self) -> list[ProgramInstruction]:
        """Return all instructions, including those inside fusions and loops; none if `text` is empty."""
        return list(parse_instructions(self.text))

    @property
    def loops(self) -> int:
        """Return the number of loops; the compiler's estimates count one iteration of each."""
        return sum(i.opcode == "while" for i in self.instructions)

    @functools.cached_property
    def matrix_dtype(self) -> str:
        """Return the dtype of matrix products and convolutions ("float32"); "" if there are none."""
        return hlo.parse(self.text).matrix_dtype if self.text else ""

    @functools.cached_property
    def steps(self) -> frozenset[str]:
        """Return the names of the entry computation's instructions: an execution runs each of them once."""
        return frozenset(_INSTRUCTION.findall(self.text.partition("\nENTRY ")[2]))

    @functools.cached_property
    def layout(self) -> tuple[list[Array], list[Array]]:
        """Return the arguments and the results of the program; empty lists if the text lacks them."""
        match = _LAYOUT.search(self.text.partition("\n")[0] + ", x=")
        return (arrays_in(match[1]), arrays_in(match[2])) if match else ([], [])

    @property
    def argument_bytes(self) -> int:
        """Return the bytes of all arguments."""
        return sum(array_bytes(*array) for array in self.layout[0])

    def at(self, line: str) -> Place:
        """Return the innermost line of the reader's own code that an instruction's text refers to."""
        return next((p for p in self.around(line) if not source_location.library_of(p.file)), NOWHERE)

    def around(self, line: str) -> list[Place]:
        """Return all lines that an instruction's text refers to, the innermost first."""
        match = _FRAME.search(line)
        return self.frames.get(int(match[1]), []) if match else []

    def callbacks(self) -> Iterator[tuple[str, Place]]:
        """Yield the name and line of each instruction that calls back into Python."""
        for i in self.instructions:
            if i.opcode == "custom-call" and re.search(r'custom_call_target="[^"]*callback', i.text):
                yield i.name, self.at(i.text)

    def constants(self) -> Iterator[tuple[Array, int]]:
        """Yield the type and the bytes of each array that is a constant of the program."""
        for i in self.instructions:
            if i.opcode == "constant" and (arrays := arrays_in(i.type)):
                yield arrays[0], array_bytes(*arrays[0])

    def unshared_bytes(self, among: Iterable[Array] | None = None) -> int:
        """Return the bytes of results that could alias an argument of their type, but do not.

        Args:
          among: types of the arguments to consider; None for all of them.
        """
        head, (arguments, results) = self.text.partition("\n")[0], self.layout
        aliased_arguments = {int(m[2]) for m in _ALIAS.finditer(_aliases(head))}
        aliased_results = {int(m[1] or 0) for m in _ALIAS.finditer(_aliases(head))}
        free = Counter(a for i, a in enumerate(arguments) if i not in aliased_arguments)
        free = free if among is None else free & Counter(among)
        total = 0
        for i, array in enumerate(results):
            if i not in aliased_results and free[array]:
                free[array] -= 1
                total += array_bytes(*array)
        return total


def array_type(described: str) -> Array | None:
    """Return ("f32", "3,4") for "float32[3,4]"; None for anything but an array."""
    match = _DESCRIBED.fullmatch(described)
    return (_TYPES[match[1]] + match[2], match[3]) if match and match[1] in _TYPES else None


def _aliases(head: str) -> str:
    match = re.search(r"input_output_alias=\{(.*?)\}, entry_", head)
    return match[1] if match else ""


def arrays_in(description: str) -> list[Array]:
    """Return the arrays whose types occur in a part of a program's text."""
    return _ARRAY.findall(description)


def array_bytes(dtype: str, dims: str) -> int:
    """Return the bytes of an array."""
    return _BYTES.get(dtype, 4) * math.prod(int(d) for d in dims.split(",") if d)


def _frames(text: str) -> dict[int, list[Place]]:
    """Return the lines of each stack frame, from the tables at the head of a program's text."""
    tables: dict[str, dict[int, Any]] = {}
    rows: dict[int, Any] = {}
    for line in text.splitlines():
        if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            rows = tables.setdefault(line, {})
        elif row := _ROW.match(line):
            pairs = dict(re.findall(r"(\w+)=(\d+)", row[3] or ""))
            rows[int(row[1])] = row[2] if row[3] is None else {k: int(v) for k, v in pairs.items()}
        elif line.startswith(("%", "ENTRY")):
            break
    files, functions = tables.get("FileNames", {}), tables.get("FunctionNames", {})
    places = {
        i: Place(
            files.get(x.get("file_name_id"), ""), x["line"], functions.get(x.get("function_name_id"), "")
        )
        for i, x in tables.get("FileLocations", {}).items()
    }
    frames: dict[int, list[Place]] = {}
    for i, frame in sorted(tables.get("StackFrames", {}).items()):
        parent = frame.get("parent_frame_id", 1) - 1  # 1 means that there is no parent
        frames[i] = [places.get(frame.get("file_location_id"), NOWHERE), *frames.get(parent, [])]
    return frames


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
