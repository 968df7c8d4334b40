from pathlib import Path

import pytest
import scripts

from jaxperf.plan import accuracy, links
from jaxperf.plan.cards import CARDS

PATH = Path(__file__).parents[2] / "benchmarks" / "plan" / "validate.py"


@pytest.fixture
def validate(monkeypatch):
    return scripts.load("validate_plan", PATH, monkeypatch)


def test_tables_that_fit_do_not_test_and_the_printed_errors_are_those_of_the_tests(validate):
    tables = {row["table"] for row in validate.read("collectives.csv")}
    assert set(validate.FITS) | set(validate.TESTS) == tables
    assert not set(validate.FITS) & set(validate.TESTS)
    assert {network.source for network in links.NETWORKS.values()} <= set(validate.FITS)
    for name, value in validate.accuracy().items():
        assert getattr(accuracy, name) == pytest.approx(value), name


def test_all_reduces_of_all_test_tables(validate):
    """Also with older versions of NCCL and over more nodes; the other kinds are on the page."""
    kinds = {row["table"]: row["kind"] for row in validate.read("collectives.csv")}
    rows = validate.counted(validate.collectives(validate.TESTS))
    reduces = [row for row in rows if kinds[row.table] == "all-reduce"]
    in_node, between = validate.in_node_and_between(reduces)
    assert len(in_node) >= 20 and len(between) >= 50
    assert validate.median_error(reduces) <= 0.15 and validate.factor(in_node) <= 1.5


def test_seven_of_ten_steps_are_within_a_quarter(validate):
    rows = validate.published_steps()
    assert len(rows) >= 10
    assert validate.within(rows, 0.25) >= 0.69 * len(rows)


def test_a_network_without_a_test_says_that_it_is_a_guess():
    assert "a guess" in accuracy.summary("tcpxo") and "a guess" not in accuracy.summary("infiniband")
    assert accuracy.collective_factor("tcpxo", True) == max(accuracy.BETWEEN.values())
    assert set(accuracy.BETWEEN) < set(links.NETWORKS) and CARDS
