"""Markdown: tables that stay tables whatever is in their cells, and words that stay words."""

from __future__ import annotations

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from report_results import HOSTILE, all_results, bare, hostile, hostile_peers, hybridize

from jaxperf.report.markdown import escape, render_markdown, table
from jaxperf.report.text import plain

PARSER = MarkdownIt("commonmark").enable("table").enable("strikethrough")
PLAIN = {"text", "softbreak", "code_inline", "strong_open", "strong_close"}


def tokens(markdown: str) -> list[Token]:
    return [t for token in PARSER.parse(markdown) for t in [token, *(token.children or [])]]


def cells(markdown: str) -> list[list[str]]:
    """The tables' cells as a reader sees them, a list for each row."""
    found: list[list[str]] = []
    inside = False
    for token in PARSER.parse(markdown):
        if token.type == "tr_open":
            found.append([])
        inside = token.type in ("td_open", "th_open") or (inside and token.type == "inline")
        if inside and token.type == "inline":
            found[-1].append("".join(child.content for child in token.children or []))
    return found


@pytest.mark.parametrize("words", HOSTILE, ids=range(len(HOSTILE)))
def test_any_words_stay_words_in_a_cell_a_line_and_a_heading(words: str) -> None:
    seen = " ".join(plain(words).split())
    assert cells("\n".join(table([words, "b"], [[words, "1"], ["2", words]], right=[1]))) == [
        [seen, "b"],
        [seen, "1"],
        ["2", seen],
    ]
    for before in ("", "# ", "- "):
        found = tokens(before + escape(words))
        assert "".join(t.content for t in found if t.type == "text") == seen
        assert {t.type for t in found if not t.children and t.type not in PLAIN and t.content} <= {"inline"}


@pytest.mark.parametrize(
    "words",
    ["1. one", "1) one", "- a", "+ a", "---", "===", "* a", "> a", "# a", "    a", "| a |", "~~a~~", "-1.5"],
)
def test_a_line_that_would_begin_something_else_is_a_line(words: str) -> None:
    assert [t.type for t in PARSER.parse(escape(words))] == ["paragraph_open", "inline", "paragraph_close"]
    assert [t.content for t in tokens(escape(words)) if t.type == "text"] == [words.strip()]


@pytest.mark.parametrize("words", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_results_bring_no_markup_and_no_uneven_table(words: str) -> None:
    markdown = render_markdown([hostile(words), hostile_peers(words)], left_out=[words])
    kinds = {t.type for t in tokens(markdown)}
    assert kinds.isdisjoint(
        {"html_inline", "html_block", "link_open", "image", "fence", "code_block", "s_open"}
    )
    widths = [len(row) for row in cells(markdown)]
    assert min(widths) >= 4
    markdown.encode()


def test_everything_that_a_result_holds_is_there() -> None:
    shown = [cell for row in cells(render_markdown(all_results())) for cell in row]
    for result in all_results():
        wanted = [w for c in result.claims for w in (c.statement, c.predicted, c.observed)]
        if result.experiment != "peers":
            wanted += [m.name for m in result.measurements]
        for words in wanted:
            assert words in shown, words


def test_rows_stand_beside_their_base_and_the_published_figure() -> None:
    rows = cells(render_markdown([hybridize()]))
    assert [
        "8.1.2 The MLP",
        "Median",
        "Spread",
        "Noise",
        "Of hybridize",
        "Published",
        "Ours / published",
    ] in rows
    assert ["eager", "886 µs", "3.0 %", "quiet", "88.6x", "494 µs (MXNet, the book)", "1.79x"] in rows


def test_smoke_and_fake_devices_are_said_and_no_results_too() -> None:
    shown = render_markdown(all_results())
    assert shown.count("Smoke run: toy sizes") == 1
    assert shown.count("Devices are fake: 2 CPU devices share 2 cores") == 2
    assert "There is no result to show." in render_markdown([])
    assert "fake" not in render_markdown([bare()])
