"""Programs for eight H100s or v5e, compiled here without any: how many collectives each way to train has.

They need JAX's CUDA plugin, or libtpu if their name has "tpu", and are skipped without it.
"""

from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxperf import jax_internals
from jaxperf.errors import JaxperfError
from jaxperf.models import LeNet, resnet18
from jaxperf.parallel import TrainState, make_step, model_of
from jaxperf.plan import deviceless
from jaxperf.plan.cards import CARDS
from jaxperf.plan.memory import ANOTHER, CHECKPOINT, FUSED
from jaxperf.plan.planning import plan

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("compiles_anew")]
OPTIMIZER = optax.sgd(0.1)


@pytest.fixture(autouse=True)
def compiler(request):
    request.getfixturevalue("libtpu" if "tpu" in request.node.name else "cuda_plugin")


def shapes(tree, sharding=None):
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding), tree)


def on_eight(model, way, batch_norm, per_device=32):
    state = shapes(TrainState(model.params, model.stats, OPTIMIZER.init(model.params)))
    lead = (8, per_device) if way == "pmap" else (8 * per_device,)
    images = jax.ShapeDtypeStruct((*lead, 28, 28, 1), jnp.float32)
    labels = jax.ShapeDtypeStruct(lead, jnp.int32)

    def make(devices):
        step = make_step(way, model, OPTIMIZER, devices, batch_norm=batch_norm).programs["step"]
        if way != "jit":
            return step, (state, images, labels)
        mesh = Mesh(devices, ("data",))
        whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
        return step, (shapes(state, whole), shapes(images, split), shapes(labels, split))

    return plan(make, device="h100", devices=(8,)).sizes[0]


@pytest.mark.parametrize("way", ["pmap", "shard_map", "jit"])
def test_lenet_has_one_all_reduce_in_each_way(way):
    model = model_of(LeNet(rngs=nnx.Rngs(0)))
    size_plan = on_eight(model, way, "share")
    assert size_plan.collectives == {"all-reduce": 1}
    (exchange,) = size_plan.exchanges
    gradients = sum(leaf.nbytes for leaf in jax.tree.leaves(model.params))
    assert gradients <= exchange.bytes <= gradients + 64  # and the loss and the hits
    assert exchange.group_size == 8 and size_plan.fits and size_plan.temp_bytes > 0


@pytest.mark.thorough
def test_resnet_18_for_eight_gpus_has_at_most_two_gradient_all_reduces():
    model = model_of(resnet18(rngs=nnx.Rngs(0)))
    size_plan = on_eight(model, "shard_map", "share")
    assert size_plan.collectives["all-reduce"] <= 2  # XLA merges at most 30 MB into one
    size = sum(each.times * each.bytes for each in size_plan.exchanges)
    summed = sum(leaf.nbytes for leaf in jax.tree.leaves((model.params, model.stats)))
    assert size == pytest.approx(summed, rel=1e-3)
    assert "statistics summed over devices" not in size_plan.advice


@pytest.mark.thorough
def test_resnet_18_with_global_statistics_has_34_sums_more():
    size_plan = on_eight(model_of(resnet18(rngs=nnx.Rngs(0))), "jit", "whole")
    statistics = [e for e in size_plan.exchanges if e.bytes <= 8 * 512 and e.carries == "activations"]
    small = sum(each.times for each in statistics)
    assert small == 34  # 17 normalizations, forward and backward
    assert size_plan.collectives["all-reduce"] - small <= 2
    assert "statistics summed over devices" in size_plan.advice


@pytest.mark.parametrize("count", [2, 8])
def test_a_machine_with_one_gpu_sees_the_program_of_several(count, monkeypatch):
    """`device="this"` on a pretended H200: one all-reduce, in one message, of all gradients."""
    here = [SimpleNamespace(device_kind="NVIDIA H200")]
    monkeypatch.setattr(jax, "devices", lambda platform=None: here)
    target = deviceless.target_config(CARDS["h200"])
    described = SimpleNamespace(target_config=target)
    monkeypatch.setattr(jax_internals, "loaded", lambda _: lambda devices: described)
    ws = [jnp.zeros((256, 256))] * 3

    @jax.jit
    def step(ws, x):
        gradients = jax.grad(lambda ws: sum(jnp.tanh(x @ w).sum() for w in ws))(ws)
        return [w - g for w, g in zip(ws, gradients)]

    step_plan = plan(step, ws, jnp.zeros((32, 256)), device="this", devices=(count,))
    assert step_plan.card == "h200"
    (e,) = step_plan.sizes[0].exchanges
    assert (e.kind, e.times, e.bytes, e.group_size) == ("all-reduce", 1, 3 * 256 * 256 * 4, count)


def test_sixty_four_devices_cross_nodes():
    w, x = jnp.zeros((512, 512)), jnp.zeros((32, 512))
    step = jax.jit(lambda w, x: w - 0.1 * jax.grad(lambda w: jnp.tanh(x @ w).sum())(w))
    one, node, nodes = plan(step, w, x, devices=(1, 8, 64)).sizes
    assert one.collectives == {} and node.collectives == nodes.collectives == {"all-reduce": 1}
    assert nodes.exchanges[0].each_s > node.exchanges[0].each_s


def test_nothing_of_cuda_is_needed():
    """The assembler that XLA calls is the plan's own, which writes nothing: no kernel has machine code."""
    calls = Path(deviceless.toolkit().name) / "calls"
    assembler = Path(deviceless.toolkit().name) / "bin" / "ptxas"
    text = assembler.read_text()
    assembler.write_text(text.replace("#!/bin/sh", f'#!/bin/sh\necho "$@" >>{calls}'))
    try:
        plan(jax.jit(lambda x: jnp.tanh(x).sum()), jnp.zeros((64, 64)), devices=(1,))
    finally:
        assembler.write_text(text)
    assert "-arch=sm_90a" in calls.read_text()


def test_eight_tpus_sum_the_gradients_once():
    step = jax.jit(lambda w, x: w - 0.1 * jax.grad(lambda w: jnp.tanh(x @ w).sum())(w))
    one, eight = plan(step, jnp.zeros((512, 512)), jnp.zeros((32, 512)), device="v5e", devices=(1, 8)).sizes
    assert (one.collectives, eight.collectives) == ({}, {"all-reduce": 1})
    (exchange,) = eight.exchanges
    assert (exchange.bytes, exchange.group_size) == (512 * 512 * 4, 8)
    assert exchange.source.startswith("test_plan_real.py:")
    assert eight.time is None and eight.fits


def test_a_step_that_does_not_fit_into_a_tpu():
    large = jax.ShapeDtypeStruct((2**34,), jnp.float32)
    with pytest.raises(JaxperfError, match=r"cannot compile this step for 1 x v5e: .*15\.75G.*smaller batch"):
        plan(jax.jit(jnp.sin), large, device="v5e", devices=(1,), batch=())


def test_beside_nvidias_packages():
    """XLA would link with the package's nvJitLink, against the empty library that replaces CUDA's."""
    pytest.importorskip("nvidia.nvjitlink")
    step = jax.jit(lambda w, x: w - jax.grad(lambda w: jnp.tanh(jnp.abs(x) @ w).sum())(w))
    (size,) = plan(step, jnp.zeros((256, 256)), jnp.zeros((32, 256)), devices=(8,)).sizes
    assert size.collectives == {"all-reduce": 1}


B, T, N, H = 4, 1024, 8, 64  # of each device


def attention_step(implementation):
    """A gradient of causal attention over a scan of layers, whose stacks are saved and read by slices."""

    @jax.jit
    def step(ws, x):
        def layer(x, w):
            q, k, v = (a.reshape(*x.shape[:2], N, H) for a in jnp.split(x @ w, 3, -1))
            out = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=implementation)
            return x + out.reshape(x.shape), None

        def loss(ws):
            y, _ = jax.lax.scan(layer, x.astype(jnp.bfloat16), ws.astype(jnp.bfloat16))
            return (y.astype(jnp.float32) ** 2).mean()

        return ws - 0.1 * jax.grad(loss)(ws)

    return step


def attention_plan(implementation):
    arguments = jnp.zeros((3, N * H, 3 * N * H)), jnp.zeros((B, T, N * H))
    return plan(attention_step(implementation), *arguments, devices=(8,)).sizes[0]


def test_flash_attention_is_planned():
    plain, fused = attention_plan("xla"), attention_plan("cudnn")
    assert fused.collectives == plain.collectives and not fused.notes
    # two products forward and five backward, over half of the scores, in each of three layers
    scores = B * N * T * T
    attention = fused.time.flops - 3 * 3 * 2 * B * T * N * H * 3 * N * H
    assert attention == pytest.approx(3 * 7 * 2 * scores * H / 2, rel=0.01)
    assert fused.time.bytes < plain.time.bytes / 3 and fused.temp_bytes < plain.temp_bytes / 3
    assert not any(each.shape.dims[-2:] == (T, T) for each in fused.live)
    assert plain.live[0].shape.dims[-2:] == (T, T) and plain.live[0].source.startswith("test_plan_real.py:")
    assert plain.live[0].remedy == FUSED
    for each in (*plain.live, *fused.live):
        assert each.bytes == each.count * each.shape.bytes
    remedies = {each.remedy for each in fused.live}
    assert CHECKPOINT in remedies and FUSED not in remedies


def test_a_scan_moves_its_slices_and_not_its_stacks():
    """The traffic of a scan with a gradient grows with its layers, and not with their square."""
    step = attention_step("cudnn")
    x = jnp.zeros((B, T, N * H))
    plans = (plan(step, jnp.zeros((n, N * H, 3 * N * H)), x, devices=(1,)) for n in (4, 16))
    few, many = (each.sizes[0].time.bytes for each in plans)
    assert many / few == pytest.approx(16 / 4, rel=0.15)


def test_the_arrays_of_an_unrolled_network_are_one_row():
    """Each of 64 layers saves an array, which is less than 2 % of the temporaries."""

    @jax.jit
    def step(ws, x):
        def loss(ws):
            y = x
            for w in ws:
                y = jnp.tanh(y @ w)
            return (y**2).mean()

        return [w - 0.1 * g for w, g in zip(ws, jax.grad(loss)(ws))]

    (size,) = plan(step, [jnp.zeros((256, 256))] * 64, jnp.zeros((2048, 256)), devices=(8,)).sizes
    saved = size.live[0]
    assert saved.count >= 60 and saved.bytes == saved.count * 2048 * 256 * 4
    assert saved.remedy == CHECKPOINT and saved.source.startswith("test_plan_real.py:")
    assert saved.shown == f"{saved.count} x f32[2048,256]"


def _stem(x, w):
    for _ in range(6):
        x = jnp.sin(jnp.tanh(x @ w))
    return x


def _layer(x, w):
    return x + jnp.tanh(jnp.tanh(x @ w) @ w) @ w, None


@pytest.mark.parametrize("rolled", [True, False])
def test_only_what_is_made_inside_of_a_checkpoint_goes_with_another_one(rolled):
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    body = jax.checkpoint(_layer, policy=policy)

    def loss(ws, x):
        y = _stem(x, ws[0])
        if rolled:
            y, _ = jax.lax.scan(body, y, ws)
        for w in () if rolled else ws:
            y, _ = body(y, w)
        return (y**2).mean()

    step = jax.jit(lambda ws, x: ws - 0.1 * jax.grad(loss)(ws, x))
    (size,) = plan(step, jnp.zeros((6, 256, 256)), jnp.zeros((4096, 256)), devices=(8,), batch=(1,)).sizes
    remedies = {}
    for function in (_stem, _layer):
        code = function.__code__
        lines = {f"test_plan_real.py:{line}" for *_, line in code.co_lines()}
        remedies[code.co_name] = {each.remedy for each in size.live if each.source in lines}
    assert remedies["_stem"] - {""} == {CHECKPOINT}
    assert remedies["_layer"] - {""} == {ANOTHER}


def pallas_step(pl, cost=None):
    def double(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    def step(w, x):
        h = x @ w
        shape = jax.ShapeDtypeStruct(h.shape, h.dtype)
        return jnp.tanh(pl.pallas_call(double, out_shape=shape, name="twice", cost_estimate=cost)(h))

    return jax.jit(step)


def test_a_pallas_kernel_is_a_call_of_known_work():
    pl = pytest.importorskip("jax.experimental.pallas")
    arguments = jnp.zeros((512, 512)), jnp.zeros((256, 512))
    product, nbytes = 2 * 256 * 512 * 512, 2 * 256 * 512 * 4
    said = pl.CostEstimate(flops=10**12, bytes_accessed=10**9, transcendentals=0)
    for step, kernels, extra in (
        (pallas_step(pl, said), None, 10**12),
        (pallas_step(pl), {"twice": (5e12, 1e9)}, 5e12),
        (pallas_step(pl, said), {"twice": (5e12, 1e9)}, 5e12),  # the reader's word counts
    ):
        step_plan = plan(step, *arguments, devices=(1,), batch=(1,), kernels=kernels)
        assert step_plan.sizes[0].time.flops == product + extra
        assert not step_plan.sizes[0].notes and "arithmetic is not known" not in str(step_plan)
    unknown = plan(pallas_step(pl), *arguments, devices=(1,), batch=(1,))
    assert unknown.sizes[0].time.flops == product and unknown.sizes[0].time.bytes > nbytes
    assert "--kernel twice=FLOPS,BYTES of one run" in str(unknown)
