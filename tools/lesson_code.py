"""Count what the code of the sections is for, and the cells that run when pasted alone.

    python tools/lesson_code.py                 # a table of all sections
    python tools/lesson_code.py hybridize       # and which of its cells do not run alone

A cell is pasted below the section's imports and set-up, in a namespace of its own, at toy size. The tests in
tests/experiments/test_lesson_code.py hold the numbers to their goals.
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.process import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import argparse
import ast
import contextlib
import io
import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass

from jaxperf.chapter import catalogue, cells
from jaxperf.chapter.cells import ANSWER, FOLDED, Cell
from jaxperf.process import child_environment

KINDS = ("teach", "measure", "switch", "judge", "plot", "set up")
SWITCH = r"on_cpu|on_gpus?\b|default_backend|\.platform\b|s\.smoke|s\.options|\b(toy|real)\b|is_fake"
MEASURE = (
    r"\bs\.(table|grid|fact|timeline|note)\b|\binterleaved\(|\bmeasure\(|\bprobe\(|\bratio\(|\bMeasurement\("
)
JUDGE = r"\bs\.(claim|say|sentence)\b"
PLOT = r"\bplt\.|\bax(es)?\b\.|\bax(es)?\[|\bfig\.|\bs\.figure\b"


@dataclass(frozen=True)
class Lesson:
    """The code cells of a section: the first is its imports and set-up, answers are left out."""

    name: str
    head: Cell
    cells: tuple[Cell, ...]

    @classmethod
    def read(cls, name: str) -> Lesson:
        script = cells.read(catalogue.folder() / f"{name}.py")
        code = [cell for cell in script if not cell.markdown and ANSWER not in cell.tags]
        begins = next(i for i, cell in enumerate(code) if re.search(r"^s = section\(", cell.source, re.M))
        head = Cell("\n".join(cell.source for cell in code[: begins + 1]), code[0].line)
        return cls(name, head, tuple(code[begins + 1 :]))

    @property
    def teaching(self) -> tuple[Cell, ...]:
        """The cells whose code a reader sees, and might paste."""
        return tuple(cell for cell in self.cells if FOLDED not in cell.tags)


def statements(source: str) -> list[tuple[int, str]]:
    """Return the statements of a cell, without comments and docstrings: lines of code, and the text."""
    found = []
    for node in ast.parse(source).body:
        text = ast.unparse(node)
        lines = [
            line for line in (ast.get_source_segment(source, node) or "").split("\n")
            if line.strip() and not line.strip().startswith("#")
        ]  # fmt: skip
        documented = sum(
            (inner.body[0].end_lineno or 0) - inner.body[0].lineno + 1
            for inner in ast.walk(node)
            if isinstance(inner, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(inner)
        )
        decorators = len(getattr(node, "decorator_list", ()))
        found.append((len(lines) - documented + decorators, text))
    return found


def lines_of(lesson: Lesson) -> Counter[str]:
    """Count the lines of a section by what they are for; imports are left out."""
    counts = Counter(dict.fromkeys(KINDS, 0))
    for count, text in statements(lesson.head.source):
        if not text.startswith(("import ", "from ")):
            counts["switch" if re.search(SWITCH, text) else "set up"] += count
    for cell in lesson.cells:
        for count, text in statements(cell.source):
            counts[_kind(text, folded=FOLDED in cell.tags)] += count
    return counts


def _kind(text: str, *, folded: bool) -> str:
    patterns = {"judge": JUDGE, "switch": SWITCH, "plot": PLOT, "measure": MEASURE}
    fallback = "judge" if folded else "teach"
    return next((kind for kind, pattern in patterns.items() if re.search(pattern, text)), fallback)


def set_up_lines(lesson: Lesson) -> int:
    """Count the lines between a section's imports and its first lesson."""
    return sum(
        count for count, text in statements(lesson.head.source) if not text.startswith(("import ", "from "))
    )


def length(cell: Cell) -> int:
    """Count the lines of a cell that are not blank."""
    return sum(bool(line.strip()) for line in cell.source.split("\n"))


def defines_network(cell: Cell) -> bool:
    """Return whether a cell defines a network: a class of Flax, or its forward function with parameters."""
    return bool(re.search(r"^class \w+\(nnx\.Module|^# a network", cell.source, re.M))


def run_alone(lesson: Lesson) -> dict[int, str]:
    """Run each teaching cell after the set-up alone, in this process; return its error by its line, or ""."""
    path = catalogue.folder() / f"{lesson.name}.py"
    sys.argv, cells.current = [str(path), "--smoke"], path
    outcome = {}
    with contextlib.redirect_stdout(io.StringIO()):
        head = {"__name__": lesson.name}
        lesson.head.run(path, head)
        for cell in lesson.teaching:
            try:
                cell.run(path, dict(head))
                outcome[cell.line] = ""
            except Exception as error:
                outcome[cell.line] = f"{type(error).__name__}: {error}".splitlines()[0][:100]
    return outcome


def run_alone_in_a_process(name: str) -> dict[int, str]:
    """Run `run_alone` in a process of its own: a section starts JAX with its own number of devices."""
    command = [sys.executable, __file__, "--paste", name]
    done = subprocess.run(command, capture_output=True, text=True, env=child_environment(), check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    return {int(line): error for line, error in json.loads(done.stdout.splitlines()[-1]).items()}


def main() -> int:
    """Print the table, or what `--paste` found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="sections; all by default")
    parser.add_argument("--paste", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.paste:
        print(json.dumps(run_alone(Lesson.read(options.paste))))
        return 0
    names = options.names or [section.name for section in catalogue.SECTIONS if section.name != "peers"]
    print(f"{'':24}" + "".join(f"{kind:>9}" for kind in KINDS) + "   alone")
    total: Counter[str] = Counter()
    for name in names:
        lesson = Lesson.read(name)
        counts, alone = lines_of(lesson), run_alone_in_a_process(name)
        counts["alone"], counts["cells"] = sum(not error for error in alone.values()), len(alone)
        total += counts
        _row(name, counts)
        if options.names:
            for line, error in alone.items():
                print(f"    line {line}: {error or 'runs'}")
    _row("all", total)
    return 0


def _row(name: str, counts: Counter[str]) -> None:
    numbers = "".join(f"{counts[kind]:9}" for kind in KINDS)
    print(f"{name:24}{numbers}   {counts['alone']} of {counts['cells']}")


if __name__ == "__main__":
    sys.exit(main())
