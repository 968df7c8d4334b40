import chex
import jax
import pytest

from tests.experiments.plants import fails, rounds_of, verdict


def test_each_claim_holds_and_fails_where_it_should(section):
    verdicts = {claim.statement: claim.verdict for claim in section.s.result().claims}
    assert len(verdicts) == 3
    assert set(verdicts.values()) == {"holds"}
    other = section.sgd(section.params, jax.grad(section.loss)(section.params, section.X, section.y), 8)
    for wrong in (other, section.params):
        assert fails(section, "Every way to split", new={**section.new, "data": wrong})
    assert fails(section, "Data parallelism sends as much", data_sends=section.tensor_sends)
    held = {**section.held, "FSDP": section.held["data"]}
    assert fails(section, "Between steps, a split model needs less memory", held=held)


def test_times_that_contradict_a_pipeline_make_its_claims_fail(section):
    idle = {1: [0.5 + i / 1e4 for i in range(9)], 4: [0.2 + i / 1e4 for i in range(9)]}
    times = {"m = 1": rounds_of("m = 1", 1.0), "m = 4": rounds_of("m = 4", 2.0)}
    statement = "A pipeline idles less with more micro-batches"
    assert verdict(section, statement, idle=idle, times=times) == "holds"
    assert fails(section, statement, idle={1: idle[4], 4: idle[1]}, times=times)
    statement = "A step takes less time with more micro-batches"
    assert verdict(section, statement, idle=idle, times=times) == "not measurable here"


@pytest.mark.parametrize("m", [1, 2, 16])
def test_the_pipeline_computes_the_step_for_any_number_of_micro_batches(section, m):
    new = section.pipeline_step(section.stages, section.X, section.y, m)
    chex.assert_trees_all_close(*jax.device_get((new, section.one_device)), atol=1e-6)
    for weights, device in zip(new, section.devices):
        assert {w.device for w in jax.tree.leaves(weights)} == {device}


def test_each_device_holds_the_part_that_the_plan_says(section):
    k, (A, B) = section.k, section.params[0]
    for plan, shapes in {
        "data": (A.shape, B.shape),
        "tensor": ((A.shape[0], A.shape[1] // k), (B.shape[0] // k, B.shape[1])),
        "FSDP": ((A.shape[0] // k, A.shape[1]), (B.shape[0] // k, B.shape[1])),
    }.items():
        params, _, _ = section.place(*section.plans[plan], section.params, section.X, section.y)
        assert tuple(w.addressable_shards[0].data.shape for w in params[0]) == shapes, plan
        specs = [w.sharding.spec for w in jax.tree.leaves(section.new[plan])]
        assert specs == jax.tree.leaves(section.plans[plan][0])


def test_tensor_parallelism_has_one_sum_per_block_each_way_but_for_the_input(section):
    for step in (section.step, section.tensor_step):
        kinds, moved = section.sent(section.plans["tensor"], step, 8)
        k = section.k
        assert kinds == f"{2 * k - 1} all-reduce"
        assert moved == (2 * k - 1) * 8 * section.s.width * 4 * 2 * (k - 1) // k
