"""Gantt charts in letters: busy where the lane was busy, and no wider than asked."""

from jaxperf.report.gantt import gantt
from jaxperf.result import Span, Timeline

TWO = Timeline(
    "together",
    (Span("python", "dot", 0.0, 0.1), Span("cpu 0", "dot", 0.0, 0.5), Span("cpu 1", "dot", 0.5, 1.0)),
    wall_s=1.0,
    traced_s=1.0,
)
EMPTY = Timeline("nothing", (), wall_s=0.5)
AWKWARD = Timeline(
    'a <b> & "c" $x^$ ' + "long " * 40,
    (Span("lane <&> $y_$ with a name of many characters", "<op>", 0.0, 0.0), Span("b", "x", 1e-9, 2e-9)),
    wall_s=2e-9,
)


def rows(text):
    return {line.split("|")[0].strip(): line.split("|")[1] for line in text.splitlines() if "|" in line}


def test_a_lane_is_dark_when_it_was_busy_and_light_when_not():
    bars = rows(gantt(TWO, width=100))
    first, second = bars["cpu 0"], bars["cpu 1"]
    half = len(first) // 2
    assert set(first[: half - 1]) == {"█"} and set(first[half + 1 :]) == {" "}
    assert set(second[: half - 1]) == {" "} and set(second[half + 1 :]) == {"█"}


def test_part_of_a_cell_is_shaded_in_proportion():
    halves = Timeline("x", tuple(Span("a", "op", i, i + 0.5) for i in range(10)), wall_s=10, traced_s=10)
    (bar,) = rows(gantt(halves, width=34)).values()
    assert bar == "▒" * 10


def test_overlapping_spans_of_a_lane_count_once():
    twice = Timeline("x", (Span("a", "op", 0, 1), Span("a", "op", 0, 1)), wall_s=1, traced_s=1)
    assert "1 s, 100 %, 2 spans" in gantt(twice)


def test_no_line_is_wider_than_asked():
    for timeline in (TWO, EMPTY, AWKWARD):
        for width in (60, 80, 100, 200):
            assert max(len(line) for line in gantt(timeline, width=width).splitlines()) <= width


def test_every_lane_has_a_row_and_the_empty_one_says_so():
    assert set(rows(gantt(TWO))) == {"python", "cpu 0", "cpu 1"}
    assert "saw nothing" in gantt(EMPTY)
