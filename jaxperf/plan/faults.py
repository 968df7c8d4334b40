"""Known faults of jaxlib versions on a GPU, each with its public issue, and a check that takes seconds.

In all of them, XLA adds into an array at equal indices with a compare-and-swap loop instead of the GPU's
atomic addition. A program's text shows whether it has such additions. The PTX of a small program, compiled
without a GPU, shows whether the installed jaxlib has the fault.
"""

from __future__ import annotations

import importlib.metadata
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxperf.errors import JaxperfError
from jaxperf.hlo import Module, dtype_name
from jaxperf.plan import deviceless
from jaxperf.plan.cards import CARDS, Card, Tpu


@dataclass(frozen=True)
class Fault:
    """A fault of adding at equal indices.

    Attributes:
      dtype: HLO's name of the array's dtype.
      versions: affected versions of jaxlib; empty for all.
      cards: affected cards; empty for all.
      issue: the public issue.
      remark: its cost, and the workaround.
    """

    dtype: str
    versions: tuple[str, ...]
    cards: tuple[str, ...]
    issue: str
    remark: str

    def in_version(self, jaxlib: str) -> bool:
        """Return whether this jaxlib version is reported to have the fault."""
        return not self.versions or ".".join(jaxlib.split(".")[:3]) in self.versions

    def line(self, jaxlib: str) -> str:
        """Return a description of the fault in one line."""
        name = " on ".join((f"{dtype_name(self.dtype)} scatter-add as a compare-and-swap loop", *self.cards))
        return f"jaxlib {jaxlib}: {name} ({self.issue}): {self.remark}"


FAULTS = (
    Fault(
        "f32",
        ("0.10.2", "0.11.0"),
        (),
        "jax-ml/jax#38806, openxla/xla#46225",
        "an `x.at[i].add(y)` or the gradient of an embedding is up to 2,000 times slower where many indices "
        "are equal; take jaxlib 0.11.1 or later",
    ),
    Fault(
        "bf16",
        (),
        ("a100",),
        "openxla/xla#26371",
        "an `x.at[i].add(y)` in bfloat16 is many times slower than in float32 where many indices are equal; "
        "add in float32",
    ),
)


def adds_by_scatter(module: Module, dtype: str) -> bool:
    """Return whether a program adds into an array of this dtype at indices that may be equal."""
    for body in module.computations.values():
        for instruction in body:
            if instruction.opcode != "scatter" or "unique_indices=true" in instruction.text:
                continue
            combiner = module.computations.get(instruction.called, ())
            adds = any(each.opcode == "add" for each in combiner)
            if adds and instruction.shapes and instruction.shapes[0].dtype == dtype:
                return True
    return False


def fault_lines(module: Module, jaxlib: str, card: Card | Tpu) -> list[str]:
    """Return a line for each fault of this jaxlib on this card that affects a program; none on TPUs."""
    return [
        fault.line(jaxlib)
        for fault in FAULTS
        if isinstance(card, Card)
        and fault.in_version(jaxlib)
        and (not fault.cards or card.name in fault.cards)
        and adds_by_scatter(module, fault.dtype)
    ]


def installed_faults() -> list[str]:
    """Return a line for each fault of the installed jaxlib, and how it was found.

    With JAX's CUDA plugin, small programs are compiled without a GPU, in seconds; else the version decides.
    """
    jaxlib = importlib.metadata.version("jaxlib")
    lines: list[str] = []
    for fault in FAULTS:
        try:
            card = CARDS[fault.cards[0] if fault.cards else "h100"]
            has, reason = "cas" in atomics(fault.dtype, card), "a small program compiled here shows it"
        except JaxperfError:
            has, reason = fault.in_version(jaxlib), "by its version; a check needs JAX's CUDA plugin"
        if has:
            lines.append(f"{fault.line(jaxlib)} ({reason})")
    return lines


_PTX_OPTIONS = {
    "xla_dump_hlo_as_text": True,
    "xla_gpu_dump_llvmir": True,
    "xla_dump_emitter_re": ".*",
}


def atomics(dtype: str, card: Card) -> set[str]:
    """Return how the installed XLA adds at equal indices on a card: {"cas"} is the fault, {"add"} is right.

    It compiles a scatter-add without a GPU and reads its PTX.

    Raises:
      JaxperfError: the plugin is missing, or XLA wrote no PTX.
    """
    mesh = Mesh(np.array(deviceless.devices_of(card, 1)), ("data",))
    place = NamedSharding(mesh, P())
    index = jax.ShapeDtypeStruct((100_000,), jnp.int32, sharding=place)
    value = jax.ShapeDtypeStruct((100_000,), dtype_name(dtype), sharding=place)
    lowered = jax.jit(lambda i, v: jnp.zeros(16, v.dtype).at[i].add(v)).lower(index, value)
    with tempfile.TemporaryDirectory() as folder:
        deviceless.dump(card, lowered, folder, _PTX_OPTIONS)
        ptx = "\n".join(
            path.read_text(encoding="utf-8", errors="replace") for path in Path(folder).rglob("*.ptx")
        )
    if not (ways := set(re.findall(r"\b(?:atom|red)\.[\w.]*?\b(add|cas)\.", ptx))):
        raise JaxperfError("XLA wrote no PTX with an atomic addition")
    return ways
