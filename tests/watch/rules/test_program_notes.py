from collections import defaultdict
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from jaxperf.watch.log import Compiled, DeviceActivity, ExecutedProgram, Log
from jaxperf.watch.observe.executables import Facts
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules import program_notes
from jaxperf.watch.rules.programs import find_agreeing_loops, find_constant_work, find_selected_branches
from jaxperf.watch.rules.table import Finding

CALL = Compiled("step", Place("a.py", 3), {"trace": (0.0, 0.5)}, explained=True)


def facts_of(text, *, devices=1):
    return Facts("step", "cpu", 1e6, 1e6, devices=tuple(range(devices)), text=text)


def compiled(function, *arguments):
    return facts_of(jax.jit(function).lower(*arguments).compile().as_text() or "")


@pytest.mark.parametrize(("share", "whole", "seconds"), [(0.9, 4, [0.9 * 3]), (0.1, 4, []), (0.9, 0, [])])
def test_constant_work_is_a_finding_if_it_takes_a_share_of_whole_executions(share, whole, seconds):
    """Four executions in windows, which are the whole run; the work is done once in any case."""
    text = (
        "HloModule jit_step, entry_computation_layout={(f32[4]{0})->f32[4]{0}}, x=y\n\n"
        "ENTRY %main (x: f32[4]) -> f32[4] {\n"
        "  %x = f32[4]{0} parameter(0)\n"
        "  %c = f32[4]{0} constant({1, 2, 3, 4})\n"
        "  %sort.1 = f32[4]{0} sort(%c), dimensions={0}\n"
        "  ROOT %add.1 = f32[4]{0} add(%x, %sort.1)\n"
        "}\n"
    )
    ops = {("cpu 0", "sort.1"): [share] * 4, ("cpu 0", "add.1"): [1 - share] * 4}
    runs = {"run_s": [1.0] * 4, "whole": whole}
    program = ExecutedProgram("step", 4, devices={"cpu 0": [(1.0, 5.0)]}, ops=ops, **runs)
    activity = DeviceActivity([(1.0, 5.0)], {"step": program})
    call = replace(CALL, stages={"trace": (0.0, 1.0)})
    record = Log("a", 0, 5, compiled=[call], programs=[facts_of(text)], activity=activity)
    assert [f.seconds for f in find_constant_work(Analysis(record))] == pytest.approx(seconds)


@pytest.mark.parametrize(("kept", "turns", "seconds"), [(1, 40, [3.12]), (0, 40, []), (1, 1, [])])
def test_what_a_loop_computes_in_each_turn_from_what_it_passes_on_is_a_finding(kept, turns, seconds):
    """Four seconds, of which the product takes 3.2; it reads what the loop passes on, or the state."""
    results = ("%add.1, %keep", "%keep, %add.1")[not kept]
    text = (
        "HloModule jit_step, entry_computation_layout={(f32[4,4]{1,0})->f32[4,4]{1,0}}, x=y\n\n"
        "%body (p: (f32[4,4], f32[4,4])) -> (f32[4,4], f32[4,4]) {\n"
        "  %p = (f32[4,4]{1,0}, f32[4,4]{1,0}) parameter(0)\n"
        "  %state = f32[4,4]{1,0} get-tuple-element(%p), index=0\n"
        "  %keep = f32[4,4]{1,0} get-tuple-element(%p), index=1\n"
        "  %dot.1 = f32[4,4]{1,0} dot(%keep, %keep)\n"
        "  %add.1 = f32[4,4]{1,0} add(%state, %dot.1)\n"
        f"  ROOT %t = (f32[4,4]{{1,0}}, f32[4,4]{{1,0}}) tuple({results})\n"
        "}\n\n"
        "ENTRY %main (x: f32[4,4]) -> f32[4,4] {\n"
        "  %x = f32[4,4]{1,0} parameter(0)\n"
        "  %t = (f32[4,4]{1,0}, f32[4,4]{1,0}) tuple(%x, %x)\n"
        "  %while.1 = (f32[4,4]{1,0}, f32[4,4]{1,0}) while(%t), condition=%cond, body=%body\n"
        "  ROOT %y = f32[4,4]{1,0} get-tuple-element(%while.1), index=0\n"
        "}\n"
    )
    ops = {("cpu 0", "dot.1"): [3.2 / turns] * turns, ("cpu 0", "add.1"): [0.8 / turns] * turns}
    program = ExecutedProgram("step", 1, devices={"cpu 0": [(1.0, 5.0)]}, ops=ops, run_s=[4.0])
    activity = DeviceActivity([(1.0, 5.0)], {"step": program})
    call = replace(CALL, stages={"trace": (0.0, 1.0)})
    record = Log("a", 0, 5, compiled=[call], programs=[facts_of(text)], activity=activity)
    assert [f.seconds for f in find_constant_work(Analysis(record))] == pytest.approx(seconds)


WHILE = (
    "HloModule jit_step\n\n"
    "%body.1 (p: (f32[4])) -> (f32[4]) {\n"
    "  %p = (f32[4]{0}) parameter(0)\n"
    "}\n\n"
    "%cond.1 (q: (f32[4])) -> pred[] {\n"
    "  ROOT %all-reduce.1 = pred[] all-reduce(%w), to_apply=%or\n"
    "}\n\n"
    "ENTRY %main (x: f32[4]) -> f32[4] {\n"
    "  %x = f32[512,2048]{1,0} parameter(0)\n"
    "  %all-gather.1 = f32[2048,2048]{1,0} all-gather(%x), dimensions={0}\n"
    "  %all-reduce.2 = f32[2048,2048]{1,0} all-reduce(%x), to_apply=%add\n"
    "  %while.1 = (f32[4]{0}) while(%t), condition=%cond.1, body=%body.1\n"
    "}\n"
)


@pytest.mark.parametrize("cache", ["", "/tmp/cache"])
@pytest.mark.parametrize("times", [1, 4])  # programs that compile at the same time take the time of one
def test_a_start_that_compiles_for_long_without_a_cache_has_a_note(cache, times):
    call = Compiled("step", Place("a.py", 3), {"trace": (0.5, 1.0), "compile": (1.0, 6.0)}, True)
    notes = program_notes.cache_notes(Analysis(Log("a", 0, 7, compiled=[call] * times, compile_cache=cache)))
    assert [note[:41] for note in notes] == ([] if cache else ["XLA compiles for 5 s of 7 s in each start"])


@pytest.mark.parametrize("cause", ["weak type", "debug setting"])
@pytest.mark.parametrize(
    ("found_s", "compile_s", "noted"), [(0.5, 4.0, 1), (0.0, 4.0, 1), (3.0, 4.0, 0), (0.0, 1.0, 0)]
)
def test_compiling_that_no_finding_explains_has_a_note(monkeypatch, cause, found_s, compile_s, noted):
    calls = [Compiled("step", Place("a.py", 3), {"compile": (1.0, 1.0 + compile_s)}, True)]
    found = [Finding(cause, Place("a.py", 3), found_s, "")]
    monkeypatch.setattr(program_notes, "find_causes", lambda analysis: found)
    notes = list(program_notes.compiling_notes(Analysis(Log("a", 0.0, 9.0, compiled=calls))))
    said = "findings explain less than half of it" if found_s else "no finding explains it"
    assert len(notes) == noted and all(f"1 time for 4 s of 9 s, and {said}" in note for note in notes)


@pytest.mark.parametrize(("devices", "count"), [(4, 1), (1, 0)])
def test_large_gathers_are_located(devices, count):
    notes = list(program_notes._collectives(facts_of(WHILE, devices=devices), CALL))
    assert len(notes) == count  # the sum of a gradient is no fault
    assert all("all-gather of f32[2048,2048], 16.8 MB per call at a.py:3" in note for note in notes)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (WHILE, 0.6),
        (WHILE.replace("  ROOT %all-reduce.1 = pred[] all-reduce(", "  ROOT %all-reduce.1 = pred[] or("), 0),
        # the turns need one another as well
        (
            WHILE.replace(
                "parameter(0)\n}", "parameter(0)\n  %s = f32[4]{0} all-reduce(%p), to_apply=%add\n}"
            ),
            0,
        ),
    ],
)
def test_a_loop_whose_condition_all_devices_decide_together_is_found(text, seconds):
    """It takes 0.8 s on each of two devices, three quarters of them in its condition."""
    devices = {f"cpu {i}": [(1.0, 1.8)] for i in range(2)}
    ops = {(device, "all-reduce.1"): [0.006] * 100 for device in devices}
    activity = DeviceActivity([(1.0, 2.0)], {"step": ExecutedProgram("step", devices=devices, ops=ops)})
    call = replace(CALL, stages={"compile": (0.5, 1.0)})
    log = Log("a", 0, 2, compiled=[call], programs=[facts_of(text, devices=2)], activity=activity)
    findings = list(find_agreeing_loops(Analysis(log)))
    assert sum(f.seconds for f in findings) == pytest.approx(seconds)
    assert all("all-reduce in the condition of this loop" in f.reason for f in findings)


def costly(x):
    return jax.lax.fori_loop(0, 50, lambda _, y: jnp.sin(y) + x, x)


def long_formula(x):
    for power in range(1, 15):
        x = jnp.tanh(x) + power * jnp.cos(x)
    return x


def cheap(x):
    return x * 2


class Branches:
    def costly(self, x):
        return jax.lax.fori_loop(0, 50, lambda _, y: jnp.cos(y) + x, x)

    def chosen(self, x):
        return jax.lax.cond(x > 2, lambda x: self.costly(x), cheap, x)


@pytest.mark.parametrize(
    ("chosen", "count"),
    [
        (lambda x: jax.lax.cond(x > 2, costly, cheap, x), 1),
        (lambda x: jax.lax.cond(x > 2, cheap, lambda x: x, x), 0),
        (Branches().chosen, 1),  # a method that a lambda calls
        (lambda x: jax.lax.switch(jnp.int32(x) % 3, [cheap, long_formula, cheap], x), 1),
    ],
)
def test_a_costly_branch_under_vmap_is_named(chosen, count):
    facts = compiled(jax.vmap(chosen), jnp.ones(64))
    notes = list(program_notes._branches(facts, CALL, ExecutedProgram("step")))
    assert len(notes) == count and all("computes both sides" in note for note in notes)


def other_costly(x):
    return jax.lax.fori_loop(0, 50, lambda _, y: jnp.cos(y) + x, x)


def also_outside(x):
    y = costly(x * 3)
    return jax.lax.cond(x > 2, costly, cheap, y)


@pytest.mark.parametrize(
    ("chosen", "axes", "found"),
    [
        (lambda x, t: jax.lax.cond(t > 2, costly, cheap, x), 0, True),
        (lambda x, t: also_outside(x + t), 0, True),
        (lambda x, t: jax.lax.cond(t > 2, costly, other_costly, x), 0, True),  # an element needs one of them
        # what decides is the same for all elements, and another operation of the line is a select
        (lambda x, t: jax.lax.cond(t > 2, costly, cheap, jnp.where(x > 2, x, 0)), None, False),
        (lambda x, t: jnp.where(t > 2, costly(x), cheap(x)), 0, False),
    ],
)
def test_what_a_costly_branch_under_vmap_takes_is_a_finding(chosen, axes, found):
    """Each instruction of a loop takes 10 ms; the branch is the last loop that the program enters."""
    times = jnp.ones(64) if axes == 0 else 1.0
    facts = compiled(jax.vmap(chosen, (0, axes)), jnp.ones(64), times)
    bodies = {i.called for i in facts.instructions if i.opcode == "while"}
    ops = {("cpu 0", i.name): [0.01] for i in facts.instructions if i.computation in bodies}
    program = ExecutedProgram("step", 4, devices={"cpu 0": [(1.0, 2.0)]}, ops=ops)
    activity = DeviceActivity([(1.0, 2.0)], {"step": program})
    call = replace(CALL, stages={"trace": (0.0, 1.0)})
    analysis = Analysis(Log("a", 0, 2, compiled=[call], programs=[facts], activity=activity))
    findings = list(find_selected_branches(analysis))
    assert bodies and [f.cause for f in findings] == (["both branches"] if found else [])
    total_s = 0.01 * len(ops) / len(bodies)
    assert all(0.5 * total_s <= f.seconds <= total_s for f in findings)
    assert not list(program_notes._branches(facts, call, program))


@pytest.mark.parametrize(("seconds", "count"), [(0.9, 1), (0.3, 0)])
def test_a_convolution_in_groups_that_takes_most_of_the_time_is_named(seconds, count):
    text = (
        "HloModule jit_step\n\n"
        "%fused (a: f32[1,8,8,4], b: f32[3,3,1,4]) -> f32[1,8,8,4] {\n"
        "  ROOT %conv.1 = f32[1,8,8,4]{3,2,1,0} convolution(%a, %b), window={size=3x3}, "
        "dim_labels=b01f_01io->b01f, feature_group_count=4\n"
        "}\n\n"
        "ENTRY %main (x: f32[1,8,8,4]) -> f32[1,8,8,4] {\n"
        "  %x = f32[1,8,8,4]{3,2,1,0} parameter(0)\n"
        "  %fusion.1 = f32[1,8,8,4]{3,2,1,0} fusion(%x, %x), kind=kCustom, calls=%fused, metadata={}\n"
        "  ROOT %add.1 = f32[1,8,8,4]{3,2,1,0} add(%fusion.1, %x)\n"
        "}\n"
    )
    ops = defaultdict(list, {("cpu 0", "fusion.1"): [seconds], ("cpu 0", "add.1"): [1 - seconds]})
    notes = list(program_notes._grouped(facts_of(text), CALL, ExecutedProgram("step", ops=ops)))
    assert len(notes) == count
    assert all("a convolution in 4 groups takes most of step's time (a.py:3)" in note for note in notes)


def errors(p, times):
    return jnp.concatenate([jnp.exp(-p["rate"] * times) * p["size"][0], jnp.cos(times) * p["size"][1]])


def wide(p, times):
    return errors(p, times)[:9]


def in_function(p, times):
    return jax.jacrev(lambda q: errors(q, times))(p)


@pytest.mark.parametrize(
    ("function", "numbers"),
    [
        (jax.jacrev(errors), "128 results"),
        (in_function, "128 results"),
        (jax.jacrev(wide), ""),
        (jax.jacfwd(errors), ""),  # another program may have it under jacrev
        (errors, ""),
    ],
)
def test_a_long_jacobian_is_for_forward_mode(function, numbers):
    point = {"rate": jnp.ones(()), "size": jnp.ones(2)}
    name = getattr(function, "__wrapped__", function).__name__
    call = replace(CALL, name=name, defined=f"{__file__}:1")
    notes = list(program_notes._tall_jacobians(compiled(function, point, jnp.ones(64)), call))
    assert len(notes) == bool(numbers)
    assert all(numbers in note and "each of 3 numbers" in note for note in notes)


@pytest.mark.parametrize(("rows", "batch", "notes"), [(2, 0, 1), (3, 0, 1), (3, 17, 1), (9, 0, 0)])
def test_linear_algebra_of_tiny_matrices_in_a_loop_has_a_note(rows, batch, notes):
    def filtered(state):
        def turn(x, _):
            return jnp.linalg.solve(jnp.eye(rows) + 0.1 * x[..., None] * x[..., None, :], x[..., None])[
                ..., 0
            ], None

        return jax.lax.scan(turn, state, None, length=5)[0]

    facts = compiled(filtered, jnp.ones((batch, rows) if batch else rows))
    program = ExecutedProgram("filtered", calls=1)
    program.devices["cpu:0"] = [(0.0, 1.0)]
    for i in facts.instructions:
        if i.opcode in ("custom-call", "triangular-solve"):
            program.ops["cpu:0", i.name] = [0.25]
    found = list(program_notes._tiny_systems(facts, CALL, program))
    assert len(found) == notes and all("matrices of at most 4 rows" in note for note in found)
