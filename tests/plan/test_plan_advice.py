import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxperf import hlo
from jaxperf.plan import arguments, planning
from jaxperf.plan.advice import advise
from jaxperf.plan.cards import CARDS
from jaxperf.plan.deviceless import Program

RECORDED = {
    "statistics summed over devices": "statistics",
    "parameters gathered": "gathered",
    "resharded": "reshard",
    "not overlapped": "data_parallel",
}
NO_MEMORY = hlo.Costs(0, 0, 0, 0, 0, 0)


def planned(module, memory=NO_MEMORY):
    mesh = Mesh(np.array(jax.devices("cpu")[:8]), ("data",))
    placed = arguments.Placed(None, (), mesh, batch_axes=("data",), made=True)
    (size,) = planning.plan_of(CARDS["h100"], [placed], [Program(module, memory)]).sizes
    return size


@pytest.mark.parametrize("version", ["jax_0_10", "jax_0_12"])
@pytest.mark.parametrize("kind", RECORDED)
def test_a_recorded_program(kind, version, recorded):
    assert kind in planned(recorded(f"{RECORDED[kind]}_{version}")).advice


def test_waits_of_asynchronous_collectives_count(recorded):
    size = planned(recorded("data_parallel_jax_0_12"))
    (each,) = size.exchanges
    later = dataclasses.replace(size, exchanges=(dataclasses.replace(each, asynchronous=True),))
    assert "not overlapped" in advise(size) and "not overlapped" in advise(later)


def test_a_step_without_collectives_needs_advice_about_its_memory_alone(recorded):
    for gigabytes, kinds in ((0, []), (60, []), (70, ["above JAX's share"]), (100, ["does not fit"])):
        memory = NO_MEMORY._replace(temp_bytes=gigabytes * 10**9)
        assert [*planned(recorded("scatter_jax_0_12"), memory).advice] == kinds
