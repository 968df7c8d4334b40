"""Section 8.2's model recovers known times; what is pending is counted; a probe tells async from sync."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import cases
from late import Late

from jaxperf.errors import JaxperfError
from jaxperf.measure import dispatch
from jaxperf.measure.dispatch import Costs, DispatchSample, fit, pending, prediction_errors, probe, sweep

US, NS = 1e-6, 1e-9
SIZES = [float(2**k) for k in range(10, 20)]
CALLS = 200
TRUE = {
    "idle machine": Costs(4 * US, 45 * US, 1 * US, 0.08 * NS),
    "busy machine": Costs(6 * US, 6 * US, 2 * US, 0.09 * NS),
    "slow front end": Costs(12 * US, 20 * US, 0.0, 0.09 * NS),
    "small cache": Costs(5 * US, 20 * US, 1 * US, 0.05 * NS, 0.06 * NS, knee=2.0**16),
}


def samples(
    costs: Costs, *, noise: float = 0.0, seed: int = 0, sizes: list[float] = SIZES
) -> list[DispatchSample]:
    """Times as these costs make them, and what other programs add: a share that is never negative."""
    rng = np.random.default_rng(seed)

    def rounds(total_s: float) -> tuple[float, ...]:
        return tuple(total_s * (1 + noise * rng.exponential(size=15)))

    return [
        DispatchSample(
            s, CALLS, rounds(costs.synchronous_s(s, CALLS)), rounds(costs.asynchronous_s(s, CALLS))
        )
        for s in sizes
    ]


@pytest.mark.parametrize("noise", cases([(0.0,), (0.01,), (0.02,)], quick=lambda noise: noise != 0.01))
@pytest.mark.parametrize("true", TRUE.values(), ids=TRUE.keys())
def test_known_t1_t2_t3_are_recovered_within_2_percent(true: Costs, noise: float) -> None:
    for seed in range(3 if noise else 1):
        costs = fit(samples(true, noise=noise, seed=seed))
        assert costs.t1_s == pytest.approx(true.t1_s, rel=0.02)
        assert costs.t3_s == pytest.approx(true.t3_s, rel=0.02)
        for size in SIZES:
            if true.t2_s(size) > true.t1_s:  # below, an asynchronous loop hides t2
                assert costs.t2_s(size) == pytest.approx(true.t2_s(size), rel=0.02)


@pytest.mark.parametrize("true", TRUE.values(), ids=TRUE.keys())
def test_sizes_that_were_held_out_are_predicted(true: Costs) -> None:
    everything = samples(true, noise=0.01, sizes=np.geomspace(SIZES[0], SIZES[-1], 16).tolist())
    errors = prediction_errors(fit(everything[::2]), everything[1::2])
    assert np.median(np.abs(errors)) < 0.03
    assert np.ptp(errors) > 0  # the noise is in what they are held against


def test_prediction_errors_are_fractions_of_what_was_measured() -> None:
    true = TRUE["idle machine"]
    twice = Costs(2 * true.t1_s, 2 * true.t3_s, 2 * true.t2_fixed_s, 2 * true.t2_per_unit_s)
    assert np.allclose(prediction_errors(true, samples(true)), 0)
    assert np.allclose(prediction_errors(twice, samples(true)), 1)


@pytest.mark.parametrize("true", TRUE.values(), ids=TRUE.keys())
def test_at_the_crossover_t2_equals_t1(true: Costs) -> None:
    assert true.t2_s(true.crossover) == pytest.approx(true.t1_s)
    assert true.t2_s(0.9 * true.crossover) < true.t1_s < true.t2_s(1.1 * true.crossover)


def test_t1_measured_alone_does_not_overrule_the_loops() -> None:
    true = TRUE["idle machine"]
    assert fit(samples(true), t1_s=1.3 * true.t1_s).t1_s == pytest.approx(true.t1_s, rel=0.05)


def test_queueing_takes_time_and_makes_one_call_more_a_round() -> None:
    seen: list[int] = []

    def fn(x: jax.Array) -> jax.Array:
        seen.append(x.size)
        return x

    assert dispatch.queueing_s(fn, jnp.ones(3), calls=4, rounds=2) > 0
    assert seen == [3] * 10


def test_a_crossover_beyond_the_knee_counts_both_slopes() -> None:
    late = Costs(9 * US, 0.0, 0.0, 0.05 * NS, 0.05 * NS, knee=100_000)
    assert late.crossover == pytest.approx(140_000)


def test_there_may_be_no_crossover() -> None:
    assert Costs(1 * US, 0.0, 2 * US, 0.1 * NS).crossover == 0
    assert Costs(2 * US, 0.0, 1 * US, 0.0).crossover == math.inf
    assert Costs(2 * US, 0.0, 1 * US, 0.0, 0.0, knee=100).crossover == math.inf


@pytest.mark.parametrize("true", TRUE.values(), ids=TRUE.keys())
def test_the_books_formula_holds_exactly_where_its_assumption_does(true: Costs) -> None:
    for size in SIZES:
        n, t1, t2 = 1000, true.t1_s, true.t2_s(size)
        modeled, book = true.asynchronous_s(size, n), true.book_s(size, n)
        assert modeled <= true.synchronous_s(size, n)
        if t2 >= t1:
            assert modeled == pytest.approx(book)
        else:
            assert modeled == pytest.approx(n * t1 + t2 + true.t3_s)
            assert modeled > book


def test_gains_are_of_the_same_rounds_and_follow_the_model() -> None:
    true = TRUE["idle machine"]
    for sample in samples(true):
        assert sample.gain.rounds == 15
        assert sample.gain.median == pytest.approx(true.gain(sample.size), rel=0.1)
    slowed = DispatchSample(
        1.0, 1, tuple(float(i + 1) for i in range(9)), tuple(float(i + 1) / 2 for i in range(9))
    )
    assert (slowed.gain.low, slowed.gain.high) == (2, 2)


def test_too_few_sizes_are_refused_in_one_line() -> None:
    five = samples(TRUE["idle machine"])[:5]
    with pytest.raises(JaxperfError, match=r"^a fit of t1, t2 and t3 needs at least 6 sizes, not 5$"):
        fit(five)
    with pytest.raises(JaxperfError, match="at least 6 sizes, not 5"):
        fit([*five, *five])  # the same size twice tells nothing new


def test_the_synchronous_loop_waits_for_each_and_the_asynchronous_one_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[object] = []
    monkeypatch.setattr(dispatch, "block", waits.append)
    assert dispatch.synchronous_loop(lambda x: x, 7, 5) == 7
    assert waits == [7] * 5
    waits.clear()
    dispatch.asynchronous_loop(lambda x: x, 7, 5)
    assert waits == [7]


def test_a_sweep_visits_every_size_in_every_round_and_keeps_the_raw_times() -> None:
    seen: list[int] = []

    def fn(x: jax.Array) -> jax.Array:
        seen.append(x.size)
        return x

    samples_of_sweep = sweep(fn, [(1.0, jnp.ones(1)), (2.0, jnp.ones(2))], calls=3, rounds=4)
    assert [(s.size, s.calls, len(s.sync_s), len(s.async_s)) for s in samples_of_sweep] == [
        (1, 3, 4, 4),
        (2, 3, 4, 4),
    ]
    rounds = [seen[i : i + 12] for i in range(0, len(seen), 12)]
    assert len(rounds) == 5  # one that does not count, then four rounds of both loops at both sizes
    assert all(visited.count(1) == visited.count(2) == 6 for visited in rounds)
    assert min(min(s.sync_s + s.async_s) for s in samples_of_sweep) > 0


@pytest.mark.parametrize(("calls", "rounds"), [(0, 1), (1, 0), (-3, 2)])
def test_a_sweep_of_nothing_is_refused(calls: int, rounds: int) -> None:
    with pytest.raises(JaxperfError, match="at least 1, not"):
        sweep(lambda x: x, [(1.0, jnp.ones(1))], calls=calls, rounds=rounds)


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


def test_a_large_product_is_asynchronous() -> None:
    asked = probe(jax.jit(lambda x: x @ x @ x), jnp.ones((1000, 1000)))
    assert asked.asynchronous


def test_a_probe_calls_once_more_than_it_counts() -> None:
    calls = []
    probe(calls.append, 1, calls=3)
    assert calls == [1] * 4
