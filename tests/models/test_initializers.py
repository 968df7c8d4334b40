import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxperf.models import BOOK_INIT, HE_INIT

SHAPES = ((1, 1), (7, 3), (5, 5, 1, 20), (784, 256))


@pytest.mark.parametrize(
    ("initializer", "flax"),
    [(HE_INIT, nnx.initializers.he_normal()), (BOOK_INIT, nnx.initializers.normal(0.01))],
    ids=["he", "book"],
)
def test_the_values_are_flaxs_up_to_the_last_bit(initializer, flax):
    for i, shape in enumerate(SHAPES):
        key = jax.random.key(i)
        values, expected = (np.asarray(init(key, shape, jnp.float32)) for init in (initializer, flax))
        # rounding depends on the length of a vector loop, so on the processor
        np.testing.assert_array_max_ulp(values, expected, maxulp=8)
