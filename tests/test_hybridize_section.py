"""Section 8.1's script: the book's programs, the constant 10 on the page, a whole pass in order."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
from stories import begin, log_of, whole

from experiments import hybridize as section
from jaxperf.errors import JaxperfError
from jaxperf.flags import check_bounds
from jaxperf.measure import ceilings
from jaxperf.result import Code, Failed, Heading, Output, Peers, Result, Table


def test_a_flag_out_of_range_is_refused_in_one_line() -> None:
    for flags, line in (
        ({"calls": 0}, "--calls is 0; give at least 1"),
        ({"widths": (32, 3)}, "--widths is 3; give at least 4"),
        ({"batches": (0,)}, "--batches is 0; give at least 1"),
        ({"image_batch": -1}, "--image-batch is -1; give at least 1"),
    ):
        with pytest.raises(JaxperfError) as caught:
            check_bounds(section.Config(**flags))  # type: ignore[arg-type]
        assert str(caught.value) == line


def test_the_program_in_a_string_is_the_program_that_ran_line_by_line(capsys) -> None:
    assert section.fancy_func(1, 2, 3, 4) == 10
    exec(compile(section.evoke_str(), "", "exec"), {})
    assert capsys.readouterr().out == "10\n"


def test_the_string_is_shown_before_what_it_prints() -> None:
    story = begin("hybridize")
    section.imperative_and_symbolic(story)
    first, second = (block.text for block in story.result().of(Output))
    assert first == "10"
    assert second.rstrip().startswith(section.evoke_str().rstrip()) and second.rstrip().endswith("\n10")


def test_the_line_with_the_constant_ten_is_shown() -> None:
    story = begin("hybridize")
    section.the_program_that_jax_sees(story)
    told = story.result()
    jaxpr, stablehlo, optimized = (block.text for block in told.of(Output))
    assert jaxpr.count("add ") == 3 and stablehlo.count("stablehlo.add") == 3
    assert optimized.startswith("ENTRY") and optimized.endswith("}")
    assert "constant(10)" in optimized and "add(" not in optimized
    assert told.facts == {"adds_traced": 3, "adds_in_optimized_program": 0}
    assert told.claims[0].holds == "holds"


def test_python_holds_three_arrays_and_the_compiled_program_one() -> None:
    story = begin("hybridize")
    section.memory_of_e_and_f(story)
    told = story.result()
    assert told.facts == {"bytes_held_op_by_op": 3_000_000, "bytes_needed_compiled": 1_000_000}
    assert (told.claims[0].holds, told.claims[0].prediction) == ("holds", "right")


def test_the_benchmark_interleaves_four_ways_and_waits_at_the_end() -> None:
    rows = section.benchmark(section.get_net(0), jnp.ones((1, 512)), calls=3, rounds=2)
    assert list(rows) == ["op by op", "nnx.jit", "hybridize", "ahead of time"]
    assert len({m.rounds for m in rows.values()}) == 1 and all(m.rounds for m in rows.values())
    assert all((m.loops, len(m.values)) == (3, 2) for m in rows.values())


@pytest.fixture
def told() -> Result:
    return whole("hybridize")


@pytest.mark.thorough
def test_a_whole_pass_tells_the_books_parts_in_order(told: Result) -> None:
    assert not list(told.of(Failed))
    assert len(log_of(told)) <= 80
    titles = [heading.title for heading in told.of(Heading)]
    numbers = ["8.1 Two", "8.1 The", "8.1.1", *["8.1.2"] * 3, *["8.1.3"], "8.1 Exercise 1", *["8.1.3"] * 2]
    for title, number in zip(titles, numbers):
        assert title.startswith(number)
    assert [title[:8] for title in titles[-3:]] == ["8.1 Exer", "8.1 Wher", "8.1 Who "]


@pytest.mark.thorough
def test_the_output_before_and_after_is_the_same_and_the_second_call_does_not_trace(told: Result) -> None:
    facts = told.facts
    assert facts["outputs_max_abs_diff"] <= 1e-6
    assert (facts["trace_count_first"], facts["trace_count_second"]) == (1, 0)


@pytest.mark.thorough
def test_the_books_figures_are_next_to_the_ways_they_belong_to(told: Result) -> None:
    table = next(t for t in told.of(Table) if t.references)
    assert {r.beside: r.value for r in table.references} == {
        "op by op": pytest.approx(494.3e-6),
        "hybridize": pytest.approx(205.3e-6),
    }
    assert {r.beside for r in table.references} <= {m.name for m in table.rows}


@pytest.mark.thorough
def test_every_verdict_about_times_comes_from_interleaved_rounds(told: Result) -> None:
    for table in told.of(Table):
        if table.title != "What the first call pays":
            rows = [m for m in table.rows if m.quantity != ceilings.DISPATCH]  # which decides nothing
            assert len({m.rounds for m in rows}) == 1 and rows[0].rounds
            assert all(len(m.values) >= 6 for m in rows)


@pytest.mark.thorough
def test_the_least_that_a_call_costs_stands_below_the_small_ones(told: Result) -> None:
    [table] = [t for t in told.of(Table) if t.title == "Seconds per call" and t.references]
    least = table.rows[-1]
    assert (least.name, least.quantity) == ("empty program, queued", ceilings.DISPATCH)


@pytest.mark.thorough
def test_peers_are_named_where_their_work_is_discussed(told: Result) -> None:
    assert [peer.workload for peer in told.of(Peers)] == ["8.1 MLP", "8.1 export", "LeNet forward"]


@pytest.mark.thorough
def test_the_code_that_is_shown_is_the_code_that_is_measured(told: Result) -> None:
    shown = " ".join(code.source for code in told.of(Code))
    for name in ("def fancy_func", "def evoke_str", "def benchmark", "class HybridNet", "def end_of_resnet"):
        assert name in shown


@pytest.mark.thorough
def test_claims_that_need_no_clock_are_decided(told: Result) -> None:
    decided = [c for c in told.claims if c.prediction == "right" and c.holds in ("holds", "does not hold")]
    assert len(decided) >= 9
