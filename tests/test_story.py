"""A story prints as it goes and keeps everything it printed in its result."""

from __future__ import annotations

import dataclasses
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxperf.catalogue import Section
from jaxperf.measure.record import Measurement, Reference, Series, Span, Timeline
from jaxperf.measure.store import load_result, save_result
from jaxperf.script import Flags, Story

SECTION = Section("hybridize", "8.1", "Two ways", "Which is quicker?", 60)


@dataclass(frozen=True)
class Config:
    size: int = 3
    sizes: tuple[int, ...] = (1, 2)


def begin(**more: object) -> Story:
    return Story(SECTION, Flags(Config(), **more))  # type: ignore[arg-type]


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Story:
    monkeypatch.setattr(sys, "argv", ["hybridize.py", "--size", "3"])
    started = begin()
    capsys.readouterr()
    return started


def test_it_opens_with_section_question_and_machine(capsys: pytest.CaptureFixture[str]) -> None:
    fake = begin().environment.devices_are_fake
    shown = capsys.readouterr().out
    for words in ("8.1 Two ways", "Which is quicker?", "jax ", "flax ", " cores"):
        assert words in shown
    assert ("devices are fake" in shown) == fake
    assert "--smoke" not in shown


def test_a_smoke_run_says_that_its_times_mean_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    result = begin(smoke=True).result()
    assert "note: --smoke: toy sizes, the times mean nothing" in capsys.readouterr().out
    assert result.smoke
    assert result.notes == ("--smoke: toy sizes, the times mean nothing",)


def test_everything_told_is_in_the_result_and_survives_the_file(story: Story, tmp_path: Path) -> None:
    eager, span = Measurement("eager", "s", (1.0, 2.0)), Span("cpu 0", "dot", 0.0, 1.0)
    book = Reference("book", 0.5, "s", "MXNet (book)", "section 8.1.2", beside="eager")
    story.heading("8.1.1 First")
    story.note("a remark")
    story.measured(eager, references=[book])
    story.measured(Measurement("jit", "s", (0.5,)), base="jit", title="seconds a call")
    story.curve(Series("loss", (1.0,), (0.5,), "epoch", ""))
    story.timeline(Timeline("step", (span,), 1.0))
    story.fact("n", 3)
    story.claim("It is quicker.", predicted="2x", observed="3x", held=True)
    story.data_source("full")
    save_result(story.result(), tmp_path / "r.json")
    found = load_result(tmp_path / "r.json")
    assert found.measurement("eager") == dataclasses.replace(eager, group="8.1.1 First")
    jit = found.measurement("jit")
    assert (jit.group, jit.base) == ("8.1.1 First: seconds a call", "jit")
    assert [m.name for m in found.measurements] == ["eager", "jit"]
    assert found.references == (book,)
    assert found.series[0].y == (0.5,)
    assert found.timelines[0].spans == (span,)
    assert (found.facts, found.notes) == ({"n": 3}, ("a remark",))
    assert (found.claims[0].statement, found.claims[0].source) == ("It is quicker.", "section 8.1")
    assert found.environment.data_source == "full"
    assert found.config == {"size": 3, "sizes": (1, 2), "devices": 1}
    assert found.command == "python experiments/hybridize.py --size 3"
    assert found.wall_s > 0


def test_array_scalars_become_plain_facts(story: Story) -> None:
    for name, value in {"a": jnp.float32(0.5), "b": np.int64(3), "c": jnp.bool_(True), "d": "x"}.items():
        story.fact(name, value)
    assert story.facts == {"a": 0.5, "b": 3, "c": True, "d": "x"}
    assert {type(value) for value in story.facts.values()} == {float, int, bool, str}


@pytest.mark.parametrize("bad", [math.nan, math.inf, np.float32("nan"), jnp.float32(-math.inf)])
def test_a_loss_that_diverged_is_shown_and_does_not_cost_the_result(
    bad: object, story: Story, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    story.fact("loss", bad)
    story.curve(Series("loss", (1.0, 2.0, 3.0), (2.5, None, float(bad)), "epoch", ""))  # type: ignore[arg-type]
    assert f"loss = {float(bad)}" in capsys.readouterr().out  # type: ignore[arg-type]
    save_result(story.result(), tmp_path / "r.json")
    found = load_result(tmp_path / "r.json")
    assert found.facts["loss"] is None
    assert found.series[0].y == (2.5, None, None)


@pytest.mark.parametrize("held", [True, np.True_, jnp.asarray(True)])
def test_a_verdict_may_come_from_an_array(held: bool, story: Story) -> None:
    story.claim("a", predicted="b", observed="c", held=held)
    assert story.claims[0].held is True


@pytest.mark.parametrize(("held", "word"), [(True, "held"), (False, "did not hold"), (None, "not measured")])
def test_a_claim_is_printed_with_its_verdict(
    held: bool | None, word: str, story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    story.claim("It is quicker.", predicted="2x", observed="1x", held=held)
    shown = capsys.readouterr().out
    assert f"[{word}] It is quicker." in shown
    assert "predicted: 2x" in shown
    assert "observed:  1x" in shown


def test_a_fact_can_be_kept_silently(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    story.fact("quiet", 1, show=False)
    story.fact("compile_s", 0.0123, unit="s")
    assert capsys.readouterr().out == "compile_s = 12.3 ms\n"
    assert story.facts == {"quiet": 1, "compile_s": 0.0123}


def test_long_lines_are_not_broken(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    line = "word " * 100 + "end"
    story.say(line)
    story.note(line)
    assert capsys.readouterr().out == f"{line}\nnote: {line}\n"


def test_published_figures_stand_beside_or_below(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    def published(name: str, value: float, beside: str) -> Reference:
        return Reference(name, value, "s", "MXNet (book)", "section 8.1.2", beside=beside)

    story.measured(
        Measurement("eager", "s", (1.0,)),
        references=[published("before", 0.5, "eager"), published("alone", 0.25, "")],
    )
    shown = capsys.readouterr().out
    assert "500 ms (MXNet (book))" in next(line for line in shown.splitlines() if line.startswith("eager"))
    assert "published: alone 250 ms (MXNet (book); hardware unstated; section 8.1.2)" in shown


@pytest.mark.parametrize("words", ["[bold]x[/bold]", "[/nope]", ":warning:", "[link=http://x]y", "\\[x]"])
def test_words_are_printed_as_they_are(words: str, story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    story.heading(words)
    story.say(words)
    story.note(words)
    story.measured(Measurement(words, "s", (1.0,)), title=words, base=words)
    story.fact("word", words)
    story.claim(words, predicted=words, observed=words, held=True)
    assert capsys.readouterr().out.count(words) == 10


def test_escape_codes_do_not_reach_the_terminal(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    words = "\x1b[31mred\x1b]0;title\x07 \x9b2J \u202eltr"
    story.heading(words)
    story.say(words)
    story.measured(Measurement(words, "s", (1.0,)), title=words)
    story.claim(words, predicted=words, observed=words, held=False)
    shown = capsys.readouterr().out
    assert not set("\x1b\x07\x9b\u202e") & set(shown)
    assert "\\x1b[31mred" in shown
