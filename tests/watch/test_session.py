"""What JAX does not tell is said to be missing, and is not taken for nothing."""

from __future__ import annotations

import re
import time

import jax
import jax.numpy as jnp
import pytest

import jaxperf
from jaxperf.result import Note
from jaxperf.watch import Watched
from jaxperf.watch.observe import compiles, windows

UNTOLD = "does not tell what it traces and compiles"
UNCALLED = "does not tell when programs are called"


def remarks(outcome: Watched) -> list[str]:
    assert outcome.record is not None
    return outcome.record.remarks


def test_new_programs_without_an_event_are_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    step = jax.jit(lambda x: x * 43)
    monkeypatch.setattr(compiles, "_STAGES", {})
    with jaxperf.watch(show=False, profile=False) as outcome:
        step(jnp.ones(43))
    assert [UNTOLD in remark for remark in remarks(outcome)] == [True]
    assert outcome.result is not None
    assert not [b for b in outcome.result.of(Note) if "Nothing in it used JAX" in b.text]


def test_a_block_without_new_programs_needs_no_event() -> None:
    step, x = jax.jit(lambda x: x * 47), jnp.ones(47)
    step(x)
    with jaxperf.watch(show=False, profile=False) as outcome:
        step(x)
    assert remarks(outcome) == []


@pytest.mark.thorough
@pytest.mark.parametrize("renamed", [True, False])
def test_devices_that_compute_without_a_call_are_a_remark(
    renamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, x = jax.jit(lambda x: jnp.tanh(x @ x)), jnp.ones((64, 64))
    step(x)
    if renamed:
        monkeypatch.setattr(windows, "_DISPATCH", re.compile("another name"))
    with jaxperf.watch(show=False) as outcome:
        end = time.perf_counter() + 1.5
        while time.perf_counter() < end:
            x = step(x)
    assert any(UNCALLED in remark for remark in remarks(outcome)) == renamed
