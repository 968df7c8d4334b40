"""Collectives: what is written by hand is the library's, messages are the formulas', predictions are by hand.

No test asks how long anything takes.
"""

import jax
import numpy as np
import pytest

from jaxperf.measure import count_ops
from tests.experiments.plants import fails, verdict


@pytest.fixture(scope="module")
def rows(section):
    """Small whole numbers, whose sums are exact in any order."""
    return jax.random.randint(jax.random.key(3), (section.k, 6 * section.k), -9, 9).astype("float32")


KNOWN = {  # verdicts that depend on the published tables alone, so every machine has them
    "The same constants predict other GPUs, if only the published bandwidth is changed": "does not hold",
    "One delay and published bandwidths predict all-reduces between nodes": "does not hold",
}


def test_every_claim_that_needs_no_clock_has_its_verdict(section):
    verdicts = {claim.statement: claim.verdict for claim in section.s.result().claims}
    assert len(verdicts) == 6
    assert {name: verdicts.pop(name) for name in KNOWN} == KNOWN
    assert set(verdicts.values()) == {"holds"}


def test_each_claim_fails_where_it_should(section):
    assert fails(section, "A ring sends less than two arrays", flat=[*section.flat, ("d", 8)])
    wrong = section.results["ring"].copy()
    wrong[-1] -= section.numbers[0]
    assert fails(section, "All ways give every device", results={**section.results, "ring": wrong})
    assert fails(section, "The gradient of an all-gather", halves={"all-gather": 1, "all-reduce": 1})
    seconds = section.node_seconds(section.SIZES, section.delay, section.bandwidth)
    without_delay = section.worst_factor(seconds[1:-1] - section.delay, section.published["8 H200"][1:-1])
    factors = {**section.factors, "8 H200": without_delay}
    assert fails(section, "Fitted at both ends, two constants", factors=factors)
    alike = {"8 H200": 1.6, "8 A100": 1.2, "8 B200": 1.3}
    assert verdict(section, "The same constants predict other GPUs", factors=alike) == "holds"
    assert verdict(section, "One delay and published", apart={"EFA": 1.3}) == "holds"


@pytest.mark.parametrize(("middle", "expected"), [(1.0, "holds"), (4.0, "does not hold")])
def test_the_model_of_two_processes_is_judged_between_its_ends(section, middle, expected, monkeypatch):
    sizes = np.array([4096.0, 65536.0, 1048576.0])
    both = 2 * 50e-6 + sizes / 1e9
    both[1] *= middle
    alpha, beta = section.fit(sizes, both)
    assert alpha == pytest.approx(50e-6) and beta == pytest.approx(1e9)
    planted = {"sizes": sizes, "both": both, "own": both / 10, "alpha": alpha, "beta": beta}
    planted["predicted"] = 2 * alpha + sizes / beta
    monkeypatch.setattr(section.s, "smoke", False)
    assert verdict(section, "A delay and a bandwidth, fitted at both ends", **planted) == expected


def test_no_row_that_was_fitted_is_tested(section):
    delay, bandwidth = section.fit_node(section.SIZES, section.published["8 H200"])
    fitted = section.node_seconds(section.SIZES[[0, -1]], delay, bandwidth)
    np.testing.assert_allclose(fitted, section.published["8 H200"][[0, -1]])
    changed = section.published["8 H200"].copy()
    changed[[0, -1]] *= 100  # the ends do not count
    seconds = section.node_seconds(section.SIZES, delay, bandwidth)
    assert section.factors["8 H200"] == section.worst_factor(seconds[1:-1], changed[1:-1])


def test_each_way_gives_every_device_the_sum(section, rows):
    expected = np.tile(rows.sum(0), (section.k, 1))
    for way, function in section.ways.items():
        np.testing.assert_array_equal(function(rows), expected, err_msg=way)
    np.testing.assert_array_equal(jax.device_get(section.by_star(rows)), expected)


def test_the_compiled_ring_sends_the_messages_that_were_counted(section, rows):
    program = section.on_devices(section.ring).lower(rows).compile().as_text()
    assert count_ops(program)["collective-permute"] == len(section.flat) == 2 * (section.k - 1)
    program = section.on_devices(section.two_levels, section.levels).lower(rows).compile().as_text()
    c, m = section.c, section.m
    assert count_ops(program)["collective-permute"] == len(section.split) == 2 * (c - 1) + 2 * (m - 1)
