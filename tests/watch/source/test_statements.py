import ast

import pytest

from jaxperf.watch.observe.source_location import Place
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
def file(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def line(start):
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
def test_a_statement_is_shown_whole_and_of_one_with_a_body_the_head(start, rows, file):
    assert statements.statement_rows(Place(file, line(start))) == rows


def test_a_function_is_jitted_by_its_decorator_whichever_it_is(file):
    for start, jitted in (
        ("return w * x", True),
        ("return w**n", True),
        ("return x - a", True),
        ("def scale", False),
        ("x = update", False),
    ):
        assert statements.in_jitted(Place(file, line(start))) == jitted, start


def test_calls_of_jax_are_operations_by_whatever_name_a_file_imports_it(tmp_path):
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


def test_what_jits_a_function_is_named_as_the_program_does(file, tmp_path):
    assert statements.jit_wrapper(file, "step") == statements.jit_wrapper(file, "power") == "jax.jit"
    assert statements.jit_wrapper(file, "update") == "nnx.jit"
    assert statements.jit_wrapper(file, "solve") == "jax.jit"  # nothing does, so the usual one
    (tmp_path / "called.py").write_text("run = eqx.filter_jit(model)\n")
    assert statements.jit_wrapper(str(tmp_path / "called.py"), "model") == "eqx.filter_jit"


def test_what_a_call_gives_for_an_argument_is_found_by_place_or_name(tmp_path):
    path = tmp_path / "calls.py"
    path.write_text(
        "def step(w, x, *, rate=1): pass\nw = step(w, self.x, rate=0.1)\ny = f(g(a, b), h(c, d))\n"
    )

    def expression(number, argument):
        node = statements.argument_expression(Place(str(path), number), "step", argument)
        return ast.unparse(node) if node else ""

    assert [expression(2, a) for a in ("argument 0", "argument 1", "rate", "argument 7")] == [
        "w",
        "self.x",
        "0.1",
        "",
    ]
    assert expression(3, "argument 1") == ""  # of which call?


@pytest.mark.parametrize(("base", "is_module"), [("nnx.Module", True), ("object", False)])
def test_a_class_that_is_derived_from_one_of_its_own_name_is_followed_once(base, is_module, tmp_path):
    """Notebooks add methods to a class so."""
    path = tmp_path / "net.py"
    path.write_text(
        f"from flax import nnx\nclass Net({base}): pass\nclass Net(Net): pass\nclass Net(Net): pass\n"
    )
    assert statements.in_module(Place(str(path), 4)) == is_module
    path.with_name("made.py").write_text(path.read_text() + "net = Net()\n")
    assert statements.made_module(Place(str(path.with_name("made.py")), 5)) == ("Net" if is_module else "")
