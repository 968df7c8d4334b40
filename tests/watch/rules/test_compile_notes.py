"""Where compile time goes, and what a cache on disk would save."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jaxperf.watch.log import Log
from jaxperf.watch.observe.compiles import Compiled
from jaxperf.watch.observe.executables import Facts
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules import program_notes


def record(compile_s: float, *, wall_s: float = 9.0, facts: Facts | None = None, cache: str = "") -> Analysis:
    call = Compiled("step", Place("a.py", 3), {"trace": (0.5, 1.0), "compile": (1.0, 1.0 + compile_s)}, True)
    programs = [facts] if facts else []
    return Analysis(Log("a", 0, wall_s, compiled=[call], programs=programs, compile_cache=cache))


def busy(x: jax.Array) -> jax.Array:
    x = jnp.tanh(jnp.sin(x) @ jnp.cos(x)) @ jnp.exp(x)  # most of it
    return x + 1


def test_the_line_with_most_instructions_of_a_long_compile_is_named() -> None:
    text = jax.jit(busy).lower(jnp.ones((8, 8))).compile().as_text()
    assert text is not None
    facts = Facts("step", "cpu", 1, 1, text=text)
    (note,) = program_notes._slowest(record(5.0, facts=facts))
    assert "step (a.py:3) took 500 ms to trace, 0 s to lower, 5 s to compile; it has" in note
    assert "jnp.tanh(jnp.sin(x) @ jnp.cos(x))" in note


def test_of_two_programs_with_one_name_none_is_described() -> None:
    analysis = record(5.0, facts=Facts("step", "cpu", 1, 1, text=SCATTER))
    analysis.log.programs.append(Facts("step", "cpu", 1, 1, text=SCATTER.replace("[4]", "[5]")))
    (note,) = program_notes._slowest(analysis)
    assert note == "step (a.py:3) took 500 ms to trace, 0 s to lower, 5 s to compile"


@pytest.mark.parametrize(("cache", "count"), [("", 1), ("/tmp/cache", 0)])
def test_a_start_that_compiles_for_long_without_a_cache_has_a_note(cache: str, count: int) -> None:
    assert len(list(program_notes.cache_notes(record(5.0, cache=cache)))) == count


def test_programs_that_compile_at_the_same_time_take_the_time_of_one() -> None:
    analysis = record(5.0, wall_s=7.0)
    analysis.log.compiled.extend(analysis.log.compiled * 3)
    (note,) = program_notes.cache_notes(analysis)
    assert note.startswith("each start compiles for 5 s of 7 s ")


SCATTER = """HloModule jit_step, entry_computation_layout={(f32[4]{0})->f32[4]{0}}

%adder (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add.1 = f32[] add(%a, %b)
}

ENTRY %main (x: f32[4], i: s32[2,1], y: f32[2]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %i = s32[2,1]{1,0} parameter(1)
  %y = f32[2]{0} parameter(2)
  ROOT %scatter.1 = f32[4]{0} scatter(%x, %i, %y), update_window_dims={}, inserted_window_dims={0}, \
scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=%adder
}
"""
