"""The code of a section is a lesson's: short set-up, cells and lines; cells can be pasted alone."""

from __future__ import annotations

import pytest

from jaxperf.chapter import catalogue
from tools import lesson_code
from tools.lesson_code import Cell, Lesson

NAMES = [section.name for section in catalogue.SECTIONS if section.name != "peers"]
WIDTH, LENGTH, SET_UP, ALONE = 80, 20, 8, 2 / 3


@pytest.mark.parametrize("name", [*NAMES, "peers"])
def test_set_up_cells_and_lines_are_short(name: str) -> None:
    lesson = Lesson.read(name)
    assert lesson_code.set_up_lines(lesson) <= SET_UP
    wide = [
        line for cell in (lesson.head, *lesson.cells) for line in cell.source.split("\n") if len(line) > WIDTH
    ]
    long = {
        cell.line: lesson_code.length(cell)
        for cell in lesson.teaching
        if lesson_code.length(cell) > LENGTH and not lesson_code.defines_network(cell)
    }
    assert not wide and not long


@pytest.mark.parametrize("name", [name for name in NAMES if name != "use_gpu"])  # platforms are its subject
def test_no_cell_that_teaches_asks_for_platform_or_toy_size(name: str) -> None:
    assert lesson_code.lines_of(Lesson.read(name))["switch"] == 0


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_two_of_three_cells_run_when_pasted_below_the_set_up(name: str) -> None:
    alone = lesson_code.run_alone_in_a_process(name)
    failed = {line: error for line, error in alone.items() if error}
    assert len(failed) <= (1 - ALONE) * len(alone), failed


def test_statements_are_counted_by_what_they_are_for() -> None:
    head = Cell(
        "import jax\ns = section('8.1', n=1,\n            smoke={})\non_cpu = jax.default_backend() == 'cpu'",
        1,
    )
    teaches = Cell(
        '@jax.jit\ndef f(x):\n    """Add."""\n\n    # one\n    return x + 1\n\ntimes = interleaved({})', 5
    )
    judges = Cell("gain = 1\ns.claim('a',\n        holds=True)", 20, tags=("hide-input",))
    lesson = Lesson("hybridize", head, (teaches, judges))
    counts = lesson_code.lines_of(lesson)
    assert counts == {"teach": 3, "measure": 1, "switch": 1, "judge": 3, "plot": 0, "set up": 2}
    assert lesson_code.set_up_lines(lesson) == 3 and lesson.teaching == (teaches,)


def test_a_cell_that_needs_another_does_not_run_alone(capsys: pytest.CaptureFixture[str]) -> None:
    lesson = Lesson("hybridize", Cell("a = 1", 1), (Cell("b = a + 1", 2), Cell("print(b)", 3)))
    assert lesson_code.run_alone(lesson) == {2: "", 3: "NameError: name 'b' is not defined"}
    assert capsys.readouterr().out == ""
