"""The hottest programs: how often they ran, what they do, and their place under the roofline."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import jaxperf
from jaxperf.measure import ceilings, roofline
from jaxperf.measure.stages import build_program
from jaxperf.result import Environment, Grid, Measurement, Note, Result, Table, Text, save_result
from jaxperf.watch.log import Log
from jaxperf.watch.observe.compiles import Compiled
from jaxperf.watch.observe.executables import Facts
from jaxperf.watch.observe.source_location import NOWHERE
from jaxperf.watch.observe.windows import DeviceActivity, ExecutedProgram
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
LOOP = replace(STEP, text=TEXT.replace(" multiply(", " while("))


def record(*facts: Facts, calls: int = 2, devices: int = 1) -> Log:
    """A record of a program whose two instructions took 1 and 3 ms, four times on each device."""
    ops: dict[tuple[str, str], list[float]] = defaultdict(list)
    spans = {}
    for i in range(devices):
        ops[f"cpu {i}", "multiply.1"] = [0.001] * 4
        ops[f"cpu {i}", "fusion.1"] = [0.003] * 4
        ops[f"cpu {i}", "dot.1"] = [0.0001] * 99  # inside, where the profiler tells of it
        spans[f"cpu {i}"] = [(j * 0.004, (j + 1) * 0.004) for j in range(4)]
    program = ExecutedProgram("step", calls, [0.0002] * calls, 0, defaultdict(list, spans), ops)
    activity = DeviceActivity([(0.0, 1.0)], {"step": program})
    return Log("a", 0.0, 1.0, programs=list(facts), activity=activity)


def keep_roofline(monkeypatch: pytest.MonkeyPatch, folder: Path, environment: Environment) -> None:
    """Keep a roofline of 1 TFLOP/s, 10 GB/s and 10 us per call for a machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    rows = [
        Measurement(at, unit, (value,), quantity=quantity, configuration=at)
        for quantity, at, unit, value in (
            (ceilings.DISPATCH, "each", "s", 1e-5),
            (ceilings.DISPATCH, "end", "s", 1e-6),
            (ceilings.MATRIX, "float32", "FLOP/s", 1e12),
            (ceilings.MEMORY, str(ceilings.SMALLEST), "bytes/s", 1e10),
            (ceilings.COPY, ceilings.TO_DEVICE, "bytes/s", 1e9),
            (ceilings.COPY, ceilings.TO_HOST, "bytes/s", 1e9),
        )
    ]
    result = Result("roofline", "", "T", "Q?", {}, environment, blocks=(Table("", tuple(rows)),))
    save_result(result, roofline.path_for(environment))


HERE = Environment(cpu="Z80", backend="cpu", devices=("cpu:0 cpu",))


def texts_and_notes(record: Log, environment: Environment = HERE) -> tuple[list[str], list[str]]:
    """Places and notes of a record."""
    blocks = list(top_programs.program_blocks(Analysis(record), environment))
    assert isinstance(blocks[0], Grid)
    return [b.text for b in blocks if isinstance(b, Text)], [b.text for b in blocks if isinstance(b, Note)]


def test_executions_are_counted_by_what_devices_ran_and_not_by_calls() -> None:
    (program,) = record(STEP).activity.programs.values()
    assert top_programs.execution_count(program, STEP) == pytest.approx(4.0)
    program.ops["cpu 0", "multiply.1"] = [0.001] * 5  # the window's end cut the fifth execution off
    assert 4 < top_programs.execution_count(program, STEP) < 4.5
    for devices in (1, 3):
        (hot,) = top_programs.hottest_programs(Analysis(record(STEP, calls=1, devices=devices)))
        assert hot.device_s == pytest.approx(0.004)


def test_a_program_has_its_place_where_a_roofline_is_stored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keep_roofline(monkeypatch, tmp_path, HERE)
    for changes, reason in (
        ({}, "1 TFLOP/s and 250 MB/s, 100% of what arithmetic allows"),
        ({"flops": 1e6, "bytes_accessed": 1e7}, "250 MFLOP/s and 2.50 GB/s, 25% of what memory allows"),
        ({"flops": 1e3, "bytes_accessed": 1e3}, "so little work that dispatching a call limits it"),
        ({"flops": 8e9}, "200% of what arithmetic allows; the compiler's estimate is too large"),
    ):
        (place,), notes = texts_and_notes(record(replace(STEP, **changes)))  # type: ignore[arg-type]
        assert place.startswith("step: ") and reason in place and notes == []


def test_a_program_of_which_too_little_is_known_has_no_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    assert texts_and_notes(record(STEP)) == ([], [roofline.MISSING])
    keep_roofline(monkeypatch, tmp_path, HERE)
    fake = replace(HERE, devices_are_fake=True)
    for facts, environment in (
        ((STEP, replace(STEP, flops=1.0)), HERE),  # two programs have this name
        ((), HERE),
        ((replace(STEP, text=""),), HERE),
        ((LOOP,), HERE),  # the compiler counts one turn
        ((replace(STEP, flops=0.0, bytes_accessed=0.0),), HERE),
        ((replace(STEP, platform="gpu"),), HERE),
        ((STEP,), fake),
    ):
        assert texts_and_notes(record(*facts), environment) == ([], [])
    roofline.path_for(HERE).write_text("{")
    places, (note,) = texts_and_notes(record(STEP))
    assert places == [] and "is not JSON" in note


@pytest.mark.parametrize(("sizes", "cell"), [((), "-"), ((8000,), "8 kB"), ((8000, 4000), "8 kB")])
def test_of_calls_with_several_sizes_the_bytes_from_the_host_are_at_most_the_largest(
    sizes: tuple[int, ...], cell: str
) -> None:
    run = record(STEP)
    run.compiled.extend(Compiled("step", NOWHERE, host={"x": size}) for size in sizes)
    run.activity.programs["step"].copies = 2
    (grid, *_) = top_programs.program_blocks(Analysis(run), HERE)
    assert isinstance(grid, Grid) and grid.rows[0][6] == cell


def test_facts_of_a_live_program_are_those_of_its_stages() -> None:
    def both(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda i, a: jnp.tanh(a @ a), x)

    x, jitted = jnp.ones((16, 16)), jax.jit(both)
    with jaxperf.watch(show=False, profile=False) as outcome:
        jitted(x).block_until_ready()
    assert outcome.log is not None
    (facts,) = (f for f in outcome.log.programs if f.name == "both")
    program = build_program(both, x).program
    assert (facts.flops, facts.bytes_accessed) == (program.flops, program.bytes_accessed)
    assert (facts.loops, facts.matrix_dtype) == (program.loops, program.matrix_dtype) == (1, "float32")
    assert facts.peak_bytes == program.peak_bytes
