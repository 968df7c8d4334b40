import ast
import linecache
import sys
from types import SimpleNamespace

import pytest

from jaxperf.libraries import Place
from jaxperf.watch.source import statements
from jaxperf.watch.source.host_work import (
    _with_called,
    all_called,
    changing_variables,
    host_work,
    is_tree_of_arrays,
    needed_changes,
    replaceable_calls,
)

IMPORTS = (
    "import random\nimport jax\nimport jax.numpy as jnp\nimport matplotlib.pyplot as plt\n"
    "import numpy as np\nfrom jax import random as jr\nfrom scipy.stats import norm\n\n"
)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("    return jnp.sin(x) / np.sqrt(x.shape[0]) + np.pi", ""),  # a number while jit traces
        ("    d = x.shape[-1]\n    return x / np.sqrt(d)", ""),
        ("    y = x * 2\n    return np.where(y > 0, np.cos(y), 0)", "np.where and np.cos in line 11"),
        ("    y = np.abs(x)\n    return np.exp(y)", "np.abs in line 10, np.exp in line 11"),
        (
            "    y = float(jnp.max(x))\n    if y > 9:\n        raise E\n    return y",
            "tests a value to raise an error in line 11",
        ),
        ("    if x is None or x.ndim > 1 or len(x) > 9:\n        raise E\n    return np.pi * x", ""),
        ("    key.append(x + 1)\n    return x", "changes key, a list that it is given, in line 10"),
        ("    noise = jr.normal(key, x.shape)\n    return jr.choice(key, x + noise)", ""),
        ("    return x + rng.normal(size=3)", "calls rng.normal in line 10"),
        ("    return x * random.random()", "calls random.random in line 10"),
        ("    return x * np.random.rand()", "calls np.random.rand in line 10"),
        ("    yield x + 1", "hands control back in line 10"),
        ("    global best\n    best = x", "assigns best of the scope around it in line 10"),
        (
            "    u = np.ones(3)\n    u[0] = x[0]\n    return u",
            "sets elements of u, an array of NumPy, in line 11",
        ),
        ("    out = [0] * 3\n    out[0] = x.sum()\n    return out", ""),
        (
            "    i = jnp.argmax(x)\n    return TABLE[int(i)]",
            "takes i as the index of an object of Python in line 11",
        ),
        ("    i = len(x) // 2\n    return TABLE[int(i)]", ""),
        (
            "    low = (x < 0) | jnp.isnan(x)\n    return x[low].sum()",
            "takes elements by the mask low in line 11",
        ),
        (
            "    return key + x[:, x[0] > 1]",
            "takes elements by the mask x[0] > 1 in line 10",
        ),
        (
            "    both = jnp.union1d(x, x + 1)\n    return both.sum()",
            "calls jnp.union1d, the size of whose result depends on values, in line 10",
        ),
        ("    return jnp.union1d(x, x + 1, size=9)", ""),
        ("    return jnp.where(x > 0, x, 0)", ""),
        (
            '    rows = jnp.zeros((key["rows"], 3))\n    return rows + x',
            "takes key['rows'] as a size in line 10",
        ),
        ('    return jnp.zeros(3) + key["rows"]', ""),
        ("    return x[jnp.nonzero(np.arange(8) % 2)[0]]", ""),  # of a size that is known
        ("    return x.at[x < 0].set(0)", ""),  # becomes jnp.where, as the advice says
        ("    even = np.arange(8) % 2 == 0\n    return x[even]", ""),  # its size is known while jit traces
        ("    return x[jnp.argmax(x)] + x[x.shape[0] > 3]", ""),
        ("    return helper(x)", "calls plt.plot in line 13"),  # what it calls in the same file counts
        ("    return noisy(x)", ""),  # is jitted, whatever it calls
        ("    print(float(x.sum()))\n    return x", ""),  # stays outside, as advice says
    ],
)
def test_what_jit_cannot_take_is_named(body, words, program_file):
    path = program_file(
        f"{IMPORTS}def step(x, key):\n{body}\n\ndef helper(x):\n    plt.plot(x)\n    return x\n\n"
        "@partial(jax.jit, static_argnames='rate')\ndef noisy(x, rate=0.5):\n    plt.plot(x)\n    return x\n"
    )
    function = statements.definitions(path, "step")[0]
    assert isinstance(function, ast.FunctionDef)
    if "helper" in body:
        words = words.replace("13", str(function.end_lineno + 3))
    replaceable = [call for calls in replaceable_calls(path, function).values() for call in calls]
    assert (host_work(path, function) or ", ".join(replaceable)) == words


def test_the_cells_of_a_notebook_share_their_names(monkeypatch):
    cells = (
        "import numpy as np\ndef gain(x):\n    return np.exp(x)",
        "def step(x):\n    return gain(x)",
        "class Net(nnx.Module):\n    pass",
        "class Net(Net):\n    pass",
        "from flax import nnx\nnet = Net()",
        "def gain(x):\n    return x",
    )
    files = [f"/tmp/ipykernel_12/{i}.py" for i, _ in enumerate(cells)]
    for file, cell in zip(files, cells):
        monkeypatch.setitem(linecache.cache, file, (len(cell), None, cell.splitlines(True), file))
    step = statements.definitions(files[1], "step")[0]
    assert not replaceable_calls(files[1], step)
    monkeypatch.delitem(linecache.cache, files[-1])
    for cached in (replaceable_calls, _with_called, all_called):
        cached.cache_clear()
    assert replaceable_calls(files[1], step) == {"jnp": ["np.exp in line 3"]}
    assert statements.made_module(Place(files[4], 2)) == "Net"


def test_of_functions_with_one_name_the_last_one_before_counts(program_file):
    gain, step = "def gain(x):\n    return {}.exp(x)\n\n", "def step(x):\n    return gain(x)\n\n"
    path = program_file(IMPORTS + gain.format("np") + step + gain.format("jnp") + step)
    first, second = statements.definitions(path, "step")
    assert replaceable_calls(path, first) == {"jnp": ["np.exp in line 10"]}
    assert not replaceable_calls(path, second)


@pytest.mark.parametrize(
    "imported", ["from turns import gain", "from turns import *", "import turns as gain"]
)
def test_what_a_function_calls_in_another_module_counts(imported, program_file, tmp_path, monkeypatch):
    turns = tmp_path / "turns.py"
    turns.write_text("import numpy as np\ndef gain(x):\n    return np.exp(x)\n")
    monkeypatch.setitem(sys.modules, "turns", SimpleNamespace(__file__=str(turns)))
    called = "gain.gain" if " as " in imported else "gain"
    path = program_file(f"{imported}\ndef step(x):\n    return {called}(x)\n")
    assert replaceable_calls(path, statements.definitions(path, "step")[0]) == {
        "jnp": ["np.exp in turns.py, line 3"]
    }


@pytest.mark.parametrize(
    ("head", "tail", "plain"),
    [
        ("class State:\n    pass\n", "", True),
        ("from dataclasses import dataclass\n@dataclass(frozen=True)\nclass State:\n    x: int\n", "", True),
        ("from flax.struct import dataclass\n@dataclass\nclass State:\n    x: int\n", "", False),
        ("class State(NamedTuple):\n    x: int\n", "", False),
        ("class State:\n    pass\n", "jax.tree_util.register_dataclass(State, ['x'], [])\n", False),
        ("from states import State\n", "", False),  # unknown
    ],
)
def test_an_object_of_a_class_that_jax_does_not_know_is_no_result_of_jit(head, tail, plain, program_file):
    path = program_file(f"{head}def step(x):\n    return State(x + 1)\n{tail}")
    words = host_work(path, statements.definitions(path, "step")[0])
    assert words.startswith("returns an object of State") == plain


@pytest.mark.parametrize(("decorator", "method", "whole"), [
    ("", "", False),
    ("class Shape(ABC):\n    pass\n\n", "", False),
    ("@register_pytree_node_class\n", "", True),
    ("@register_pytree_node_class\n", "    def fit(self, x):\n        self.slope = x\n", False),
    ("@register_pytree_node_class\n", "    def fit(self, x):\n        self.x = slope = x\n", True),
])  # fmt: skip
def test_jit_sees_nothing_that_methods_store_in_an_object_later(decorator, method, whole, program_file):
    start = "    def __init__(self, x):\n        self.x = x\n"
    base = "(Shape)" if "Shape" in decorator else ""
    path = program_file(f"from jax.tree_util import *\n{decorator}class Line{base}:\n{start}{method}")
    assert is_tree_of_arrays(path, "Line") == whole


@pytest.mark.parametrize(
    ("body", "changing"),
    [
        ("for x in data:\n    w = w - slope(x)", ("w",)),
        ("for x in data:\n    table['w'] = slope(x)", ("table",)),
        ("rate = 0.1\nslope(1)\nrate = 0.01\nslope(2)", ("rate",)),
        ("for x in data:\n    v = slope(x)", ()),
        ("def train(w):\n    for x in data:\n        w = w - slope(x)", ()),
    ],
)
def test_variables_around_a_function_that_change_between_its_calls_are_named(body, changing, program_file):
    head = "import jax.numpy as jnp\nw, table, rate = 1.0, {}, 0.5\n\ndef slope(x):\n    y = x * w\n"
    file = program_file(f"{head}    return jnp.sin(y) * rate * table['w']\n\n{body}\n")
    (function,) = statements.definitions(file, "slope")
    assert changing_variables(file, function) == changing


def test_a_closure_reads_what_changes_in_the_function_around_it(program_file):
    file = program_file(
        "def fit(w, data):\n    def slope(x):\n        return x * w\n\n    for x in data:\n"
        "        w = w - slope(x)\n    return w\n"
    )
    (function,) = statements.definitions(file, "slope")
    assert changing_variables(file, function) == ("w",)


@pytest.mark.parametrize(
    ("head", "call", "replaced"),
    [
        ("from scipy import linalg", "linalg.cholesky(x)", {"jax.scipy": ["linalg.cholesky in line 5"]}),
        ("from scipy.stats import norm", "norm.logpdf(x)", {"jax.scipy": ["norm.logpdf in line 5"]}),
        ("from scipy.optimize import minimize", "minimize(cost, x)", {}),
        ("from scipy.stats import kstest", "kstest(x)", {}),
    ],
)
def test_a_function_of_scipy_that_jax_has_too_does_not_keep_jit_away(head, call, replaced, program_file):
    path = program_file(f"{head}\n\ndef step(x):\n    x = x + 1\n    return {call}\n")
    (function,) = statements.definitions(path, "step")
    assert replaceable_calls(path, function) == replaced
    assert bool(host_work(path, function)) == (not replaced)


def test_a_call_in_another_module_is_read_by_the_imports_of_that_module(program_file, tmp_path, monkeypatch):
    turns = tmp_path / "turns.py"
    turns.write_text("import scipy.linalg as np\n\ndef gain(x):\n    return np.cholesky(x)\n")
    monkeypatch.setitem(sys.modules, "turns", SimpleNamespace(__file__=str(turns)))
    path = program_file("import numpy as np\nfrom turns import gain\n\ndef step(x):\n    return gain(x)\n")
    (function,) = statements.definitions(path, "step")
    assert replaceable_calls(path, function) == {"jax.scipy": ["np.cholesky in turns.py, line 4"]}


_HELPERS = """\
class Box:
    def reveal(self):
        print(self)

def helper(x):
    return [y + 1 for y in x]

"""


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return x + 1", ""),
        ("print(x)\n    return x", "; print() stays outside"),
        ("if x is None:\n        x = 1\n    return x", ""),
        (
            "return float(x) if x.sum() > 0 else print(x)",
            "; float() and print() stay outside and an if on an array",
        ),
        ("x = x.at[x < 0].set(0)\n    return x", "; an update by a mask becomes jnp.where"),
        ("x = x.at[2].set(0)\n    return helper(x)", "; a comprehension over examples becomes jax.vmap"),
        ("return [w - 0.1 * x for w, b in mode for n in range(3)]", ""),
        ("for n in range(9):\n        x = x + n\n    return x", ""),
        ("return x.reveal()", "; print() stays outside"),
        ("return x.sum() if mode == 'sum' else x", ""),
        ("return x if type(x) == dict or 'w' not in mode else x + 1", ""),
        ("return x if type(x) == dict or x > 0 else x + 1", "; an if on an array"),
        ("return x if len(x) > 1 else x + 1", ""),
    ],
)
def test_advice_names_only_what_a_function_and_what_it_calls_have(body, words, program_file):
    path = program_file(f"{_HELPERS}def step(x, mode):\n    {body}\n")
    (function,) = statements.definitions(path, "step")
    assert needed_changes(path, function).startswith(words) and bool(words) == bool(
        needed_changes(path, function)
    )
