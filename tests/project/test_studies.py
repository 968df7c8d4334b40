"""The scripts behind docs/trust.md: figures from results, runs that stop as `measure` stops."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from studies import study

from jaxperf.result import Measurement


def test_simulated_verdicts_are_right_where_noise_is_small(capsys: pytest.CaptureFixture[str]) -> None:
    simulate = study("simulate_verdicts")
    simulate.SPREADS, simulate.MOST = (0.002,), 40
    assert simulate.main(simulate.Config(trials=5)) == 0
    *_, row = capsys.readouterr().out.splitlines()
    assert row.count("100% (0.0%)") == len(simulate.RUNS) + 1 + len(simulate.ROUNDS)


@pytest.mark.parametrize(("percent", "ratio", "status"), [(0, 2.0, 1), (20, 2.0, 0), (0, 1.0, 0)])
def test_pairs_are_counted_and_a_broken_promise_is_the_status(
    percent: int,
    ratio: float,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Told apart every time: wrong where they are equal, right where they are not."""
    pairs = study("equal_pairs")

    def trial(parts: dict[str, Any], **_: Any) -> dict[str, Measurement]:
        return {
            name: Measurement(name, "s", tuple(t * (1 + i / 1000) for i in range(12)), rounds="one")
            for name, t in zip(parts, (1.0, ratio), strict=True)
        }

    monkeypatch.setattr("jaxperf.measure.interleaved", trial)
    assert pairs.main(pairs.Config(pairs=12, percent=percent)) == status
    [shares, others] = capsys.readouterr().out.splitlines()
    all_of_them, none = "12 of 12 (73.5% to 100.0%)", "0 of 12 (0.0% to 26.5%)"
    assert shares == f"told apart: {all_of_them if ratio > 1 else none}, 12 rounds per pair"
    assert others.startswith("other programs used ")


def test_a_pair_differs_by_its_steps_alone() -> None:
    base, other = study("equal_pairs").programs(5).values()
    assert (int(base.args[1]), int(other.args[1])) == (1000, 1050) and base.func is other.func
    assert base().shape == other().shape and base.func._cache_size() == 1


def test_a_share_is_refuted_only_beyond_what_chance_does_in_so_many_trials() -> None:
    """23 of 400: 3.7 to 8.5 % by the exact binomial interval."""
    share = study("equal_pairs").Share
    assert [share(n, 400).below(0.05) for n in (0, 19, 20, 23, 40)] == [True, True, None, None, False]
    assert str(share(23, 400)) == "23 of 400 (3.7% to 8.5%)"


@pytest.mark.thorough
def test_real_pairs_beside_busy_programs(capsys: pytest.CaptureFixture[str]) -> None:
    pairs = study("equal_pairs")
    assert pairs.main(pairs.Config(pairs=2, percent=20, loaded=True)) == 0
    shares, _ = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"told apart: \d of 2 .*, \d+ rounds per pair", shares)


@pytest.mark.thorough
def test_all_timers_count_seconds_per_call() -> None:
    beside = study("beside_other_timers")
    calls = itertools.count()

    def program() -> int:
        return next(calls)

    seconds = beside.with_timeit(program)
    assert len(seconds) == 5
    assert min(seconds) > 0
    assert set(beside.STEPS) <= set(beside.functions())
    assert {"jaxperf", "timeit"} <= set(beside.timers())
