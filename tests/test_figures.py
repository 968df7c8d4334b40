"""Pictures: every kind is drawn from what a block declares, and whatever it holds gives sound SVG."""

from __future__ import annotations

import functools
import itertools
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

from report_results import (
    BOOK,
    HOSTILE,
    all_results,
    around,
    asynchronous,
    bare,
    devices,
    hostile,
    hybridize,
    peers,
)

from jaxperf.report import draw
from jaxperf.report.draw import SERIES, Picture
from jaxperf.report.figures import pictures
from jaxperf.report.story import walk
from jaxperf.report.words import shown
from jaxperf.result import (
    Axis,
    Block,
    Curve,
    Dots,
    Lines,
    Measurement,
    Reference,
    Result,
    Span,
    Table,
    Timeline,
    Timelines,
)


def svg(picture: Picture, prefix: str = "p-") -> str:
    return draw.svg(
        picture.draw,
        title=picture.title,
        description=picture.description,
        prefix=prefix,
        height_in=picture.height_in,
    )


def written(svg: str) -> list[str]:
    """All text in a drawing but for its title and description."""
    return list(ET.fromstring(svg).itertext())[2:]


def told(result: Result) -> list[Picture]:
    return [item for item in walk(result) if isinstance(item, Picture)]


def one(block: Block, **options: Any) -> Picture:
    [found] = pictures(block, **options)
    return found


def by_title(result: Result, title: str) -> Picture:
    [found] = [p for p in told(result) if p.title == title]
    return found


@functools.cache
def drawn() -> list[tuple[Picture, str]]:
    """All pictures of all results, drawn once."""
    return [
        (p, svg(p, f"p{i}-")) for i, p in enumerate(itertools.chain.from_iterable(map(told, all_results())))
    ]


def lines(*curves: Curve, x_unit: str = "", y_unit: str = "", **more: Any) -> Lines:
    return Lines("title", curves, Axis("x", x_unit), Axis("y", y_unit), **more)


def test_every_figure_that_a_section_declares_is_drawn_in_its_place() -> None:
    assert [p.title for p in told(hybridize())] == [
        "Seconds per call", "Calls until compiling pays", "Width by width"]  # fmt: skip
    assert [p.title for p in told(asynchronous())] == [
        "Predicted and measured", "Memory over time", "In flight", "Two loops", "Nothing"]  # fmt: skip
    assert [p.title for p in told(devices())] == ["A step", "Test accuracy", "Batch size", "Scaling"]
    assert told(bare()) == []


def test_a_table_is_drawn_only_where_it_asks_for_it_and_has_rows_to_compare() -> None:
    table = Table("t", (around("a", 1.0), around("b", 2.0)))
    assert list(pictures(table)) == []
    assert len(list(pictures(replace(table, bars="bars")))) == 1
    assert list(pictures(replace(table, bars="bars", rows=table.rows[:1]))) == []


def test_every_bar_has_its_figure_however_far_its_interval_reaches() -> None:
    for slow in (1.0, 40.0):
        wide = tuple(slow * v for v in (1.0, 1.1, 2.9, 3.0, 1.05))
        rows = (Measurement("quiet", "s", (1.0,) * 5), Measurement("noisy", "s", wide))
        words = written(svg(one(Table("t", rows, bars="bars"))))
        assert {shown(1.0, "s"), shown(1.1 * slow, "s")} <= set(words)


def test_every_curve_is_described_by_name_and_all_but_thin_lines_are_in_the_legend() -> None:
    for result in all_results():
        for block in result.of(Lines):
            picture = one(block)
            for curve in block.curves:
                assert f"{curve.name}: " in picture.description
    words = written(svg(by_title(devices(), "Test accuracy")))
    assert BOOK in words
    assert not any("seed" in word for word in words)


def test_thin_lines_are_told_by_the_word_of_their_color() -> None:
    thin = [Curve(f"seed {i}", (1.0, 2.0), (1.0, 2.0), "thin line", color=f"color {i % 2}") for i in range(4)]
    assert {"color 0", "color 1"} <= set(written(svg(one(lines(*thin)))))
    named = Curve("the mean", (1.0, 2.0), (1.0, 2.0), color="color 1")
    words = written(svg(one(lines(*thin, named))))
    assert {"color 0", "the mean"} <= set(words)
    assert "color 1" not in words


def test_a_curve_alone_needs_no_legend() -> None:
    assert "in flight" not in written(svg(by_title(asynchronous(), "In flight")))


def test_a_mark_has_its_words() -> None:
    picture = by_title(hybridize(), "Calls until compiling pays")
    assert "120 calls" in written(svg(picture))
    assert picture.description.endswith("; 120 calls")


def test_published_figures_are_hollow_and_named_in_curves_and_bars() -> None:
    accuracy = by_title(devices(), "Test accuracy")
    assert f"{BOOK}: 0.200 at epoch 1, 0.800 at 4" in accuracy.description
    bars = by_title(hybridize(), "Seconds per call")
    assert f"published by {BOOK} next to eager: 494 µs" in bars.description
    assert f"Hollow diamonds: {BOOK}." in bars.caption


def test_parts_of_a_whole_begin_where_the_one_before_ended_and_tell_their_share() -> None:
    words = " | ".join(written(svg(by_title(devices(), "A step"))))
    assert re.search(r"7 ms\s+70 %", words)
    assert re.search(r"2 ms\s+20 %", words)
    no_whole = replace(next(devices().of(Table)), base="gone")
    assert "whole step" in written(svg(one(no_whole)))  # plain bars then


def test_each_system_has_its_color_in_every_figure_of_a_result() -> None:
    mlp, lenet, loss = (svg(p) for p in told(peers()))
    assert all(f"var(--series-{i}," in mlp for i in (1, 2))
    for picture in (lenet, loss):  # the second system is not in them, and the third keeps its own color
        assert all((f"var(--series-{i}," in picture) == (i != 2) for i in (1, 2, 3))


def test_colors_and_dashes_are_shared_by_the_words_that_say_so() -> None:
    picture = svg(by_title(hybridize(), "Width by width"))
    assert [f"var(--series-{i}," in picture for i in range(1, 7)] == [True, True, *[False] * 4]
    assert len(set(re.findall(r"stroke-dasharray: ([^;\"]+)", picture))) == 1  # solid has none


def test_the_curve_without_a_word_for_its_dash_is_the_solid_one() -> None:
    line = (1.0, 2.0)
    for words in (("", "dashed"), ("dashed", "")):
        picture = svg(one(lines(*(Curve(f"{i}", line, line, "line", dash=w) for i, w in enumerate(words)))))
        strokes = re.findall(r'style="fill: none; (stroke-dasharray[^"]*)?[^"]*var\(--series-(\d)', picture)
        assert {color for dashed, color in strokes if dashed} == {str(words.index("dashed") + 1)}


def test_points_are_drawn_however_many_they_are() -> None:
    x = tuple(map(float, range(200)))
    for kind, count in (("points", 200), ("hollow points", 200), ("line and points", 0)):
        picture = svg(one(lines(Curve("c", x, x, kind))))  # type: ignore[arg-type]
        assert picture.count("<use") == count


def test_points_that_could_not_be_had_are_left_out() -> None:
    assert list(pictures(lines(Curve("none", (1.0, 2.0), (None, None))))) == []
    assert list(pictures(Dots("none", ()))) == list(pictures(Timelines("none", ()))) == []
    gap = by_title(asynchronous(), "In flight")
    assert gap.description == "in flight: 1 at calls 1, 3 at 3"


def test_a_wide_sweep_gets_logarithmic_axes_and_says_so_but_time_never() -> None:
    wide = tuple(10.0**i for i in range(6))
    for unit, logarithmic in (("", True), ("s", False)):
        picture = one(lines(Curve("c", wide, wide), x_unit=unit, y_unit="s"))
        assert ("logarithmic" in picture.caption) == logarithmic


def test_what_is_compared_by_its_height_begins_at_zero() -> None:
    high = Curve("c", (1.0, 2.0), (1900.0, 2000.0))
    assert "0" in written(svg(one(lines(high, zero=True))))
    assert "0" not in written(svg(one(lines(high))))


def test_panels_name_each_curve_and_share_their_scales() -> None:
    words = written(svg(by_title(asynchronous(), "Memory over time")))
    assert [w for w in words if w.startswith("run")] == [f"run {i}" for i in range(4)]


def test_dots_show_every_value_and_name_every_row() -> None:
    picture = by_title(devices(), "Batch size")
    assert {"batch 256", "batch 512"} <= set(written(svg(picture)))
    assert picture.description.count("accuracy") == 14


def test_drawings_are_sound_named_and_the_same_each_time() -> None:
    for i, (picture, first) in enumerate(drawn()):
        if i % 4 == 0:
            assert first == svg(picture, f"p{i}-")
        root = ET.fromstring(first)
        ids = [e.get("id") for e in root.iter() if e.get("id")]
        assert len(ids) == len(set(ids))
        assert all(str(name).startswith(f"p{i}-") for name in ids)
        targets = re.findall(r'(?:url\(#|href="#)([^)"]+)', first)
        assert set(targets) <= set(ids)
        assert root.get("role") == "img"
        assert root.get("aria-labelledby") in ids
        assert (root[0].text, root[1].text) == (picture.title, picture.description)
        assert picture.description
        marks = [e for e in root.iter() if e.tag.endswith(("path", "use"))]
        assert len(marks) > 3 or "nothing was recorded" in first


def test_colors_are_the_pages_and_nothing_comes_from_outside() -> None:
    for _, picture in drawn():
        styles = " ".join(re.findall(r'style="([^"]*)"', picture))
        assert re.findall(r"#[0-9a-f]{3,8}\b", re.sub(r"var\([^)]*\)", "", styles)) == []
        assert "font-family" not in picture
        assert "http" not in picture.replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert "<style" not in picture
        assert "<script" not in picture


def test_hostile_names_are_text_in_every_picture() -> None:
    known = {"svg", "title", "desc", "defs", "g", "path", "use", "text", "clipPath", "rect", "tspan"}
    for name in (" ".join(HOSTILE[i] for i in (2, 8)), " ".join(HOSTILE[i] for i in (9, 10)), HOSTILE[13]):
        made = told(hostile(name))
        assert len(made) == 6
        for picture in made:
            root = ET.fromstring(svg(picture))
            assert {e.tag.rpartition("}")[2] for e in root.iter()} <= known
            assert not any(key.lower().startswith("on") for e in root.iter() for key in e.attrib)
            assert all(e.get("href", "#").startswith("#") for e in root.iter())


ODD = (0.0, -1.0, 1e-300, 1e300, -1e300, 1.0, 1.0000000001)
PAIRS = [*list(itertools.combinations(ODD, 2))[::3], (1.0,) * 5, (0.0,) * 5, (5.0,)]


def test_odd_numbers_are_drawn_without_a_warning() -> None:
    for i, values in enumerate(PAIRS):
        unit = ("s", "bytes", "accuracy")[i % 3]
        rows = tuple(Measurement(f"m{i}", unit, (v,)) for i, v in enumerate(values))
        x = tuple(float(i) for i in range(len(values)))
        spans = (Span("a", "b", 0.0, 0.0), Span("a", "b", 0.0, abs(values[0])))
        beside = (Reference("r", values[0], unit, "system", "source", beside="m0"),)
        blocks: tuple[Block, ...] = (
            Table("bars", rows, "m0", beside, "bars"),
            Table("stacked", rows, "m0", (), "stacked"),
            Dots("dots", rows),
            lines(Curve("a", x, values), y_unit=unit, zero=i % 2 == 0, mark=(x[0], values[0])),
            lines(Curve("a", values, x), x_unit=unit),
            lines(Curve("a", x, values), y_unit=unit, panels=True),
            Timelines("t", (Timeline("t", spans, abs(values[0])),)),
        )
        for block in blocks[i % 2 :: 2]:
            for picture in pictures(block):
                ET.fromstring(svg(picture))


def test_many_spans_take_no_more_room_than_there_are_pixels() -> None:
    def size(count: int) -> int:
        spans = tuple(Span("cpu 0", "op", i, i + 0.5) for i in range(count))
        return len(svg(one(Timelines("t", (Timeline("run", spans, count, count),)))))

    assert size(100_000) < 1.1 * size(2_000)


def test_timelines_tell_how_busy_each_lane_was_and_give_a_lane_one_color() -> None:
    picture = by_title(asynchronous(), "Two loops")
    assert "synchronous loop, 1 s: wait busy 100%, cpu 0 busy 70%" in picture.description
    assert "nothing was recorded" in " ".join(written(svg(by_title(asynchronous(), "Nothing"))))
    colors = re.findall(r"var\((--series-\d)", svg(picture))
    assert list(dict.fromkeys(colors)) == ["--series-1", "--series-2", "--series-3"]  # wait, cpu 0, python


def test_there_are_as_many_markers_as_colors() -> None:
    assert len(draw.MARKERS) == len(SERIES) == len(set(SERIES))
