from collections import defaultdict

import jax
import jax.numpy as jnp
import pytest

from jaxperf.measure.stages import build_program
from jaxperf.watch.log import Compiled, DeviceActivity, ExecutedProgram, Log, Wait
from jaxperf.watch.observe.executables import Facts
from jaxperf.watch.observe.source_location import NOWHERE
from jaxperf.watch.report import top_programs
from jaxperf.watch.report.analysis import Analysis

TEXT = """HloModule jit_step
%fused (a: f32[8,8], b: f32[8,8]) -> f32[8,8] {
  %a = f32[8,8]{1,0} parameter(0)
  %b = f32[8,8]{1,0} parameter(1)
  ROOT %dot.1 = f32[8,8]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (x: f32[8,8]) -> f32[8,8] {
  %x = f32[8,8]{1,0} parameter(0)
  %multiply.1 = f32[8,8]{1,0} multiply(%x, %x)
  ROOT %fusion.1 = f32[8,8]{1,0} fusion(%multiply.1, %x), kind=kLoop, calls=%fused
}
"""
STEP = Facts("step", "cpu", 4e9, 1e6, 2**20, (0,), TEXT)


def record(*facts, calls=2, devices=1):
    """A record of a program whose two instructions took 1 and 3 ms, four times on each device."""
    # the product is inside the fusion, where the profiler tells of it
    seconds = {"multiply.1": [0.001] * 4, "fusion.1": [0.003] * 4, "dot.1": [0.0001] * 99}
    names = [f"cpu {i}" for i in range(devices)]
    ops = defaultdict(list, {(device, op): [*seconds[op]] for device in names for op in seconds})
    spans = {device: [(j * 0.004, (j + 1) * 0.004) for j in range(4)] for device in names}
    program = ExecutedProgram("step", calls, [0.0002] * calls, 0, defaultdict(list, spans), ops)
    activity = DeviceActivity([(0.0, 1.0)], {"step": program})
    return Log("a", 0.0, 1.0, programs=list(facts), activity=activity)


def test_executions_are_counted_by_what_devices_ran_and_not_by_calls():
    (program,) = record(STEP).activity.programs.values()
    assert top_programs.execution_count(program, STEP) == pytest.approx(4.0)
    program.ops["cpu 0", "multiply.1"] = [0.001] * 5  # the window's end cut the fifth execution off
    assert 4 < top_programs.execution_count(program, STEP) < 4.5
    for devices in (1, 3):
        (hot,) = top_programs.hottest_programs(Analysis(record(STEP, calls=1, devices=devices)))
        assert hot.device_s == pytest.approx(0.004)


@pytest.mark.parametrize(("sizes", "cell"), [((), "-"), ((8000,), "8 kB"), ((8000, 4000), "8 kB")])
def test_of_calls_with_several_sizes_the_bytes_from_the_host_are_at_most_the_largest(sizes, cell):
    run = record(STEP)
    run.compiled.extend(Compiled("step", NOWHERE, host={"x": size}) for size in sizes)
    run.activity.programs["step"].copies = 2
    (grid,) = top_programs.program_blocks(Analysis(run))
    assert grid.rows[0][6] == cell


def test_a_program_that_no_window_saw_whole_takes_as_long_as_the_waits_at_its_line(places):
    at = places("for x in xs:\n    y = step(x).block_until_ready()\n")(2, "")
    run = record(STEP)
    run.compiled.append(Compiled("step", at, explained=True))
    run.waits += [Wait("block_until_ready", at, start, start + 0.5, 0) for start in (0.0, 1.0, 2.0)]
    for parts, seen, t2 in (([], "2", "4 ms"), ([0.1], "3", "500 ms")):
        run.activity.programs["step"].run_s = parts
        (grid,) = top_programs.program_blocks(Analysis(run))
        assert [(row[1], row[3]) for row in grid.rows] == [(seen, t2)]


def test_a_wait_is_not_for_one_program_alone_where_the_loop_calls_another_before(places):
    text = "for batch in data:\n    for x in batch:\n        w = learn(w, x)\n    print(float(loss(w)))\n"
    learn, loss = (Compiled(name, places(text)(f"{name}("), explained=True) for name in ("learn", "loss"))
    run = Log("a", 0.0, 3.0, waits=[Wait("float", loss.at, start, start + 0.5, 4) for start in (0.0, 1.0)])
    run.compiled.append(loss)
    assert [hot.device_s for hot in top_programs._waited_for(Analysis(run))] == [0.5]
    run.compiled.append(learn)
    assert not [*top_programs._waited_for(Analysis(run))]


def test_facts_of_a_live_program_are_those_of_its_stages(watched):
    def both(x):
        return jax.lax.fori_loop(0, 3, lambda i, a: jnp.tanh(a @ a), x)

    x, jitted = jnp.ones((16, 16)), jax.jit(both)
    log = watched(lambda: jitted(x).block_until_ready()).log
    (facts,) = (f for f in log.programs if f.name == "both")
    program = build_program(both, x).program
    assert (facts.flops, facts.bytes_accessed) == (program.flops, program.bytes_accessed)
    assert (facts.loops, facts.module.matrix_dtype) == (program.loops, program.matrix_dtype) == (1, "float32")
    assert facts.peak_bytes == program.peak_bytes
