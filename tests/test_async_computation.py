"""Section 8.2: a whole pass keeps its promises, and mistakes are one line."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
from stories import log_of, whole

from experiments import async_computation as section
from jaxperf.errors import JaxperfError
from jaxperf.flags import check_bounds
from jaxperf.result import Grid, Peers, Timelines


def test_a_flag_out_of_range_is_refused_in_one_line() -> None:
    for flags, line in (
        ({"size": -1}, "--size is -1; give at least 0"),
        ({"points": 5}, "--points is 5; give at least 11"),
        ({"batch_size": 0}, "--batch-size is 0; give at least 1"),
    ):
        with pytest.raises(JaxperfError) as caught:
            check_bounds(section.Config(**flags))
        assert str(caught.value) == line


def test_a_sweep_too_short_for_a_crossover_is_refused_in_one_line() -> None:
    line = r"^--largest is 2048; give at least 65536, or 0 to have one chosen$"
    with pytest.raises(JaxperfError, match=line):
        section.check(section.Config(largest=2048))
    sizes = section.sweep_sizes(section.Config(largest=2**17, points=12))
    assert (len(sizes), sizes[0], sizes[-1]) == (12, 1024, 2**17)


def test_a_slow_front_end_computes_the_same() -> None:
    slow = section.slowly(lambda x: x + 1, 1e-4)
    assert (slow(jnp.ones(3)) == 2).all()


def test_the_books_cells_print_what_the_book_prints(capsys: pytest.CaptureFixture[str]) -> None:
    x = jnp.ones((8, 8))
    section.queued_and_finished(x)
    section.a_thousand_times(x, 3)
    printed = capsys.readouterr().out
    for words in ("Workloads are queued. time: ", "sum = 512.0", "Workloads are finished. time: ",
                  "synchronous. time: ", "asynchronous. time: "):  # fmt: skip
        assert words in printed
    assert section.three_statements()[2].tolist() == [[3.0, 3.0]]


@pytest.mark.thorough
def test_a_whole_pass_keeps_every_fact_that_the_section_promises() -> None:
    result = whole("async_computation")
    facts = ("t1_s", "t2_s", "t3_s", "prediction_error_synchronous", "prediction_error_asynchronous",
             "inflight_depth", "inflight_depth_donated", "fused_dot_cpu_ratio",
             "asleep_over_awake")  # fmt: skip
    assert all(isinstance(result.facts[name], float | int) for name in facts)
    assert result.facts["asynchronous_with_dispatch_off"] is False
    assert result.facts["losses_equal_however_waited_for"] is True
    assert result.facts["pending_behind_the_last_on_one_device"] == 0


@pytest.mark.thorough
def test_a_whole_pass_draws_the_models_and_the_memorys_curves() -> None:
    result = whole("async_computation")
    curves = {c.name: c for c in result.curves}
    for loop in ("synchronous", "asynchronous"):
        for what in ("measured", "predicted"):
            curve = curves[f"{loop}, {what}"]
            assert len(curve.x) == 11
            assert all(y and y > 0 for y in curve.y)
    assert {"window of one step", "asynchronous, fits the queue", "arguments donated"} <= curves.keys()
    [timelines] = result.of(Timelines)
    assert {t.name for t in timelines.runs} == {"synchronous loop", "asynchronous loop"}
    pieces = next(g for g in result.of(Grid) if g.heads[0] == "piece")
    assert [row[0] for row in pieces.rows] == ["t1", "t2", "t2", "t3"]


@pytest.mark.thorough
def test_a_whole_pass_judges_every_sentence_once_and_prints_a_short_log() -> None:
    result = whole("async_computation")
    statements = [claim.statement for claim in result.claims]
    assert len(statements) == len(set(statements)) == 19
    assert {claim.source for claim in result.claims} == {"section 8.2", "jaxperf"}
    assert any("contradict each other" in b.text for b in result.blocks if b.kind == "text")
    assert result.references == ()  # toy sizes have no figure of the book's beside them
    assert {p.workload for p in result.of(Peers)} == {"8.2 dot", "8.2 loop", "8.2 memory"}
    assert len(log_of(result)) <= 80
