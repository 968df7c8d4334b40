"""Running ahead: what is pending is counted, a window keeps its bound, a probe tells async from sync."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from late import Late

from jaxperf.errors import JaxperfError
from jaxperf.measure import block
from jaxperf.measure import run_ahead as module
from jaxperf.measure.run_ahead import pending, probe, run_ahead, run_ahead_depth
from jaxperf.measure.subprocess_call import in_fresh_process


@pytest.fixture
def held() -> Iterator[tuple[jax.Array, threading.Event]]:
    """A result that is there only once the event is set; what its thread queues later waits for it, too."""
    late = Late()
    yield late.array(), late.gate
    late.gate.set()


@pytest.fixture
def there() -> jax.Array:
    return jax.block_until_ready(jnp.ones(3))


def test_pending_counts_arrays_that_are_not_there(
    there: jax.Array, held: tuple[jax.Array, threading.Event]
) -> None:
    late, gate = held
    assert pending([late, there, {"a": late}]) == 2
    assert pending((there, np.ones(3), 1.0, None)) == 0
    gate.set()
    late.block_until_ready()
    assert pending([late, there]) == 0


def fail_late() -> tuple[str, int]:
    """The error of a program that fails after its call has returned, and how much of it is pending then."""

    def refuse() -> None:
        raise ValueError("refused")

    late = Late(refuse)
    failed = late.array()
    late.gate.set()
    try:
        block(failed)
    except jax.errors.JaxRuntimeError as e:
        return str(e).splitlines()[-1], pending(failed)
    return "", pending(failed)


@pytest.mark.thorough
def test_block_raises_what_a_computation_raised_and_a_failed_result_is_not_pending() -> None:
    assert in_fresh_process(fail_late) == ["ValueError: refused", 0]  # JAX would tell of it again at exit


def test_numpy_is_synchronous() -> None:
    asked = probe(np.dot, np.ones((50, 50)), np.ones((50, 50)), calls=4)
    assert asked.ready == (True,) * 4
    assert not asked.asynchronous
    assert len(asked.queued_s) == len(asked.finished_s) == 4
    assert all(0 < queued <= done for queued, done in zip(asked.queued_s, asked.finished_s))
    assert asked.queued_share.rounds == 4 and 0 < asked.queued_share.median <= 1


def test_a_large_product_is_asynchronous() -> None:
    asked = probe(jax.jit(lambda x: x @ x @ x), jnp.ones((1000, 1000)))
    assert asked.asynchronous


def test_a_probe_calls_once_more_than_it_counts() -> None:
    calls = []
    probe(calls.append, 1, calls=3)
    assert calls == [1] * 4


@pytest.mark.parametrize(
    ("depth", "order"),
    [
        (0, "q0 w0 q1 w1 q2 w2 q3 w3"),
        (1, "q0 q1 w0 q2 w1 q3 w2 w3"),
        (2, "q0 q1 q2 w0 q3 w1 w2 w3"),
        (9, "q0 q1 q2 q3 w0 w1 w2 w3"),
    ],
)
def test_a_window_waits_for_the_oldest_before_it_queues_another(
    depth: int, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    def queue() -> Iterator[int]:
        for i in range(4):
            events.append(f"q{i}")
            yield i

    def wait(i: int) -> int:
        events.append(f"w{i}")
        return i

    monkeypatch.setattr(module, "block", wait)
    assert list(run_ahead(queue(), depth=depth)) == [0, 1, 2, 3]
    assert " ".join(events) == order


def test_what_a_window_yields_is_there() -> None:
    step = jax.jit(lambda x: (x @ x / 300, x.sum()))
    x = jnp.ones((300, 300))

    def queued() -> Iterator[jax.Array]:
        nonlocal x
        for _ in range(10):
            x, metric = step(x)
            yield metric

    metrics = []
    for metric in run_ahead(queued(), depth=2):
        assert pending(metric) == 0
        metrics.append(float(metric))
    assert metrics == pytest.approx([90_000.0] * 10)


def test_a_window_of_nothing_yields_nothing() -> None:
    assert list(run_ahead([], depth=3)) == []


def test_a_negative_window_is_refused_before_anything_is_queued() -> None:
    with pytest.raises(JaxperfError, match=r"^a run-ahead window of -1 steps is impossible; give 0 or more$"):
        run_ahead(iter([1]), depth=-1)


@pytest.mark.parametrize("donate", [(), (0,)], ids=["kept", "donated"])
def test_the_depth_is_counted_after_every_call_and_a_cpu_bounds_it(donate: tuple[int, ...]) -> None:
    step = jax.jit(lambda x: (x @ x / 300, x[0, 0]), donate_argnums=donate)
    state = jnp.ones((300, 300))
    jax.block_until_ready(step(state + 0))

    def enqueue() -> jax.Array:
        nonlocal state
        state, metric = step(state)
        return metric

    counts = run_ahead_depth(enqueue, calls=60)
    assert len(counts) == 60
    assert all(after <= before + 1 for before, after in zip((0, *counts), counts))
    if jax.default_backend() == "cpu":
        assert max(counts) <= 32
