"""A story prints as it goes, in short or in full, and keeps every block it told, in order, in its result."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxperf.catalogue import Section
from jaxperf.result import (
    Axis,
    Curve,
    Environment,
    Fact,
    Failed,
    Heading,
    Measurement,
    Output,
    Reference,
    Span,
    Timeline,
    load_result,
    save_result,
)
from jaxperf.story import Story

SECTION = Section("hybridize", "8.1", "Two ways", "Which is faster?", 60)
MACHINE = Environment(
    python="3.11", cpu="Z80", cores=2, versions={"jax": "0.10"}, backend="cpu", devices=("a", "b")
)


def begin(**more: object) -> Story:
    return Story(SECTION, MACHINE, {"size": 3, "devices": 2}, **more)  # type: ignore[arg-type]


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Story:
    monkeypatch.setattr(sys, "argv", ["hybridize.py", "--size", "3"])
    started = begin()
    capsys.readouterr()
    return started


def documented(x: int) -> int:
    """A function to show."""
    return x + 1


@jax.jit
def jitted(x: jax.Array) -> jax.Array:
    return x * 2


def tell_everything(story: Story, words: str = "word") -> None:
    """One block of every kind, with these words in all of them."""
    eager = Measurement(words, "s", (1.0, 2.0))
    story.heading(words)
    story.text(words)
    story.habit(gluon=words, jax=words, remark=words)
    story.code(documented)
    story.say(words)
    story.table(
        [eager], title=words, base=words, references=[Reference(words, 0.5, "s", words, words, words, words)]
    )
    story.grid([words], [[words]], title=words)
    story.lines(words, [Curve(words, (1.0,), (0.5,))], x=Axis(words), y=Axis(words, words), caption=words)
    story.dots(words, [eager])
    story.timeline(Timeline(words, (Span(words, words, 0.0, 1.0),), 1.0), title=words)
    story.fact("n", words, words=words)
    story.claim(book=words, holds=True, predicted=words, right=False, observed=words)
    story.note(words)
    story.peers(words)


def test_it_opens_with_section_question_and_machine(capsys: pytest.CaptureFixture[str]) -> None:
    begin(smoke=True)
    shown = capsys.readouterr().out
    for words in ("8.1 Two ways", "Which is faster?", "Z80, 2 cores", "jax 0.10", "smoke run"):
        assert words in shown


def test_every_block_told_is_in_the_result_in_order_and_survives_the_file(
    story: Story, tmp_path: Path
) -> None:
    tell_everything(story)
    story.data_source("full")
    save_result(story.result(), tmp_path / "r.json")
    found = load_result(tmp_path / "r.json")
    assert [b.kind for b in found.blocks] == (
        [
            "heading",
            "text",
            "habit",
            "code",
            "output",
            "table",
            "grid",
            "lines",
            "dots",
            "timelines",
            "fact",
            "claim",
            "note",
            "peers",
        ]
    )
    assert found.blocks == tuple(story.blocks)
    assert (found.claims[0].holds, found.claims[0].prediction) == ("holds", "wrong")
    assert found.claims[0].source == "section 8.1"
    assert found.environment.data_source == "full"
    assert found.config == {"size": 3, "devices": 2}
    assert found.command == "python experiments/hybridize.py --size 3"
    assert (story.devices, story.facts) == (2, {"n": "word"})


def test_the_short_log_leaves_out_what_the_long_one_and_the_page_show(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for verbose in (False, True):
        story = begin(verbose=verbose)
        story.text("a lesson")
        story.code(documented)
        story.fact("n", 3, words="the number")
        story.say("a detail", detail=True)
        story.say("the point")
        rows = [Measurement(name, "s", (1.0,)) for name in ("kept", "aside")]
        story.table(rows, key=["kept"])
        shown = capsys.readouterr().out
        assert "the point" in shown
        assert "kept" in shown
        for words in ("a lesson", "def documented", "the number: 3", "a detail", "aside"):
            assert (words in shown) is verbose, words


def test_code_is_the_source_as_it_ran_with_its_place(story: Story) -> None:
    story.code(documented, jitted)
    plain, unwrapped = story.blocks
    assert plain.source.startswith('def documented(x: int) -> int:\n    """A function')  # type: ignore[union-attr]
    assert plain.file == "tests/test_story.py"  # type: ignore[union-attr]
    assert Path(__file__).read_text().splitlines()[plain.line - 1].startswith("def documented")  # type: ignore[union-attr]
    assert "return x * 2" in unwrapped.source  # type: ignore[union-attr]


def test_what_is_printed_inside_output_is_kept_line_by_line(
    story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    with story.output():
        print("one")
        print("two", end="")
    story.say("three")
    print("outside")
    assert story.blocks == [Output("one\ntwo\nthree")]
    assert capsys.readouterr().out == "one\ntwo\nthree\noutside\n"


def test_a_part_that_fails_costs_that_part_alone(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(story: Story) -> None:
        story.heading("Broken")
        raise RuntimeError("first line\nthe reason")

    assert story.part(fails) is None
    assert story.failed
    assert story.blocks == [Heading("Broken", "fails"), Failed("fails", "RuntimeError: the reason")]
    assert story.part(lambda story, x, y: x + y, 1, y=2) == 3
    said = capsys.readouterr()
    assert "failed: fails: RuntimeError: the reason" in said.out
    assert "Traceback" in said.err
    story.heading("outside of any part")
    assert story.blocks[-1] == Heading("outside of any part", "")
    with pytest.raises(KeyboardInterrupt):
        story.part(lambda story: (_ for _ in ()).throw(KeyboardInterrupt))


def test_a_part_that_finds_no_memory_says_which_size_to_change(
    story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    """The refusal is XLA's own; on a GPU a table of allocations follows its first line."""

    def asks_for_too_much(story: Story) -> None:
        jnp.ones((10**14,))

    def with_a_table(story: Story) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.\n====\n#1 8B")

    for part in (asks_for_too_much, with_a_table):
        for config, way_out in (
            ({}, "give smaller sizes"),
            ({"batch_size": 256}, "the batch size was 256, give"),
        ):
            story.config = {**config, "devices": 2}
            story.part(part)
            error = story.blocks[-1].error  # type: ignore[union-attr]
            assert error.startswith("JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating ")
            assert way_out in error and "\n" not in error
    assert capsys.readouterr().err == ""


def test_scalars_of_arrays_become_plain_and_what_is_not_finite_none(story: Story, tmp_path: Path) -> None:
    given = {
        "a": jnp.float32(0.5),
        "b": np.int64(3),
        "c": jnp.bool_(True),
        "d": "x",
        "e": math.nan,
        "f": np.float32("inf"),
    }
    for name, value in given.items():
        story.fact(name, value)
    story.lines("loss", [Curve("l", (1.0, 2.0, 3.0), (2.5, None, math.inf))], x=Axis("x"), y=Axis("y"))
    assert story.facts == {"a": 0.5, "b": 3, "c": True, "d": "x", "e": None, "f": None}
    assert {type(b.value) for b in story.blocks if isinstance(b, Fact)} == {float, int, bool, str, type(None)}
    save_result(story.result(), tmp_path / "r.json")
    assert load_result(tmp_path / "r.json").curves[0].y == (2.5, None, None)


def test_both_verdicts_of_a_claim_are_kept_and_shown(
    story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    for holds, right, sentence, prediction in (
        (True, np.True_, "holds", "right"),
        (False, jnp.asarray(True), "does not hold", "right"),
        (None, False, "undecided", "wrong"),
        (np.False_, None, "does not hold", "undecided"),
    ):
        story.claim(ours="It is faster.", holds=holds, predicted="2x", right=right, observed="1x")  # type: ignore[arg-type]
        claim = story.result().claims[-1]
        assert (claim.holds, claim.prediction, claim.source) == (sentence, prediction, "jaxperf")
        shown = capsys.readouterr().out
        assert f"[{sentence}] It is faster." in shown
        assert f"prediction {prediction}: 2x; observed: 1x" in shown
    story.claim(book="x", holds=True, predicted="p", right=True, observed="o", cannot="one device only")
    claim = story.result().claims[-1]
    assert (claim.holds, claim.prediction, claim.observed) == (
        "cannot be measured here",
        "undecided",
        "one device only",
    )


def test_a_table_refuses_rows_of_one_name_and_a_base_that_is_not_a_row(story: Story) -> None:
    row = Measurement("a", "s", (1.0,))
    for rows, options in (([row, row], {}), ([row], {"base": "b"}), ([row], {"key": ["b"]})):
        with pytest.raises(ValueError, match="table"):
            story.table(rows, **options)  # type: ignore[arg-type]
    assert story.blocks == []


def test_long_lines_are_not_broken(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    line = "word " * 100 + "end"
    story.say(line)
    story.note(line)
    assert capsys.readouterr().out == f"{line}\nnote: {line}\n"


def test_words_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("[bold]x[/bold]", "[/nope]", ":warning:", "[link=http://x]y", "\\[x]"):
        story = begin(verbose=True)
        capsys.readouterr()
        tell_everything(story, words)
        assert capsys.readouterr().out.count(words) >= 25, words


def test_escape_codes_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    story = begin(verbose=True)
    tell_everything(story, "\x1b[31mred\x1b]0;title\x07 \x9b2J \u202eltr \ud800")
    shown = capsys.readouterr().out
    assert not set("\x1b\x07\x9b\u202e\ud800") & set(shown)
    assert "\\x1b[31mred" in shown
