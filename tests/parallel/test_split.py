import functools

import jax
import numpy as np
import pytest

from jaxperf.errors import JaxperfError
from jaxperf.parallel import first_devices, split_and_load

cpus = functools.partial(first_devices, platform="cpu")  # eight of them, wherever the tests run


def test_the_books_six_rows_are_halved_onto_two_devices():
    batch = np.arange(24, dtype=np.float32).reshape(6, 4)
    devices = cpus(2)
    shares = split_and_load(batch, devices)
    assert [s.devices() for s in shares] == [{d} for d in devices]
    np.testing.assert_array_equal(shares[0], batch[:3])
    np.testing.assert_array_equal(shares[1], batch[3:])


@pytest.mark.parametrize("k", [1, 2, 4, 8])
@pytest.mark.parametrize("of", [np.asarray, jax.numpy.asarray])
def test_shares_put_together_are_the_batch(k, of):
    batch = of(np.arange(16 * 3).reshape(16, 3))
    shares = split_and_load(batch, cpus(k))
    assert {len(s) for s in shares} == {16 // k}
    np.testing.assert_array_equal(np.concatenate(shares), batch)


@pytest.mark.parametrize(
    ("n", "k", "message"),
    [
        (100, 8, "batch size 100 is not divisible by 8 devices; use 96 or 104"),
        (3, 4, "batch size 3 is not divisible by 4 devices; use 4"),
        (0, 2, "batch size 0 is not divisible by 2 devices; use 2"),
    ],
)
def test_a_batch_that_does_not_divide_says_which_sizes_do(n, k, message):
    with pytest.raises(JaxperfError) as caught:
        split_and_load(np.zeros(n), cpus(k))
    assert str(caught.value) == message


def test_no_devices_take_no_shares():
    with pytest.raises(JaxperfError, match="no devices"):
        split_and_load(np.zeros(8), [])
