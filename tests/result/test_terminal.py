from collections import Counter

from report_results import result as with_every_block
from rich.console import Console

from jaxperf.result import Claim, Environment, Fact, Grid, Heading, Measurement, Note, Result, Table, Text
from jaxperf.result.terminal import environment_lines, literal_text, render_text, show


def drawn(rows, width):
    con = Console(width=width, highlight=False, force_terminal=False)
    with con.capture() as capture:
        show(con, rows)
    return capture.get()


def test_a_narrow_table_folds_and_loses_nothing():
    heads = ("", "median", "over a very long base")
    row = ("a very long name/of_a_measurement", "1.23 ms", "12.5 (11 to 13)")
    rows = Grid("The title", heads, (row,), (1, 2))
    wide = drawn(rows, 1000)
    for width in (30, 40, 60, 80):
        narrow = drawn(rows, width)
        assert max(map(len, narrow.splitlines())) <= width
        assert Counter("".join(narrow.split())) == Counter("".join(wide.split()))


def test_what_has_no_blanks_stays_whole_in_a_table_beside_what_has():
    heads, path = ("", "times", "called at", "why"), "source/of/the/program/functions.py:1234"
    grid = Grid("", heads, (("np.asarray in sklearn", "1234567", path, "another shape " * 9),), (1,))
    assert all(cell in drawn(grid, 90) for cell in ("1234567", path))
    assert path not in drawn(grid, 40)


def test_a_whole_result_shows_its_blocks_in_their_order():
    head, body = ("8.1 Two ways", "Which?", "CPU X"), ("a lesson", "eager", "n: 3", "It is so.", "a remark")
    texts = (*head, "Part one", *body, "Part two")
    blocks = (
        Heading("Part one"),
        Text("a lesson"),
        Table("calls", (Measurement("eager", "s", (1.0,)),)),
        Fact("n", 3),
        Claim("It is so.", "holds", "a", "b"),
        Note("a remark"),
        Heading("Part two"),
    )
    result = Result("e", "8.1", "Two ways", "Which?", {}, Environment(cpu="CPU X", python="3.11.7"), blocks)
    text = render_text([result])
    assert [text.index(w) for w in texts] == sorted(text.index(w) for w in texts)
    assert not [line for line in text.splitlines() if line != line.rstrip()]
    assert "\x1b" not in text
    assert "\x1b" in render_text([result], color=True)


def test_a_notebook_shows_a_result_as_html_without_the_evidence_behind_it():
    blocks = (Text("a < b"), Note("seen"), Grid("Evidence", ("x",), (("folded",),), detail=True))
    result = Result("e", "", "Title", "Which?", {}, Environment(), blocks)
    shown = result._repr_html_()
    assert shown.startswith("<pre") and "a &lt; b" in shown and "note: seen" in shown
    assert "folded" not in shown and repr(result) == "<Result of e: 3 blocks>"


def test_fake_devices_are_named_as_such():
    for fake in (True, False):
        devices = ("cpu:0 cpu", "cpu:1 cpu")
        e = Environment(devices=devices, devices_are_fake=fake, cores=2, data_source="mini")
        text = "\n".join(environment_lines(e))
        assert ("devices are fake: 2 CPU devices share the 2 cores" in text) is fake
        assert "data: mini" in text


def test_hostile_words_are_printed_and_not_obeyed():
    hostile = "[bold]b[/bold] [/x] :warning: \x1b[31mred\x1b]8;;http://x\x07 \x9b2J\r \u202eltr"
    text = render_text([with_every_block(hostile)], width=1000)
    assert not set("\x1b\x07\x9b\r\u202e") & set(text)
    assert text.count("[bold]b[/bold] [/x] :warning: \\x1b[31mred") >= 20
    assert literal_text("é 編\n\tx").plain == "é 編\n\tx"


def test_a_long_table_shows_its_first_rows_and_how_many_more_there_are():
    cells = tuple((f"row {i}",) for i in range(9))
    shown = drawn(Grid("The title", ("",), cells, first=6), 80)
    assert "row 5" in shown and "row 6" not in shown and "and 3 more, which --json FILE keeps" in shown
    for first in (0, 9, 20):
        whole = drawn(Grid("The title", ("",), cells, first=first), 80)
        assert "row 8" in whole and "more" not in whole
