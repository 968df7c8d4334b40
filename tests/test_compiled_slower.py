"""Where compiling is slower: both programs are shown, and the verdict follows the CPU seconds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stories import begin

from jaxperf.chapter import compiled_slower
from jaxperf.result import Measurement, Output, Ratio, Table


def rows(compiled_s):
    values = {"op by op": 1.0, "compiled": compiled_s}
    return [Measurement(n, "s", (s,) * 6, rounds="same") for n, s in values.items()]


def told(monkeypatch, usual_s, avoided_s, version="0.10.2"):
    found = {"": (rows(usual_s), ["one fusion"]), compiled_slower.SETTING: (rows(avoided_s), ["two fusions"])}
    monkeypatch.setattr(compiled_slower, "measured_with", lambda flags, *_: found[flags])
    monkeypatch.setattr(jax, "__version__", version)
    story = begin("hybridize")
    compiled_slower.where_compiling_is_slower(story, 8, 6)
    return story.result()


def test_op_by_op_and_compiled_are_the_same_function():
    x, w = jnp.ones((2, 4, 4, 3)), jnp.ones((3, 3, 3, 3)) / 9
    eager, compiled = compiled_slower.end_of_resnet(x, w, w), jax.jit(compiled_slower.end_of_resnet)(x, w, w)
    assert eager.shape == (2, 3)
    np.testing.assert_allclose(eager, compiled, rtol=1e-5)


@pytest.mark.thorough
def test_a_fresh_process_measures_both_ways_and_gives_the_program():
    found, program = compiled_slower.measured_with("", compiled_slower.cpu_seconds, 1, 2, 2)
    assert [m.name for m in found] == ["op by op", "compiled"]
    assert found[0].rounds == found[1].rounds != ""
    assert program[0].startswith("ENTRY") and not any("metadata=" in line for line in program)


def test_verdicts_follow_the_cpu_seconds(monkeypatch):
    for usual_s, avoided_s, version, verdict in (
        (4.0, 0.9, "0.10.2", ("does not hold", "right")),
        (4.0, 3.0, "0.10.2", ("does not hold", "wrong")),  # the setting does not help
        (0.9, 0.9, "0.10.2", ("holds", "wrong")),
        (0.9, 0.9, "0.12.0", ("holds", "right")),
        (4.0, 0.9, "0.12.0", ("does not hold", "wrong")),
    ):
        found = told(monkeypatch, usual_s, avoided_s, version)
        assert [(c.holds, c.prediction) for c in found.claims] == [verdict]
        assert found.facts == {
            "compiled_cpu_ratio": usual_s,
            "compiled_cpu_ratio_without_reduce": avoided_s,
        }


def test_both_programs_and_both_tables_are_told(monkeypatch):
    found = told(monkeypatch, 4.0, 0.9)
    (shown,) = found.of(Output)
    assert "one fusion" in shown.text and "two fusions" in shown.text
    assert len(list(found.of(Table))) == 2


def test_what_became_of_the_widest_mlp_follows_its_interval():
    for found, words in (
        (
            Ratio(1.11, 0.986, 1.19, 30),
            "That is not so here: the largest MLP of this run is 1.11 (0.986 to 1.19)",
        ),
        (Ratio(0.8, 0.7, 0.9, 30), "So it is here"),
        (Ratio(0.95, 0.8, 1.1, 30), "Here that is undecided"),
    ):
        assert words in " ".join(compiled_slower.about_the_mlp(found).split())
