"""Notebooks: valid, in the order of the walk, with the script as code and what it gave as outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from report_results import HOSTILE, all_results, bare, hostile, hostile_peers, hybridize, peers
from test_script_parts import SMALL

from jaxperf import cli
from jaxperf.errors import JaxperfError
from jaxperf.report import draw
from jaxperf.report.figures import Picture
from jaxperf.report.markdown import markdown
from jaxperf.report.notebook import render_notebook, write_notebooks
from jaxperf.report.story import walk
from jaxperf.result import Code, Heading, Output, Result, Text, save_result

TOLD = (
    Text("Before all parts."),
    Heading("First", "first"),
    Text("Why it is *so*."),
    Code("@jax.jit\ndef helper(x):\n    return x + MOST", "experiments/small.py", 40),
    Code("def elsewhere():\n    return 1", "jaxperf/x.py", 3),
    Output("printed first"),
    Output("and more"),
    Text("What it means."),
    Output("printed later"),
    Heading("Second", "second"),
    Heading("Second, again", "second"),
    Output("printed second"),
    Heading("Of nobody", "told_by_another_module"),
    Output("printed last"),
)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take most of the time."""
    monkeypatch.setattr(draw, "png", lambda draw, *, height_in: b"PNG")


def read(result: Result, **options: Any) -> Any:
    found = nbformat.reads(render_notebook(result, **options), as_version=4)
    nbformat.validate(found)
    return found


def small() -> Result:
    return dataclasses.replace(
        bare(), script=SMALL, config={"size": 5, "devices": 2}, blocks=TOLD, smoke=True, experiment="small"
    )


def shown(cell: Any) -> Iterator[str]:
    """What a reader sees of a cell's outputs, as text."""
    for output in cell.get("outputs", []):
        yield output.text if output.output_type == "stream" else output.data["text/plain"]


def test_cells_are_text_definitions_and_statement_with_its_outputs() -> None:
    cells = read(small()).cells
    kinds = [(c.cell_type, c.source.splitlines()[0]) for c in cells]
    assert kinds == [
        ("markdown", "# Using a GPU"),
        ("code", "from __future__ import annotations"),
        ("code", "import math"),
        ("markdown", "Before all parts."),
        ("code", "LEAST = 3"),
        ("code", "# how it is done"),
        ("code", "def first(story, config):"),
        ("code", "found = story.part(first, config)"),
        ("markdown", "## Second"),
        ("code", "def second(story, found):"),
        ("code", "# and then"),
        ("code", "if found:"),
    ]
    text, first, second = cells[3].source, cells[7], cells[10]
    assert text.index("## First") < text.index("Why it is") < text.index("jaxperf/x.py, line 3")
    assert "helper" not in text  # a cell below holds it
    assert list(shown(first)) == ["printed first\nand more\n", "What it means.\n", "printed later\n"]
    assert "## Second, again" in cells[8].source
    assert list(shown(second)) == ["printed second\n", "## Of nobody\n", "printed last\n"]
    assert list(shown(cells[11])) == []


def test_what_is_told_before_all_parts_belongs_to_the_statement_before_them() -> None:
    later = dataclasses.replace(
        small(), blocks=(Output("early"), Heading("Second", "second"), Output("late"))
    )
    sources = {c.source.split("\n")[0]: list(shown(c)) for c in read(later).cells if c.get("outputs")}
    assert sources == {"found = story.part(first, config)": ["early\n"], "# and then": ["late\n"]}


def test_the_first_code_cell_has_the_settings_of_the_run_and_comes_before_jax() -> None:
    setup = read(small()).cells[1].source
    assert setup.endswith(
        "config = Config(size=5)\nstory = script.notebook('small', config, devices=2, smoke=True)"
    )
    assert "import jax\n" not in setup
    on_cpu = dataclasses.replace(small().environment, flags={"JAX_PLATFORMS": "cpu"})
    given = read(dataclasses.replace(small(), environment=on_cpu, smoke=False)).cells[1].source
    assert given.endswith("script.notebook('small', config, devices=2, platform=\"cpu\")")


def test_every_item_is_there_in_the_order_of_the_walk(undrawn: None) -> None:
    for result in all_results():
        found = read(result, peers=[peers()])
        words = "".join(
            part
            for cell in found.cells[1:]
            for part in ([cell.source] if cell.cell_type == "markdown" else shown(cell))
        )
        at = 0
        for item in walk(result, peers=[peers()]):
            title = getattr(item, "title", "") or getattr(item, "statement", "") or getattr(item, "text", "")
            if isinstance(item, Text | Heading):
                title = "\n".join(markdown(item)).strip("# \n")
            at = words.index(title, at)
        drawn = sum(isinstance(item, Picture) for item in walk(result, peers=[peers()]))
        outputs = [o for cell in found.cells for o in cell.get("outputs", [])]
        assert sum("image/png" in o.get("data", {}) for o in outputs) == drawn


def test_without_a_script_there_are_text_and_outputs_only() -> None:
    for script in ("", "def main():\n    pass\n", "\x00", "x = ("):
        found = read(dataclasses.replace(hybridize(), script=script, blocks=TOLD))
        code = [c for c in found.cells if c.cell_type == "code"]
        assert "holds no script" in found.cells[0].source
        assert {c.source for c in code} == {"# the stored output"}
        assert sum("printed" in words for c in code for words in shown(c)) == 4
        assert any("def helper" in c.source for c in found.cells)


@pytest.mark.thorough
def test_hostile_results_make_valid_notebooks(undrawn: None) -> None:
    for words in HOSTILE:
        for script in (words, SMALL):
            result = dataclasses.replace(hostile(words), script=script)
            whole = nbformat.writes(read(result, peers=[hostile_peers(words)]))
            assert not set("\x00\x1b\x07\u202e") & set(whole)
            whole.encode()


def test_the_same_result_makes_the_same_file() -> None:
    assert render_notebook(hybridize()) == render_notebook(hybridize())


def test_notebooks_are_written_next_to_their_results(
    tmp_path: Path, undrawn: None, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = dataclasses.replace(bare(), experiment="../../elsewhere")
    for name, result in (("a", hybridize()), ("b", odd)):
        save_result(result, tmp_path / f"{name}.json")
    assert cli.main(["report", str(tmp_path), "--format", "ipynb"]) == 0
    assert sorted(p.name for p in tmp_path.glob("*.ipynb")) == ["a.ipynb", "b.ipynb"]
    assert capsys.readouterr().out.count("notebook: ") == 2
    with pytest.raises(JaxperfError, match="cannot write"):
        write_notebooks({tmp_path / "a.json" / "x.json": bare()})
