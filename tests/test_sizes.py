"""Sizes grow until their work lasts long enough on this device; a CPU keeps those chosen for it."""

from __future__ import annotations

from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from jaxperf.measure import sizes


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes that were tried, on a pretended device that does a thousand units in a second."""
    seen: list[int] = []

    def probe(size: int, *, calls: int) -> SimpleNamespace:
        seen.append(size)
        return SimpleNamespace(finished_s=(size / 1000 + 1.0, size / 1000, size / 1000 + 0.1)[:calls])

    monkeypatch.setattr(sizes, "probe", probe)
    return seen


def itself(size: int) -> int:
    """In place of the work of a size: what the pretended probe takes."""
    return size


def test_a_size_doubles_until_the_quickest_call_lasts(tried: list[int]) -> None:
    assert sizes.size_that_lasts(100, itself, seconds=0.5, most=10_000) == 800
    assert tried == [100, 200, 400, 800]
    assert sizes.size_that_lasts(100, itself, seconds=0.1, most=10_000) == 100


def test_the_search_ends_where_the_memory_would(tried: list[int]) -> None:
    assert sizes.size_that_lasts(100, itself, seconds=99, most=400) == 400
    assert tried == [100, 200]  # the last is taken untried
    assert sizes.size_that_lasts(100, itself, seconds=99, most=50) == 100


def test_a_cpu_keeps_its_size_and_is_not_even_asked(tried: list[int]) -> None:
    assert sizes.size_for("cpu", 100, itself, seconds=99, most=10_000) == 100
    assert tried == []
    assert sizes.size_for("gpu", 100, itself, seconds=0.2, most=10_000) == 200


def test_real_work_is_called_and_waited_for() -> None:
    made: list[int] = []

    def make(size: int):
        made.append(size)
        return lambda: jnp.ones(size) + 1

    assert sizes.size_that_lasts(1, make, seconds=0.0, most=2) == 1
    assert made == [1]
