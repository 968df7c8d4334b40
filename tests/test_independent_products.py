"""Independent products on one device: how many a program holds, how many run at once, what is told."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from stories import begin

from experiments.auto_parallelism import run
from jaxperf.chapter import independent_products as part
from jaxperf.result import Table


def test_distinct_operands_stay_products_of_their_own_and_equal_ones_become_one():
    x = jax.device_put(jnp.ones((32, 32)), jax.devices("cpu")[0])
    assert part.dots_in(jax.jit(part.products_of), [x + i for i in range(10)]) == 10
    assert part.dots_in(jax.jit(run), x) == 1
    batched = jax.jit(jax.vmap(lambda a: jnp.dot(a, a)))
    assert part.dots_in(batched, jnp.stack([x] * 10)) == 1


@pytest.fixture(scope="module")
def told():
    story = begin("auto_parallelism")
    x = jax.device_put(jnp.ones((64, 64)), jax.devices("cpu")[1])
    part.on_one_device(story, run, x=x, products=4, rounds=6)
    return story.result()


def test_the_programs_hold_as_many_products_as_they_must(told):
    counted = {name: value for name, value in told.facts.items() if name.startswith("dots_in")}
    assert counted == {"dots_in_program": 4, "dots_in_program_merged": 1, "dots_in_program_vmap": 1}


def test_products_at_once_are_counted_on_the_device_that_runs_them(told):
    for name in ("dots_at_once_eager", "dots_at_once_program"):
        assert 1 <= told.facts[name] <= 4
    assert [t.name for t in told.timelines] == ["4 products, one by one", "4 products, one program"]


def test_every_way_is_timed_against_calling_one_by_one(told):
    [table] = told.of(Table)
    assert len(table.rows) == 5 and table.base == "one by one"


def test_the_most_products_at_once_decide_but_not_on_one_core():
    dots = {"one program": 4, "one program, equal operands": 1, "one program, vmap": 1}
    for cores, alone, program, holds in (
        (2, 1, 2, ["holds", "holds", "holds"]),
        (2, 2, 1, ["does not hold", "does not hold", "holds"]),
        (1, 1, 1, ["holds", "cannot be measured here", "holds"]),
    ):
        story = begin("auto_parallelism")
        story.environment = replace(story.environment, cores=cores)
        part._claims(story, dots, {"one by one": alone, "one program": program}, products=4)
        assert [claim.holds for claim in story.result().claims] == holds
