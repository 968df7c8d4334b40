import random

import pytest

from jaxperf.result import Measurement, Reference, Table
from jaxperf.result.formatting import as_grid, format_multiple, format_quantity, format_spread

POWERS = dict(zip(("n", "u", "m", "", "k", "M", "G", "T", "P"), range(-9, 18, 3)))
SYMBOLS = {unit: unit for unit in ("s", "FLOP", "FLOP/s", "images/s")} | {"bytes": "B", "bytes/s": "B/s"}


def test_a_quantity_reads_back_within_a_percent_also_where_the_prefix_changes():
    random.seed(0)
    for unit in SYMBOLS:
        values = [random.choice((1, -1)) * 10 ** random.uniform(-12, 19) for _ in range(500)]
        edges = [10.0**e * nudge for e in range(-9, 16, 3) for nudge in (1 - 1e-9, 1.0, 1 + 1e-9)]
        for value in (*values, *edges):
            number, _, symbol = format_quantity(value, unit).partition(" ")
            prefix = "" if symbol == unit else symbol.removesuffix(SYMBOLS[unit])
            assert float(number) * 10.0 ** POWERS[prefix] == pytest.approx(value, rel=0.01), (value, unit)


def test_spread_says_how_sure_a_median_is():
    def of(*values):
        return format_spread(Measurement("m", "s", values))

    assert (of(1.0), of(1.0, 2.0)) == ("1 value", "2 values")
    assert of(0.96, 0.98, 1.0, 1.02, 1.04) == "4.0 %"
    assert of(0.8, 0.9, 1.0, 1.1, 1.2) == "20.0 %"  # five values have no interval
    assert of(0.8, 0.9, 1.0, 1.1, 1.2, 1.0) == "15.0 %, noisy (± 20 %)"
    assert of(-1.0, -1e-9, 1e-9, 1.0, 5.0, 1e-9) == "> 999 %, noisy (± > 999 %)"
    assert of(*[0.8, 1.0, 1.2] * 40) == "40.0 %"  # values differ, their median is known


def test_a_multiple_has_an_interval_only_for_values_of_the_same_rounds():
    base = Measurement("base", "s", (1.0,) * 6, rounds="r")
    assert format_multiple(base, base) == "1"
    assert format_multiple(Measurement("a", "s", (2.0,) * 6, rounds="r"), base) == "2 (2 to 2)"
    assert format_multiple(Measurement("a", "s", (2.0,) * 6, rounds="q"), base) == "2"
    assert format_multiple(Measurement("a", "bytes", (2.0,)), base) == ""
    assert format_multiple(Measurement("a", "s", (2.0,)), Measurement("zero", "s", (0.0,))) == ""


EAGER = Measurement("eager", "s", (1e-3,) * 6, rounds="r")
JITTED = Measurement("jitted", "s", (1e-5, 1e-5, 1e-5, 1e-5, 2e-5, 2e-5), rounds="r", note="fake")
BOOK = Reference("eager", 5e-4, "s", "MXNet", "section 8.1.2")


def columns(grid):
    return {row[0]: dict(zip(grid.heads, row)) for row in grid.rows}


def test_a_table_shows_median_spread_multiple_and_the_books_figure():
    grid = as_grid(Table("calls", (EAGER, JITTED), "jitted", (BOOK,)))
    assert grid.heads == ("", "median", "spread", "over jitted", "published")
    assert grid.right == (1, 2, 3, 4)
    row = ("eager", "1 ms", "0.0 %", "100 (50 to 100)", "500 µs (MXNet)")
    assert columns(grid)["eager"] == dict(zip(grid.heads, row))
    assert columns(grid)["jitted (fake)"]["over jitted"] == "1"
    assert grid.remarks == ("Published by MXNet, section 8.1.2, hardware unstated.",)
