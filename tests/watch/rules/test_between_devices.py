from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxperf.watch.log import DISPATCH, Compiled, DeviceActivity, ExecutedProgram, Log, Put, StackSample
from jaxperf.watch.observe.executables import Facts, note_copied_arguments
from jaxperf.watch.observe.frame_arguments import Placement
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules import program_notes
from jaxperf.watch.rules.programs import find_moves, find_replicated_work

AT = Place("a.py", 3)
HEAD = "HloModule jit_step, entry_computation_layout={(f32[1024,1024]{1,0}, f32[4]{0})->f32[4]{0}}, x=y\n\n"
TEXT = HEAD + (
    "ENTRY %main (x: f32[4]) -> f32[4] {\n"
    "  %dot.1 = f32[4]{0} dot(%x, %x)\n"
    "  %all-reduce.1 = f32[4]{0} all-reduce(%dot.1), to_apply=%add\n"
    "  ROOT %while.1 = f32[4]{0} while(%all-reduce.1), condition=%c, body=%b\n"
    "}\n"
)
REPLICATED = HEAD + (
    "ENTRY %main (x: f32[4]) -> f32[4] {\n"
    "  %x = f32[4]{0} parameter(0)\n"
    "  %dot.1 = f32[4]{0} dot(%x, %x)\n"
    "  ROOT %tanh.1 = f32[4]{0} tanh(%dot.1)\n"
    "}\n"
)


def facts(platform="gpu", devices=4):
    return Facts("step", platform, 1e6, 1e6, devices=tuple(range(devices)), text=TEXT)


def call(*devices):
    c = Compiled("step", AT, {"trace": (0.0, 0.5)}, explained=True)
    c.signature = {"argument 0": "float32[1024,1024]", "argument 1": "float32[4]"}
    placements = Placement(devices, "", False), Placement((0, 1, 2, 3), "", True)
    c.placements = {f"argument {i}": placement for i, placement in enumerate(placements)}
    return c


@pytest.mark.parametrize(("devices", "copies", "count"), [((0,), 1, 1), ((0,), 0, 0), ((0, 1, 2, 3), 1, 0)])
def test_an_argument_that_every_call_copies_to_other_devices_is_found(devices, copies, count):
    c = call(*devices)
    program = ExecutedProgram("step", 10, [0.01] * 10, copies=10 * copies)
    program.devices["gpu 0"] = [(1.0, 1.5)]
    activity = DeviceActivity([(1.0, 2.0)], {"step": program}, queued=[(1.5, 1.7)])
    sample = StackSample(DISPATCH, AT, 1.8, 1.9)
    record = Log("a", 0, 2, compiled=[c], samples=[sample], programs=[facts()], activity=activity)
    note_copied_arguments(record)
    findings = list(find_moves(Analysis(record)))
    assert [f.at for f in findings] == [AT] * count
    for finding in findings:
        assert "copies 4.19 MB, argument 0, to its 4 devices: they lie on others" in finding.reason
        assert finding.seconds == pytest.approx(0.1 + 0.2 * 1.5)  # of 1.5 s after compiling, one was seen


@pytest.mark.parametrize(("beside", "put", "seconds"), [(0.5, 0, 0.2), (0.5, 40 << 20, 0.1), (1.0, 0, 0.0)])
def test_a_copy_beside_computing_takes_a_core_of_a_cpu(beside, put, seconds, monkeypatch):
    monkeypatch.setattr(Analysis, "beside", beside)  # 1 on an accelerator
    program = ExecutedProgram("step", 10, [0.01] * 10, copies=10)
    program.devices["cpu 0"] = [(1.0, 2.0)]
    copying = [(1 + i / 10, 1.04 + i / 10) for i in range(10)]
    activity = DeviceActivity([(1.0, 2.0)], {"step": program}, copying=copying)
    puts = [Put(AT, 1.5, 1.6, put, again=False, moved=True)]  # as many bytes as the calls, or none
    compiled = [replace(call(0), stages={"compile": (0.5, 1.0)})]
    record = Log("a", 0.5, 2, compiled=compiled, programs=[facts("cpu")], puts=puts, activity=activity)
    note_copied_arguments(record)
    (finding,) = find_moves(Analysis(record))
    assert finding.seconds == pytest.approx(seconds)


def step(w, batch):
    micro = batch.reshape(4, -1, 2048)  # gathers
    return jax.lax.scan(lambda total, x: (total + jnp.tanh(x @ w).sum(), None), jnp.zeros(()), micro)[0]


def test_an_argument_that_is_gathered_is_named_at_the_line_that_uses_it_first():
    mesh = Mesh(jax.devices("cpu")[:4], ("data",))
    split, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
    w, batch = jax.device_put(jnp.ones((2048, 4)), everywhere), jax.device_put(jnp.ones((256, 2048)), split)
    text = jax.jit(step).lower(w, batch).compile().as_text() or ""
    program = Facts("step", "cpu", 1.0, 1.0, devices=(0, 1, 2, 3), text=text)
    notes = list(program_notes._collectives(program, call(0)))
    assert any("all-gather of f32[4,64,2048], 2.10 MB per call at " in note for note in notes), notes
    line = step.__code__.co_firstlineno + 1
    assert all(f"test_between_devices.py:{line}, for " in note for note in notes)


@pytest.mark.parametrize("kind", ["gpu", "cpu"])  # of a CPU, they share the cores
@pytest.mark.parametrize(
    ("splits", "program", "count"),
    [
        (("PartitionSpec()", "PartitionSpec(None,)"), REPLICATED, 1),
        (("PartitionSpec()", "PartitionSpec('data',)"), REPLICATED, 0),
        (("PartitionSpec()", ""), REPLICATED, 0),  # how the second is divided is not known
        (("PartitionSpec()", "PartitionSpec()"), TEXT, 0),  # it sends something
        (("PartitionSpec()", "PartitionSpec()"), REPLICATED.replace(" tanh(", " partition-id("), 0),
        (("PartitionSpec()", "PartitionSpec()"), REPLICATED.replace(" dot(", " add("), 0),
    ],
)
def test_a_program_of_which_no_argument_is_divided_computes_the_same_on_each_device(
    kind, splits, program, count
):
    c = call(0, 1, 2, 3)
    c.placements = {f"argument {i}": Placement((0, 1, 2, 3), s, True) for i, s in enumerate(splits)}
    ran = ExecutedProgram("step")
    for device in range(4):
        ran.devices[f"{kind} {device}"] = [(1.0, 1.8)]
    activity = DeviceActivity([(1.0, 2.0)], {"step": ran})
    log = Log("a", 0, 2, compiled=[c], programs=[replace(facts(), text=program)], activity=activity)
    findings = list(find_replicated_work(Analysis(log)))
    assert [f.cause for f in findings] == ["replicated"] * count
    for finding in findings:
        assert finding.seconds == pytest.approx(0.75 * 1.2)  # 0.8 s in a window of 1 s, of 1.5 s
        assert "each of the 4 devices computes all of step" in finding.reason
