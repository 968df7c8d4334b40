import jax
import pytest

from jaxperf.errors import JaxperfError
from jaxperf.parallel import first_devices


def test_the_first_devices_come_in_jaxs_order():
    assert first_devices() == jax.devices()
    assert first_devices(1) == jax.devices()[:1]
    assert first_devices(5, platform="cpu") == jax.devices("cpu")[:5]


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (0, "0 devices asked for"),
        (9, "9 devices asked for, 8 cpu there; use 8; set JAX_NUM_CPU_"),
    ],
)
def test_impossible_numbers_are_refused_in_one_line(count, message):
    with pytest.raises(JaxperfError, match=message) as caught:
        first_devices(count, platform="cpu")
    assert "\n" not in str(caught.value)
