"""Tables as words: medians, spreads, multiples and published figures, and both tallies of claims."""

from __future__ import annotations

from jaxperf.report.tables import Rows, counted, rows_of, tally
from jaxperf.result import Claim, Environment, Grid, Measurement, Reference, Result, Table

EAGER = Measurement("eager", "s", (1e-3,) * 6, rounds="r")
JITTED = Measurement("jitted", "s", (1e-5, 1e-5, 1e-5, 1e-5, 2e-5, 2e-5), rounds="r", note="fake")
BOOK = Reference("MLP", 5e-4, "s", "MXNet", "section 8.1.2", beside="eager")


def cells(rows: Rows) -> dict[str, dict[str, str]]:
    return {row[0]: dict(zip(rows.heads, row)) for row in rows.cells}


def test_a_table_shows_median_spread_multiple_and_the_books_figure() -> None:
    rows = rows_of(Table("calls", (EAGER, JITTED), "jitted", (BOOK,)))
    assert rows.heads == ("", "median", "spread", "over jitted", "published", "ours / published")
    assert rows.right == (1, 2, 3, 4, 5)
    assert cells(rows)["eager"] == {
        "": "eager",
        "median": "1 ms",
        "spread": "0.0 %",
        "over jitted": "100 (50 to 100)",
        "published": "500 µs (MXNet)",
        "ours / published": "2",
    }
    assert cells(rows)["jitted (fake)"]["over jitted"] == "1"
    assert rows.remarks == ("Published by MXNet, section 8.1.2, hardware unstated.",)


def test_columns_appear_only_where_they_say_something() -> None:
    assert rows_of(Table("", (EAGER,))).heads == ("", "median", "spread")
    timed = Measurement("step", "s", (0.5,) * 4, items=64)
    assert cells(rows_of(Table("", (timed,))))["step"]["per second"] == "128"


def test_all_published_figures_are_shown_next_to_their_row_or_below() -> None:
    again = Reference("MLP", 2e-3, "s", "PyTorch", "a blog", beside="eager")
    wrong = Reference("MLP", 0.5, "images/s", "MXNet", "section 8.1.2", beside="eager")
    far = Reference("an epoch", 13.0, "s", "MXNet", "section 8.5.2")
    rows = rows_of(Table("", (EAGER,), references=(BOOK, again, wrong, far)))
    assert cells(rows)["eager"]["published"] == "500 µs (MXNet); 2 ms (PyTorch); 0.500 images/s (MXNet)"
    assert cells(rows)["eager"]["ours / published"] == "2; 0.5; "
    assert rows.remarks[0] == "Published: an epoch, 13 s (MXNet, section 8.5.2, hardware unstated)."
    assert "PyTorch, a blog" in rows.remarks[1]


def test_the_short_log_keeps_the_rows_that_make_the_point() -> None:
    table = Table("", (EAGER, JITTED), "jitted", key=("eager",), detail=True)
    assert list(cells(rows_of(table, brief=True))) == ["eager"]
    assert len(rows_of(table).cells) == 2
    assert rows_of(table).detail
    assert rows_of(Grid("g", ("a",), (("x",),), (0,))) == Rows("g", ("a",), (("x",),), (0,))


def test_sentences_and_predictions_are_counted_apart() -> None:
    claims = (
        Claim("a", "holds", "p", "right", "o"),
        Claim("b", "does not hold", "p", "right", "o"),
        Claim("c", "undecided", "p", "undecided", "o"),
        Claim("d", "cannot be measured here", "p", "undecided", "o"),
        Claim("e", "does not hold", "p", "not stated", "o"),
    )
    found = tally([Result("e", "", "t", "q", {}, Environment(), claims)])
    assert found.total == 5
    assert found.sentences == {"holds": 1, "does not hold": 2, "undecided": 1, "cannot be measured here": 1}
    assert found.predictions == {"right": 2, "undecided": 2}
    assert counted(found.predictions) == "2 right, 2 undecided"
    assert counted(tally([]).sentences) == "none"
