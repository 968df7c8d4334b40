import subprocess
import sys

import jax
import pytest

from jaxperf.errors import JaxperfError
from jaxperf.parallel import first_devices, set_cpu_devices, try_all_gpus, try_gpu


def test_without_the_gpu_asked_for_there_is_the_cpu():
    assert try_gpu(1000) == jax.devices("cpu")[0]


def test_all_gpus_or_one_cpu():
    devices = try_all_gpus()
    assert devices == [try_gpu(i) for i in range(len(devices))]
    assert {d.platform for d in devices} in ({"gpu"}, {"cpu"})
    assert devices[0].platform == "gpu" or len(devices) == 1


def test_the_first_devices_come_in_jaxs_order():
    assert first_devices() == jax.devices()
    assert first_devices(1) == jax.devices()[:1]
    assert first_devices(5, platform="cpu") == jax.devices("cpu")[:5]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: try_gpu(-1), "no GPU has number -1"),
        (lambda: first_devices(0), "0 devices asked for"),
        (
            lambda: first_devices(9, platform="cpu"),
            "9 devices asked for, 8 cpu there; use 8; set JAX_NUM_CPU_",
        ),
        (lambda: set_cpu_devices(0), "0 CPU devices asked for"),
    ],
)
def test_numbers_that_cannot_be_are_told(call, message):
    with pytest.raises(JaxperfError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_the_number_of_cpu_devices_is_set_before_jax_starts_and_refused_after():
    jax.devices()
    set_cpu_devices(8)  # what there is already
    with pytest.raises(JaxperfError, match="too late for 3 CPU devices: JAX has started with 8"):
        set_cpu_devices(3)
    code = (
        "from jaxperf.parallel import set_cpu_devices; set_cpu_devices(3); "
        "import jax; print(len(jax.devices('cpu')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "3\n"
