"""Markdown: every item in the order of the walk, tables that stay tables, and words that stay words."""

from __future__ import annotations

import random

from markdown_it import MarkdownIt
from markdown_it.token import Token
from report_results import HOSTILE, all_results, bare, hostile, hostile_peers, hybridize

from jaxperf.errors import plain
from jaxperf.report.markdown import escape, fenced, markdown, prose, render_markdown, table
from jaxperf.report.story import walk
from jaxperf.result import Claim, Code, Failed, Grid, Heading, Measurement, Note, Output, Text

PARSER = MarkdownIt("commonmark").enable("table").enable("strikethrough")
PLAIN = {"text", "softbreak", "code_inline", "strong_open", "strong_close", "em_open", "em_close", "fence"}
MARKUP = {"html_inline", "html_block", "link_open", "image", "code_block", "s_open"}


def tokens(markdown: str) -> list[Token]:
    return [t for token in PARSER.parse(markdown) for t in [token, *(token.children or [])]]


def seen(words: str) -> str:
    """Words as one line shows them."""
    return " ".join(plain(words).split())


def text_of(token: Token) -> str:
    return "".join(child.content for child in token.children or [] if child.type in ("text", "code_inline"))


def cells(markdown: str) -> list[list[str]]:
    """The tables' cells as a reader sees them, a list for each row."""
    found: list[list[str]] = []
    inside = False
    for token in PARSER.parse(markdown):
        if token.type == "tr_open":
            found.append([])
        inside = token.type in ("td_open", "th_open") or (inside and token.type == "inline")
        if inside and token.type == "inline":
            found[-1].append(text_of(token))
    return found


def test_any_words_stay_words_in_a_cell_a_line_and_a_heading() -> None:
    for words in HOSTILE:
        rows = [[words, "1"], ["2", words]]
        assert cells("\n".join(table([words, "b"], rows, right=[1]))) == [
            [seen(words), "b"],
            [seen(words), "1"],
            ["2", seen(words)],
        ]
        for before in ("", "# ", "- "):
            found = tokens(before + escape(words))
            assert "".join(t.content for t in found if t.type == "text") == seen(words)
            assert {t.type for t in found if not t.children and t.type not in PLAIN and t.content} <= {
                "inline"
            }


def test_a_line_that_would_begin_something_else_is_a_line() -> None:
    starts = ["1. one", "1) one", "- a", "+ a", "---", "===", "* a", "> a", "# a", "    a", "| a |", "~~a~~"]
    for words in [*starts, "-1.5"]:
        for shown in (escape(words), prose(words)):
            assert [t.type for t in PARSER.parse(shown)] == ["paragraph_open", "inline", "paragraph_close"]
            assert [t.content for t in tokens(shown) if t.type == "text"] == [words.strip()]


def test_words_between_backticks_are_code_and_nothing_else_is_markup() -> None:
    found = tokens(prose("The *net* of `get_net(<b>)` & <b>more</b>,\n  a lone ` only"))
    code, words = ([t.content for t in found if t.type == kind] for kind in ("code_inline", "text"))
    assert code == ["get_net(<b>)"]
    assert "".join(words) == "The *net* of  & <b>more</b>, a lone ` only"
    assert MARKUP.isdisjoint(t.type for t in found)


def test_whatever_the_backticks_no_markup_comes_through() -> None:
    chance = random.Random(0)
    for _ in range(2000):
        words = "".join(chance.choices(["`", "``", "<b>", "*a*", " ", "x", "\\", "[a](b)", "\n"], k=12))
        kinds = {t.type for t in tokens(prose(words)) if t.type not in ("inline", *PLAIN)}
        assert kinds <= {"paragraph_open", "paragraph_close"}, words


def test_nothing_in_a_fenced_block_closes_it() -> None:
    for code in ("x = 1\n\n    y", "```\n# out", "````", "~~~", "", *HOSTILE):
        (block,) = PARSER.parse("\n".join(fenced(code, "python")))
        assert (block.type, block.info) == ("fence", "python")
        assert block.content.rstrip("\n") == plain(code).rstrip("\n")


def test_hostile_results_bring_no_markup_and_no_uneven_table() -> None:
    for words in HOSTILE:
        shown = render_markdown([hostile(words), hostile_peers(words)], left_out=[words])
        assert MARKUP.isdisjoint(t.type for t in tokens(shown))
        assert min(len(row) for row in cells(shown)) >= 2
        shown.encode()


def test_everything_that_a_result_holds_is_there_in_its_order() -> None:
    for result in all_results():
        shown = render_markdown([result])
        inlines = [text_of(t) for t in PARSER.parse(shown) if t.type == "inline"]
        fences = [t.content for t in PARSER.parse(shown) if t.type == "fence"]
        at = 0
        for block in result.blocks:
            match block:
                case Heading() | Grid():
                    wanted = [block.title]
                case Text() | Note():
                    wanted = [block.text.replace("`", "")]
                case Claim():
                    wanted = [f"{block.holds}: {block.statement}", block.predicted, block.observed]
                case Failed():
                    wanted = [f"{block.part}: {block.error}"]
                case Code() | Output():
                    assert f"{getattr(block, 'source', '') or getattr(block, 'text', '')}\n" in fences
                    continue
                case _:
                    wanted = []
            for words in wanted:
                at += next(i for i, line in enumerate(inlines[at:]) if words in line)
        rows = [row[0] for row in cells(shown)]
        for m in (m for t in result.blocks for m in getattr(t, "rows", ()) if isinstance(m, Measurement)):
            assert any(m.name in name for name in [*rows, *inlines])


def test_a_picture_is_told_in_words() -> None:
    drawn = [i for i in walk(hybridize()) if hasattr(i, "draw")]
    for picture in drawn:
        (line, _) = markdown(picture)
        assert text_of(PARSER.parse(line)[1]) == seen(
            f"Figure: {picture.title}. {picture.caption} {picture.description}"
        )
        assert {"em_open", "em_close"} <= {t.type for t in tokens(line)}
    assert len(drawn) == 3


def test_rows_stand_next_to_their_base_and_the_published_figure() -> None:
    rows = cells(render_markdown([hybridize()]))
    heads = ["", "median", "spread", "over hybridize", "published", "ours / published"]
    assert heads in rows
    eager = rows[rows.index(heads) + 1]
    assert eager[:3] == ["eager", "886 µs", "3.0 %"]
    assert eager[4:] == ["494 µs (MXNet, the book)", "1.79"]


def test_smoke_and_fake_devices_are_said_and_both_tallies_and_no_results_too() -> None:
    shown = render_markdown(all_results())
    assert shown.count("Smoke run: toy sizes") == 1
    assert shown.count("Devices are fake: 2 CPU devices share 2 cores") == 2
    assert "- Our predictions: 2 right, 1 wrong, 1 undecided" in shown
    assert "There is no result to show." in render_markdown([])
    assert "fake" not in render_markdown([bare()])
