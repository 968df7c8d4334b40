import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxperf import hlo
from jaxperf.plan import arguments, planning
from jaxperf.plan.advice import advise
from jaxperf.plan.cards import CARDS
from jaxperf.plan.deviceless import Program

PROGRAMS = Path(__file__).parent / "programs"
RECORDED = {
    "statistics summed over devices": "statistics",
    "parameters gathered": "gathered",
    "resharded": "reshard",
    "not overlapped": "data_parallel",
}
NO_MEMORY = hlo.Costs(0, 0, 0, 0, 0, 0)


def kinds_of(name, memory=NO_MEMORY):
    """The kinds of advice for a recorded program on eight devices."""
    mesh = Mesh(np.array(jax.devices("cpu")[:8]), ("data",))
    placed = arguments.Placed(None, (), mesh, batch_axes=("data",), made=True)
    module = hlo.parse((PROGRAMS / f"{name}.hlo").read_text())
    compiled = Program(module, memory)
    (size,) = planning.plan_of(CARDS["h100"], [placed], [compiled]).sizes
    return set(size.advice)


@pytest.mark.parametrize("version", ["jax_0_10", "jax_0_12"])
@pytest.mark.parametrize("kind", RECORDED)
def test_a_recorded_program(kind, version):
    assert kind in kinds_of(f"{RECORDED[kind]}_{version}")


def test_a_step_without_collectives_needs_no_advice():
    assert kinds_of("scatter_jax_0_12") == set()


def test_waits_of_asynchronous_collectives_count():
    mesh = Mesh(np.array(jax.devices("cpu")[:8]), ("data",))
    module = hlo.parse((PROGRAMS / "data_parallel_jax_0_12.hlo").read_text())
    placed = arguments.Placed(None, (), mesh, made=True)
    (size,) = planning.plan_of(CARDS["h100"], [placed], [Program(module, NO_MEMORY)]).sizes
    (each,) = size.exchanges
    later = dataclasses.replace(size, exchanges=(dataclasses.replace(each, asynchronous=True),))
    assert "not overlapped" in advise(size) and "not overlapped" in advise(later)


def test_memory():
    for gigabytes, kind in ((60, None), (70, "above JAX's share"), (100, "does not fit")):
        memory = NO_MEMORY._replace(temp_bytes=gigabytes * 10**9)
        assert kinds_of("scatter_jax_0_12", memory) == {kind} - {None}
