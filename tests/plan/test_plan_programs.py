"""When the program of more nodes is that of fewer: it must be recognized, and nothing else may be."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxperf.plan import hlo, programs
from jaxperf.plan.collectives import collectives

PROGRAMS = Path(__file__).parent / "programs"


def lowered(count: int, batch: int, width: int = 8) -> str:
    mesh = Mesh(np.array(jax.devices("cpu")[:count]), ("data",))
    w = jax.ShapeDtypeStruct((width, width), jnp.float32, sharding=NamedSharding(mesh, P()))
    x = jax.ShapeDtypeStruct((batch, width), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    step = jax.jit(lambda w, x: w - jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w))
    return step.lower(w, x).as_text()


@pytest.mark.usefixtures("several_devices")
def test_the_same_step_on_four_times_the_devices() -> None:
    assert programs.grows(lowered(2, 32), lowered(8, 128), 4)


@pytest.mark.usefixtures("several_devices")
def test_other_steps() -> None:
    assert not programs.grows(lowered(2, 32), lowered(8, 64), 4)  # fewer examples on each device
    assert not programs.grows(lowered(2, 32), lowered(8, 128, width=12), 4)
    assert not programs.grows("f32[8] add", "f32[8] multiply", 4)


def test_floats_in_hexadecimal() -> None:
    assert programs.grows("dense<5.242880e+05>", "dense<0x4B000000>", 16)
    assert not programs.grows("dense<5.242880e+05>", "dense<0x4B800000>", 16)
    assert not programs.grows("dense<0xFF>", "dense<0xFE>", 16)


def test_a_program_of_more_devices() -> None:
    module = hlo.parse((PROGRAMS / "data_parallel_jax_0_12.hlo").read_text())
    assert programs.among_all(module, 8)
    (collective,) = collectives(programs.widened(module), 1024)
    assert collective.group_size == 1024 and collective.nodes(8) == 128


def test_groups_of_some_devices_are_not_widened() -> None:
    module = hlo.parse((PROGRAMS / "tensor_jax_0_12.hlo").read_text())
    assert not programs.among_all(module, 8)
