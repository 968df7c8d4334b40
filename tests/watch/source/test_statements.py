"""Statements are shown as the reader wrote them, and what is around them is known."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest

from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.source import statements

PROGRAM = """\
@jax.jit
def step(w, x):
    return w * x

def scale(w): return 2 * w

@partial(jax.jit, static_argnames="n")
def power(w, n):
    return w**n

def solve(a, x):
    @nnx.jit
    def update(x):
        return x - a
    while float(x.sum()) > 1:
        x = update(x)
    return x

for t in range(3):
    if t:
        print(u)
    elif not t:
        print(
            t,
        )
"""
LINES = PROGRAM.splitlines()


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def line(start: str) -> int:
    return next(i for i, text in enumerate(LINES, start=1) if text.strip().startswith(start))


@pytest.mark.parametrize(
    ("start", "rows"),
    [
        ("t,", ["print(", "    t,", ")"]),
        ("while", ["while float(x.sum()) > 1:"]),
        ("elif not", ["elif not t:"]),
        ("@nnx", ["@nnx.jit", "def update(x):"]),
        ("def scale", ["def scale(w): return 2 * w"]),
    ],
)
def test_a_statement_is_shown_whole_and_of_one_with_a_body_the_head(
    start: str, rows: list[str], file: str
) -> None:
    assert statements.statement_rows(Place(file, line(start))) == rows


def test_the_file_is_walked_once_for_all_samples_at_a_line(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks = []
    monkeypatch.setattr(ast, "walk", lambda tree, walk=ast.walk: walks.append(tree) or walk(tree))
    for _ in range(100):
        statements.enclosing_nodes(Place(file, 7, "once"), ast.stmt)
    assert len(walks) <= 1


def test_a_statement_that_is_not_known_is_three_dots() -> None:
    assert statements.statement_rows(Place("no such file", 3)) == ["..."]


def test_a_function_is_jitted_by_its_decorator_whichever_it_is(file: str) -> None:
    for start, jitted in (
        ("return w * x", True),
        ("return w**n", True),
        ("return x - a", True),
        ("def scale", False),
        ("x = update", False),
    ):
        assert statements.in_jitted(Place(file, line(start))) == jitted, start


def test_calls_of_jax_are_operations_by_whatever_name_a_file_imports_it(tmp_path: Path) -> None:
    file = tmp_path / "search.py"
    rows = [
        "import jax.numpy as np",
        "from jax.scipy import special as sp",
        "import jnp_tools as jnp",
        "low = np.tanh(cost)",
        "low = sp.erf(cost)",
        "low = jnp.read(cost)",
        "low = float(cost)",
    ]
    file.write_text("\n".join(rows), encoding="utf-8")
    answers = [statements.has_operations(Place(str(file), number, "<module>")) for number in range(4, 8)]
    assert answers == [True, True, False, False]


def test_what_jits_a_function_is_named_as_the_program_does(file: str, tmp_path: Path) -> None:
    assert statements.jit_wrapper(file, "step") == statements.jit_wrapper(file, "power") == "jax.jit"
    assert statements.jit_wrapper(file, "update") == "nnx.jit"
    assert statements.jit_wrapper(file, "solve") == "jax.jit"  # nothing does, so the usual one
    (tmp_path / "called.py").write_text("run = eqx.filter_jit(model)\n")
    assert statements.jit_wrapper(str(tmp_path / "called.py"), "model") == "eqx.filter_jit"


@pytest.mark.parametrize(
    ("loop", "turns"),
    [
        ("for i in range(4): f()", 4),
        ("for i in range(2, 10, 2): f()", 4),
        ("for i in range(n): f()", math.inf),
        ("for x in xs: f()", math.inf),
        ("[f() for i in range(7)]", 7),
        ("while x: f()", math.inf),
    ],
)
def test_turns_are_known_where_they_are_written(loop: str, turns: float) -> None:
    (statement,) = ast.parse(loop).body
    node = statement.value if isinstance(statement, ast.Expr) else statement
    assert statements.turns_written(node) == turns


def test_what_a_call_gives_for_an_argument_is_found_by_place_or_name(tmp_path: Path) -> None:
    path = tmp_path / "calls.py"
    path.write_text(
        "def step(w, x, *, rate=1): pass\nw = step(w, self.x, rate=0.1)\ny = f(g(a, b), h(c, d))\n"
    )

    def expression(number: int, argument: str) -> str:
        node = statements.argument_expression(Place(str(path), number), "step", argument)
        return ast.unparse(node) if node else ""

    assert [expression(2, a) for a in ("argument 0", "argument 1", "rate", "argument 7")] == [
        "w",
        "self.x",
        "0.1",
        "",
    ]
    assert expression(3, "argument 1") == ""  # of which call?


def test_an_object_is_made_where_one_line_makes_it(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("model = Model()\nfor _ in range(3):\n    o = nnx.Optimizer(model)\n    m = Model()\n")
    at = Place(str(path), 9)
    assert statements.made_at(at, "Optimizer") == at._replace(line=3)
    assert statements.made_at(at, "Model") is None  # which of the two?


def test_one_function_could_hold_the_lines_of_a_function_or_of_a_loop(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        "a = f()\nfor x in y:\n    b = f()\n    c = g()\n\ndef h():\n    d = f()\n    return g(d)\n"
    )
    around = [statements.neighborhood(Place(str(path), n)) for n in (1, 3, 4, 7, 8)]
    assert around[0] == NOWHERE and around[1] == around[2] != around[3] == around[4]
    assert all(place.line <= 0 for place in around)
