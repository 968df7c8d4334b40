import pytest

from jaxperf.watch.log import Log
from jaxperf.watch.observe.compiles import Compiled
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules import program_notes


def record(compile_s, *, wall_s=9.0, cache=""):
    call = Compiled("step", Place("a.py", 3), {"trace": (0.5, 1.0), "compile": (1.0, 1.0 + compile_s)}, True)
    return Analysis(Log("a", 0, wall_s, compiled=[call], compile_cache=cache))


@pytest.mark.parametrize(("cache", "count"), [("", 1), ("/tmp/cache", 0)])
def test_a_start_that_compiles_for_long_without_a_cache_has_a_note(cache, count):
    assert len(list(program_notes.cache_notes(record(5.0, cache=cache)))) == count


def test_programs_that_compile_at_the_same_time_take_the_time_of_one():
    analysis = record(5.0, wall_s=7.0)
    analysis.log.compiled.extend(analysis.log.compiled * 3)
    (note,) = program_notes.cache_notes(analysis)
    assert note.startswith("each start compiles for 5 s of 7 s ")
