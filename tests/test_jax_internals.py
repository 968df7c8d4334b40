import importlib
import logging
from types import SimpleNamespace

import children
import jax
import pytest

from jaxperf import jax_internals as internals
from jaxperf.errors import JaxperfError
from jaxperf.plan import deviceless
from jaxperf.plan.cards import CARDS
from jaxperf.watch.observe import hooks

ALL = {value for value in vars(internals).values() if isinstance(value, internals.Internal)}
# All but one, which plans need, have a way out, so that nothing is refused.
WAYS_OUT = {
    internals.DEVICE_TOPOLOGY,  # the table of cards
    internals.BACKEND_STARTED,  # `otherwise`
    internals.ENABLE_X64,  # as before JAX 0.8
    internals.ENABLE_X64_BEFORE,
    internals.PROFILER,  # a line in the report
    internals.XLA_CLIENT,  # so is this
    internals.ARRAY,  # a subclass of jax.Array, except in old versions
    internals.COMPARED_KEYS,  # as before JAX 0.10: JAX compares a call with all earlier ones
    internals.COMPARED_TREES,  # so it is here, node by node
    internals.PYTREES,  # a library's object counts as one that jit knows
    internals.CALLED,  # nothing is refused
    internals.CALLED_BEFORE,  # as before JAX 0.8
}  # fmt: skip


def remove(internal, monkeypatch):
    *path, name = internal.attribute.split(".")
    owner = importlib.import_module(internal.module)
    for part in path:
        owner = getattr(owner, part)
    monkeypatch.delattr(owner, name)


def test_every_name_is_here_and_has_a_test():
    assert {internals.TOPOLOGY, *WAYS_OUT} == ALL
    # elsewhere in newer versions
    present = ALL - {internals.ENABLE_X64_BEFORE, internals.CALLED_BEFORE}
    assert all(internals.get(internal) is not None for internal in present)


def test_a_feature_whose_private_name_is_gone_says_so_in_one_line(monkeypatch):
    monkeypatch.setattr(deviceless, "check_plugin", lambda card: None)
    topology = internals.TOPOLOGY
    remove(topology, monkeypatch)
    with pytest.raises(JaxperfError) as caught:
        deviceless.devices_of(CARDS["h100"], 8)
    name = f"{topology.module}.{topology.attribute}"
    line = f"{topology.feature} is not available with JAX {jax.__version__}, which has no {name}"
    assert str(caught.value) == f"{line}; a newer jaxperf may know its new name"


def test_without_the_answer_whether_the_backend_runs_the_caller_decides(monkeypatch):
    jax.devices()
    assert hooks.is_running()
    remove(internals.BACKEND_STARTED, monkeypatch)
    assert hooks.is_running(otherwise=True) and not hooks.is_running()


def test_without_a_devices_topology_the_table_of_cards_is_used(monkeypatch):
    remove(internals.DEVICE_TOPOLOGY, monkeypatch)
    monkeypatch.setattr(jax, "devices", lambda platform: [SimpleNamespace(device_kind="NVIDIA H200")])
    assert deviceless.card_of_this_machine().target == ""


def test_nothing_is_imported_that_needs_them():
    program = """
from jaxperf import jax_internals
from jaxperf.errors import JaxperfError
def refuse(internal, *older, get=jax_internals.get):
    if internal.module in ("jax", "jax.monitoring"):  # public
        return get(internal)
    raise JaxperfError(internal.feature)
jax_internals.get = refuse
import jaxperf, jaxperf.models, jaxperf.parallel, jaxperf.chapter.section, jaxperf.plan.planning
import jaxperf.watch.session
from jaxperf.measure import measure
import jax, jax.numpy as jnp
print(measure(jax.jit(lambda x: x + 1), jnp.ones(3), budget_s=0.1).median > 0)
"""
    done = children.run("-c", program)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


@pytest.mark.parametrize("driver", [None, "/usr/bin/nvidia-smi"])
def test_a_plugin_without_a_driver_is_no_traceback(driver, monkeypatch, caplog):
    logger = logging.getLogger("jax._src.xla_bridge")
    monkeypatch.setattr(logger, "filters", [])
    caplog.set_level(logging.WARNING, logger.name)  # lessons that ran in this process may silence JAX
    monkeypatch.setattr(internals.shutil, "which", lambda name: driver)
    internals.quiet_without_driver()
    logger.warning("Jax plugin configuration error: Exception when calling %s.initialize()", "cuda12")
    logger.warning("another")
    assert [record.getMessage() for record in caplog.records][-1] == "another"
    assert len(caplog.records) == (1 if driver is None else 2)
