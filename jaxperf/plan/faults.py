"""Known faults of JAX versions that a compiled program shows, each with its public issue.

A check reads the program's text and takes no time. `atomics` looks closer: it compiles a small program and
reads the PTX, which takes seconds.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxperf.plan import deviceless
from jaxperf.plan.cards import Card
from jaxperf.plan.hlo import Module


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
      name: in short.
      versions: of jaxlib that have it; empty for all.
      issue: where it is reported.
      remark: what it costs, and the way out.
      shows: whether a program has what the fault slows down.
    """

    name: str
    versions: tuple[str, ...]
    issue: str
    remark: str
    shows: Callable[[Module], bool]


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


FAULTS = (
    Fault(
        "float32 scatter-add as a compare-and-swap loop",
        ("0.10.2", "0.11.0"),
        "jax-ml/jax#38806, openxla/xla#46225",
        "an `x.at[i].add(y)` or the gradient of an embedding is up to 2,000 times slower where many indices "
        "are equal; take jaxlib 0.11.1 or later",
        lambda module: adds_by_scatter(module, "f32"),
    ),
    Fault(
        "bfloat16 scatter-add as a compare-and-swap loop",
        (),
        "openxla/xla#26371",
        "an `x.at[i].add(y)` in bfloat16 is about 20 times slower than in float32 where many indices are "
        "equal; add in float32",
        lambda module: adds_by_scatter(module, "bf16"),
    ),
)


def fault_lines(module: Module, jaxlib: str) -> list[str]:
    """Return a line for each fault of this jaxlib that a program shows."""
    version = ".".join(jaxlib.split(".")[:3])
    return [
        f"jaxlib {jaxlib}: {fault.name} ({fault.issue}): {fault.remark}"
        for fault in FAULTS
        if (not fault.versions or version in fault.versions) and fault.shows(module)
    ]


_PTX_OPTIONS = {
    "xla_dump_hlo_as_text": True,
    "xla_gpu_dump_llvmir": True,
    "xla_dump_emitter_re": ".*",
}


def atomics(card: Card) -> set[str]:
    """Return how the installed XLA adds in float32 at equal indices: {"add"} is right, {"cas"} is the fault.

    It compiles a scatter-add without a GPU and reads its PTX. The set is empty if XLA wrote none.
    """
    mesh = Mesh(np.array(deviceless.devices_of(card, 1)), ("data",))
    place = NamedSharding(mesh, P())
    index = jax.ShapeDtypeStruct((100_000,), jnp.int32, sharding=place)
    value = jax.ShapeDtypeStruct((100_000,), jnp.float32, sharding=place)
    lowered = jax.jit(lambda i, v: jnp.zeros(16).at[i].add(v)).lower(index, value)
    with tempfile.TemporaryDirectory() as folder:
        deviceless.dump(lowered, folder, _PTX_OPTIONS)
        ptx = "\n".join(path.read_text(errors="replace") for path in Path(folder).rglob("*.ptx"))
    return set(re.findall(r"atom\.[\w.]*?\.(add|cas)\.[bf]32", ptx))
