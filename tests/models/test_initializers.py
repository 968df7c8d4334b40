"""The initializers draw what Flax's draw, with fewer programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxperf.models import BOOK_INIT, HE_INIT
from jaxperf.models.initializers import initializer

SHAPES = ((1, 1), (7, 3), (5, 5, 1, 20), (784, 256))


@pytest.mark.parametrize(
    ("initializer", "flax"),
    [(HE_INIT, nnx.initializers.he_normal()), (BOOK_INIT, nnx.initializers.normal(0.01))],
    ids=["he", "book"],
)
def test_the_values_are_flaxs_up_to_the_last_bit(initializer: nnx.Initializer, flax: nnx.Initializer) -> None:
    for i, shape in enumerate(SHAPES):
        key = jax.random.key(i)
        values, expected = (np.asarray(init(key, shape, jnp.float32)) for init in (initializer, flax))
        np.testing.assert_array_max_ulp(
            values, expected, maxulp=8
        )  # rounding depends on the length of a vector loop, so on the processor


def test_it_can_be_traced_and_keeps_the_dtype() -> None:
    key = jax.random.key(0)
    traced = jax.jit(lambda key: HE_INIT(key, (5, 3), jnp.float32))(key)
    np.testing.assert_allclose(traced, HE_INIT(key, (5, 3), jnp.float32), rtol=1e-6)
    assert HE_INIT(key, (5, 3), jnp.bfloat16).dtype == jnp.bfloat16


def test_shapes_of_one_size_share_a_program() -> None:
    traces = []

    def draw(key: jax.Array, shape: tuple[int, ...], dtype: object) -> jax.Array:
        traces.append(shape)
        return jax.random.normal(key, shape, jnp.float32)

    init = initializer(draw, lambda _: 1.0)
    for shape in ((3, 3, 8, 64), (40, 40), (300, 300), (5, 5, 64)):
        assert init(jax.random.key(0), shape, jnp.float32).shape == shape
    assert traces == [(4**8,), (4**9,)]
