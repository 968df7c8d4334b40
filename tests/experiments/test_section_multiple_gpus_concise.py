"""Section 8.5: its ResNet-18 and its steps are MXNet's, its ways agree, a whole pass keeps its promises.

No test asks how long anything takes.
"""

from types import SimpleNamespace

import chex
import jax
import numpy as np
import pytest
from flax import nnx
from mxnet_fixtures import RESNET18, batch, digest_error

from jaxperf.chapter import cells
from jaxperf.models import ResNet, resnet18, to_gluon
from tests.experiments.plants import fails, verdict
from tests.models.test_resnet import prepared


def test_a_gpus_compiled_program_knows_no_flops_and_the_table_says_so(section, monkeypatch):
    """`cost_analysis` as recorded on an H200 (JAX 0.11.2): it has no "flops"."""
    recorded = {"bytes accessed": 1.0e9, "optimal_seconds": -1.0}
    monkeypatch.setattr(jax.stages.Lowered, "cost_analysis", lambda self: recorded)
    flops, summed = section.counts(section.lenet, 8)
    assert np.isnan(flops) and summed == 4 * 129_068


def layers_of(net):
    if isinstance(net, ResNet):
        return [net.conv, net.bn, *(block for stage in net.stages for block in stage.layers), net.dense]
    return [layer for layer in net.layers if isinstance(layer, nnx.Module)]


def copy_state(source, to):
    for layer, same in zip(layers_of(source), layers_of(to), strict=True):
        nnx.update(same, nnx.state(layer))


def test_the_same_weights_give_the_packages_logits_and_statistics(section):
    stages = ((4, 2), (8, 2), (16, 2), (32, 2))
    package = ResNet(10, stages=stages, rngs=nnx.Rngs(1))
    net = section.resnet18(10, 4, rngs=nnx.Rngs(0))
    copy_state(package, net)
    X = jax.random.uniform(jax.random.key(2), (6, 28, 28, 1))
    call = nnx.jit(lambda model, X: model(X))
    for _ in range(2):  # in training mode, which updates the running statistics
        chex.assert_trees_all_close(call(net, X), call(package, X), rtol=1e-4, atol=1e-4)
    package.eval()
    chex.assert_trees_all_close(section.predict(net, X), package(X), rtol=1e-4, atol=1e-4)


def mxnets_resnet(section, dtype):
    """MXNet's answers, and the section's network with the weights that they begin with."""
    answers, package = prepared("resnet18", "sound", dtype)
    net = nnx.eval_shape(lambda: section.resnet18(10, rngs=nnx.Rngs(0)))
    copy_state(nnx.merge(*package), net)
    return answers, net


def test_predictions_equal_mxnets(section):
    answers, net = mxnets_resnet(section, "float32")
    X, _ = batch(int(answers["seed"]), 0, RESNET18.batch)
    with jax.default_matmul_precision("highest"):
        logits = section.predict(net, X.transpose(0, 2, 3, 1))
    desired = answers["sound/float32/eval_logits"]
    np.testing.assert_allclose(logits, desired, rtol=0, atol=2e-5 * np.abs(desired).max())


@pytest.mark.thorough
@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize(("way", "contexts"), [("make_jit_step", 1), ("make_pmap_step", 2)])
def test_training_equals_mxnets_on_as_many_contexts(section, way, contexts):
    """On two contexts, Gluon normalizes each share apart, as `pmap` does."""
    devices = section.devices[:contexts]
    mesh = jax.make_mesh((contexts,), ("data",), devices=devices)
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        answers, net = mxnets_resnet(section, "float64")
        optimizer = nnx.Optimizer(net, section.sgd(RESNET18.lr), wrt=nnx.Param)
        with jax.set_mesh(mesh):
            new, optimizer = jax.device_put((net, optimizer), jax.P())
        losses = []
        for step in range(RESNET18.steps):
            X, y = batch(int(answers["seed"]), step, RESNET18.batch)
            images = 255 * X.transpose(0, 2, 3, 1).astype("float64")
            new, optimizer, loss = getattr(section, way)(mesh)(new, optimizer, images, y)
            losses.append(float(loss))
        trained = []
        for each in (net, new):
            package = nnx.eval_shape(lambda: resnet18(10, rngs=nnx.Rngs(0)))
            copy_state(jax.tree.map(np.asarray, each), package)
            trained.append([a for name, a in to_gluon(package).items() if "running" not in name])
    case = f"sound/float64/{contexts}ctx"
    np.testing.assert_allclose(losses, answers[f"{case}/loss"].mean(1), rtol=1e-6)
    update = [np.asarray(b) - np.asarray(a) for a, b in zip(*trained, strict=True)]
    assert digest_error(answers, f"{case}/update", update).max() < 1e-5  # MXNet keeps the rate in float32


def test_weights_are_drawn_as_in_the_book(section):
    net = section.fresh_net(0, section.s.channels)
    kernel = net.layers[-3].conv2.kernel[...]
    assert float(kernel.std()) == pytest.approx(0.01, rel=0.1)
    assert net.layers[1].momentum == 0.9 and net.layers[1].epsilon == 1e-5


EQUAL = "With BatchNorm over the whole batch, several devices compute what one computes"


def test_claims_that_need_no_clock(section):
    by_statement = {claim.statement: claim.verdict for claim in section.s.result().claims}
    for statement in (
        EQUAL,
        "The same parameter has the same values on every device",
        "BatchNorm over shares computes something else",
        "In float32, a smooth network differs by rounding only",
        "For the same batch, ResNet-18 computes more per byte that it sums than LeNet",
    ):
        assert by_statement[statement] == "holds", statement


def test_equality_is_judged_in_float64(section):
    args = section.X, section.y, 0
    for dtype in ("float32", "float64"):
        updates = section.updates(section.make_jit_step, section.mesh, *args, dtype)
        assert {update.dtype for update in updates} == {np.dtype(dtype)}
    assert max(section.parts["jit"] + section.parts["axis"]) < 1e-12 < min(section.parts["softplus"])


def test_the_claims_of_equality_fail_where_they_should(section):
    def forgets(mesh):
        step = section.make_jit_step(mesh)
        return lambda net, optimizer, X, y: step(net, optimizer, np.concatenate([X[:60], X[:4]]), y)

    parts = section.parts
    for statement, way, wrong in (
        (EQUAL, "jit", section.compare(forgets, "float64", seeds=1)),
        (EQUAL, "jit", parts["softplus"]),
        ("BatchNorm over shares computes something else", "pmap", parts["axis"]),
        ("In float32, a smooth network differs by rounding only", "softplus", parts["pmap"]),
    ):
        assert fails(section, statement, parts={**parts, way: wrong}), (statement, way)


def test_the_other_claims_fail_where_they_should(section, monkeypatch):
    statement = "The same parameter has the same values on every device"
    assert fails(section, statement, copies=[np.ones(3), np.array([1, 1, 1 + 1e-7], "float32")])
    statement = "For the same batch, ResNet-18 computes more per byte"
    per_byte = {("ResNet-18", 256): 1.0, ("LeNet", 256): 2.0}
    assert fails(section, statement, per_byte=per_byte)
    unknown = dict.fromkeys(per_byte, float("nan"))
    assert verdict(section, statement, per_byte=unknown) == "not measurable here"
    monkeypatch.setattr(section.s, "smoke", False)
    runs = {"one": [[(1.9, 0.5)], [(1.8, 0.4)]], "k": 2}
    statement = "ResNet-18 learns on one device and on several"
    assert verdict(section, statement, several=[[(2.0, 0.6)]], **runs) == "holds"
    assert fails(section, statement, several=[[(2.3, 0.1)]], **runs)
    statement = "With twice the batch and the rate"
    assert verdict(section, statement, several=[[(2.0, 0.45)]], **runs) == "holds"
    assert fails(section, statement, several=[[(2.0, 0.3)]], **runs)
    runs["one"] = [[(2.2, 0.1)]]
    assert verdict(section, statement, several=[[(2.2, 0.1)]], **runs) == "not measurable here"


def test_batch_norm_sees_a_share_under_pmap_and_the_batch_under_jit(section):
    share = section.over_devices(section.norm, section.shares)
    chex.assert_trees_all_close(np.ravel(section.by_jit), np.array([-3, -1, 1, 3]) / 5**0.5, rtol=1e-3)
    chex.assert_trees_all_close(np.ravel(share), np.array([-1.0, 1, -1, 1]), rtol=1e-3)


def test_exercise_1_compares_rows_of_as_many_updates_seed_by_seed(script):
    (cell,) = (cell for cell in cells.read(script) if "def lower(" in cell.source)
    losses = {"small batch": [1.3, 1.2], "larger batch": [1.6, 1.7], "and larger rate": [2.0, 2.1],
              "and warm-up": [1.9, 2.2], "no warm-up, more updates": [1.0, 0.9]}  # fmt: skip
    said = []
    recorder = SimpleNamespace(say=lambda holds, **_: said.append(holds))
    cell.run(script, {"losses": losses, "s": recorder})
    assert said == [False, None, True]
