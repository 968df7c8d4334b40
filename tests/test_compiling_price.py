"""The price of compiling: four stages, and the calls that earn it back."""

import jax.numpy as jnp
from flax import nnx
from stories import begin

from jaxperf.chapter.compiling_price import price_of_compiling
from jaxperf.models import MLP


def told(gain_s):
    story = begin("hybridize")
    price_of_compiling(story, MLP((8, 4, 2), rngs=nnx.Rngs(0)), jnp.ones((1, 8)), gain_s=gain_s)
    return story.result()


def test_the_price_is_earned_back_by_what_each_call_saves():
    found = told(1e-3)
    seconds = {m.name: m.median for m in found.measurements}
    assert list(seconds) == ["trace", "lower", "compile", "first run"]
    paid = sum(seconds[stage] for stage in ("trace", "lower", "compile"))
    assert 0 <= found.facts["break_even_calls"] - paid / 1e-3 <= 1


def test_what_gains_nothing_is_never_earned_back():
    assert told(0.0).facts["break_even_calls"] is None
