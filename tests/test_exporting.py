"""Exporting: the other process runs the program without the code that made it."""

import numpy as np
import pytest
from flax import nnx
from stories import begin

from jaxperf.chapter import exporting
from jaxperf.models import MLP
from jaxperf.result import Output


def told(net):
    story = begin("hybridize")
    exporting.export_and_reload(story, net)
    return story.result()


@pytest.fixture(scope="module")
def net():
    return MLP((8, 4, 2), rngs=nnx.Rngs(0))


def test_the_exported_program_runs_where_neither_flax_nor_our_code_is(net):
    found = told(net)
    assert found.facts["export_max_abs_diff"] <= 1e-6
    assert [(c.holds, c.prediction) for c in found.claims] == [("holds", "right")]
    shown = "\n".join(block.text for block in found.of(Output))
    assert "my_mlp.jaxexport: " in shown and "my_mlp.safetensors: " in shown
    assert "stablehlo.dot_general" in shown and "loc(" not in shown
    assert "ShapeDtypeStruct(shape=(1, 2), dtype=float32)" in shown


def test_another_output_or_loaded_code_of_ours_is_not_portable(net, monkeypatch):
    for answer in (
        {"output": [[9.0, 9.0]], "made_with": []},
        {"output": np.asarray(net(np.asarray([[0.0] * 8]))).tolist(), "made_with": ["flax"]},
    ):
        monkeypatch.setattr(exporting, "in_fresh_process", lambda *_, answer=answer: answer)
        assert [c.holds for c in told(net).claims] == ["does not hold"]
