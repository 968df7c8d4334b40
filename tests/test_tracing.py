"""Section 8.1.3: prints fall silent, each forbidden thing is tried for real, and each trace is counted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stories import begin

from jaxperf.chapter import tracing

TITLES = [row[0] for row in tracing.FORBIDDEN]


@pytest.fixture
def story():
    return begin("hybridize")


def test_what_python_and_the_program_print_is_caught():
    def call():
        print("from Python")
        jax.debug.print("from the program: {}", jnp.ones(()))

    assert tracing.printed(call).splitlines() == ["from Python", "from the program: 1.0"]


def test_prints_are_heard_op_by_op_and_not_from_the_program(story):
    tracing.prints_fall_silent(story)
    told = story.result()
    assert told.facts["prints_on_second_call"] == 0
    assert [claim.held for claim in told.claims] == [True]


@pytest.mark.parametrize("row", tracing.FORBIDDEN, ids=TITLES)
def test_numpy_does_what_tracing_forbids_and_gives_the_value_that_the_jax_way_gives(row):
    _, fn, args, _, way, expected = row
    np.testing.assert_allclose(fn(*(np.array(a) for a in args)), expected)
    np.testing.assert_allclose(jax.jit(way)(*map(jnp.asarray, args)), expected)


def test_trying_leaves_the_arguments_as_they_were():
    for _, fn, args, _, way, _ in tracing.FORBIDDEN:
        before = [a.copy() for a in args]
        tracing.attempt(fn, args), tracing.attempt(way, args)
        for a, b in zip(args, before, strict=True):
            np.testing.assert_array_equal(a, b)


def test_an_attempt_gives_the_errors_name_or_the_value():
    x = np.ones(2, np.float32)
    assert tracing.attempt(lambda x: x if x.sum() > 1 else -x, (x,)) == ("TracerBoolConversionError", None)
    error, value = tracing.attempt(lambda x: x + 1, (x,))
    assert error == ""
    np.testing.assert_array_equal(value, x + 1)


def test_an_error_that_has_nothing_to_do_with_tracing_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        tracing.attempt(lambda x: 1 // 0, (np.ones(2),))


def test_what_is_forbidden_raises_and_every_jax_way_works(story):
    tracing.what_tracing_forbids(story)
    told = story.result()
    raised = {t: told.facts[f"under_jit/{t}"] for t in TITLES}
    assert raised["x.asnumpy()"] == "TracerArrayConversionError"
    assert raised["if on a value"] == "TracerBoolConversionError"
    assert raised["a[:] = a + b"] == raised["a[0] = 1"] == "TypeError"
    assert raised["for over rows"] == raised["a += b"] == "works"
    assert all(told.facts[f"jax_way_works/{t}"] for t in TITLES)
    assert [claim.held for claim in told.claims] == [True]


def test_wrong_values_do_not_pass_for_right(story, monkeypatch):
    x = np.ones(2, np.float32)
    row = ("doubling", lambda x: x * 3, (x,), "x + x", lambda x: x * 4, x * 2)
    monkeypatch.setattr(tracing, "FORBIDDEN", (row,))
    tracing.what_tracing_forbids(story)
    told = story.result()
    assert told.facts == {"under_jit/doubling": "a wrong value", "jax_way_works/doubling": False}
    assert [claim.held for claim in told.claims] == [False]


def test_only_what_changes_the_program_traces_again(story):
    tracing.what_traces_again(story)
    counted = {name.removeprefix("traces/"): n for name, n in story.result().facts.items()}
    assert counted == {
        "first call": 1,
        "same again": 0,
        "new shape": 1,
        "new dtype": 1,
        "weak type (a Python number)": 1,
        "another Python number": 0,
        "new static value": 1,
    }
