"""What a call passes for an argument is found by place and by name, or not guessed."""

from __future__ import annotations

import ast
from pathlib import Path

from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.source import source_arguments


def test_what_a_call_gives_for_an_argument_is_found_by_place_or_name(tmp_path: Path) -> None:
    path = tmp_path / "calls.py"
    path.write_text(
        "def step(w, x, *, rate=1): pass\nw = step(w, self.x, rate=0.1)\ny = f(g(a, b), h(c, d))\n"
    )

    def expression(number: int, argument: str) -> str:
        node = source_arguments.argument_expression(Place(str(path), number), "step", argument)
        return ast.unparse(node) if node else ""

    assert [expression(2, a) for a in ("argument 0", "argument 1", "rate", "argument 7")] == [
        "w",
        "self.x",
        "0.1",
        "",
    ]
    assert expression(3, "argument 1") == ""  # of which call?


def test_a_variable_that_is_passed_is_named_and_else_the_parameter(tmp_path: Path) -> None:
    path = tmp_path / "calls.py"
    path.write_text("def step(w, x): pass\nw = step(w, self.x)\nw = step(w, 2 * w)\n")
    passed = [
        source_arguments.variable_passed(Place(str(path), line), "step", "argument 1") for line in (2, 3)
    ]
    assert passed == ["self.x", "x"]
    assert source_arguments.variable_passed(Place(str(path), 2), "other", "argument 1") == "self.x"
    assert source_arguments.variable_passed(Place(str(path), 3), "other", "argument 1") == "argument 1"


def test_an_object_is_made_where_one_line_makes_it(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("model = Model()\nfor _ in range(3):\n    o = nnx.Optimizer(model)\n    m = Model()\n")
    at = Place(str(path), 9)
    assert source_arguments.made_at(at, "Optimizer") == at._replace(line=3)
    assert source_arguments.made_at(at, "Model") is None  # which of the two?
