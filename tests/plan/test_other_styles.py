import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxperf import hlo
from jaxperf.errors import JaxperfError
from jaxperf.plan.advice import advise
from jaxperf.plan.kernels import kernels_of
from jaxperf.plan.memory import ANOTHER, CHECKPOINT, FUSED, USABLE, Live
from jaxperf.plan.planning import plan

pytestmark = pytest.mark.usefixtures("cpus_as_gpus", "several_devices")
WIDTH, LAYERS, EXAMPLES = 64, 12, 8
SPLIT, WHOLE = P("data"), P()


# Steps, each as a function of a mesh that returns the step and its arguments


def shape(mesh, spec, *lengths):
    return jax.ShapeDtypeStruct(lengths, jnp.float32, sharding=NamedSharding(mesh, spec))


def updating(loss):
    """Return a jitted step of gradient descent."""
    return jax.jit(lambda p, x: jax.tree.map(lambda w, g: w - 0.1 * g, p, jax.grad(loss)(p, x)))


def over_devices(mesh, loss, weights, examples, spec=SPLIT):
    """Return a step under `shard_map`: with parameters of its own on each device, or with the same on all."""

    def step(w, x):
        gradient = jax.grad(loss)(w, x)
        return w - 0.1 * (lax.pmean(gradient, "data") if weights.sharding.spec == WHOLE else gradient)

    specs = weights.sharding.spec, spec
    step = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=specs[0], check_vma=False)
    return jax.jit(step), (weights, examples)


def around(mesh):
    return [(i, (i + 1) % mesh.size) for i in range(mesh.size)]


def tensor_parallel(mesh):
    """Twelve layers whose products are split over the second axis: each sums activations, both ways."""

    def loss(p, x):
        for up, down in p:
            x = x + jnp.tanh(x @ up) @ down
            x = lax.with_sharding_constraint(x, NamedSharding(mesh, SPLIT))
        return (x**2).mean()

    layer = (shape(mesh, P(None, "model"), WIDTH, 256), shape(mesh, P("model"), 256, WIDTH))
    return updating(loss), ([layer] * LAYERS, shape(mesh, SPLIT, EXAMPLES * mesh.shape["data"], WIDTH))


def experts(mesh):
    """Each device has an expert, to which the others send examples and from which they come back."""

    def loss(w, x):
        sent = lax.all_to_all(x.reshape(mesh.size, -1, WIDTH), "data", 0, 0)
        return (lax.all_to_all(jnp.tanh(sent @ w[0]), "data", 0, 0) ** 2).mean()

    weights = shape(mesh, SPLIT, mesh.size, WIDTH, WIDTH)
    return over_devices(mesh, loss, weights, shape(mesh, SPLIT, 64 * mesh.size, WIDTH))


def pipeline(mesh):
    """A stage on each device; sixteen micro-batches pass from one to the next."""
    micro = 16

    def loss(w, xs):
        def turn(h, t):
            first = lax.axis_index("data") == 0
            h = jnp.tanh(jnp.where(first, xs[jnp.minimum(t, micro - 1)], h) @ w[0])
            return lax.ppermute(h, "data", around(mesh)), h

        _, out = lax.scan(turn, jnp.zeros_like(xs[0]), jnp.arange(micro + mesh.size - 1))
        return (out[-micro:] ** 2).mean()

    weights = shape(mesh, SPLIT, mesh.size, 256, 256)
    return over_devices(mesh, loss, weights, shape(mesh, WHOLE, micro, 4, 256), WHOLE)


def same_on_all(mesh, loss, examples=32):
    weights = shape(mesh, WHOLE, WIDTH, WIDTH)
    return over_devices(mesh, loss, weights, shape(mesh, SPLIT, examples * mesh.size, WIDTH))


def loss_summed(mesh):
    """Only the last device has the loss, which all sum: its derivative, 1, is summed, too."""

    def loss(w, x):
        last = lax.axis_index("data") == mesh.size - 1
        return lax.psum(jnp.where(last, (jnp.tanh(x @ w) ** 2).mean(), 0.0), "data")

    return same_on_all(mesh, loss, examples=8)


def stencil(mesh):
    """Values on a grid: in each of 20 turns, neighbors send each other their edges, in both directions."""

    def loss(w, x):
        def turn(h, _):
            low = lax.ppermute(h[-1:], "data", around(mesh))
            high = lax.ppermute(h[:1], "data", [(b, a) for a, b in around(mesh)])
            h = jnp.concatenate([low, h, high])
            return jnp.tanh((h[:-2] + h[2:]) @ w), None

        return (lax.scan(turn, x, None, length=20)[0] ** 2).mean()

    return same_on_all(mesh, loss)


def ring(mesh, *, rounds=1):
    """Keys go round all devices, as in ring attention: each device multiplies in each turn."""

    def loss(w, x):
        def turn(c, _):
            total, keys = c
            passed = lax.ppermute(keys, "data", around(mesh))
            return (total + jnp.tanh(x @ keys.T) @ keys, passed), None

        (total, _), _ = lax.scan(turn, (jnp.zeros_like(x), x @ w), None, length=rounds * mesh.size)
        return (total**2).mean()

    return same_on_all(mesh, loss)


def sharded(mesh, *, remat=False, constraint=SPLIT, parameters=SPLIT, examples=EXAMPLES):
    """Parameters sharded over the devices (FSDP), activations over the batch."""

    def loss(p, x):
        for w in p:
            x = lax.with_sharding_constraint(jnp.tanh(x @ w), NamedSharding(mesh, constraint))
        return (x**2).mean()

    p = [shape(mesh, parameters, 1024, 1024)] * 4
    step = updating(jax.checkpoint(loss) if remat else loss)
    return step, (p, shape(mesh, SPLIT, examples * mesh.size, 1024))


@jax.jit
def accumulated(p, x):
    """Gradients of four micro-batches, of which each is a part of the batch on two of eight devices."""

    def turn(total, micro):
        return total + jax.grad(lambda p: (jnp.tanh(micro @ p) ** 2).mean())(p), None

    return p - 0.1 * lax.scan(turn, jnp.zeros_like(p), x.reshape(4, -1, x.shape[1]))[0]


def mapped(devices):
    """A step of `jax.pmap`, whose arguments begin with the devices."""

    def train_step(w, x):
        return w - lax.pmean(jax.grad(lambda w: ((x @ w) ** 2).mean())(w), "d")

    w, x = (jax.ShapeDtypeStruct((len(devices), n, WIDTH), jnp.float32) for n in (WIDTH, 32))
    return jax.pmap(train_step, axis_name="d", devices=devices), (w, x)


@jax.jit
def recurrent(p, x, y):
    """A recurrent net over 60 turns, of few and tiny kernels each; the first axis is the batch."""

    def loss(p):
        def cell(h, u):
            return jnp.tanh(u @ p["in"] + h @ p["out"]), None

        h, _ = lax.scan(cell, jnp.zeros((x.shape[0], 32)), x.swapaxes(0, 1))
        return ((h - y) ** 2).mean()

    return jax.tree.map(lambda w, g: w - 0.1 * g, p, jax.grad(loss)(p))


@jax.jit
def time_major(w, xs, ys):
    """A recurrent net whose arrays begin with the time, as in Haiku's."""

    def loss(w):
        def body(h, x):
            h = jnp.tanh(x @ w["in"] + h @ w["hidden"])
            return h, h @ w["out"]

        _, out = lax.scan(body, jnp.zeros((xs.shape[1], 16)), xs)
        return ((out - ys) ** 2).mean()

    return jax.tree.map(lambda p, g: p - 0.1 * g, w, jax.grad(loss)(w))


def generator(split):
    @jax.jit
    def step(w, real, key):
        def loss(w):
            noise = jax.random.normal(key, (real.shape[0], WIDTH))
            if split:
                noise = lax.with_sharding_constraint(noise, SPLIT)
            for _ in range(6):
                noise = jnp.tanh(noise @ w)
            return noise.mean() + (real @ w).mean()

        return w - 0.1 * jax.grad(loss)(w)

    return step


# What a plan says of them


def on_eight(step, *args, **options):
    return plan(step, *args, devices=(8,), **options).sizes[0]


def gathered(size):
    return {e.carries for e in size.exchanges if e.kind == "all-gather"}


def test_sums_over_the_model_axis_are_activations_and_are_not_merged():
    size = on_eight(tensor_parallel, mesh={"data": 2, "model": 4})
    over_model = [e for e in size.exchanges if e.axes == ("model",)]
    assert sum(e.times for e in over_model) >= LAYERS
    assert {e.carries for e in over_model} == {"activations"} and not any(map(size.over_batch, over_model))
    assert {e.carries for e in size.exchanges if e.axes == ("data",)} == {"gradients"}
    assert "statistics summed over devices" not in size.advice
    assert "fewer devices along model" in size.advice.get("not overlapped", "fewer devices along model")


def test_an_exchange_that_the_program_asks_for_needs_no_constraint():
    size = on_eight(experts)
    exchanges = [e for e in size.exchanges if e.kind == "all-to-all"]
    assert exchanges and all(e.asked for e in exchanges)
    assert "resharded" not in size.advice


def test_a_pipeline():
    one, eight = plan(pipeline, devices=(1, 8)).sizes
    assert one.exchanges == () and one.useful == 1
    turns, useful = 16 + 8 - 1, 16
    assert eight.useful == pytest.approx(useful / turns)
    assert "resharded" not in eight.advice and "70% of the pipeline's turns" in eight.advice["pipeline idle"]
    # each device does as much useful work as one alone, in more turns and with exchanges
    work = eight.time.flops * useful / turns / one.time.flops
    assert eight.efficiency == pytest.approx(work * one.time.step_s / eight.time.step_s)
    # a sum of a constant carries no parameters
    assert "parameters" not in {each.carries for each in eight.exchanges}
    assert "parameters" not in {e.carries for e in on_eight(loss_summed).exchanges if e.bytes == 4}


@pytest.mark.parametrize(
    ("make", "sends"), [(ring, 8 * 2), (partial(ring, rounds=2), 8 * 2 * 2), (stencil, 20 * 2 * 2)]
)
def test_values_that_go_round_a_ring_and_edges_that_neighbors_exchange_are_no_pipeline(make, sends):
    size = on_eight(lambda mesh: make(mesh))
    assert size.collectives["collective-permute"] == sends and size.useful == 1
    assert "pipeline idle" not in size.advice


def test_a_placement_is_proposed_only_if_it_fits():
    size = on_eight(lambda mesh: sharded(mesh))
    assert gathered(size) == {"parameters"}
    assert size.state_bytes == 4 * 4 * 2**20 and size.state_share_bytes == size.state_bytes / 8
    much, little = (advise(dataclasses.replace(size, memory_bytes=n)) for n in (10**9, 12 * 2**20))
    assert "whole state on every device" in much["parameters gathered"]
    assert "parameters gathered" not in little
    whole = size.peak_bytes + size.state_bytes - size.state_share_bytes
    two = dataclasses.replace(size, per_node=2, memory_bytes=(whole - 1) / USABLE)
    assert "sharded over the 2 devices of a node only" in advise(two)["parameters gathered"]


def test_gathered_activations_are_told_from_parameters():
    """Parameters are sharded by their columns, and nothing constrains activations: XLA gathers these."""
    columns = P(None, "data")
    size = on_eight(lambda mesh: sharded(mesh, constraint=columns, parameters=columns, examples=512))
    assert "activations" in gathered(size)
    assert "of activations change their sharding" in size.advice["resharded"]
    assert "parameters gathered" not in size.advice


def test_waits_for_what_a_sharding_removes_are_named_once():
    size = on_eight(accumulated, jnp.ones((64, 64)), jnp.ones((64, 64)))
    assert "activations" in gathered(size)
    assert "of activations change their sharding" in size.advice["resharded"]
    text = size.advice.get("not overlapped", "all-reduces of gradients")
    assert "all-reduces of gradients" in text and "all-gather" not in text


@pytest.mark.parametrize(
    ("make", "carried", "helps"), [(sharded, "parameters", False), (loss_summed, "gradients", True)]
)
def test_micro_batches_are_proposed_for_gradients_only(make, carried, helps):
    text = on_eight(lambda mesh: make(mesh)).advice["not overlapped"]
    assert f"s of {carried}" in text and "more examples" in text
    assert ("micro-batches" in text) is helps


def test_small_sums_of_activations_are_latency():
    """More examples hide the latency of BatchNorm's statistics; larger sums grow with the examples."""
    size = on_eight(loss_summed)
    most = max(size.exchanges, key=lambda each: each.waits_s)
    for nbytes, helps in ((1000, "give each device more examples"), (10**7, "what its examples need")):
        changed = dataclasses.replace(most, carries="activations", bytes=nbytes)
        text = advise(dataclasses.replace(size, exchanges=(changed,)))["not overlapped"]
        assert helps in text and "fewer devices" not in text and "micro-batches" not in text


@pytest.mark.parametrize(("remat", "live", "says"), [
    (False, ("f32", (2**18, 2**10), "tanh", CHECKPOINT), "jax.checkpoint around each layer"),
    (True, ("f32", (2**18, 2**10), "tanh", ANOTHER), "although made inside jax.checkpoint"),
    (True, ("bf16", (2, 64, 2048, 2048), "softmax", FUSED), "the scores of attention"),
])  # fmt: skip
def test_remat_is_not_proposed_where_it_is_nor_for_the_scores_of_attention(remat, live, says):
    size = on_eight(lambda mesh: sharded(mesh, remat=remat))
    dtype, dims, made_by, remedy = live
    arrays = (Live(2**30, hlo.Shape(dtype, dims), "train.py:5", made_by, remedy),)
    full = dataclasses.replace(size, memory_bytes=2**20, temp_bytes=2**30, live=arrays)
    text = advise(full)["does not fit"]
    assert f"{dtype}[{','.join(map(str, dims))}] of train.py:5" in text and says in text
    assert ("jax.checkpoint around each layer" in text) is not remat
    assert ('implementation="cudnn"' in text) is (remedy == FUSED)


def test_pmap_has_its_name_and_its_examples():
    step_plan = plan(mapped, devices=(2, 8))
    assert step_plan.name == "train_step"
    assert [size.batch for size in step_plan.sizes] == [2 * 32, 8 * 32]
    assert step_plan.sizes[1].batch_arguments == (1,) and step_plan.sizes[1].efficiency
    assert "all devices do the same work" not in str(step_plan)  # no argument says where it is


def test_a_step_that_is_mostly_overhead_has_its_line():
    p = {"in": jnp.ones((32, 32)), "out": jnp.ones((32, 32))}
    text = on_eight(recurrent, p, jnp.ones((64, 60, 32)), jnp.ones((64, 32))).advice["mostly overhead"]
    assert "small kernels" in text and "test_other_styles.py:" in text and "larger batch per device" in text


def test_time_is_no_batch():
    w = {"in": jnp.ones((4, 16)), "hidden": jnp.ones((16, 16)), "out": jnp.ones((16, 4))}
    arguments, batch = (w, jnp.ones((24, 32, 4)), jnp.ones((24, 32, 4))), {1: 1, 2: 1}
    with pytest.raises(JaxperfError, match=r"scans over the first axis of argument 1, .*1:axis=1,2:axis=1"):
        on_eight(time_major, *arguments)
    step_plan = plan(time_major, *arguments, devices=(1, 8), batch=batch)
    size = step_plan.sizes[1]
    assert (size.batch, size.examples) == (32 * 8, 32) and not gathered(size)
    text = "taken for the batch: --batch 1:axis=1,2:axis=1, positions from 0"
    assert text in str(step_plan)


def test_a_nets_first_state_is_named_with_what_begins_with_the_time():
    def stateful(w, h, xs):
        def loss(w):
            last, _ = lax.scan(lambda h, x: (jnp.tanh(x @ w + h), None), h, xs)
            return (last**2).mean(), last

        return jax.grad(loss, has_aux=True)(w)

    arguments = jnp.ones((4, 16)), jnp.ones((32, 16)), jnp.ones((24, 32, 4))
    with pytest.raises(JaxperfError, match=r"first axis of argument 2, .*: --batch 1,2:axis=1 \(or"):
        on_eight(jax.jit(stateful), *arguments)
    assert on_eight(jax.jit(stateful), *arguments, batch={1: 0, 2: 1}).batch == 32 * 8


def test_a_batch_that_the_step_draws_is_asked_about():
    @jax.jit
    def drawn(w, key):
        x = jax.random.normal(key, (256, 8))
        return w - 0.1 * jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w)

    step_plan = plan(drawn, jnp.ones((8, 8)), jax.random.key(0), devices=(1, 8))
    assert "every device draws all of it" in str(step_plan).replace("\n", " ")
    assert step_plan.sizes[1].efficiency is None and step_plan.sizes[1].batch == 0


def test_a_part_of_the_batch_that_the_step_draws():
    """Each device makes all examples of a generator whose noise nothing splits."""
    arguments = jnp.ones((64, 64)), jnp.ones((16, 64)), jax.random.key(0)
    (one, eight), rest = (plan(generator(split), *arguments, devices=(1, 8)).sizes for split in (False, True))
    assert eight.time.flops / one.time.flops > 4
    assert "times as much arithmetic as on the fewest devices" in eight.advice["arithmetic repeated"]
    assert not any("arithmetic repeated" in size.advice for size in (one, *rest))


def test_parameters_of_any_length_are_no_batch():
    step = jax.jit(lambda w: w - 0.1 * jax.grad(lambda w: jnp.tanh(w).sum())(w))
    step_plan = plan(step, jnp.ones((64, 8)), devices=(1, 8))
    assert step_plan.sizes[1].batch == 0 and "comes back" in str(step_plan)
    assert plan(step, jnp.ones((64, 8)), devices=(8,), batch=(0,)).sizes[0].batch == 512
    step = jax.jit(lambda lr, w, x: (w - lr * jax.grad(lambda w: ((x @ w) ** 2).mean())(w), x.mean()))
    size = on_eight(step, jnp.float32(1), jnp.ones((16, 16)), jnp.ones((16, 16, 16)))
    assert size.batch_arguments == (2,)


def test_a_batch_that_is_whole_on_every_device_has_no_efficiency():
    def make(mesh):
        step = jax.jit(lambda w, x: w - jax.grad(lambda w: ((x @ w) ** 2).mean())(w))
        return step, (shape(mesh, WHOLE, 8, 8), shape(mesh, WHOLE, 32, 8))

    step_plan = plan(make, devices=(1, 8))
    assert step_plan.sizes[1].efficiency is None
    assert "all devices do the same work" in str(step_plan)
    split = plan(tensor_parallel, devices=(8,), mesh={"data": 1, "model": 8})
    assert "all devices do the same work" not in str(split)


ASYNCHRONOUS = """HloModule jit_f, is_scheduled=true

%put (stack: f32[100,64,64], i: s32[], new: f32[64,64]) -> f32[100,64,64] {
  %stack = f32[100,64,64]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %new = f32[64,64]{1,0} parameter(2)
  %one = f32[1,64,64]{2,1,0} bitcast(%new)
  ROOT %u = f32[100,64,64]{2,1,0} dynamic-update-slice(%stack, %one, %i, %i, %i)
}

%take (stack.1: f32[100,64,64], i.1: s32[]) -> f32[64,64] {
  %stack.1 = f32[100,64,64]{2,1,0} parameter(0)
  %i.1 = s32[] parameter(1)
  %same = f32[100,4096]{1,0} bitcast(%stack.1)
  %s = f32[1,4096]{1,0} dynamic-slice(%same, %i.1, %i.1), dynamic_slice_sizes={1,4096}
  ROOT %b = f32[64,64]{1,0} bitcast(%s)
}

ENTRY %main (x: f32[100,64,64], j: s32[], n: f32[64,64]) -> f32[64,64] {
  %x = f32[100,64,64]{2,1,0} parameter(0)
  %j = s32[] parameter(1)
  %n = f32[64,64]{1,0} parameter(2)
  %ps = ((f32[100,64,64]{2,1,0}, s32[], f32[64,64]{1,0}), f32[100,64,64]{2,1,0}, u32[]) fusion-start(%x, %j, %n), kind=kLoop, calls=%put
  %pd = f32[100,64,64]{2,1,0} fusion-done(%ps)
  %ts = ((f32[100,64,64]{2,1,0}, s32[]), f32[64,64]{1,0}, u32[]) fusion-start(%pd, %j), kind=kLoop, calls=%take
  ROOT %td = f32[64,64]{1,0} fusion-done(%ts)
}
"""  # noqa: E501


def test_an_asynchronous_fusion_moves_slices_and_not_stacks():
    module = hlo.parse(ASYNCHRONOUS)
    put, take = kernels_of(module).values()
    one = 64 * 64 * 4
    assert (put.bytes, take.bytes) == (2 * one + 4, 2 * one + 4)
    assert module.operands(next(i for i in module.instructions if i.name == "td"))
