"""Verdicts counted: one program with more steps, rules asked about the first values, counts that add up."""

from __future__ import annotations

import numpy as np
import pytest
from studies import study

from jaxperf.result import Measurement

verdicts = study("verdicts")
BASE, EQUAL, Share = verdicts.BASE, verdicts.EQUAL, verdicts.Share
by_ranks, by_ratio, count = verdicts.by_ranks, verdicts.by_ratio, verdicts.count

MORE = {BASE: 0.0, EQUAL: 0.0, "5 %": 0.05}


def trials(noise: float, *, number: int, values: int) -> list[dict[str, Measurement]]:
    """Trials of independent noise around times that differ as the programs do."""
    rng = np.random.default_rng(0)
    return [
        {
            name: Measurement(name, "s", tuple((1 + more) * rng.lognormal(0, noise, values)))
            for name, more in MORE.items()
        }
        for _ in range(number)
    ]


def test_the_programs_differ_by_their_steps_alone() -> None:
    parts = verdicts.programs()
    steps = {name: int(part.args[1]) for name, part in parts.items()}
    assert steps == {"base": 1000, "equal": 1000, "5 %": 1050}
    assert int(verdicts.programs(20)["20 %"].args[1]) == 1200
    assert len({part.func for part in parts.values()}) == 1
    for part in parts.values():
        assert np.isfinite(part()).all()
    (compiled,) = {part.func for part in parts.values()}
    assert compiled._cache_size() == 1


@pytest.mark.thorough
def test_both_rules_keep_their_level_and_find_what_is_large() -> None:
    made = trials(0.02, number=60, values=12)
    for rule in (by_ratio, by_ranks):
        equal, five = count(made, rule)
        assert equal.slower + equal.faster <= (0.05 + 0.06) * 60  # two standard deviations of 60 trials
        assert five.slower >= 0.5 * five.trials
        assert equal.trials == five.trials == 60


def test_the_words_of_both_rules_are_counted_alike() -> None:
    quick, slow = (Measurement("m", "s", tuple(x * (1 + i / 1000) for i in range(12))) for x in (1.0, 2.0))
    for rule in (by_ratio, by_ranks):
        assert (rule(quick, slow), rule(slow, quick)) == ("slower", "faster")
        assert rule(quick, quick) in ("undecided", "same")
    (counts,) = count([{BASE: slow, "20 %": quick}], by_ranks)
    assert (counts.difference, counts.faster, counts.slower, counts.neither) == ("20 %", 1, 0, 0)


def test_a_trial_holds_every_program() -> None:
    parts = dict.fromkeys(MORE, int)
    paired = verdicts.in_rounds(parts, rounds=2)
    runs = verdicts.in_runs(parts, min_values=2, max_values=2, warmup_s=0)
    assert list(paired) == list(runs) == list(MORE)
    assert {m.rounds for m in paired.values()} != {""}
    assert {len(m.values) for m in (*paired.values(), *runs.values())} == {2}


@pytest.mark.thorough
def test_noise_that_follows_itself_is_not_taken_for_a_difference_by_the_paired_rule() -> None:
    """The whole machine grows slower and faster: both programs of a round see the same."""
    rng = np.random.default_rng(1)
    made = []
    for _ in range(200):
        machine = np.exp(0.1 * np.cumsum(rng.normal(size=20)))
        sides = (machine * rng.lognormal(0, 0.02, 20) for _ in range(2))
        made.append({n: Measurement(n, "s", tuple(v)) for n, v in zip((BASE, "equal"), sides)})
    (equal,) = count(made, by_ratio)
    assert equal.slower + equal.faster <= (0.05 + 0.03) * 200


def test_a_share_is_refuted_only_beyond_what_chance_does_in_so_many_trials() -> None:
    """23 of 400: 3.7 to 8.5 % by the exact binomial interval."""
    assert [Share(n, 400).below(0.05) for n in (0, 19, 20, 23, 40)] == [True, True, None, None, False]
    assert [Share(n, 400).at_least(0.9) for n in (400, 360, 359, 320)] == [True, True, None, False]
    assert str(Share(23, 400)) == "23 of 400 (3.7% to 8.5%)"
