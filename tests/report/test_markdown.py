"""Markdown: tables stay tables, and words stay words."""

from __future__ import annotations

from markdown_it import MarkdownIt
from markdown_it.token import Token
from report_results import HOSTILE

from jaxperf.errors import plain
from jaxperf.report.markdown import escape, strong, table

PARSER = MarkdownIt("commonmark").enable("table").enable("strikethrough")
MARKUP = {"html_inline", "html_block", "link_open", "image", "code_block", "code_inline", "s_open", "em_open"}


def tokens(markdown: str) -> list[Token]:
    return [t for token in PARSER.parse(markdown) for t in [token, *(token.children or [])]]


def seen(words: str) -> str:
    """Words as one line shows them."""
    return " ".join(plain(words).split())


def cells(markdown: str) -> list[list[str]]:
    """The table's cells as a reader sees them, a list for each row."""
    found: list[list[str]] = []
    inside = False
    for token in PARSER.parse(markdown):
        if token.type == "tr_open":
            found.append([])
        inside = token.type in ("td_open", "th_open") or (inside and token.type == "inline")
        if inside and token.type == "inline":
            found[-1].append("".join(t.content for t in token.children or [] if t.type == "text"))
    return found


def test_any_words_stay_words_in_a_cell_a_line_and_a_heading() -> None:
    for words in HOSTILE:
        rows = [[words, "1"], ["2", words]]
        shown = "\n".join(table([words, "b"], rows, right=[1]))
        assert cells(shown) == [[seen(words), "b"], [seen(words), "1"], ["2", seen(words)]]
        for before in ("", "# ", "- "):
            found = tokens(before + escape(words))
            assert "".join(t.content for t in found if t.type == "text") == seen(words)
            assert MARKUP.isdisjoint(t.type for t in found)


def test_a_line_that_would_begin_something_else_is_a_line() -> None:
    for words in (
        "1. one",
        "1) one",
        "- a",
        "+ a",
        "---",
        "===",
        "* a",
        "> a",
        "# a",
        "    a",
        "| a |",
        "~~a~~",
        "-1.5",
    ):
        shown = PARSER.parse(escape(words))
        assert [t.type for t in shown] == ["paragraph_open", "inline", "paragraph_close"]
        assert [t.content for t in tokens(escape(words)) if t.type == "text"] == [words.strip()]


def test_strong_is_nothing_without_words() -> None:
    assert strong("  ") == ""
    assert {"strong_open"} <= {t.type for t in tokens(strong("a * b"))}
