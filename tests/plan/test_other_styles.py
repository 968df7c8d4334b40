import dataclasses

import jax
import jax.numpy as jnp
import pytest

from jaxperf import hlo
from jaxperf.errors import JaxperfError
from jaxperf.plan.advice import advise
from jaxperf.plan.kernels import kernels_of
from jaxperf.plan.memory import ANOTHER, CHECKPOINT, FUSED, USABLE, Live
from jaxperf.plan.planning import plan
from tests.plan import other_styles

pytestmark = pytest.mark.usefixtures("cpus_as_gpus", "several_devices")


def on_eight(step, *args, **options):
    return plan(step, *args, devices=(8,), **options).sizes[0]


def test_sums_over_the_model_axis_are_activations_and_are_not_merged():
    size = on_eight(other_styles.tensor_parallel, mesh={"data": 2, "model": 4})
    over_model = [e for e in size.exchanges if e.axes == ("model",)]
    assert sum(e.times for e in over_model) >= other_styles.LAYERS
    assert {e.carries for e in over_model} == {"activations"} and not any(map(size.over_batch, over_model))
    assert {e.carries for e in size.exchanges if e.axes == ("data",)} == {"gradients"}
    advice = size.advice
    assert "statistics summed over devices" not in advice
    assert "fewer devices along model" in advice.get("not overlapped", "fewer devices along model")


def test_an_exchange_that_the_program_asks_for_needs_no_constraint():
    size = on_eight(other_styles.experts)
    exchanges = [e for e in size.exchanges if e.kind == "all-to-all"]
    assert exchanges and all(e.asked for e in exchanges)
    assert "resharded" not in size.advice


def test_a_pipeline():
    one, eight = plan(other_styles.pipeline, devices=(1, 8)).sizes
    assert one.exchanges == () and one.useful == 1
    turns, useful = 16 + 8 - 1, 16
    assert eight.useful == pytest.approx(useful / turns)
    assert "resharded" not in eight.advice and "70% of the pipeline's turns" in eight.advice["pipeline idle"]
    # each device does as much useful work as one alone, in more turns and with exchanges
    assert one.time and eight.time and eight.efficiency is not None
    work = eight.time.flops * useful / turns / one.time.flops
    assert eight.efficiency == pytest.approx(work * one.time.step_s / eight.time.step_s)


@pytest.mark.parametrize("rounds", [1, 2])
def test_values_that_go_round_a_ring_are_no_pipeline(rounds):
    size = on_eight(lambda mesh: other_styles.ring(mesh, rounds=rounds))
    assert size.collectives["collective-permute"] == 8 * 2 * rounds and size.useful == 1
    assert "pipeline idle" not in size.advice


def test_neighbors_that_send_each_other_their_edges_are_no_pipeline():
    size = on_eight(other_styles.stencil)
    assert size.collectives["collective-permute"] == 20 * 2 * 2 and size.useful == 1
    assert "pipeline idle" not in size.advice


@pytest.mark.parametrize(
    ("memory", "placement"),
    [(10**9, "whole state on every device"), (12 * 2**20, None)],
    ids=["much", "little"],
)
def test_a_placement_is_proposed_only_if_it_fits(memory, placement):
    size = on_eight(lambda mesh: other_styles.sharded(mesh))
    gathers = [e for e in size.exchanges if e.kind == "all-gather"]
    assert {e.carries for e in gathers} == {"parameters"}
    assert size.state_bytes == 4 * 4 * 2**20 and size.state_share_bytes == size.state_bytes / 8
    advice = advise(dataclasses.replace(size, memory_bytes=memory))
    if placement:
        assert placement in advice["parameters gathered"]
    else:
        assert "parameters gathered" not in advice


def test_a_copy_in_each_node_is_proposed_if_only_that_fits():
    size = dataclasses.replace(on_eight(lambda mesh: other_styles.sharded(mesh)), per_node=2)
    whole = size.peak_bytes + size.state_bytes - size.state_share_bytes
    advice = advise(dataclasses.replace(size, memory_bytes=(whole - 1) / USABLE))
    assert "sharded over the 2 devices of a node only" in advice["parameters gathered"]


def test_gathered_activations_are_told_from_parameters():
    size = on_eight(other_styles.activations_gathered)
    gathers = [e for e in size.exchanges if e.kind == "all-gather"]
    assert any(e.carries == "activations" for e in gathers)
    assert "of activations change their sharding" in size.advice["resharded"]
    assert "parameters gathered" not in size.advice


def test_waits_for_what_a_sharding_removes_are_named_once():
    """The batch is split by its first half; a turn of the loop needs a quarter of it on all devices."""
    size = on_eight(other_styles.accumulated, jnp.ones((64, 64)), jnp.ones((64, 64)))
    assert any(e.kind == "all-gather" and e.carries == "activations" for e in size.exchanges)
    assert "of activations change their sharding" in size.advice["resharded"]
    text = size.advice.get("not overlapped", "all-reduces of gradients")
    assert "all-reduces of gradients" in text and "all-gather" not in text


@pytest.mark.parametrize(
    ("make", "carried", "helps"),
    [(other_styles.sharded, "parameters", False), (other_styles.loss_summed, "gradients", True)],
)
def test_micro_batches_are_proposed_for_gradients_only(make, carried, helps):
    """Parameters are gathered for each micro-batch again."""
    text = on_eight(lambda mesh: make(mesh)).advice["not overlapped"]
    assert f"s of {carried}" in text and "more examples" in text
    assert ("micro-batches" in text) is helps


@pytest.mark.parametrize(
    ("nbytes", "helps"), [(1000, "give each device more examples"), (10**7, "what its examples need")]
)
def test_small_sums_of_activations_are_latency(nbytes, helps):
    """More examples hide the latency of BatchNorm's statistics; larger sums grow with the examples."""
    size = on_eight(other_styles.loss_summed)
    most = max(size.exchanges, key=lambda each: each.waits_s)
    changed = dataclasses.replace(most, carries="activations", bytes=nbytes)
    text = advise(dataclasses.replace(size, exchanges=(changed,)))["not overlapped"]
    assert helps in text and "fewer devices" not in text and "micro-batches" not in text


@pytest.mark.parametrize("remat", [False, True])
def test_remat_is_not_proposed_where_it_is(remat):
    size = on_eight(lambda mesh: other_styles.sharded(mesh, remat=remat))
    remedy = ANOTHER if remat else CHECKPOINT
    live = (Live(2**30, hlo.Shape("f32", (2**18, 2**10)), "train.py:5", "tanh", remedy),)
    text = advise(dataclasses.replace(size, memory_bytes=2**20, temp_bytes=2**30, live=live))["does not fit"]
    assert "f32[262144,1024] of train.py:5" in text
    assert ("although made inside jax.checkpoint" in text) is remat
    assert ("jax.checkpoint around each layer" in text) is not remat


def test_scores_of_attention_are_named():
    size = on_eight(lambda mesh: other_styles.sharded(mesh, remat=True))
    live = (Live(2**30, hlo.Shape("bf16", (2, 64, 2048, 2048)), "model.py:9", "softmax", FUSED),)
    full = dataclasses.replace(size, memory_bytes=2**20, temp_bytes=2**30, live=live)
    text = advise(full)["does not fit"]
    assert "the scores of attention" in text and 'implementation="cudnn"' in text


def test_pmap_has_its_name_and_its_examples():
    step_plan = plan(other_styles.mapped, devices=(2, 8))
    assert step_plan.name == "train_step"
    assert [size.batch for size in step_plan.sizes] == [2 * 32, 8 * 32]
    assert step_plan.sizes[1].batch_arguments == (1,) and step_plan.sizes[1].efficiency is not None
    assert "all devices do the same work" not in str(step_plan)  # no argument says where it is


def test_a_step_that_is_mostly_overhead_has_its_line():
    p = {"in": jnp.ones((32, 32)), "out": jnp.ones((32, 32))}
    size = on_eight(other_styles.recurrent, p, jnp.ones((64, 60, 32)), jnp.ones((64, 32)))
    text = size.advice["mostly overhead"]
    assert "small kernels" in text and "other_styles.py:" in text and "larger batch per device" in text


def test_time_is_no_batch():
    arguments = other_styles.time_major_arguments()
    with pytest.raises(JaxperfError, match=r"scans over the first axis of argument 1, .*1:axis=1,2:axis=1"):
        on_eight(other_styles.time_major, *arguments)
    size = on_eight(other_styles.time_major, *arguments, batch={1: 1, 2: 1})
    assert (size.batch, size.examples) == (32 * 8, 32)
    assert not any(e.kind == "all-gather" for e in size.exchanges)
    text = str(plan(other_styles.time_major, *arguments, devices=(1, 8), batch={1: 1, 2: 1}))
    assert "taken for the batch: --batch 1:axis=1,2:axis=1, positions from 0" in text


def test_a_nets_first_state_is_named_with_what_begins_with_the_time():
    def stateful(w, h, xs):
        def loss(w):
            last, _ = jax.lax.scan(lambda h, x: (jnp.tanh(x @ w + h), None), h, xs)
            return (last**2).mean(), last

        return jax.grad(loss, has_aux=True)(w)

    arguments = jnp.ones((4, 16)), jnp.ones((32, 16)), jnp.ones((24, 32, 4))
    with pytest.raises(JaxperfError, match=r"first axis of argument 2, .*: --batch 1,2:axis=1 \(or"):
        on_eight(jax.jit(stateful), *arguments)
    assert on_eight(jax.jit(stateful), *arguments, batch={1: 0, 2: 1}).batch == 32 * 8


def test_a_sum_of_a_constant_carries_no_parameters():
    size = on_eight(other_styles.pipeline)
    assert "parameters" not in {each.carries for each in size.exchanges}
    summed = on_eight(other_styles.loss_summed)
    assert [each.carries for each in summed.exchanges if each.bytes == 4].count("parameters") == 0


def test_a_batch_that_the_step_draws_is_asked_about():
    step_plan = plan(other_styles.drawn, jnp.ones((8, 8)), jax.random.key(0), devices=(1, 8))
    text = str(step_plan).replace("\n", " ")
    assert "every device draws all of it" in text
    assert step_plan.sizes[1].efficiency is None and step_plan.sizes[1].batch == 0


def test_a_part_of_the_batch_that_the_step_draws():
    """Each device makes all examples of a generator whose noise nothing splits."""
    (one, eight), other = (
        plan(step, jnp.ones((64, 64)), jnp.ones((16, 64)), jax.random.key(0), devices=(1, 8)).sizes
        for step in (other_styles.generator, other_styles.generator_split)
    )
    assert one.time and eight.time and eight.time.flops / one.time.flops > 4
    assert "times as much arithmetic as on the fewest devices" in eight.advice["arithmetic repeated"]
    assert not any("arithmetic repeated" in size.advice for size in (one, *other))


def test_one_bare_array_of_parameters_is_no_batch():
    step = jax.jit(lambda w: w - 0.1 * jax.grad(lambda w: jnp.tanh(w).sum())(w))
    step_plan = plan(step, jnp.ones((64, 8)), devices=(1, 8))
    assert step_plan.sizes[1].batch == 0 and "comes back" in str(step_plan)
    assert plan(step, jnp.ones((64, 8)), devices=(8,), batch=(0,)).sizes[0].batch == 512


def test_parameters_beside_a_batch_of_their_length():
    step = jax.jit(lambda lr, w, x: (w - lr * jax.grad(lambda w: ((x @ w) ** 2).mean())(w), x.mean()))
    size = on_eight(step, jnp.float32(1), jnp.ones((16, 16)), jnp.ones((16, 16, 16)))
    assert size.batch_arguments == (2,)


def test_a_batch_that_is_whole_on_every_device_has_no_efficiency():
    def make(mesh):
        whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        w, x = (jax.ShapeDtypeStruct(s, jnp.float32, sharding=whole) for s in ((8, 8), (32, 8)))
        return jax.jit(lambda w, x: w - jax.grad(lambda w: ((x @ w) ** 2).mean())(w)), (w, x)

    step_plan = plan(make, devices=(1, 8))
    assert step_plan.sizes[1].efficiency is None
    assert "all devices do the same work" in str(step_plan)
    split = plan(other_styles.tensor_parallel, devices=(8,), mesh={"data": 1, "model": 8})
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
