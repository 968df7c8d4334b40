import re
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest
import scripts
from cases import cases

from jaxperf.errors import JaxperfError
from jaxperf.result import ratio_of

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "puzzles"
SOLUTIONS = Path(__file__).resolve().parents[1] / "puzzles"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.name != "check.py")
# These compile at least three times as often as their solutions.
COMPILES = ("schedule", "sentences", "history", "waves")
QUICK = "disk"


@pytest.fixture
def check(monkeypatch):
    return scripts.load("check_puzzle", FOLDER / "check.py", monkeypatch)


@pytest.fixture
def compiled(compiles_anew):
    events = Counter()

    def count(event, seconds, **_):
        events[event.rpartition("/")[2]] += 1

    jax.monitoring.register_event_duration_secs_listener(count)
    yield events
    jax.monitoring.unregister_event_duration_listener(count)


@pytest.mark.parametrize(
    ("ratios", "status", "word"),
    [([5.0] * 7, 0, "solved"), ([2.9] * 7, 1, "not yet"), ([2.0, 5.0] * 4, 3, "undecided")],
)
def test_the_verdict_follows_the_interval_of_the_ratio(check, ratios, status, word):
    actual, line = check.verdict(ratio_of(ratios), 3.0)
    assert (actual, line.partition(":")[0]) == (status, word)
    assert "asks for 3 times" in line


@pytest.mark.parametrize(("results", "line"), [
    ([np.ones(3)], ""), ([np.ones(3) + 1e-5], ""), ([np.full(3, np.nan)], "a result is off by nan"),
    ([np.ones(4)], r"main returns arrays of the shapes \[\(4,\)\], the puzzle \[\(3,\)\]"),
    ([], r"main returns arrays of the shapes \[\]"),
])  # fmt: skip
def test_results_are_compared_up_to_rounding(check, results, line):
    assert re.match(line or "$", check.difference([np.ones(3)], results))


@pytest.mark.parametrize(("text", "message"), [
    ("x = 1\n", "has no function main"),
    ("def main(seed):\n    return 1 / 0\n", r"mine\.py:2 raises ZeroDivisionError: division by zero"),
    ("def main(seed:\n", r"mine\.py raises SyntaxError"),
])  # fmt: skip
def test_a_mistake_in_a_solution_is_one_line(check, tmp_path, text, message):
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(JaxperfError, match=message) as e:
        check.run(path, 0)
    assert "\n" not in str(e.value)


def test_a_mistake_in_the_call_names_the_puzzles(check):
    with pytest.raises(JaxperfError, match="the puzzles are diary, disk, "):
        check.main(["nosuch", "x.py"])
    with pytest.raises(JaxperfError, match="there is no file nosuch"):
        check.main(["diary", "nosuch.py"])


@pytest.mark.parametrize("name", cases([(n,) for n in NAMES], quick=lambda n: n == QUICK))
def test_a_solution_returns_what_the_puzzle_returns_and_compiles_no_more(check, compiled, name):
    results, counts = [], []
    for folder in (FOLDER, SOLUTIONS):
        compiled.clear()
        results.append(check.run(folder / f"{name}.py", 5)[1])
        counts.append(compiled["backend_compile_duration"])
    assert check.difference(*results) == ""
    assert counts[0] >= (3 * counts[1] if name in COMPILES else counts[1])
    assert counts[1] >= 1


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_the_puzzle_fails_its_own_check_and_the_solution_passes(
    check, name, compiles_anew, optimized, capsys
):
    assert check.main([name, str(FOLDER / f"{name}.py")]) == check.NOT_YET
    for _ in range(3):  # a busy moment decides nothing
        if status := check.main([name, str(SOLUTIONS / f"{name}.py")]):
            assert status == check.UNDECIDED, capsys.readouterr().out
        else:
            return
    pytest.fail(capsys.readouterr().out)
