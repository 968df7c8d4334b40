import ast
from unittest.mock import Mock

import pytest

from jaxperf.watch.log import Log
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules import habits, jit_advice
from jaxperf.watch.rules.table import Finding, advice_for
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


@pytest.fixture
def at(places):
    return places(PROGRAM)


@pytest.mark.parametrize(("start", "rows"), [
    ("t,", ["print(", "    t,", ")"]), ("while", ["while float(x.sum()) > 1:"]),
    ("elif not", ["elif not t:"]), ("@nnx", ["@nnx.jit", "def update(x):"]),
    ("def scale", ["def scale(w): return 2 * w"]),
])  # fmt: skip
def test_a_statement_is_shown_whole_and_of_one_with_a_body_the_head(start, rows, at):
    assert statements.statement_rows(at(start)) == rows


NESTED = """\
@partial(jit, static_argnums=[
    n for n in range(
        2)])
def apply(x, f=lambda y: [
        z for z in y], g: Union[
            int, {k: v for k, v in pairs}] = 3):
    match x:
        case [a, b] if any(
                c for c in b):
            with open(x) as file, open(
                    [d for d in
                     b]):
                return f
"""


def test_the_nodes_around_a_line_are_all_that_begin_before_it_and_end_after_it(places):
    at = places(NESTED)
    expressions = statements.nodes_in(ast.parse(NESTED), statements.ROUND | ast.Lambda | ast.With)
    for number in range(1, NESTED.count("\n") + 1):
        nodes = statements.enclosing_nodes(at(number, "apply"), statements.ROUND | ast.Lambda | ast.With)
        around = [node for node in expressions if node.lineno <= number <= node.end_lineno]
        around.sort(key=lambda node: node.lineno)
        assert [*map(ast.unparse, nodes)] == [*map(ast.unparse, around)], number
        assert statements.innermost(at(number, "apply"), statements.FUNCTION).name == "apply"


def test_a_function_is_jitted_by_its_decorator_whichever_it_is(at):
    for start in ("return w * x", "return w**n", "return x - a"):
        assert statements.in_jitted(at(start)), start
    for start in ("def scale", "x = update"):
        assert not statements.in_jitted(at(start)), start


def test_calls_of_jax_are_operations_by_whatever_name_a_file_imports_it(places):
    at = places(
        "import jax.numpy as np\nfrom jax.scipy import special as sp\nimport jnp_tools as jnp\n"
        "low = np.tanh(cost)\nlow = sp.erf(cost)\nlow = jnp.read(cost)\nlow = float(cost)\n"
    )
    answers = [statements.has_operations(at(number, "<module>")) for number in range(4, 8)]
    assert answers == [True, True, False, False]


def test_what_jits_a_function_is_named_as_the_program_does(at, tmp_path):
    file = at(1).file
    assert statements.jit_wrapper(file, "step") == statements.jit_wrapper(file, "power") == "jax.jit"
    assert statements.jit_wrapper(file, "update") == "nnx.jit"
    assert statements.jit_wrapper(file, "solve") == "jax.jit"  # nothing does, so the usual one
    (tmp_path / "called.py").write_text("run = eqx.filter_jit(model)\n")
    assert statements.jit_wrapper(str(tmp_path / "called.py"), "model") == "eqx.filter_jit"


def test_what_a_call_gives_for_an_argument_is_found_by_place_or_name(places):
    at = places("def step(w, x, *, rate=1): pass\nw = step(w, self.x, rate=0.1)\ny = f(g(a, b), h(c, d))\n")
    given = {"argument 0": "w", "argument 1": "self.x", "rate": "0.1", "argument 7": ""}
    for line, argument, expected in (*((2, *each) for each in given.items()), (3, "argument 1", "")):
        node = statements.argument_expression(at(line), "step", argument)
        assert (ast.unparse(node) if node else "") == expected  # at line 3: of which call?


@pytest.mark.parametrize(("base", "is_module"), [("nnx.Module", True), ("object", False)])
def test_a_class_that_is_derived_from_one_of_its_own_name_is_followed_once(base, is_module, tmp_path):
    path = tmp_path / "net.py"
    path.write_text(f"from flax import nnx\nclass Net({base}): pass\n" + "class Net(Net): pass\n" * 2)
    assert statements.in_module(Place(str(path), 4)) == is_module
    path.with_name("made.py").write_text(path.read_text() + "net = Net()\n")
    assert statements.made_module(Place(str(path.with_name("made.py")), 5)) == ("Net" if is_module else "")


@pytest.mark.parametrize("module", ["nets", "shop.nets", ".nets"])
@pytest.mark.parametrize(("base", "made"), [("eqx.Module", "Net"), ("dict", "")])
def test_a_class_is_followed_to_the_file_that_it_is_imported_from(module, base, made, tmp_path):
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "base.py").write_text(f"import equinox as eqx\nclass Base({base}): pass\n")
    (folder / "nets.py").write_text("from .base import Base\nclass Network(Base): pass\n")
    train = folder / "train.py"
    train.write_text(f"import equinox\nfrom {module} import Network as Net\nnet = Net()\n")
    assert statements.made_module(Place(str(train), 3)) == made


@pytest.mark.parametrize(
    ("passed", "static"),
    [("(64, width)", True), ("(images, labels)", False), ("(0.5, rate)", False), ("8", True)],
)
def test_a_tuple_with_an_integer_is_a_size_and_one_of_names_may_hold_arrays(passed, static, places):
    at = places(f"def fit(w, what): pass\nfit(w, {passed})\n")
    assert statements.literal_parameters(at(1).file, "fit") == (("what",) if static else ())


@pytest.mark.parametrize(("line", "answer"), [
    ("curve.append(onp.asarray(energy))", True),
    ("last = onp.array(energy)", True),
    ("print(onp.asarray(energy), end='')", True),
    ("spread = onp.std(onp.asarray(energy))", False),
    ("total = onp.asarray(energy) @ weights", False),
    ("mean = onp.asarray(energy).mean()", False),
    ("curve.append(energy)", False),
])  # fmt: skip
def test_a_statement_for_which_numpy_only_makes_an_array_is_told_from_one_that_computes(places, line, answer):
    at = places(f"import numpy as onp\nfor energy in steps():\n    {line}\n")
    assert statements.only_converts(at(3)) == answer


@pytest.mark.parametrize(("line", "called"), [
    ("weights = networks.encoder(width).init(key, x)['params']", "networks.encoder(width).init"),
    ("state = optimizer.init(weights)", "optimizer.init"),
    ("weights = jax.jit(encoder(width).init)(key, x)", ""),
])  # fmt: skip
def test_the_call_that_makes_weights_is_known_also_of_a_network_that_is_made_there(places, line, called):
    assert statements.init_call(places(f"{line}\n")(1)) == called


@pytest.mark.parametrize(("body", "sizes"), [
    ("return jnp.zeros((n + 1, 2)) + x", ("n",)),
    ("return x[:n].sum() * k", ("n",)),
    ("for i in range(k): x = x * n", ("k",)),
    ("return x.reshape(n, k)", ("n", "k")),
    ("return x * n + k", ()),
])  # fmt: skip
def test_parameters_that_are_sizes_are_known_by_their_use(places, body, sizes):
    at = places(f"def pad(x, n, k):\n    {body}\n")
    assert statements.sizes_in(at(1).file, "pad") == sizes


@pytest.mark.parametrize(("call", "options"), [
    ("chain.init(x, height)", ", static_argnums=(1,)"),
    ("chain.init(x, slope, steps=9)", ', static_argnums=(1,), static_argnames=("steps",)'),
    ("chain.init(x, density=lambda x: x)", ', static_argnames=("density",)'),
    ("chain.init(x, scale)", ""),
])  # fmt: skip
def test_functions_and_sizes_that_a_call_passes_are_static_arguments_of_it(places, call, options):
    at = places(f"def height(x):\n    return x\nslope = lambda x: x\nscale = height(2)\nstate = {call}\n")
    assert statements.static_options(at(5), "chain.init") == options


@pytest.mark.parametrize(("line", "answer"), [
    ("mesh = sharding.Mesh(np.array(jax.devices()), ('rows',))", True),
    ("rows = jax.device_put(rows, sharding.PartitionSpec('rows'))", True),
    ("rows = jax.device_put(jnp.sin(rows), devices[0])", False),
    ("rows = np.sin(rows)", False),
])  # fmt: skip
def test_a_statement_that_only_says_where_arrays_are_is_told_from_one_that_computes(places, line, answer):
    at = places(f"import jax\nimport numpy as np\nfrom jax import numpy as jnp, sharding\n{line}\n")
    assert statements.only_places(at(4)) == answer


@pytest.mark.parametrize(("line", "over"), [
    ("for row in table: total += float(norm(row))", "table"),
    ("for key in random.split(seed, 9): draw(key)", "random.split(seed, 9)"),
    ("if ready: low, high = bounds", "bounds"),
    ("for row in zip(rows, names):\n    low, high = bounds", "rows"),
    ("for i in range(9): low, high = bounds", "bounds"),
    ("for i in range(9): draw(i)", ""),
])  # fmt: skip
def test_what_a_line_iterates_over_is_known_where_a_body_stands_behind_its_head(places, line, over):
    assert statements.iterated(places(f"{line}\n")(1)) == over


@pytest.mark.parametrize(("arrays", "over"), [
    ((), "titles"), (("weights",), "weights[1:]"), (("self.noise", "x"), "self.noise"), (("x",), "titles"),
])  # fmt: skip
def test_of_what_a_line_iterates_over_at_once_it_is_the_array(places, arrays, over):
    at = places("for i, (t, w, n) in enumerate(zip(titles, weights[1:], self.noise)): show(t, w, n)\n")(1)
    assert statements.iterated(at, arrays) == over


@pytest.mark.parametrize(
    ("line", "arrays"),
    [
        ("ys = [f(x) for x in xs]", ["xs"]),
        ("ys = [f(x) for x in tqdm(xs, desc='f')]", ["xs"]),
        ("ys = jnp.stack([f(k, x) for k, x in zip(keys, xs)])", ["keys", "xs"]),
        ("ys = [f(x, k) for k, x in zip(keys, xs)]", []),  # in another order
        ("ys = [f(x) for k, x in zip(keys, xs)]", []),
        ("ys = [f(x, 2) for x in xs]", []),
        ("ys = [f(x, y) for x in xs for y in zs]", []),
    ],
)
def test_a_function_of_each_element_is_called_for_all_of_them(line, arrays, places):
    assert statements.each_element(places(f"{line}\n")(1, ""), "f") == arrays


@pytest.mark.parametrize(
    ("body", "converts"),
    [
        ("self.rows.append(tuple(jnp.asarray(v) for v in seen))", True),
        ("self.x, self.y = jnp.array(seen), jax.device_put(label)", True),
        ("self.rows.append(jnp.asarray(seen) / 255)", False),
        ("self.rows.append(jnp.sin(seen))", False),
        ("self.rows.append(scaled(jnp.asarray(seen)))", False),
        ("self.rows.append(seen)", False),
    ],
)
def test_a_function_may_only_make_arrays_of_what_it_is_given(body, converts, places):
    at = places(f"import jax, jax.numpy as jnp\nclass Rows:\n    def add(self, *seen):\n        {body}\n")
    assert statements.only_makes_arrays(at(4, "add")) is converts
    finding = jit_advice.way_to_jit(Finding("eager", at(4, "add"), 1.0, ""), Analysis(Log("a")))
    assert ("keep NumPy's arrays" in advice_for(finding).change) is converts


def test_a_file_of_many_functions_is_not_walked_for_each_of_them(places, monkeypatch):
    text = "@jax.jit\ndef step{0}(x):\n    return x\nbegan = time.time()\ny = step{0}(x)\n"
    at = places("".join(map(text.format, range(40))) + "print(time.time() - began)\n")
    walks = Mock(side_effect=ast.walk)
    monkeypatch.setattr(ast, "walk", walks)
    for i in range(40):
        call = at(f"y = step{i}(x)", "<module>")
        assert statements.jit_wrapper(call.file, f"step{i}") == "jax.jit"
        assert statements.donated_parameters(call.file, f"step{i}") == set()
        # up to where a clock is read next
        assert habits._timing_around(call) == (call.line - 1, min(call.line + 4, 201))
    assert walks.call_count < 10 + 40  # one small walk for each decorator
