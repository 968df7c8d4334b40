"""Pictures: every kind is drawn from what a result holds, and whatever it holds gives sound SVG."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from report_results import HOSTILE, all_results, asynchronous, bare, devices, hostile, hybridize, peers

from jaxperf.measure.record import Measurement, Result, Series, Span, Timeline
from jaxperf.report import axes, figure, systems
from jaxperf.report.pictures import pictures
from jaxperf.report.plots import Picture


def draw(picture: Picture, prefix: str = "p-") -> str:
    return figure.svg(
        picture.draw,
        title=picture.title,
        description=picture.description,
        prefix=prefix,
        height_in=picture.height_in,
    )


def words(svg: str) -> str:
    """All text in a drawing."""
    return " | ".join(ET.fromstring(svg).itertext())


def titles(result: Result) -> list[str]:
    return [p.title for p in pictures(result)]


def by_title(result: Result, title: str) -> Picture:
    [found] = [p for p in pictures(result) if p.title == title]
    return found


def test_every_section_gets_the_pictures_that_its_data_allow() -> None:
    assert titles(hybridize()) == [
        "8.1.2 The MLP",
        "eager and hybridize, per width",
        "Calls until compiling pays",
    ]
    assert titles(asynchronous()) == [
        "Predicted and measured",
        "Memory over time",
        "How far the front end runs ahead",
        "Timeline: synchronous loop and asynchronous loop",
        "Timeline: nothing",
    ]
    assert titles(devices()) == [
        "Test accuracy over epochs",
        "Training loss over epochs",
        "Where a step's time goes",
        "Scaling",
        "Batch size and learning rate",
    ]
    assert pictures(bare()) == []


def test_a_result_without_curves_gets_its_timings_as_bars() -> None:
    rows = (
        Measurement("share", "", (0.5,)),
        Measurement("copy", "s", (1.0,)),
        Measurement("sum", "s", (2.0,)),
    )
    [picture] = pictures(replace(bare(), measurements=rows))
    shown = words(draw(picture))
    assert "copy" in shown
    assert "2 s" in shown
    assert "share" not in shown


@pytest.mark.parametrize("slow", [1.0, 40.0])
def test_every_bar_has_its_figure_however_far_its_interval_reaches(slow: float) -> None:
    wide = tuple(slow * v for v in (1.0, 1.1, 2.9, 3.0, 1.05))
    rows = (Measurement("quiet", "s", (1.0,) * 5), Measurement("noisy", "s", wide))
    [picture] = pictures(replace(bare(), measurements=rows))
    written = words(draw(picture)).split(" | ")  # beside the description, which holds the figures too
    assert {axes.shown(1.0, "s"), axes.shown(1.1 * slow, "s")} <= set(written)


def test_every_series_is_drawn_once_and_by_name() -> None:
    for result in all_results():
        told = [p.description for p in pictures(result)]
        for series in result.series:
            name = series.name.replace("/measured", ", measured").replace("/predicted", ", predicted")
            short = series.name.partition("/")[2] or series.name
            if series.name.startswith(("accuracy/", "loss/")):
                short = series.name.partition("/")[2].partition(",")[0]
            assert sum(name in d or short in d for d in told) >= 1, series.name


def test_break_even_is_where_the_lines_cross() -> None:
    picture = by_title(hybridize(), "Calls until compiling pays")
    expected = (0.002 + 0.003 + 0.1) / (886e-6 - 10e-6)
    assert f"{expected:.0f} calls" in words(draw(picture))
    never = replace(hybridize(), facts={**hybridize().facts, "compile_s": None})
    assert "Calls until compiling pays" not in titles(never)
    slower = replace(
        hybridize(), measurements=(Measurement("eager", "s", (1.0,)), Measurement("hybridize", "s", (2.0,)))
    )
    assert "Calls until compiling pays" not in titles(slower)


def test_published_points_stand_in_the_accuracy_curve_and_in_the_bars() -> None:
    accuracy = by_title(devices(), "Test accuracy over epochs")
    assert "MXNet, the book" in words(draw(accuracy))
    assert "0.800 accuracy at epoch 4" in accuracy.description
    assert "Hollow" in accuracy.caption
    assert (
        "published by MXNet, the book beside eager: 494 µs"
        in by_title(hybridize(), "8.1.2 The MLP").description
    )


def test_scaling_has_its_ideal_line_and_says_when_devices_are_fake() -> None:
    picture = by_title(devices(), "Scaling")
    assert "ideal: 1900 images/s at 1 devices, 3800 images/s at 2 devices" in picture.description
    assert "fake" in picture.caption
    real = replace(devices(), environment=replace(devices().environment, devices_are_fake=False))
    assert "fake" not in by_title(real, "Scaling").caption


def test_points_that_could_not_be_had_are_left_out() -> None:
    alone = replace(bare(), series=(Series("none", (1.0, 2.0), (None, None), "x", "y"),))
    assert pictures(alone) == []
    gap = by_title(asynchronous(), "How far the front end runs ahead")
    assert "1 computations at 1 calls, 3 computations at 3 calls" in gap.description


def test_a_wide_sweep_gets_logarithmic_axes_and_says_so_but_time_never() -> None:
    wide = tuple(10.0**i for i in range(6))
    for unit, logarithmic in (("elements", True), ("s", False)):
        [picture] = pictures(replace(bare(), series=(Series("a/b", wide, wide, unit, "s"),)))
        assert ("logarithmic" in picture.caption) == logarithmic


def test_many_spans_take_no_more_room_than_there_are_pixels() -> None:
    def size(count: int) -> int:
        spans = tuple(Span("cpu 0", "op", i, i + 0.5) for i in range(count))
        [picture] = pictures(replace(bare(), timelines=(Timeline("run", spans, count, count),)))
        return len(draw(picture))

    assert size(100_000) < 1.1 * size(2_000)


def test_timelines_tell_how_busy_each_lane_was() -> None:
    picture = by_title(asynchronous(), "Timeline: synchronous loop and asynchronous loop")
    assert "synchronous loop, 1 s: wait busy 100%, cpu 0 busy 70%" in picture.description
    assert "nothing was recorded" in words(draw(by_title(asynchronous(), "Timeline: nothing")))


def test_the_peers_have_a_row_each_and_the_best_of_each_system_is_named() -> None:
    workloads = systems.runs(peers())
    assert list(workloads) == ["8.1 MLP", "LeNet"]
    shown = words(draw(systems.picture("8.1 MLP", workloads["8.1 MLP"], peers())))
    assert all(name in shown for name in ("jax, hybridize", "jax, eager", "mxnet, static", "26 µs"))
    group = systems.group("8.1 MLP", workloads["8.1 MLP"], peers())
    assert group.base == "jax, hybridize"
    assert [row.note for row in group.rows] == ["best of jax", "", ""]
    assert [row.of_base for row in group.rows] == ["1x", "9x (9 to 9)", "2.6x (2.6 to 2.6)"]
    assert systems.best(workloads["LeNet"]).system == "torch"  # images per second: more is better
    assert [systems.belongs_to(w, hybridize()) for w in ("8.1 MLP", "8.10 MLP", "hybridize, x", "LeNet")] == [
        True,
        False,
        True,
        False,
    ]


def test_the_peers_curves_stand_together_by_workload() -> None:
    [picture] = systems.curves(peers())
    assert picture.title == "LeNet: loss over step"
    told = [part.partition(":")[0] for part in picture.description.split("; ")]
    assert told == ["jax, scan loss", "jax, jit loss", "torch, compile loss"]


def test_per_round_ratios_cancel_what_slows_a_whole_round() -> None:
    weather = (1.0, 5.0, 1.2, 3.0, 0.9, 2.0, 1.1)
    rounds = (
        Measurement("jax/w/a", "s", weather),
        Measurement("torch/w/b", "s", tuple(2 * v for v in weather)),
    )
    rows = systems.group("w", systems.runs(replace(peers(), measurements=rounds))["w"], peers()).rows
    assert [row.of_base for row in rows] == ["1x", "2x (2 to 2)"]


@pytest.mark.parametrize("result", all_results(), ids=lambda r: r.experiment)
def test_drawings_are_sound_named_and_the_same_each_time(result: Result) -> None:
    for i, picture in enumerate(pictures(result)):
        svg = draw(picture, f"p{i}-")
        assert svg == draw(picture, f"p{i}-")
        root = ET.fromstring(svg)
        ids = [e.get("id") for e in root.iter() if e.get("id")]
        assert len(ids) == len(set(ids))
        assert all(str(name).startswith(f"p{i}-") for name in ids)
        targets = re.findall(r'(?:url\(#|href="#)([^)"]+)', svg)
        assert set(targets) <= set(ids)
        assert root.get("role") == "img"
        assert root.get("aria-labelledby") in ids
        assert (root[0].text, root[1].text) == (picture.title, picture.description)
        assert picture.description
        marks = [e for e in root.iter() if e.tag.endswith(("path", "use"))]
        assert len(marks) > 3 or "nothing was recorded" in svg


def test_colours_are_the_pages_and_nothing_comes_from_outside() -> None:
    for picture in itertools.chain.from_iterable(map(pictures, all_results())):
        svg = draw(picture)
        styles = " ".join(re.findall(r'style="([^"]*)"', svg))
        bare_colors = re.findall(r"#[0-9a-f]{3,8}\b", re.sub(r"var\([^)]*\)", "", styles))
        assert bare_colors == []
        assert "font-family" not in svg
        assert "http" not in svg.replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert "<style" not in svg
        assert "<script" not in svg


@pytest.mark.parametrize("name", [HOSTILE[i] for i in (2, 8, 9, 10, 13)], ids=str.__len__)
def test_hostile_names_are_text_in_every_picture(name: str) -> None:
    made = pictures(hostile(name))
    assert len(made) >= 8
    known = {"svg", "title", "desc", "defs", "g", "path", "use", "text", "clipPath", "rect", "tspan"}
    for picture in made:
        root = ET.fromstring(draw(picture))
        assert {e.tag.rpartition("}")[2] for e in root.iter()} <= known
        assert not any(key.lower().startswith("on") for e in root.iter() for key in e.attrib)
        assert all(e.get("href", "#").startswith("#") for e in root.iter())


ODD = (0.0, -1.0, 1e-300, 1e300, -1e300, 1.0, 1.0000000001)
PAIRS = [*itertools.combinations(ODD, 2), (1.0,) * 5, (0.0,) * 5, (5.0,)]


@pytest.mark.parametrize("unit", ["s", "bytes", "accuracy"])
@pytest.mark.parametrize("values", PAIRS[:: 1 + len(PAIRS) // 12] + PAIRS[-3:], ids=str)
def test_odd_numbers_are_drawn_without_a_warning(values: tuple[float, ...], unit: str) -> None:
    measured = tuple(Measurement(f"m{i}", unit, (v,), group="g", base="m0") for i, v in enumerate(values))
    x = tuple(float(i) for i in range(len(values)))
    spans = (Span("a", "b", 0.0, 0.0), Span("a", "b", 0.0, abs(values[0])))
    result = replace(
        bare(),
        measurements=measured,
        series=(
            Series("a/b", x, values, "x", unit),
            Series("c/d", values, x, unit, "y"),
            Series("grid/x", x, values, "seed", unit),
            Series("scaling/x", (1.0, 2.0), (values[0], values[-1]), "devices", unit),
        ),
        timelines=(Timeline("t", spans, abs(values[0])),),
    )
    for picture in [*pictures(result), *pictures(replace(bare(), measurements=measured))]:
        ET.fromstring(draw(picture))
