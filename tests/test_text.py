"""Text for a terminal: figures that can be read back, ratios, verdicts, nothing the terminal would obey."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import pytest

from jaxperf.measure.record import Claim, Environment, Measurement, Reference, Result
from jaxperf.report.text import (
    claim_line,
    console,
    environment_lines,
    literal,
    quantity,
    ratio,
    render_text,
    scalar,
    table,
)

POWERS = dict(zip(("n", "u", "m", "", "k", "M", "G", "T", "P"), range(-9, 18, 3)))
SYMBOLS = {
    "s": "s",
    "bytes": "B",
    "bytes/s": "B/s",
    "FLOP": "FLOP",
    "FLOP/s": "FLOP/s",
    "images/s": "images/s",
}


def read_back(shown: str, unit: str) -> float:
    """The value that a quantity's text stands for."""
    number, _, symbol = shown.partition(" ")
    prefix = "" if symbol == unit else symbol.removesuffix(SYMBOLS[unit])
    return float(number) * 10.0 ** POWERS[prefix]


@pytest.mark.parametrize("unit", SYMBOLS)
def test_a_quantity_reads_back_within_a_percent(unit: str) -> None:
    random.seed(0)
    for _ in range(2000):
        value = random.choice((1, -1)) * 10 ** random.uniform(-12, 19)
        assert read_back(quantity(value, unit), unit) == pytest.approx(value, rel=0.01)


@pytest.mark.parametrize("unit", ["s", "bytes", "FLOP/s"])
@pytest.mark.parametrize("edge", [1e-9, 1e-6, 1e-3, 1.0, 1e3, 1e6, 1e9, 1e12, 1e15])
@pytest.mark.parametrize("nudge", [1 - 1e-9, 1.0, 1 + 1e-9])
def test_a_quantity_reads_back_where_the_prefix_changes(unit: str, edge: float, nudge: float) -> None:
    assert read_back(quantity(edge * nudge, unit), unit) == pytest.approx(edge, rel=0.01)


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (1.23e-5, "s", "12.3 us"),
        (0.4943, "s", "494 ms"),
        (7.3877, "s", "7.39 s"),
        (7200.0, "s", "7200 s"),
        (4.1e7, "bytes", "41 MB"),
        (12, "bytes", "12 bytes"),
        (0.5, "bytes", "0.500 bytes"),
        (1.96e11, "FLOP/s", "196 GFLOP/s"),
        (1500.4, "images/s", "1500 images/s"),
        (0, "s", "0 s"),
        (3, "", "3"),
        (None, "s", "-"),
        (float("nan"), "s", "-"),
    ],
)
def test_quantities_that_a_reader_knows(value: float | None, unit: str, shown: str) -> None:
    assert quantity(value, unit) == shown


def test_scalars_that_are_no_numbers_are_shown_as_they_are() -> None:
    assert [scalar(v) for v in (True, None, "x", float("inf"))] == ["True", "None", "x", "inf"]
    assert scalar(0.25, "s") == "250 ms"


def test_a_ratio_is_ours_over_the_base() -> None:
    assert ratio(3.0, 2.0) == "1.5x"
    assert ratio(1.0, 0.0) == "-"


EAGER = Measurement("eager", "s", (1e-3,) * 5)
JITTED = Measurement("jitted", "s", (1e-5, 1e-5, 1e-5, 2e-5, 2e-5))
BOOK = Reference("MLP", 5e-4, "s", "MXNet (book)", "section 8.1.2", beside="eager")


def shown(*measurements: Measurement, width: int = 100, color: bool = False, **options: object) -> str:
    return drawn(table(measurements, **options), width=width, color=color)  # type: ignore[arg-type]


def drawn(what: object, *, width: int = 100, color: bool = False) -> str:
    con = console(color=color, width=width)
    with con.capture() as capture:
        con.print(what)
    return capture.get()


def row(text: str, name: str) -> list[str]:
    return re.split(r"\s{2,}", next(line for line in text.splitlines() if line.startswith(name)).strip())


def test_the_table_shows_median_spread_base_and_the_books_figure() -> None:
    text = shown(EAGER, JITTED, base="jitted", references=[BOOK])
    assert row(text, "eager") == ["eager", "1 ms", "0.0 %", "100x", "500 us (MXNet (book))", "2x"]
    assert row(text, "jitted") == ["jitted", "10.0 us", "100.0 % noisy", "1x"]
    assert "of jitted" in text


def test_without_base_and_references_there_are_no_columns_for_them() -> None:
    text = shown(EAGER, references=[Reference("x", 1.0, "s", "y", "z", beside="another")])
    assert row(text, "eager") == ["eager", "1 ms", "0.0 %"]
    assert "published" not in text


def test_all_published_figures_of_one_measurement_are_shown() -> None:
    again = Reference("MLP", 2e-3, "s", "PyTorch", "section 8.1.2", beside="eager")
    text = shown(EAGER, references=[BOOK, again])
    assert "500 us (MXNet (book))" in text
    assert "2 ms (PyTorch)" in text
    assert "0.5x" in text


def test_different_units_have_no_ratio() -> None:
    wrong = Reference("MLP", 0.5, "images/s", "MXNet (book)", "section 8.1.2", beside="eager")
    text = shown(EAGER, Measurement("memory", "bytes", (4.0,)), base="memory", references=[wrong])
    assert row(text, "eager")[3:] == ["-", "0.500 images/s (MXNet (book))", "-"]


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (("jax/8.1 MLP/eager", "torch/8.1 MLP/traced"), ("jax/eager", "torch/traced")),
        (("jax/8.2 a/b/eager", "mxnet/8.2 a/b/static"), ("jax/eager", "mxnet/static")),
        (("jax/8.1 MLP/eager", "jax/8.2 dot/eager"), ("jax/8.1 MLP/eager", "jax/8.2 dot/eager")),
        (("jax/8.1 MLP/eager", "eager"), ("jax/8.1 MLP/eager", "eager")),
        (("pipeline/1", "pipeline/2"), ("pipeline/1", "pipeline/2")),
        (("jax/8.1 MLP/eager",), ("jax/8.1 MLP/eager",)),
    ],
)
def test_a_workload_that_all_rows_share_is_left_out_of_their_names(
    names: tuple[str, ...], labels: tuple[str, ...]
) -> None:
    shown = table([Measurement(name, "s", (1.0,)) for name in names], base=names[-1])
    assert tuple(shown.columns[0].cells) == tuple(map(literal, labels))
    assert shown.columns[3].header == literal(f"of {labels[-1]}")


def test_a_base_that_was_not_measured_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no measurement 'jit' to compare with; there are \['eager'\]"):
        table([EAGER], base="jit")


def test_a_single_value_has_no_spread_to_show() -> None:
    assert row(shown(Measurement("once", "s", (1.0,))), "once") == ["once", "1 s", "1 value"]


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100])
def test_a_narrow_table_folds_and_loses_nothing(width: int) -> None:
    long = Measurement("a very long name/of_a_measurement", "s", (1.234e-3, 2e-3, 3e-3, 4e-3, 9e-3))
    options: dict[str, Any] = {"base": "eager", "references": [BOOK], "title": "The title of the table"}
    narrow, wide = (shown(EAGER, long, width=w, **options) for w in (width, 1000))
    assert max(map(len, narrow.splitlines())) <= width
    assert Counter("".join(narrow.split())) == Counter("".join(wide.split()))


def test_text_is_plain_when_piped_and_coloured_on_request() -> None:
    assert "\x1b" not in shown(EAGER, JITTED, title="t")
    assert "\x1b" in shown(EAGER, JITTED, title="t", color=True)
    result = Result("e", "8.1", "t", "q", {}, Environment(), measurements=(EAGER, JITTED))
    assert "\x1b" not in render_text(result)
    assert "\x1b" in render_text(result, color=True)


@pytest.mark.parametrize(("held", "word"), [(True, "held"), (False, "did not hold"), (None, "not measured")])
def test_a_claim_says_how_it_went(held: bool | None, word: str) -> None:
    text = drawn(claim_line(Claim("Two are quicker.", "2x", "1.9x", held)))
    assert text.startswith(f"[{word}] Two are quicker.")
    assert "predicted: 2x" in text
    assert "observed:  1.9x" in text


@pytest.mark.parametrize("fake", [True, False])
def test_fake_devices_are_named_as_such(fake: bool) -> None:
    e = Environment(devices=("cpu:0 cpu", "cpu:1 cpu"), devices_are_fake=fake, cores=2, data_source="mini")
    text = "\n".join(environment_lines(Result("e", "8.1", "t", "q", {}, e)))
    assert ("devices are fake: 2 CPU devices share the 2 cores" in text) is fake
    assert "data: mini" in text


HOSTILE = "[bold]b[/bold] [/x] :warning: \x1b[31mred\x1b]8;;http://x\x07 \x9b2J\r \u202eltr"


def test_hostile_words_are_printed_and_not_obeyed() -> None:
    measured = Measurement(HOSTILE, "s", (1.0,))
    published = Reference(HOSTILE, 1.0, "s", HOSTILE, HOSTILE, hardware=HOSTILE, beside=HOSTILE)
    result = Result(
        *("e", HOSTILE, HOSTILE, HOSTILE, {}),
        Environment(cpu=HOSTILE, devices=(HOSTILE,), versions={"jax": HOSTILE}, data_source=HOSTILE),
        measurements=(measured,),
        references=(published,),
        claims=(Claim(HOSTILE, HOSTILE, HOSTILE, False),),
        facts={HOSTILE: HOSTILE},
        notes=(HOSTILE,),
    )
    for text in (render_text(result, width=1000), shown(measured, base=HOSTILE, title=HOSTILE, width=1000)):
        assert not set("\x1b\x07\x9b\r\u202e") & set(text)
        assert text.count("[bold]b[/bold] [/x] :warning: \\x1b[31mred") >= 3
    assert render_text(result, width=1000).count("[bold]b") == 19  # nothing was left out


def test_literal_keeps_lines_tabs_and_letters() -> None:
    assert literal("é 編\n\tx").plain == "é 編\n\tx"


def test_a_whole_result_has_all_its_parts() -> None:
    result = Result(
        *("e", "8.1", "Two ways", "Which?", {}, Environment(cpu="CPU X", python="3.11.7")),
        measurements=(EAGER,),
        references=(BOOK,),
        facts={"compile_s": 0.5, "n": 3},
        claims=(Claim("It is so.", "a", "b", True),),
        notes=("a remark",),
    )
    text = render_text(result)
    parts = [
        "8.1 Two ways",
        "Which?",
        "CPU X",
        "eager",
        "published: MLP",
        "n = 3",
        "It is so.",
        "note: a remark",
    ]
    assert [text.index(part) for part in parts] == sorted(text.index(part) for part in parts)
    assert not [line for line in text.splitlines() if line != line.rstrip()]
