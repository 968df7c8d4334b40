"""Drawing: ticks that can be read, legends that fit, numbers that cannot be drawn refused."""

from __future__ import annotations

import pytest

from jaxperf.report import draw


def test_ticks_are_as_short_as_they_can_be() -> None:
    ticks = {
        (0.0, "s"): "0",
        (0.02, "s"): "20 ms",
        (2.5e-6, "s"): "2.5 µs",
        (1e6, "bytes"): "1 MB",
        (0.75, "accuracy"): "0.75",
        (2048.0, ""): "2,048",
        (1e6, ""): "1,000,000",
        (1e9, ""): "1e9",
        (1e-5, ""): "1e-5",
        (-3000.0, ""): "-3,000",
    }
    assert {key: draw.tick(*key) for key in ticks} == ticks


def test_values_spread_like_powers_are_told_from_values_spread_evenly() -> None:
    assert draw.geometric([1.0, 10.0, 100.0])
    assert draw.geometric([32.0, 128.0, 512.0, 2048.0])
    assert not draw.geometric(list(map(float, range(1, 12))))
    assert not draw.geometric([0.0, 10.0, 100.0])
    assert not draw.geometric([1.0, 1e300, 1e308])


def test_a_legend_has_room_for_its_longest_name() -> None:
    assert draw.legend_in(["a"] * 4) == draw.legend_in(["a"])
    assert draw.legend_in(["a" * 30] * 4) > draw.legend_in(["a"] * 4)
    assert draw.legend_in(["a" * 1000] * 3) == pytest.approx(3 * draw.legend_in(["a"]))
    assert draw.legend_in([]) == 0


def test_names_are_cut_to_a_length_and_hold_no_control_character() -> None:
    assert draw.short("a" * 40, 10) == "a" * 9 + "…"
    assert draw.short("a\x1b[31m", 20) == "a\\x1b[31m"


def test_a_drawing_of_values_that_overflow_is_refused_in_words() -> None:
    def overflow(figure: object) -> None:
        figure.add_subplot().barh(0, 1.7e308)  # type: ignore[attr-defined]

    with pytest.raises(ValueError, match="cannot be drawn"):
        draw.svg(overflow, title="t", description="d", prefix="p-")


def test_a_png_is_one_and_the_same_each_time() -> None:
    def line(figure: object) -> None:
        figure.add_subplot().plot([1, 2])  # type: ignore[attr-defined]

    first = draw.png(line, height_in=1.0)
    assert first.startswith(b"\x89PNG")
    assert first == draw.png(line, height_in=1.0)
