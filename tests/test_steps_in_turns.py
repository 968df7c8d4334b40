"""The script that times ways and convolutions in turns: each part is the same training step."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxperf.errors import JaxperfError
from jaxperf.parallel import WAYS


@pytest.fixture(scope="module")
def turns() -> ModuleType:
    path = Path(__file__).parents[1] / "scripts" / "steps_in_turns.py"
    spec = importlib.util.spec_from_file_location("steps_in_turns", path)
    assert spec and spec.loader
    module = sys.modules["steps_in_turns"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_plain_step_trains_as_the_ways_do(turns: ModuleType) -> None:
    rng = np.random.default_rng(0)
    X, y = jnp.asarray(rng.random((4, 28, 28, 1), "float32")), jnp.arange(4)
    given = turns.model("own"), optax.sgd(0.1), X, y
    steps = [turns.plain(*given), turns.way("jit", *given)]
    for _ in range(3):
        plain, ours = (step() for step in steps)
    assert plain[1]["loss"] < 2.2
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), plain, ours)


@pytest.mark.thorough  # six compiled steps, 20 s
def test_a_line_for_each_way_with_its_ratio(
    turns: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAXPERF_ONEDNN", "0")  # as the user says it, so nothing is tried or started again
    assert turns.main(turns.Config("lenet", 2, 6)) == 0
    base, *others = capsys.readouterr().out.splitlines()
    assert base.startswith("plain jit: ")
    assert [line.split(":")[0] for line in others] == [f"way {way}" for way in WAYS]


def test_convolutions_that_this_process_cannot_have_are_refused(
    turns: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXPERF_ONEDNN", "0")
    with pytest.raises(JaxperfError, match="--kernels needs JAX before"):
        turns.main(turns.Config("lenet", 2, 6, kernels=True))
