"""Causes that compiled programs and their calls reveal: placements, graphs, collectives, constant work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import jaxperf
from jaxperf.watch.finding import Finding
from jaxperf.watch.observe import instructions
from jaxperf.watch.observe.compiles import Compiled
from jaxperf.watch.observe.executables import Facts
from jaxperf.watch.observe.sampler import EAGER, StackSample
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.observe.windows import ExecutedProgram, Seen
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules import compile_notes, program_notes
from jaxperf.watch.rules.programs import find_constant_work
from jaxperf.watch.rules.settings import _one_by_one, _set_at
from jaxperf.watch.rules.steps import find_small_puts
from jaxperf.watch.rules.traces import find_placements, find_retraces, together_s
from jaxperf.watch.session import Record


def watched(program: Callable[[], object]) -> Analysis:
    with jaxperf.watch(show=False, profile=False) as outcome:
        program()
    assert outcome.record is not None
    return Analysis(outcome.record)


@pytest.mark.parametrize("alike", [False, True])
def test_arrays_that_are_committed_only_sometimes_compile_a_second_program(alike: bool) -> None:
    @jax.jit
    def step(x: jax.Array) -> jax.Array:
        return x * 61

    free = jnp.ones(61)
    fixed = jax.device_put(free, jax.devices()[0])

    def program() -> None:
        for x in (fixed, fixed) if alike else (free, fixed):
            step(x)  # here

    findings: list[Finding] = list(find_placements(watched(program)))
    assert [f.cause for f in findings] == ([] if alike else ["placement"])
    for finding in findings:
        assert finding.at.source.endswith("# here") and "argument 0" in finding.reason
        assert "not committed, on device 0 -> committed to device 0" in finding.reason


def test_another_device_needs_a_program_of_its_own() -> None:
    if len(jax.devices()) < 2:
        pytest.skip("there is one device")
    step = jax.jit(lambda x: x * 67)
    arrays = [jax.device_put(jnp.ones(67), device) for device in jax.devices()[:2]]
    assert list(find_placements(watched(lambda: [step(x) for x in arrays]))) == []


def test_the_part_of_a_graph_that_is_new_each_time_is_named() -> None:
    @nnx.jit
    def step(optimizer: nnx.Optimizer, model: nnx.Module) -> None:
        optimizer.update(model, nnx.state(model, nnx.Param))

    def program() -> None:
        for _ in range(3):
            model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
            step(nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param), model)

    (finding,) = (f for f in find_retraces(watched(program)) if f.name == "Optimizer")
    assert (finding.cause, finding.argument) == ("static part", "tx")
    assert "tx of the Optimizer" in finding.reason and "GradientTransformation" in finding.reason


def test_a_function_that_is_made_anew_for_each_size_could_share_no_program() -> None:
    def program() -> None:
        for n in range(71, 75):
            jax.jit(lambda x: x * 2)(jnp.ones(n))

    assert [f.cause for f in find_retraces(watched(program))] == []


def test_seconds_of_several_threads_count_once() -> None:
    place = Place("a.py", 1)
    compiled = [
        Compiled("step", place, {"trace": (0.0, 2.0)}),
        Compiled("step", place, {"trace": (1.0, 3.0)}),
    ]
    assert together_s(compiled) == 3.0


def test_a_setting_is_found_in_a_module_of_settings(tmp_path: Path) -> None:
    settings, train = tmp_path / "settings.py", tmp_path / "train.py"
    settings.write_text('import jax\njax.config.update("jax_disable_jit", True)\n')
    train.write_text("@jax.jit\ndef step(x):\n    return x + 1\n")
    inside, outside = Place(str(train), 3, "step"), Place(str(train), 9)
    compiled = [
        Compiled("add", inside, {"trace": (0.0, 2.0)}),
        Compiled("mul", outside, {"trace": (2.0, 3.0)}),
    ]
    record = Record("a", 0, 9, compiled, [], [], {}, [], [], Seen(), modules=[str(settings), str(train)])
    assert _set_at("jax_disable_jit", Analysis(record), inside) == Place(str(settings), 2)
    assert [c.name for c in _one_by_one(Analysis(record))] == ["add"]


# what a program's text shows


def compiled_text(function: Callable[..., object], *arguments: object) -> str:
    text = jax.jit(function).lower(*arguments).compile().as_text()
    assert text is not None
    return text


def facts_of(text: str, *, devices: int = 1) -> Facts:
    return Facts("step", "cpu", 1e6, 1e6, devices=tuple(range(devices)), text=text)


def test_work_that_depends_on_no_argument_is_told_from_what_fills_memory() -> None:
    def step(x: jax.Array) -> jax.Array:
        return x * jnp.sort(jnp.arange(30_000) * 7919 % 10_007)[:100].sum() + jnp.zeros(100)

    text = compiled_text(step, jnp.ones(100))
    facts = facts_of(text)
    parsed = list(instructions.parse_instructions(text))
    fixed = instructions.independent_instructions(parsed, facts.steps)
    assert "sort" in {i.opcode for i in parsed if i.name in fixed}
    assert not fixed & {i.name for i in parsed if i.opcode in ("parameter", "broadcast", "constant")}


@pytest.mark.parametrize(("share", "count"), [(0.9, 1), (0.1, 0)])
def test_constant_work_is_a_finding_if_it_takes_a_share(share: float, count: int) -> None:
    text = (
        "HloModule jit_step, entry_computation_layout={(f32[4]{0})->f32[4]{0}}, x=y\n\n"
        "ENTRY %main (x: f32[4]) -> f32[4] {\n"
        "  %x = f32[4]{0} parameter(0)\n"
        "  %c = f32[4]{0} constant({1, 2, 3, 4})\n"
        "  %sort.1 = f32[4]{0} sort(%c), dimensions={0}\n"
        "  ROOT %add.1 = f32[4]{0} add(%x, %sort.1)\n"
        "}\n"
    )
    ops = defaultdict(list, {("cpu 0", "sort.1"): [share] * 4, ("cpu 0", "add.1"): [1 - share] * 4})
    program = ExecutedProgram(
        "step", 4, [1e-4] * 4, devices=defaultdict(list, {"cpu 0": [(1.0, 5.0)]}), ops=ops
    )
    call = Compiled("step", Place("a.py", 3), {"trace": (0.0, 0.5)}, explained=True)
    record = Record(
        "a", 0, 5, [call], [], [], {}, [], [facts_of(text)], Seen([(1.0, 5.0)], {"step": program})
    )
    assert [f.cause for f in find_constant_work(Analysis(record))] == ["constant work"] * count


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


@pytest.mark.parametrize(("devices", "count"), [(4, 2), (1, 0)])
def test_collectives_in_a_condition_and_large_gathers_are_located(devices: int, count: int) -> None:
    call = Compiled("step", Place("a.py", 3))
    parsed = list(instructions.parse_instructions(WHILE))
    notes = list(program_notes._collectives(facts_of(WHILE, devices=devices), call, parsed))
    assert len(notes) == count  # the sum of a gradient is no fault
    if count:
        assert "all-gather of f32[2048,2048], 16.8 MB per call at a.py:3" in notes[1]
        assert "all-reduce in the condition of a loop at a.py:3" in notes[0]


def costly(x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 50, lambda _, y: jnp.sin(y) + x, x)


def cheap(x: jax.Array) -> jax.Array:
    return x * 2


@pytest.mark.parametrize(("branch", "count"), [(costly, 1), (cheap, 0)])
def test_a_costly_branch_under_vmap_is_named(branch: Callable[[jax.Array], jax.Array], count: int) -> None:
    def chosen(x: jax.Array) -> jax.Array:
        if branch is costly:
            return jax.lax.cond(x > 2, costly, cheap, x)
        return jax.lax.cond(x > 2, cheap, lambda x: x, x)

    text = compiled_text(jax.vmap(chosen), jnp.ones(64))
    notes = list(
        program_notes._branches(
            facts_of(text), Compiled("step", Place("a.py", 3)), list(instructions.parse_instructions(text))
        )
    )
    assert len(notes) == count


def test_a_convolution_in_groups_that_takes_most_of_the_time_is_named() -> None:
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
    ops = defaultdict(list, {("cpu 0", "fusion.1"): [0.9], ("cpu 0", "add.1"): [0.1]})
    call, parsed = Compiled("step", Place("a.py", 3)), list(instructions.parse_instructions(text))
    (note,) = program_notes._grouped(facts_of(text), call, ExecutedProgram("step", ops=ops), parsed)
    assert "a convolution in 4 groups takes 90% of step's time (a.py:3)" in note


@pytest.mark.parametrize(("cache", "count"), [("", 1), ("gs://cache", 0)])
def test_a_start_that_compiles_for_long_is_told_of_the_cache(cache: str, count: int) -> None:
    call = Compiled("step", Place("a.py", 3), {"compile": (1.0, 5.0)})
    record = Record("a", 0, 9, [call], [], [], {}, [], [], Seen(), compile_cache=cache)
    assert len(list(compile_notes.cache_notes(Analysis(record)))) == count


@pytest.mark.parametrize(("each", "count"), [(40, 1), (1, 0)])
def test_many_small_puts_per_step_are_one_finding(each: int, count: int) -> None:
    at, step = Place("a.py", 3), Place("a.py", 5)
    times = [1 + i / 100 / each for i in range(100 * each)]
    samples = [StackSample(EAGER, at, 1 + i / 100, 1.01 + i / 100) for i in range(100)]
    program = ExecutedProgram(
        "step", 100, [1e-4] * 100, devices=defaultdict(list, {"cpu 0": [(1.0, 1.1), (1.9, 2.0)]})
    )
    call = Compiled("step", step, {"trace": (0.0, 0.5)}, explained=True)
    record = Record(
        "a", 0, 2, [call], [], samples, {}, [], [], Seen([(1.0, 2.0)], {"step": program}),
        small_puts={at: times},
    )  # fmt: skip
    assert [f.at for f in find_small_puts(Analysis(record))] == [at] * count
