"""The layers of pyproject.toml hold, what must answer at once is light, and no clock may jump."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import children

ROOT = Path(__file__).parents[2]


def test_the_layers_of_the_package_hold() -> None:
    program = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = children.run("-c", program, folder=ROOT)
    assert done.returncode == 0, done.stdout


def test_what_must_answer_at_once_imports_no_jax_and_jaxperf_only_the_standard_library() -> None:
    program = """
import sys; before = set(sys.modules); import jaxperf
print({n.split('.')[0] for n in set(sys.modules) - before} - set(sys.stdlib_module_names))
import jaxperf.cli, jaxperf.result.recorder, jaxperf.result.terminal, jaxperf.result
print({'jax', 'flax', 'tensorflow', 'scipy', 'matplotlib'} & set(sys.modules))
"""
    done = children.run("-c", program, folder=ROOT)
    assert (done.stdout, done.stderr) == ("{'jaxperf'}\nset()\n", "")


WALL_CLOCKS = re.compile(r"\b(time\.(time|time_ns|ctime|localtime|gmtime)|datetime\.(now|utcnow|today))$")


def wall_clocks(tree: ast.Module) -> list[str]:
    """What a program calls that changes when a clock is set; names imported from their module too."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            names.append(ast.unparse(node.func))
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return [name for name in names if WALL_CLOCKS.search(name)]


def test_no_duration_is_taken_from_a_clock_that_may_jump() -> None:
    """The only uses are dates of runs and cells; lessons measure as the book does, with `time.time`, too."""
    used = {}
    for path in (ROOT / "jaxperf").rglob("*.py"):
        if clocks := wall_clocks(ast.parse(path.read_text(encoding="utf-8"))):
            used[path.relative_to(ROOT / "jaxperf").as_posix()] = clocks
    assert set(used) <= {
        "chapter/cells.py", "result/recorder.py", "watch/report/text.py", "watch/compiling/report.py",
    }  # fmt: skip
    assert {name for names in used.values() for name in names} == {"datetime.datetime.now"}
    assert wall_clocks(ast.parse("from time import time\nimport time\ntime.time_ns()")) == [
        "time.time",
        "time.time_ns",
    ]
