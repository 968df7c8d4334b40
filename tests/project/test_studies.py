"""The scripts behind docs/trust.md: figures from results, runs that stop as `measure` stops."""

from __future__ import annotations

import itertools
import random
import re
from functools import partial
from typing import Any

import pytest
from studies import study

from jaxperf.result import Measurement


def test_simulated_runs_stop_as_those_of_measure_do() -> None:
    simulate = study("simulate_verdicts")
    counts = [
        len(simulate.values(random.Random(0), spread, 1.0, simulate.settled).values)
        for spread in (0.001, 0.5)
    ]
    assert counts == [125, 200]


@pytest.mark.parametrize(("percent", "ratio", "status"), [(0, 2.0, 1), (20, 2.0, 0), (0, 1.0, 0)])
def test_pairs_are_counted_by_both_rules_and_a_broken_promise_of_ratio_is_the_status(
    percent: int,
    ratio: float,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Told apart every time: wrong where they are equal, right where they are not. Last, by one rule."""
    pairs, count = study("equal_pairs"), 12
    verdicts = study("verdicts")

    def trial(other: float, parts: dict[str, Any], **_: Any) -> dict[str, Measurement]:
        return {
            name: Measurement(name, "s", tuple(t * (1 + i / 1000) for i in range(12)))
            for name, t in zip(parts, (1.0, other), strict=True)
        }

    monkeypatch.setattr(verdicts, "in_rounds", partial(trial, ratio))
    monkeypatch.setattr(verdicts, "in_runs", partial(trial, 2.0))
    assert pairs.main(pairs.Config(pairs=count, percent=percent)) == status
    [shares, others] = capsys.readouterr().out.splitlines()
    all_of_them = "12 of 12 (73.5% to 100.0%)"
    rounds = all_of_them if ratio > 1 else "0 of 12 (0.0% to 26.5%)"
    each = "12 values per program"
    assert shares == f"told apart: Ratio in {rounds}, {each}; compare in {all_of_them}, {each}"
    assert others.startswith("other programs used ")
    assert pairs.main(pairs.Config(pairs=count, percent=percent, rules=("compare",))) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"told apart: compare in {all_of_them}, {each}"


@pytest.mark.thorough
def test_real_pairs_beside_busy_programs(capsys: pytest.CaptureFixture[str]) -> None:
    pairs = study("equal_pairs")
    assert pairs.main(pairs.Config(pairs=2, percent=20, loaded=True)) == 0
    shares, _ = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"told apart: Ratio in \d of 2 .*; compare in \d of 2 .*, \d+ values .*", shares)


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
