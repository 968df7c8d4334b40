"""What a section shows: the same claim, table and figure on a terminal, in a notebook and on a page."""

from __future__ import annotations

import math
import re

import matplotlib.pyplot as plt
import pytest
from report_results import HOSTILE, blocks

from jaxperf import section
from jaxperf.chapter import display
from jaxperf.chapter.catalogue import SectionEntry as About
from jaxperf.chapter.recorder import Recorder
from jaxperf.result import Claim, Code, Environment, Fact, Grid, Measurement, Span, Table, Timeline

ROW = Measurement("eager", "s", (1.0, 2.0, 3.0))


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(About("page", "9.1", "A page", "?", 1), Environment(), {}, command="")


def test_blocks_come_back_in_their_order(recorder: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    recorder.table({"eager": ROW}, title="Calls", book={"eager": 0.5})
    recorder.table([ROW], title="Evidence", fold=True)
    recorder.grid(["", "n"], [["a", 3], ["b", 0.25]], title="Words")
    recorder.fact("ratio", 0.5, meaning="half")
    recorder.claim("It holds", holds=True, expected="x", observed="y", source="section 9.1")
    printed = capsys.readouterr().out
    assert [printed.index(w) for w in ("Calls", "Words", "half: 0.500", "[holds] It holds")] == sorted(
        printed.index(w) for w in ("Calls", "Words", "half: 0.500", "[holds] It holds")
    )
    assert "Evidence" not in printed and "500 ms (the book)" in printed
    result = recorder.result()
    assert [type(block) for block in result.blocks] == [Table, Table, Grid, Fact, Claim]
    assert result.blocks[2].right == (1,)  # type: ignore[union-attr]


def test_one_expression_decides(recorder: Recorder) -> None:
    for holds in (True, False, None):
        recorder.claim("s", holds=holds, expected="e", observed="o")
    recorder.claim("s", holds=True, expected="e", observed="o", cannot="one device only")
    claims = recorder.result().claims
    assert [c.verdict for c in claims] == ["holds", "does not hold", "undecided", "not measurable here"]
    assert claims[-1].observed == "one device only"


def test_a_table_names_a_row_that_it_lacks(recorder: Recorder) -> None:
    for wrong in ({"base": "jit"}, {"book": {"jit": 1.0}}):
        with pytest.raises(ValueError, match=r"table 'Calls' has no row 'jit'; there are \['eager'\]"):
            recorder.table([ROW], title="Calls", **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="two rows of one name"):
        recorder.table([ROW, ROW], title="Calls")


def test_a_fact_that_is_not_finite_is_kept_as_none(recorder: Recorder) -> None:
    recorder.fact("inverse", math.inf)
    assert recorder.facts == {"inverse": None}


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_escaped_in_every_form(text: str) -> None:
    for block in blocks(text):
        if isinstance(block, Table | Grid | Claim | Fact):
            shown = display.bundle(block)
            markup = shown.get("text/html", "") + shown.get("text/markdown", "")
            assert not re.search(r"(?<!\\)<(script|img|/style|/svg)", markup)


def test_evidence_is_folded_in_a_notebook() -> None:
    folded = display.bundle(Table("Evidence", (ROW,), detail=True))["text/markdown"]
    assert folded.startswith('<details class="evidence"><summary>Evidence</summary>\n\n| ')
    assert folded.endswith("</details>")
    assert "<details" not in display.bundle(Table("Calls", (ROW,)))["text/markdown"]


def test_a_claim_has_an_anchor_and_says_what_was_expected_first() -> None:
    claim = Claim("a < b", "does not hold", "e", "o", "section 8.2.3", "2026-11-26", "less, and 1.2 was seen")
    shown = display.bundle(claim)["text/html"]
    assert 'class="claim does-not-hold" id="a-b"' in shown and 'href="#a-b"' in shown and "a &lt; b" in shown
    assert "(since 2026-11-26)" in shown and "First expectation: less, and 1.2 was seen." in shown


def test_code_is_for_the_terminal_and_the_file_only() -> None:
    with pytest.raises(TypeError, match="Code is not shown in a notebook"):
        display.bundle(next(block for block in blocks() if isinstance(block, Code)))


def test_figures_are_drawn_alike_every_time_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    plt.style.use(section.STYLE)
    drawn: list[display.Figure] = []
    monkeypatch.setattr(display, "printer", drawn.append)
    run = Timeline("step", (Span("cpu 0", "dot", 0.0, 1e-3), Span("cpu 1", "dot", 0.0, 2e-3)), 2e-3)
    for _ in range(2):
        section.Section.timeline(section.Section.__new__(section.Section), run, "Both are busy.")
    assert drawn[0] == drawn[1] and drawn[0].caption == "Both are busy." and "cpu 1" in drawn[0].svg
    assert plt.get_fignums() == []
