"""A function in a process of its own: its value comes back, its settings are its own, its failure is told."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import jax
import pytest

from jaxperf.errors import JaxperfError
from jaxperf.measure.subprocess_call import in_fresh_process


def look(*names: str) -> dict[str, Any]:
    print("this line is not the answer")
    return {"pid": os.getpid(), "set": [os.environ.get(name) for name in names], "name": __name__}


def devices() -> list[str]:
    return [d.platform for d in jax.local_devices(backend="cpu")]


def fail(word: str) -> None:
    raise ValueError(f"refused {word}")


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def infinite() -> float:
    return float("inf")


def test_the_value_comes_from_another_process_with_its_own_variables() -> None:
    names = ("JAXPERF_A", "HOME", "XLA_PYTHON_CLIENT_PREALLOCATE", "JAX_NUM_CPU_DEVICES")
    values = in_fresh_process(look, *names, environment={"JAXPERF_A": "1"})
    assert values["pid"] != os.getpid()
    # memory on demand, since this process may hold most of a GPU's; one CPU device, not this process's eight
    assert values["set"] == ["1", os.environ.get("HOME"), "false", "1"]
    assert values["name"] == "test_subprocess_call"
    assert "JAXPERF_A" not in os.environ


@pytest.mark.thorough
def test_it_has_one_cpu_device_or_as_many_as_it_is_told() -> None:
    assert in_fresh_process(devices) == ["cpu"]
    assert in_fresh_process(devices, environment={"JAX_NUM_CPU_DEVICES": "3"}) == ["cpu"] * 3


def test_a_failure_there_is_an_error_here_that_ends_as_its_traceback() -> None:
    with pytest.raises(RuntimeError, match=r"fail failed in a fresh process[\s\S]*ValueError: refused this$"):
        in_fresh_process(fail, "this")


def test_what_json_cannot_hold_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="infinite failed in a fresh process"):
        in_fresh_process(infinite)
    with pytest.raises(TypeError, match="JSON"):
        in_fresh_process(fail, object())


def test_one_that_hangs_is_ended() -> None:
    with pytest.raises(RuntimeError, match=r"^sleep in a fresh process took more than 0.5 s$"):
        in_fresh_process(sleep, 600, timeout_s=0.5)


def test_a_function_that_no_file_has_at_its_top_level_is_refused() -> None:
    for fn in (lambda: 1, pytest.MonkeyPatch.setattr, sys.getrefcount):
        with pytest.raises(JaxperfError, match=r"define it at the top level of a file$"):
            in_fresh_process(fn)
