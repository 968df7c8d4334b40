"""Section 8.2's model recovers known times; what is pending is counted; a probe tells async from sync."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from late import Late

from jaxperf.measure.dispatch import pending, probe


@pytest.fixture
def unfinished() -> Iterator[tuple[jax.Array, threading.Event]]:
    """A result that is there only once the event is set; what its thread queues later waits for it, too."""
    late = Late()
    yield late.array(), late.gate
    late.gate.set()


@pytest.fixture
def there() -> jax.Array:
    return jax.block_until_ready(jnp.ones(3))


def test_pending_counts_arrays_that_are_not_there(
    there: jax.Array, unfinished: tuple[jax.Array, threading.Event]
) -> None:
    late, gate = unfinished
    assert pending([late, there, {"a": late}]) == 2
    assert pending((there, np.ones(3), 1.0, None)) == 0
    gate.set()
    late.block_until_ready()
    assert pending([late, there]) == 0


def test_numpy_is_synchronous() -> None:
    asked = probe(np.dot, np.ones((50, 50)), np.ones((50, 50)), calls=4)
    assert asked.ready == (True,) * 4
    assert not asked.asynchronous
    assert len(asked.queued_s) == len(asked.finished_s) == 4
    assert all(0 < queued <= done for queued, done in zip(asked.queued_s, asked.finished_s))
    assert asked.queued_share.rounds == 4 and 0 < asked.queued_share.median <= 1


def test_a_result_that_is_not_there_when_the_call_returns_is_asynchronous(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = probe(Late().held(monkeypatch))
    assert asked.asynchronous and asked.ready == (False,) * 5


def test_a_probe_calls_once_more_than_it_counts() -> None:
    calls = []
    probe(calls.append, 1, calls=3)
    assert calls == [1] * 4


def test_a_program_has_finished_if_one_of_its_results_is_there() -> None:
    both = jax.jit(lambda x: (jnp.sin(x), jnp.cos(x)))
    assert len(probe(lambda: both(jnp.ones(3))[0]).ready) == 5
