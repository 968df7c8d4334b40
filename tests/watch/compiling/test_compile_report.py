import json
import os
import time

import pytest

from jaxperf.errors import JaxperfError
from jaxperf.retraces import Change
from jaxperf.watch.compiling import output, report, words
from jaxperf.watch.log import Compiled, Log, Stack
from jaxperf.watch.observe.source_location import Place

STEP, SETUP = Place("/p/train.py", 40, "main"), Place("/p/train.py", 7, "setup")
SHAPE = Change("shape", "x", "f32[1]", "f32[2]")
LAYER = Place("/p/train.py", 22, "layer")


def stages(start, *seconds):
    spans = {}
    for name, length in zip(report.STAGES, seconds):
        spans[name] = (start, start + length)
        start += length
    return spans


def function(start, *seconds, **known):
    known = {"explained": True, "defined": "/p/train.py:30", **known}
    return Compiled("step", STEP, stages(start, *seconds), **known)


def operation(start, seconds, name="add", at=SETUP, **known):
    return Compiled(name, at, stages(start, 0.0, 0.0, seconds), **known)


def described(*compiled, wall_s=100.0, samples=()):
    return report.describe(Log("train.py", 0.0, wall_s, compiled=list(compiled), stacks=list(samples)))


def test_stages_add_up_to_the_wall_time_though_programs_compile_while_another_is_traced():
    found = described(function(10, 60, 5, 20), operation(20, 4), operation(30, 6))
    assert found["stages"] == {"import": 0, "trace": 50, "lower": 5, "compile": 30, "other": 15}
    assert sum(found["stages"].values()) == pytest.approx(found["wall_s"])
    # the operations' seconds are theirs, not the function's too
    [step, add] = found["by_function"]
    assert (step["trace_s"], step["seconds"], add["seconds"]) == (50, 75, 10)
    assert sum(row["seconds"] for row in found["by_line"]) == pytest.approx(85)


def test_a_static_object_is_told_by_what_differs_in_it():
    change = Change("static value", "argument 1", "<Net object at 0x1>", "<Net object at 0x2>")
    fields = {"argument 1.rate": "0.1", "argument 10.rate": "1"}, {"argument 1.rate": "0.2"}
    found = described(function(0, 1, fields=fields[0]), function(5, 1, changes=(change,), fields=fields[1]))
    [step] = found["by_function"]
    assert step["changes"] == ["argument 1.rate: 0.1 -> 0.2"]


def test_each_program_has_its_reason():
    change = Change("static value", "rate", "0.1", "0.2")
    programs = [
        function(0, 1, 1, 1),
        function(5, 1, 1, 1, changes=(change,)),
        function(10, 1, 1, 1, closure={"rate": "0.1"}),
        function(15, 1, 1, 1, closure={"rate": "0.2"}),
        Compiled("update", STEP, stages(20, 1, 1, 1), owner="optax", defined="/lib/optax/u.py:3"),
        operation(25, 1, signature={"x": "float32[2]"}),
        operation(27, 1, signature={"x": "float32[3]"}),
        operation(29, 1, signature={"x": "float32[3]", "axis": "1"}),
        operation(31, 1, signature={"x": "2.5", "axis": "1"}),
    ]
    rows = sorted(described(*programs)["list"], key=lambda row: row["start_s"])
    assert [row["reason"] for row in rows] == [
        "first call", "static value", "new function object", "new function object", "first call",
        "operation outside jit", "new shape", "other constants", "weak type",
    ]  # fmt: skip
    assert rows[1]["change"] == "rate: 0.1 -> 0.2"
    assert rows[3]["change"] == "it captures rate: 0.1 -> 0.2"
    assert rows[6]["change"] == "x: float32[2] -> float32[3]"
    assert [row["kind"] for row in rows] == ["function"] * 4 + ["library"] + ["operation"] * 4


def test_a_program_that_ends_while_it_compiles_has_a_remark():
    running = [Stack(20 + i, 21 + i, (LAYER, STEP)) for i in range(10)]
    [remark] = described(function(0, 2, 2, 2), wall_s=30.0, samples=tuple(running))["remarks"]
    assert "ended while JAX was tracing or compiling at p/train.py:22, for 10 s" in remark
    assert not described(function(0, 2, 2, 2), wall_s=60.0, samples=tuple(running))["remarks"]


@pytest.mark.parametrize(
    ("programs", "says", "does_not_say"),
    [
        ([], "Nothing was compiled in 100 s.", "program"),
        ([function(0, 1, 1, 1)], "Compiling is not what this program waits for", "tracing step"),
        ([function(0, 60, 5, 20)], "85 s of 100 s are tracing and compiling, of 1 program: tr", "XLA"),
        ([function(0, 5, 5, 60)], "compiling (XLA) step", "tracing step"),
        (
            [function(i * 10, 1, 1, 7, changes=(SHAPE,)) for i in range(9)],
            "step (p/train.py:40) is compiled 9 times, 72 s for the repeats: new shape, x: f32[1] ->",
            "outside jit",
        ),
        (
            [operation(i, 0.5, f"op{i % 20}") for i in range(90)],
            "90 single operations outside jit take 45 s, each a program of its own; 90 in setup",
            "step",
        ),
    ],
)  # fmt: skip
def test_the_summary_names_what_takes_most(programs, says, does_not_say):
    summary = described(*programs)["summary"]
    assert says in summary and does_not_say not in summary


def test_each_long_stage_of_a_function_is_named_the_longest_first():
    hints = described(function(0, 30, 2, 50), function(90, 1, 1, 1))["hints"]
    assert [hint.split(" takes ")[0] for hint in hints[:2]] == [
        "compiling (XLA) step (p/train.py:40)", "tracing step (p/train.py:40)"
    ]  # fmt: skip
    assert not any("lowering" in hint for hint in hints)


def test_the_cache_says_how_much_it_had_and_why_not(tmp_path):
    for name in ("jit_step-1a-cache", "jit_step-2b-cache", "jit_step-2b-atime", "jit_mul-3c-cache"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1e9, 1e9))
    (tmp_path / "jit_add-4d-cache").touch()  # by this run
    log = Log("train.py", time.perf_counter() - 20.0, time.perf_counter(), compile_cache=str(tmp_path))
    kept_not = "JAX did not keep it: it took < 1.00 seconds to compile"
    log.compiled = [
        function(log.start, 0, 0, 4, cache="miss"),
        operation(log.start + 5, 3, cache="miss", cache_note=kept_not),
        operation(log.start + 9, 1, "mul", cache="hit"),
    ]
    found = report.describe(log)
    others = "it had 2 of this name, for other operations, types, flags or versions"
    none = f"it had none of this name; {kept_not}"
    counts = {"hits": 1, "misses": 2, "miss_s": 7}
    assert found["cache"] == {"folder": str(tmp_path), **counts, "notes": {others: 1, none: 1}}
    said = "has 1 of 3 programs; the others take 7 s"
    assert any(said in hint and none in hint for hint in found["hints"])
    assert any("no compile cache on disk" in hint for hint in described(function(0, 0, 0, 40))["hints"])


def test_thousands_of_operations_make_a_small_page():
    places = [Place("/p/train.py", 10 + i % 700, f"f{i % 300}") for i in range(5000)]
    found = described(*(operation(i / 100, 0.01, f"op{i}", places[i]) for i in range(5000)))
    counts = {"programs": 5000, "operations": 5000, "lines": 700, "functions": 300}
    assert {name: found[name] for name in counts} == counts
    assert len(found["by_line"]) == len(found["by_function"]) == report.ROWS
    assert len(found["list"]) == report.LISTED
    page = output.render("a title", "a sentence", [found])
    assert len(page) < 300_000
    assert sum(len(found[part]) for part in ("by_line", "by_function")) == 2 * report.ROWS


def test_a_line_of_the_program_cannot_become_part_of_the_page(tmp_path):
    source = tmp_path / "train.py"
    source.write_text("x = '</script><script>alert(1)</script> @data@'\n")
    at = Place(str(source), 1, "<module>")
    found = described(operation(0, 50, at=at))
    assert "</script><script>" in found["list"][0]["source"]
    page = output.render("<b>@summary@</b>", found["summary"], [found])
    assert "alert(1)</script>" not in page and "<b>" not in page
    figures = page.partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(figures)["reports"][0]["list"] == found["list"]


def test_two_reports_are_compared_by_function_though_lines_moved():
    before = described(function(0, 1, 1, 5), *(operation(10 + i, 0.5, f"op{i}") for i in range(20)))
    moved = Place("/p/train.py", 90, "setup")
    after = described(function(0, 1, 1, 5), *(operation(10 + i, 0.5, f"op{i}", moved) for i in range(70)))
    [setup, step] = words.differences(before, after)
    assert (setup["name"], setup["kind"], setup["programs"]) == ("setup", "operation", [20, 70])
    assert setup["seconds"] == pytest.approx([10, 35])
    assert step["programs"] == [1, 1] and step["seconds"][0] == step["seconds"][1]
    says = "The first compiles 21 programs in 17 s, the second 71 programs in 42 s."
    assert words.difference(before, after) == says


def test_what_is_no_report_is_one_line(tmp_path):
    good = described(function(0, 1, 1, 1))
    (tmp_path / "train.json").write_text(json.dumps(good))
    for path in (tmp_path, tmp_path / "train.json", tmp_path / "train.html"):
        assert report.load(path)["programs"] == 1
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "text.json").write_text("no JSON")
    for name, message in {
        ".": "has 3 compile reports (other.json, text.json, train.json)",
        "none.json": "of version 1: No such file", "other.json": "is not a compile report of version 1",
        "text.json": "it is not JSON",
    }.items():  # fmt: skip
        with pytest.raises(JaxperfError) as caught:
            report.load(tmp_path / name)
        assert message in str(caught.value) and "\n" not in str(caught.value)
