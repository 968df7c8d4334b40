"""The section on using a GPU: names that work without one, and what it says where there is one device."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from stories import begin

from experiments import use_gpu as section
from jaxperf.errors import JaxperfError
from jaxperf.result import Failed, Output

ONE = "1 device here, this section shows two; use --devices 2"


def these(**devices: list[Any]) -> Any:
    """A `jax.devices` that knows these, by platform; the first platform is the default."""
    return lambda platform=None: devices[platform or next(iter(devices))]


def test_names_fall_back_to_the_cpu_and_a_late_change_is_refused() -> None:
    story = begin("use_gpu")
    section.names_with_a_fallback(story)
    assert story.facts == {"too_late_is_said": True}
    names, refusal = (output.text for output in story.result().of(Output))
    everywhere = ", ".join(map(section.show, jax.devices()))
    if jax.default_backend() == "cpu":
        first, every = "cpu:0", "cpu:0"  # of all CPU devices, only the first stands in for GPUs
    else:
        first, every = "gpu:0", everywhere
    assert names.splitlines() == [
        f"try_gpu() = {first}, try_gpu(10) = cpu:0",
        f"try_all_gpus() = [{every}]",
        f"all devices: {everywhere}",
    ]
    there = len(jax.devices("cpu"))
    told = f"one more CPU device now: too late for {there + 1} CPU devices: JAX has started with {there}; "
    assert refusal.startswith(told)
    assert "\n" not in refusal


def test_two_devices_are_of_one_kind_where_there_are_two_or_else_a_gpu_and_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for devices, pair in (
        ({"gpu": ["gpu 0", "gpu 1"], "cpu": ["cpu 0"]}, ("gpu 0", "gpu 1")),
        ({"gpu": ["gpu 0"], "cpu": ["cpu 0", "cpu 1"]}, ("gpu 0", "cpu 0")),
        ({"cpu": ["cpu 0", "cpu 1", "cpu 2"]}, ("cpu 0", "cpu 1")),
    ):
        monkeypatch.setattr(jax, "devices", these(**devices))
        assert section.two_devices() == pair


def test_one_device_ends_a_part_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    story = begin("use_gpu", devices=1)
    monkeypatch.setattr(jax, "devices", these(cpu=jax.devices("cpu")[:1]))
    with pytest.raises(JaxperfError) as caught:
        section.two_devices()
    assert str(caught.value) == ONE
    for tell in (section.arrays_and_devices, section.price_of_a_copy, section.networks_and_devices):
        story.part(tell, section.Config.smoke())
    parts = ["arrays_and_devices", "price_of_a_copy", "networks_and_devices"]
    assert list(story.result().of(Failed)) == [Failed(part, f"JaxperfError: {ONE}") for part in parts]
    assert capsys.readouterr().err == ""  # no traceback
