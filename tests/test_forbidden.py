"""What tracing forbids: each thing is tried for real, next to the JAX way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stories import begin

from jaxperf.chapter import forbidden


def told():
    story = begin("hybridize")
    forbidden.what_tracing_forbids(story)
    return story.result()


def test_numpy_does_what_tracing_forbids_and_gives_the_value_that_the_jax_way_gives():
    for trial in forbidden.TRIALS:
        np.testing.assert_allclose(trial.fn(*(np.array(a) for a in trial.args)), trial.expected)
        np.testing.assert_allclose(jax.jit(trial.way)(*map(jnp.asarray, trial.args)), trial.expected)


def test_trying_leaves_the_arguments_as_they_were():
    for trial in forbidden.TRIALS:
        before = [a.copy() for a in trial.args]
        for fn in (trial.fn, trial.way):
            forbidden.attempt(fn, trial.args, trial.expected)
        for a, b in zip(trial.args, before, strict=True):
            np.testing.assert_array_equal(a, b)


def test_an_attempt_gives_the_errors_name_or_whether_the_value_is_right():
    x = np.ones(2, np.float32)
    assert forbidden.attempt(lambda x: x if x.sum() > 1 else -x, (x,), x) == "TracerBoolConversionError"
    assert forbidden.attempt(lambda x: x + 1, (x,), x + 1) == "works"
    assert forbidden.attempt(lambda x: x + 2, (x,), x + 1) == "a wrong value"


def test_an_error_that_has_nothing_to_do_with_tracing_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        forbidden.attempt(lambda x: 1 // 0, (np.ones(2),), 0)


def test_what_is_forbidden_raises_and_every_jax_way_works():
    found = told()
    raised = {t.name: found.facts[f"under_jit_{t.name}"] for t in forbidden.TRIALS}
    assert raised["asnumpy"] == "TracerArrayConversionError"
    assert raised["if_on_a_value"] == "TracerBoolConversionError"
    assert raised["set_all"] == raised["set_first"] == "TypeError"
    assert raised["for_over_rows"] == raised["add_in_place"] == "works"
    assert all(found.facts[f"jax_way_works_{t.name}"] for t in forbidden.TRIALS)
    verdicts = [(claim.holds, claim.prediction) for claim in found.claims]
    assert verdicts == [("does not hold", "right"), ("holds", "right")]  # a += b works here, as predicted


def test_wrong_values_do_not_pass_for_right(monkeypatch):
    x = np.ones(2, np.float32)
    names = ("set_all", "add_in_place", "if_on_a_value", "for_over_rows")
    trials = tuple(
        forbidden.Trial(name, name, lambda x: x * 3, (x,), "x + x", lambda x: x * 4, x * 2) for name in names
    )
    monkeypatch.setattr(forbidden, "TRIALS", trials)
    found = told()
    assert {v for k, v in found.facts.items() if k.startswith("under")} == {"a wrong value"}
    assert not any(v for k, v in found.facts.items() if k.startswith("jax_way"))
    assert [claim.holds for claim in found.claims] == ["does not hold"] * 2
    assert found.notes == ("the JAX way does not work for x + x, x + x, x + x, x + x",)
