"""Section 8.5: its ResNet-18 is the package's, its ways agree, and a whole pass keeps what it promises.

No test asks how long anything takes.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxperf.chapter import cells
from jaxperf.models import ResNet, resnet18

SCRIPT = Path(__file__).parents[2] / "experiments" / "multiple_gpus_concise.py"


# They hold the network; a step by pmap is "_fun" to JAX 0.10, as are two small programs with BatchNorm alone
LARGE = ("draw", "predict", "train_step", "step", "_fun", "correct", "summed_gradient")


class Compiled(list[str]):
    """The names of the programs that XLA has compiled."""

    def __call__(self, event: str, duration: float, **about: Any) -> None:
        if event.endswith("/backend_compile_duration"):
            self.append(str(about.get("fun_name")).removeprefix("jit(").removesuffix(")"))

    def large(self) -> list[str]:
        return [name for name in self if name in LARGE]


@contextlib.contextmanager
def compiled() -> Iterator[Compiled]:
    names = Compiled()
    jax.monitoring.register_event_duration_secs_listener(names)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(names)


@pytest.fixture(scope="module")
def loaded() -> tuple[ModuleType, Compiled]:
    with compiled() as names:
        return cells.load(SCRIPT, "--smoke"), names


@pytest.fixture(scope="module")
def section(loaded: tuple[ModuleType, Compiled]) -> ModuleType:
    return loaded[0]


def test_all_but_the_trainings_compile_few_large_programs(loaded: tuple[ModuleType, Compiled]) -> None:
    """The three trainings and the timing add five: a step each, and the counting of what is correct."""
    section, names = loaded
    assert {"train_step", "predict"} <= set(names.large())
    assert len(names.large()) + 5 <= section.LARGE_PROGRAMS, names.large()


@pytest.mark.thorough
def test_a_run_compiles_as_few_large_programs_as_it_promises() -> None:
    with compiled() as names:
        section = cells.load(SCRIPT, "--smoke", without=("answer",))
    assert len(names.large()) <= section.LARGE_PROGRAMS, names.large()


def test_a_gpus_compiled_program_knows_no_flops_and_the_table_says_so(
    section: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cost_analysis` as recorded on an H200 (JAX 0.11.2): it has no "flops"."""
    recorded = {"bytes accessed": 1.0e9, "optimal_seconds": -1.0}
    monkeypatch.setattr(jax.stages.Lowered, "cost_analysis", lambda self: recorded)
    flops, summed = section.counts(section.lenet, 8)
    assert np.isnan(flops) and summed == 4 * 129_068


def test_programs_are_compiled_before_they_are_called(
    section: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    lowered = [section.lowered_step(make, 2) for make in (section.make_jit_step, section.make_pmap_step)]
    section.compile_all(*lowered)
    assert capsys.readouterr().out.startswith("2 programs compiled in ")
    with compiled() as names:
        for make_step in (section.make_jit_step, section.make_pmap_step):
            section.train(num_gpus=2, batch_size=16, lr=0.2, make_step=make_step)
    assert not [name for name in names if name in ("train_step", "step")], names


def take_weights(net: Any, package: ResNet) -> None:
    """Give the section's network the parameters and statistics of the package's."""
    stages = [block for stage in package.stages for block in stage.layers]
    layers = [layer for layer in net.layers if isinstance(layer, nnx.Module)]
    for layer, same in zip(layers, [package.conv, package.bn, *stages, package.dense], strict=True):
        values = nnx.to_pure_dict(nnx.state(same))
        assert jax.tree.structure(values) == jax.tree.structure(nnx.to_pure_dict(nnx.state(layer)))
        state = nnx.state(layer)
        nnx.replace_by_pure_dict(state, values)
        nnx.update(layer, state)


def test_the_same_weights_give_the_packages_logits_and_statistics(section: ModuleType) -> None:
    stages = ((4, 2), (8, 2), (16, 2), (32, 2))
    package = ResNet(10, stages=stages, rngs=nnx.Rngs(1))
    net = section.resnet18(10, 4, rngs=nnx.Rngs(0))
    take_weights(net, package)
    X = jax.random.uniform(jax.random.key(2), (6, 28, 28, 1))
    call = nnx.jit(lambda model, X: model(X))
    for _ in range(2):  # in training mode, which updates the running statistics
        chex.assert_trees_all_close(call(net, X), call(package, X), rtol=1e-4, atol=1e-4)
    package.eval()
    chex.assert_trees_all_close(section.predict(net, X), package(X), rtol=1e-4, atol=1e-4)


def test_at_full_width_it_has_the_books_shapes(section: ModuleType) -> None:
    net = nnx.eval_shape(lambda: section.resnet18(10, rngs=nnx.Rngs(0)))
    package = nnx.eval_shape(lambda: resnet18(10, rngs=nnx.Rngs(0)))
    shapes = [sorted(a.shape for a in jax.tree.leaves(nnx.state(n, nnx.Param))) for n in (net, package)]
    assert shapes[0] == shapes[1]
    assert sum(int(np.prod(shape)) for shape in shapes[0]) == 11_175_818


def test_weights_are_drawn_as_in_the_book(section: ModuleType) -> None:
    net = section.fresh_net()
    kernel = net.layers[-3].conv2.kernel[...]
    assert float(kernel.std()) == pytest.approx(0.01, rel=0.1)
    assert net.layers[1].momentum == 0.9 and net.layers[1].epsilon == 1e-5


def test_claims_that_need_no_clock(section: ModuleType) -> None:
    by_statement = {claim.statement: claim.verdict for claim in section.s.result().claims}
    assert by_statement["The same parameter has the same values on every device"] == "holds"
    statement = "To read a parameter that is on several devices, you have to name a device"
    assert by_statement[statement] == "does not hold"
    statement = "For the same batch, ResNet-18 computes more per byte that it sums than LeNet"
    assert by_statement[statement] == "holds"


def test_batch_norm_sees_a_share_under_pmap_and_the_batch_under_jit(section: ModuleType) -> None:
    batch = section.call(section.norm, jax.device_put(section.values, section.split))
    share = section.over_devices(lambda norm, x: norm(x))(section.norm, section.shares)
    chex.assert_trees_all_close(np.ravel(batch), np.array([-3, -1, 1, 3]) / 5**0.5, rtol=1e-3)
    chex.assert_trees_all_close(np.ravel(share), np.array([-1.0, 1, -1, 1]), rtol=1e-3)


def test_shares_normalized_apart_make_another_update(section: ModuleType) -> None:
    assert section.parts["pmap"] > 1e-2 > section.parts["jit, split batch"]


def test_half_precision_keeps_float32_parameters(section: ModuleType) -> None:
    assert section.logits.dtype == jnp.bfloat16
    assert {p.dtype for p in jax.tree.leaves(nnx.state(section.half))} == {jnp.dtype("float32")}


def test_training_prints_the_books_lines(section: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    section.train(num_gpus=2, batch_size=16, lr=0.2)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("running on: [") and second.startswith("epoch 1, time ")
    assert "test acc 0." in second


@pytest.mark.thorough
def test_beside_a_single_card_several_devices_are_parts_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The card is pretended: JAX lists a single default device."""
    listed = jax.devices
    monkeypatch.setattr(jax, "devices", lambda kind=None: listed(kind)[: None if kind else 1])
    try:
        page = cells.load(SCRIPT, "--smoke")
    finally:
        jax.config.update("jax_default_device", None)
    assert "only one cpu" in capsys.readouterr().out and page.devices == jax.devices("cpu")[:2]
    assert page.gpus == jax.devices()[:1] and page.parts["pmap"] > 1e-2 > page.parts["jit, split batch"]


@pytest.mark.thorough
@pytest.mark.parametrize("count", [1, 4])
def test_it_runs_as_a_script_on_other_numbers_of_devices(tmp_path: Path, count: int) -> None:
    path = tmp_path / "result.json"
    command = [sys.executable, SCRIPT, "--smoke", "--answers", "--devices", str(count), "--json", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(path.read_text())
    assert result["config"]["devices"] == count and not result["failed"]
