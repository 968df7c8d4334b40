from markdown_it import MarkdownIt
from report_results import HOSTILE

from jaxperf.errors import escape_control
from jaxperf.result.markdown import escape, strong, table

PARSER = MarkdownIt("commonmark").enable("table").enable("strikethrough")
MARKUP = {"html_inline", "html_block", "link_open", "image", "code_block", "code_inline", "s_open", "em_open"}


def tokens(markdown):
    return [t for token in PARSER.parse(markdown) for t in [token, *(token.children or [])]]


def seen(text):
    return " ".join(escape_control(text).split())


def cells(markdown):
    rows = []
    inside = False
    for token in PARSER.parse(markdown):
        if token.type == "tr_open":
            rows.append([])
        inside = token.type in ("td_open", "th_open") or (inside and token.type == "inline")
        if inside and token.type == "inline":
            rows[-1].append("".join(t.content for t in token.children or [] if t.type == "text"))
    return rows


def test_any_words_stay_words_in_a_cell_a_line_and_a_heading():
    for text in HOSTILE:
        rows = [[text, "1"], ["2", text]]
        shown = "\n".join(table([text, "b"], rows, right=[1]))
        assert cells(shown) == [[seen(text), "b"], [seen(text), "1"], ["2", seen(text)]]
        for before in ("", "# ", "- "):
            parsed = tokens(before + escape(text))
            assert "".join(t.content for t in parsed if t.type == "text") == seen(text)
            assert MARKUP.isdisjoint(t.type for t in parsed)


def test_a_line_that_would_begin_something_else_is_a_line():
    begins = ("1. one", "1) one", "- a", "+ a", "---", "===", "* a", "> a", "# a", "    a", "| a |", "~~a~~")
    for text in (*begins, "-1.5"):
        shown = PARSER.parse(escape(text))
        assert [t.type for t in shown] == ["paragraph_open", "inline", "paragraph_close"]
        assert [t.content for t in tokens(escape(text)) if t.type == "text"] == [text.strip()]
    assert strong("  ") == ""  # nothing without words
    assert {"strong_open"} <= {t.type for t in tokens(strong("a * b"))}
