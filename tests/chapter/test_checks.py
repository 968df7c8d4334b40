import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from jaxperf.chapter import catalogue, checks
from jaxperf.chapter.checks import CHECKS
from jaxperf.errors import JaxperfError

SOLUTIONS = Path(__file__).parents[1] / "exercises"

# Of each exercise: what is changed in the solution, and what the check says then.
PLACED = "jax.device_put(total, place) for place in places"
BOTH = "return jnp.concatenate([ring(x[:half], axis, 1), ring(x[half:], axis, -1)])"
FEWEST = "max(1, math.floor(round(bubbles * (1 - idle) / idle, 9)) + 1)"
WRONG = {
    "8.0.6": [
        ("flops / peak", "0 * flops", "for a product of two 2000 x 2000 matrices, 'memory' is not the limit"),
        ("call_s}", "0.0}", "for 100 floats"),
        ("return max", "return len", "no name of a limit|TypeError"),
    ],
    "8.1.2": [
        ("jnp.where(x.sum() > 1, x / x.sum(), x)", "x / x.sum() if x.sum() > 1 else x", "TracerBool"),
        ("x.sum() > 1", "x.sum() > 0", "if_value for .* is off by"),
        ("jax.lax.fori_loop(0, n, lambda _, x: 2 * x, x)", "2 * x", "for_range for n = 0 is off by"),
    ],
    "8.2.5": [
        ("len(results) > window", "False", "up to 5 results are unfinished"),
        ("results[-1 - window]", "results[-1]", "waits for a result that is not 2 calls old"),
        ("return results", "return results[:-1]", "does not return all results"),
    ],
    "8.3.4": [
        ("result.copy_to_host_async()", "pass", "no copy is under way"),
        ("[f(x) for x in xs]", "[f(x).block_until_ready() for x in xs]", "before all calls are queued"),
        ("np.asarray(result) for", "result for", "list of NumPy arrays"),
    ],
    "8.4.3": [
        (PLACED, "total for place in places", "the sum for device 1 is on"),
        (f"[{PLACED}]", "[total, *others]", "the sum on device 1 is off by"),
        ("jnp.add", "jnp.multiply", "the sum on device 0 is off by"),
    ],
    "8.5.2": [
        ("len(y) / count for _, y in shares", "1 / len(shares) for _ in shares", r"of \[9, 3\] examples"),
        ("len(y) / count", "len(y)", "is off by"),
    ],
    "8.6.1": [
        ('print(f"no GPU {i}: using the CPU", file=sys.stderr)', "pass", "the CPU without a word"),
        ('return jax.devices("cpu")[0]', "raise", "RuntimeError"),
        ('return jax.devices("gpu")[i]', 'raise RuntimeError("")', "with a GPU it returns"),
        ("(RuntimeError, IndexError)", "RuntimeError", "IndexError"),
    ],
    "8.7.1": [
        ("axis, -1)])", "axis, 1)])", "all messages go the same way"),
        ("half = len(x) // 2", "half = len(x) // 4", "the other|is off by|cannot reshape|raises"),
        (BOTH, "return lax.psum(x, axis)", "to psum"),
        ("range(2, k + 1)", "range(2, k)", "the sum is off by"),
    ],
    "8.8.1": [
        (" + 1)", ")", "idle .*, not less than"),
        (" + 1)", " + 2)", "are enough"),
        (FEWEST, "bubbles / idle", "whole number|idle|enough"),
    ],
    "8.9.2": [
        ("grad(params, batch))", "lax.pmean(grad(params, batch), axis))", "the loop exchanges the gradient"),
        ("lax.pmean(total, axis)", "total", "is off by"),
        ("t / len(batches)", "t", "is off by"),
    ],
}  # fmt: skip


def path_of(number):
    return SOLUTIONS / f"exercise_{number.replace('.', '_')}.py"


def test_ten_exercises_one_of_each_section_have_a_check():
    assert len(CHECKS) == len(WRONG) >= 10
    sections = {number.rpartition(".")[0] for number in CHECKS}
    assert sections == {section.number for section in catalogue.SECTIONS if section.name != "peers"}


@pytest.mark.parametrize("number", CHECKS)
def test_the_solution_of_the_tests_is_right(number, capsys):
    if len(jax.devices("cpu")) < checks.DEVICES:
        pytest.skip("needs four CPU devices")
    assert checks.main(number, path_of(number)) == 0
    assert capsys.readouterr().out == f"{number}: right\n"


@pytest.mark.parametrize("number", CHECKS)
def test_wrong_solutions_are_told_what_is_wrong(number, tmp_path, capsys):
    if len(jax.devices("cpu")) < checks.DEVICES:
        pytest.skip("needs four CPU devices")
    right = path_of(number).read_text()
    for before, after, says in WRONG[number]:
        assert before in right
        (path := tmp_path / "mine.py").write_text(right.replace(before, after))
        assert checks.main(number, path) == 1, (before, after)
        said = capsys.readouterr().out
        assert re.match(rf"{re.escape(number)}: wrong: .*({says})", said), said
        assert said.count("\n") == 1


def test_mistakes_are_one_line(tmp_path, capsys):
    (empty := tmp_path / "empty.py").write_text("a = 1\n")
    (fails := tmp_path / "fails.py").write_text("a = 1\n1 / 0\n")
    (damaged := tmp_path / "damaged.py").write_text("a = \n")
    for path, says in {
        None: r"^give a file that defines allreduce\(trees\)",
        Path("nowhere.py"): r"^there is no file nowhere.py; write one that defines allreduce",
        empty: "defines no function allreduce; 8.4.3 asks for allreduce",
        fails: r"fails.py:2 raises ZeroDivisionError: division by zero$",
        damaged: r"damaged.py:1 raises SyntaxError",
    }.items():
        with pytest.raises(JaxperfError, match=says):
            checks.main("8.4.3", path)
    other = r"^exercise '8.4.9' has no check \(did you mean 8.4.3\?\); `jaxperf check` lists"
    with pytest.raises(JaxperfError, match=other):
        checks.main("8.4.9", Path("x.py"))
    assert checks.main("", None) == 0
    listed = capsys.readouterr().out
    assert all(f"  {number}  " in listed for number in CHECKS)


def test_the_command_runs_in_a_process_with_devices_of_its_own(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "JAX_NUM_CPU_DEVICES"}
    command = [sys.executable, "-m", "jaxperf", "check", "8.4.3", str(path_of("8.4.3"))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "8.4.3: right\n", "")
