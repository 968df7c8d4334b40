"""The book's `run` and what becomes of it: where it runs, how many products a program holds, what is told."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stories import begin

from jaxperf.chapter import independent_products as part


def test_run_computes_every_product_on_the_device_of_its_operand():
    device = jax.devices()[1]
    x = jax.device_put(jnp.arange(9.0).reshape(3, 3), device)
    products = part.run(x, 4)
    assert len(products) == 4
    for y in products:
        assert y.devices() == {device}
        np.testing.assert_array_equal(y, np.arange(9.0).reshape(3, 3) @ np.arange(9.0).reshape(3, 3))


def test_distinct_operands_stay_products_of_their_own_and_equal_ones_become_one():
    x = jnp.ones((32, 32))
    distinct = jax.jit(lambda xs: [jnp.dot(a, a) for a in xs])
    assert part.dots_in(distinct, [x + i for i in range(10)]) == 10
    assert part.dots_in(jax.jit(part.run), x) == 1
    batched = jax.jit(jax.vmap(lambda a: jnp.dot(a, a)))
    assert part.dots_in(batched, jnp.stack([x] * 10)) == 1


@pytest.fixture(scope="module")
def told():
    story = begin("auto_parallelism")
    x = jax.device_put(jnp.ones((64, 64)), jax.devices()[1])
    part.on_one_device(story, x=x, products=4, rounds=2)
    return story.result()


def test_the_programs_hold_as_many_products_as_they_must(told):
    counted = {name: value for name, value in told.facts.items() if name.startswith("dots_in")}
    assert counted == {"dots_in_program": 4, "dots_in_program_merged": 1, "dots_in_program_vmap": 1}


def test_products_at_once_are_counted_on_the_device_that_runs_them(told):
    for name in ("eager", "one program"):
        assert 1 <= told.facts[f"dots_at_once/{name}"] <= 4
    assert [t.name for t in told.timelines] == ["4 products, eager", "4 products, one program"]


def test_every_way_is_timed_against_calling_one_by_one(told):
    names = [m.name for m in told.measurements]
    assert len(names) == len(set(names)) == 5
    assert {m.base for m in told.measurements} == {"eager"}
