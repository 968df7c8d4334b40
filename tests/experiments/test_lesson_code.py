import pytest

from jaxperf.chapter import catalogue
from tools import lesson_code
from tools.lesson_code import Lesson

NAMES = [section.name for section in catalogue.SECTIONS if section.name != "peers"]
WIDTH, LENGTH, SET_UP, ALONE = 80, 20, 8, 2 / 3


@pytest.mark.parametrize("name", [*NAMES, "peers"])
def test_set_up_cells_and_lines_are_short(name):
    lesson = Lesson.read(name)
    assert lesson_code.set_up_lines(lesson) <= SET_UP
    lines = (line for cell in (lesson.head, *lesson.cells) for line in cell.source.split("\n"))
    wide = [line for line in lines if len(line) > WIDTH]
    long = {
        cell.line: lesson_code.length(cell)
        for cell in lesson.teaching
        if lesson_code.length(cell) > LENGTH and not lesson_code.defines_network(cell)
    }
    assert not wide and not long


@pytest.mark.parametrize("name", [name for name in NAMES if name != "use_gpu"])  # platforms are its subject
def test_no_cell_that_teaches_asks_for_platform_or_toy_size(name):
    assert lesson_code.lines_of(Lesson.read(name))["switch"] == 0


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_two_of_three_cells_run_when_pasted_below_the_set_up(name):
    alone = lesson_code.run_alone_in_a_process(name)
    failed = {line: error for line, error in alone.items() if error}
    assert len(failed) <= (1 - ALONE) * len(alone), failed
