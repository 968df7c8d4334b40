import sys
import sysconfig
from collections import defaultdict
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxperf.watch.log import Compiled, DeviceActivity, ExecutedProgram, Log, Wait
from jaxperf.watch.observe.executables import Facts
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.report import top_programs
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.source.call_sites import CallSite


def turn(_, z):
    return z @ z  # multiplies


def step(x):
    y = jnp.sort(x, axis=0)  # sorts
    return jax.lax.fori_loop(0, 3, turn, y)


@pytest.fixture(scope="module")
def text():
    return jax.jit(step).lower(jnp.ones((64, 64))).compile().as_text()


def analysis_of(*texts, sort_s, dot_s, jitted=True):
    programs = [Facts("step", "cpu", 1.0, 1.0, text=t) for t in texts]
    names = {i.opcode: i.name for i in programs[0].instructions}
    product = next(names[op] for op in ("dot", "custom-call", "fusion") if op in names)
    ops = defaultdict(list)
    ops["cpu 0", names["sort"]] = [sort_s]
    if dot_s:
        ops["cpu 0", product] = [dot_s / 2, dot_s / 2]
        ops["cpu 0", names["while"]] = [dot_s]
    program = ExecutedProgram("step", devices=defaultdict(list, {"cpu 0": [(0.0, sort_s + dot_s)]}), ops=ops)
    call = Compiled("step", Place("a.py", 3), {"compile": (-1.0, 0.0)}, explained=True)
    sites = [CallSite(Place("a.py", 3), "step", "step")] if jitted else []
    record = Log("a", 0.0, 1.0, compiled=[call] if jitted else [], programs=programs, call_sites=sites,
                    activity=DeviceActivity([(0.0, 1.0)], {"step": program}))  # fmt: skip
    return Analysis(record)


def test_lines_of_jitted_programs_have_shares_if_devices_compute(text):
    (table,) = top_programs.line_blocks(analysis_of(text, sort_s=0.3, dot_s=0.1))
    assert [row[:2] for row in table.rows] == [("sort", "75%"), ("dot_general", "25%")]
    assert [source.rpartition("# ")[2] for *_, source in table.rows] == ["sorts", "multiplies"]
    for options in ({"sort_s": 0.02, "dot_s": 0.01}, {"sort_s": 0.3, "dot_s": 0.1, "jitted": False}):
        assert list(top_programs.line_blocks(analysis_of(text, **options))) == []


def test_an_instruction_that_two_programs_of_one_name_have_at_different_lines_has_none(text):
    moved = text.replace("line=", "line=1")
    lines = top_programs.device_lines(analysis_of(text, moved, sort_s=0.3, dot_s=0.1))
    assert {*lines} == {NOWHERE} and sum(lines[NOWHERE].values()) == pytest.approx(0.4)


UNNAMED = """HloModule jit_step, entry_computation_layout={(f32[1,8,8,128]{3,2,1,0}, f32[3,3,1,128]{3,2,1,0})->f32[]}

%fused_computation (p.0: f32[1,8,8,128], p.1: f32[3,3,1,128]) -> f32[1,6,6,128] {
  %p.0 = f32[1,8,8,128]{3,2,1,0} parameter(0)
  %p.1 = f32[3,3,1,128]{3,2,1,0} parameter(1)
  ROOT %convolution.1 = f32[1,6,6,128]{3,2,1,0} convolution(%p.0, %p.1), window={size=3x3}, dim_labels=b01f_01io->b01f, feature_group_count=128
}

ENTRY %main (x: f32[1,8,8,128], k: f32[3,3,1,128]) -> f32[1,6,6,128] {
  %x = f32[1,8,8,128]{3,2,1,0} parameter(0)
  %k = f32[3,3,1,128]{3,2,1,0} parameter(1)
  ROOT %fusion.7 = f32[1,6,6,128]{3,2,1,0} fusion(%x, %k), kind=kCustom, calls=%fused_computation, backend_config={"fusion_config":{"kind":"__ynn_fusion"}}
}
"""  # noqa: E501


def test_a_fusion_without_a_line_says_what_it_computes():
    facts = Facts("step", "cpu", 1.0, 1.0, text=UNNAMED)
    assert top_programs._origins([facts], {"fusion.7"})["fusion.7"] == ("convolution in 128 groups", NOWHERE)
    product = UNNAMED.replace(", feature_group_count=128", "")
    names = top_programs._origins([Facts("step", "cpu", 1.0, 1.0, text=product)], {"fusion.7"})
    assert names["fusion.7"][0] == "conv_general_dilated (ynn_fusion)"


@pytest.mark.parametrize(("heavy", "first"), [(True, "convolution.1"), (False, "fusion.7")])
def test_the_line_of_a_fusion_is_that_of_the_operation_whose_name_it_has(heavy, first, monkeypatch):
    """What a product is fused with, such as a sum, may stand at another line, and ends the fusion."""
    monkeypatch.setattr(top_programs, "_line", lambda facts, instructions: Place(instructions[0].name, 1))
    text = UNNAMED if heavy else UNNAMED.replace(" convolution(", " gather(")
    origins = top_programs._origins([Facts("step", "cpu", 1.0, 1.0, text=text)], {"fusion.7"})
    assert origins["fusion.7"][1] == Place(first, 1)


def test_programs_that_a_library_jits_have_rows_at_the_librarys_lines(text):
    analysis = analysis_of(text, sort_s=0.3, dot_s=0.1, jitted=False)
    installed = f"{sysconfig.get_paths()['purelib']}/keras/src/layer.py"
    # the script that started pytest may be among the frames
    text = text.replace(__file__, installed).replace(str(Path(sys.argv[0]).absolute()), installed)
    analysis.log.programs[0] = Facts("step", "cpu", 1.0, 1.0, text=text)
    made = Compiled("step", Place("a.py", 3), {"compile": (-1.0, 0.0)}, owner="keras", through="keras")
    analysis.log.compiled.append(made)
    (table,) = top_programs.line_blocks(analysis)
    assert [row[0] for row in table.rows] == ["sort", "dot_general"]
    assert all(row[2].startswith("keras/src/layer.py:") for row in table.rows)


@pytest.mark.parametrize(("inside_s", "operations"), [(0.0, ["while"]), (0.2, ["dot_general", "sort"])])
def test_a_loop_that_takes_longer_than_windows_has_the_time_that_devices_compute(inside_s, operations, text):
    analysis = analysis_of(text, sort_s=0.01, dot_s=inside_s)
    analysis.log.activity.programs["step"].run_s = [0.01 + inside_s]  # of which a window saw the end
    analysis.log.waits.append(Wait("float", Place("a.py", 4), 0.1, 0.9, 4))
    (table,) = top_programs.line_blocks(analysis)
    assert [row[0] for row in table.rows] == operations


def test_a_loop_without_events_inside_has_its_own_time(text):
    """XLA may make one kernel of a loop."""
    analysis = analysis_of(text, sort_s=0.1, dot_s=0.3)
    ops = analysis.log.activity.programs["step"].ops
    for key in [key for key, times in ops.items() if len(times) > 1]:  # those of the product
        del ops[key]
    (table,) = top_programs.line_blocks(analysis)
    assert [row[:2] for row in table.rows] == [("while", "75%"), ("sort", "25%")]
    assert "return jax.lax.fori_loop" in table.rows[0][3]


def test_a_copy_that_xla_adds_has_the_line_of_its_first_use(text):
    facts = Facts("step", "cpu", 1.0, 1.0, text=text)
    (loop,) = (i for i in facts.instructions if i.opcode == "while")
    before = "  %copy.99 = f32[64,64]{1,0} copy(%x)\n  %tuple.99 = (f32[64,64]{1,0}) tuple(%copy.99)\n"
    operand = f"%{loop.operands[0]}"
    changed = text.replace(loop.text, before + loop.text.replace(operand, "%tuple.99"))
    origins = top_programs._origins([Facts("step", "cpu", 1.0, 1.0, text=changed)], {"copy.99"})
    operation, at = origins["copy.99"]
    assert operation == "copy" and at.source.startswith("return jax.lax.fori_loop")
