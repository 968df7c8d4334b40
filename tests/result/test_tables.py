"""Tables as text: medians, spreads, multiples and published figures, and the tally of claims."""

from jaxperf.result import Claim, Environment, Grid, Measurement, Reference, Result, Table
from jaxperf.result.tables import as_grid, count_verdicts, format_counts

EAGER = Measurement("eager", "s", (1e-3,) * 6, rounds="r")
JITTED = Measurement("jitted", "s", (1e-5, 1e-5, 1e-5, 1e-5, 2e-5, 2e-5), rounds="r", note="fake")
BOOK = Reference("eager", 5e-4, "s", "MXNet", "section 8.1.2")


def cells(grid: Grid) -> dict[str, dict[str, str]]:
    return {row[0]: dict(zip(grid.heads, row)) for row in grid.rows}


def test_a_table_shows_median_spread_multiple_and_the_books_figure() -> None:
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


def test_columns_appear_only_where_they_say_something() -> None:
    assert as_grid(Table("", (EAGER,))).heads == ("", "median", "spread")
    timed = Measurement("step", "s", (0.5,) * 4, items=64)
    assert cells(as_grid(Table("", (timed,))))["step"]["per second"] == "128"


def test_each_source_of_published_figures_is_named_once_below_the_table() -> None:
    other = Reference("jitted", 2e-3, "s", "PyTorch", "a blog")
    grid = as_grid(Table("", (EAGER, JITTED), references=(BOOK, other)))
    assert cells(grid)["jitted (fake)"]["published"] == "2 ms (PyTorch)"
    assert grid.remarks == ("Published by MXNet, section 8.1.2; PyTorch, a blog, hardware unstated.",)


def test_evidence_is_marked_and_a_grid_keeps_its_cells() -> None:
    assert as_grid(Table("", (EAGER, JITTED), "jitted", detail=True)).detail
    grid = Grid("g", ("a",), (("x",),), (0,))
    assert as_grid(grid) is grid


def test_verdicts_of_claims_are_counted() -> None:
    claims = (
        Claim("a", "holds", "p", "o"),
        Claim("b", "does not hold", "p", "o"),
        Claim("c", "undecided", "p", "o"),
        Claim("d", "not measurable here", "p", "o"),
        Claim("e", "does not hold", "p", "o"),
    )
    counts = count_verdicts([Result("e", "", "t", "q", {}, Environment(), claims)])
    assert counts == {"holds": 1, "does not hold": 2, "undecided": 1, "not measurable here": 1}
    assert format_counts(counts) == "1 holds, 2 do not hold, 1 undecided, 1 not measurable here"
    assert format_counts(count_verdicts([])) == "none"
