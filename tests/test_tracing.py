"""Section 8.1.3: prints fall silent, asnumpy fails where it stands, and each trace is counted."""

import jax
import jax.numpy as jnp
import pytest
from stories import begin

from jaxperf.chapter import tracing
from jaxperf.result import Grid, Output


@pytest.fixture
def story():
    return begin("hybridize")


def test_what_python_and_the_program_print_is_caught_and_the_result_follows():
    def call():
        print("from Python")
        jax.debug.print("from the program: {}", jnp.ones(()))
        return jnp.zeros(())

    assert tracing.printed(call).splitlines() == ["from Python", "from the program: 1.0", "0.0"]


@pytest.mark.thorough
def test_prints_are_heard_op_by_op_and_not_from_the_program(story):
    tracing.prints_fall_silent(story)
    told = story.result()
    assert told.facts == {"prints_on_second_call": 0, "hybrid_net_outputs_equal": True}
    assert [(claim.holds, claim.prediction) for claim in told.claims] == [("holds", "right")]


def test_prints_and_outputs_are_shown_as_printed(story):
    tracing.prints_fall_silent(story)
    (block,) = story.result().of(Output)
    eager, again, first, second = (part.splitlines()[1:] for part in block.text.split("--- ")[1:])
    assert eager == again and eager[0] == "type: ArrayImpl"
    assert "Tracer" in first[0] and eager[-1] == first[-1] == second[-1]  # the output
    assert second[0].startswith("hidden, at run time: [[")
    assert "\\n" not in block.text


def test_asnumpy_fails_once_compiled_with_the_real_message_and_its_line(story):
    tracing.asnumpy_inside(story)
    told = story.result()
    assert told.facts["asnumpy_error"] == "TracerArrayConversionError"
    assert told.facts["asnumpy_line"] == "tracing.py, __call__: np.asarray(x)"
    (block,) = told.of(Output)
    assert "was called on traced array with shape float32[1,4]" in block.text
    assert [(claim.holds, claim.prediction) for claim in told.claims] == [("holds", "right")]


def test_what_works_fails_nowhere_and_other_errors_are_not_hidden():
    assert tracing.where_it_fails(lambda: None) == ("", "", "")
    with pytest.raises(ZeroDivisionError):
        tracing.where_it_fails(lambda: 1 // 0)


def test_only_what_changes_the_program_traces_again(story):
    tracing.what_traces_again(story)
    told = story.result()
    (grid,) = told.of(Grid)
    assert {name: int(n) for name, n in grid.rows} == {
        "first call": 1,
        "same shapes again": 0,
        "new shape": 1,
        "new dtype": 1,
        "a Python number (weak type)": 1,
        "another Python number": 0,
        "new static value": 1,
    }
    assert told.facts == {"traces_in_all": 5}
    assert [(claim.holds, claim.prediction) for claim in told.claims] == [("holds", "right")]


def test_a_limit_on_traces_is_kept_by_an_error() -> None:
    assert "traced > 1 times" in tracing.traced_too_often()
