from jaxperf.result import Measurement, Reference, Table
from jaxperf.result.formatting import as_grid

EAGER = Measurement("eager", "s", (1e-3,) * 6, rounds="r")
JITTED = Measurement("jitted", "s", (1e-5, 1e-5, 1e-5, 1e-5, 2e-5, 2e-5), rounds="r", note="fake")
BOOK = Reference("eager", 5e-4, "s", "MXNet", "section 8.1.2")


def cells(grid):
    return {row[0]: dict(zip(grid.heads, row)) for row in grid.rows}


def test_a_table_shows_median_spread_multiple_and_the_books_figure():
    grid = as_grid(Table("calls", (EAGER, JITTED), "jitted", (BOOK,)))
    assert grid.heads == ("", "median", "spread", "over jitted", "published")
    assert grid.right == (1, 2, 3, 4)
    assert cells(grid)["eager"] == {
        "": "eager",
        "median": "1 ms",
        "spread": "0.0 %",
        "over jitted": "100 (50 to 100)",
        "published": "500 µs (MXNet)",
    }
    assert cells(grid)["jitted (fake)"]["over jitted"] == "1"
    assert grid.remarks == ("Published by MXNet, section 8.1.2, hardware unstated.",)
