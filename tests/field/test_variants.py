import ast
import importlib
from dataclasses import replace
from pathlib import Path

import pytest
from scripts import load

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def neighbors(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "variants"))


@pytest.fixture
def write(neighbors):
    return importlib.import_module("write_variants")


@pytest.fixture
def scores(neighbors):
    return importlib.import_module("score_variants")


def test_seeds_cover_all_that_varies(write):
    variants = [write.draw(seed) for seed in range(300)]
    assert {v.skeleton for v in variants} == {*write.SKELETONS}
    assert {v.layout for v in variants} == {*write.LAYOUTS}
    assert {cause for v in variants if v.slow for cause in v.planted} == {*write.CAUSES}
    assert {len(v.planted) for v in variants if v.slow} == {1, 2} and any(not v.slow for v in variants)
    assert {v.devices for v in variants} == {1, 2} and {v.busy for v in variants} == {True, False}


def test_the_repaired_program_differs_and_each_cause_has_a_line_of_its_own(write):
    for seed in range(120):
        variant = write.draw(seed, causes=(write.CAUSES[seed % len(write.CAUSES)],))
        repaired = write.repaired(variant)
        for text in (*variant.files.values(), *repaired.files.values()):
            ast.parse(text)
        assert variant.files != repaired.files and not repaired.places
        ((file, line), *_) = variant.places[variant.planted[0]]
        assert LINES[variant.planted[0]] in variant.files[file].splitlines()[line - 1]


# what the line of a cause has
LINES = {
    "eager": "def ", "static value": "rate=0.999", "new function": "_now(", "unrolled": "for _ in range(150)",
    "callback": "pure_callback", "constant work": "jnp.sort", "list": "jnp.array(factors)",
    "put again": "(table", "shape": "scale, ", "data": "read(", "weak type": "scale, ",
    "wait": "float(", "element reads": "float(row[k])", "iterated array": "for element in", "python": "sum(",
    "write": "np.save", "cleared": "clear_caches()", "new body": "fori_loop",
}  # fmt: skip


def row(**values):
    return {
        "layout": "script", "others": 0.0, "busy": False, "causes": ["wait"],
        "places": {"wait": [["program.py", 9], ["program.py", 7]]}, "found_repaired": [],
        "found_slow": [["wait", "program.py", 9, 1.0]], "wall_slow": 3.0, "wall_repaired": 2.0,
        "cpu_slow": 9.0, "cpu_repaired": 1.0, **values,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, (1, 1, 1, 1)),
        ({"found_slow": [["wait", "program.py", 8, 1.0]]}, (1, 1, 0, 1)),  # another line
        ({"found_slow": [["wait", "program.py", 7, 2.0]]}, (1, 1, 1, 0)),  # the call; twice the gain
        ({"found_slow": [["eager", "program.py", 9, 1.0]]}, (1, 0, 0, 1)),
        ({"found_slow": []}, (1, 0, 0, 0)),
        ({"wall_repaired": 2.9}, (0, 0, 0, 0)),  # too small to count
        ({"others": 1.0}, (1, 1, 1, 0)),  # processor seconds decide
        ({"layout": "cell", "found_slow": [["wait", "In [1]", 9, 1.0]]}, (1, 1, 1, 1)),
        ({"wall_without wait": 2.95}, (0, 0, 0, 0)),  # another cause is what gains
    ],
)
def test_scores(values, expected, scores):
    total = scores.score({"variants": [row(**values)]}).total
    assert (total.planted, total.found, total.located, total.right) == expected


def test_a_finding_in_a_repaired_program_is_false(scores):
    result = scores.score({"variants": [row(), row(found_repaired=[["wait", "program.py", 1, 1.0]])]})
    assert (result.clean, result.false, result.good) == (2, 1, False)


def test_a_planted_cause_is_found_at_its_line(tmp_path, write, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    run = load("variants_run", ROOT / "benchmarks" / "variants" / "run.py", monkeypatch)
    # compiling takes most of such a program's time, on any machine
    variant = write.draw(1, seconds=1.0, causes=("new function",), layout="library")
    row = run.run_variant(replace(variant, busy=False), rounds=1)
    wanted = {("new function", Path(file).name, line) for file, line in row["places"]["new function"]}
    assert wanted & {(cause, file, line) for cause, file, line, _ in row["found_slow"]}, row
    assert not [found for found in row["found_repaired"] if found[0] == "new function"], row
