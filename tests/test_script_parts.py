"""A script taken apart: whatever a cell uses is defined above it, and cells are the script's own lines."""

from __future__ import annotations

import ast
import builtins
import textwrap
from collections.abc import Iterator
from pathlib import Path

from report_results import HOSTILE

from jaxperf.report.script_parts import Script, take_apart

EXPERIMENTS = sorted((Path(__file__).parents[1] / "experiments").glob("*.py"))
SMALL = '''
"""A question?

    python experiments/small.py
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from jaxperf import script


@dataclass(frozen=True)
class Config:
    """Flags."""

    size: Annotated[int, 1] = 3  # how much
    names: tuple[str, ...] = ("a", "b")
    folder: Path | None = None
    data: Annotated[script.Data, None] = script.Data()


FLAGS = script.parse(Config) if __name__ == "__main__" else None
if FLAGS:
    size = 3

import math

import jax

LEAST = 3
MOST = LEAST + 1  # as far as it goes


def unused():
    return LEAST


# how it is done
@jax.jit
def helper(x):
    return x + MOST


def first(story, config):
    story.heading("First")
    return helper(config.size)


def second(story, found):
    """Text
at the margin."""
    return first, found


def main(config, story):
    """Two parts."""
    found = story.part(first, config)
    # and then
    story.part(
        second, found
    )
    if found:
        story.part(math.tau); story.note(f"""a
    b""")


if __name__ == "__main__":
    script.run(main, FLAGS)
'''.lstrip()


def apart(source: str = SMALL, **settings: object) -> Script:
    found = take_apart(source, settings)
    assert found
    return found


def cells(script: Script) -> Iterator[str]:
    yield f"{script.setup}\n{script.config} = {script.settings}\n{script.story} = script.notebook()"
    yield script.imports
    for step in script.steps:
        yield from step.definitions
        yield step.source


def bound(tree: ast.AST) -> set[str]:
    """Every name that something in the tree gives a meaning."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.FunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.arg():
                found.add(node.arg)
            case ast.alias():
                found.add((node.asname or node.name).split(".")[0])
            case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar() if node.name:
                found.add(node.name)
    return found


def test_every_name_that_a_cell_uses_is_defined_above_it_in_every_section() -> None:
    for path in EXPERIMENTS:
        known = set(dir(builtins))
        for cell in cells(apart(path.read_text(encoding="utf-8"))):
            tree = ast.parse(cell)
            known |= bound(tree)
            used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
            assert used <= known, (path.name, used - known, cell)


def test_cells_are_the_lines_of_every_script_and_hold_all_of_main() -> None:
    for path in EXPERIMENTS:
        source = path.read_text(encoding="utf-8")
        script = apart(source)
        main = next(n for n in ast.parse(source).body if getattr(n, "name", "") == "main")
        assert isinstance(main, ast.FunctionDef)
        whole = [step.source for step in script.steps] == ["main(config, story)"]
        assert whole or len(script.steps) == len(main.body) - 1  # less its docstring
        assert (
            "end_at_once" in source and "end_at_once" not in script.setup
        )  # it would end a notebook's kernel
        for step in script.steps:
            for cell in (*step.definitions, *([] if whole else [step.source])):
                lines = [line.strip() for line in cell.splitlines()]
                assert all(line in source for line in lines)


def test_definitions_come_once_right_before_the_first_statement_that_needs_them() -> None:
    script = apart()
    one, two, three = script.steps
    assert one.definitions[0] == "LEAST = 3\nMOST = LEAST + 1  # as far as it goes"
    assert one.definitions[1].startswith("# how it is done\n@jax.jit\ndef helper(x):")
    assert one.definitions[2].startswith("def first(") and len(one.definitions) == 3
    assert (one.source, two.source[:10]) == ("found = story.part(first, config)", "# and then")
    assert [d[:10] for d in two.definitions] == ["def second"]
    assert three.definitions == ()
    assert not any("unused" in cell for cell in cells(script))
    assert (script.imports, script.setup[:5]) == ("import math\n\nimport jax", "from ")
    assert "size = 3" not in list(cells(script))
    assert {"first"} <= one.names and {"second"} <= two.names and {"tau"} <= three.names


def test_moving_a_statement_to_the_margin_leaves_strings_as_they_are() -> None:
    main = next(n for n in ast.parse(SMALL).body if getattr(n, "name", "") == "main")
    assert isinstance(main, ast.FunctionDef)
    for step, node in zip(apart().steps, main.body[1:]):
        assert ast.dump(ast.parse(step.source)) == ast.dump(ast.Module([node], []))
    second = apart().steps[1].definitions[0]
    assert '"""Text\nat the margin."""' in second


def test_only_settings_that_differ_from_the_defaults_are_written() -> None:
    assert apart(size=3, names=("a", "b"), folder=None, devices=2, later=1).settings == "Config()"
    assert apart(size=4, names=("b",)).settings == "Config(size=4, names=('b',))"
    given = apart(folder="/x", data={"data_source": "mini", "not a name": 1}).settings
    assert given == "Config(folder=Path('/x'), data=script.Data(data_source='mini'))"


def test_a_main_that_returns_early_stays_whole() -> None:
    early = SMALL.replace("    # and then\n", "    if not found:\n        return\n")
    (step,) = apart(early).steps
    assert step.source == "main(config, story)"
    assert [d.split("(")[0] for d in step.definitions[2:]] == ["def first", "def second", "def main"]
    assert {"first", "second"} <= step.names


def test_what_is_not_a_script_of_a_section_is_none() -> None:
    odd = [
        "",
        "x = (",
        "FLAGS = 1\nclass Config: pass\ndef main(): pass",
        SMALL.replace("FLAGS = ", "flags = "),
        SMALL.replace("class Config", "class Other"),
        SMALL + "\r",
        "(" * 10_000,
        "FLAGS = " + "-" * 100_000 + "1",
        textwrap.indent(SMALL, " "),
        *HOSTILE,
    ]
    assert [take_apart(source, {}) for source in odd] == [None] * len(odd)
