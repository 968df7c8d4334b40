import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import pytest
import scripts

from jaxperf.watch.log import EAGER, Log, StackSample
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules import CAUSES, advice_for, jit_advice, libraries
from jaxperf.watch.rules.table import KINDS, Finding

WIDEST = 96  # of a terminal's 100 columns, four are the indentation
CHANGES = [change.partition("\n") for c in CAUSES.values() for change in (c.usual, *c.forms.values())]
EXAMPLES = [example for _, _, example in CHANGES if example]


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs_as_it_is_and_so_do_the_functions_that_it_jits(example):
    rows, names = example.splitlines(), dict[str, Any]()
    assert 2 <= len(rows) <= 6 and max(map(len, rows)) <= WIDEST
    exec(example, names)
    for function in [value for value in names.values() if hasattr(value, "lower")]:
        assert function(jnp.ones(3), jnp.ones(3)).shape == (3,)


PROGRAM = """\
def step(w, x, rate):
    return w

for t in range(3):
    w = step(w, self.x, rate=0.1 * t)
    while float(w.sum()) > 1:
        print(w)
    if t:
        pass
    elif float(w.sum()):
        pass
    w = step(w, f(t), 0.1)
value = float(w[0])

class Agent:
    def act(self, x):
        return int(x.argmax())

    def stops(self, loss):
        if loss < self.best:
            self.best = loss
        jax.debug.print("{}", loss)
        yield loss + 1

with lzma.open("a") as f:
    pickle.dump(w, f)
with open("a") as f: pickle.dump(w, f)
"""


@pytest.fixture
def file(program_file):
    return program_file(PROGRAM)


@pytest.mark.parametrize("cause", [*CAUSES, "a cause of the future"])
def test_every_cause_has_a_change_at_every_line(cause, file):
    for number, _ in enumerate(PROGRAM.splitlines(), start=1):
        for name, argument in (("step", "argument 1"), ("jit_step", ""), ("<lambda>", "rate"), ("", "")):
            advice = advice_for(Finding(cause, Place(file, number), 1.0, "", name, argument=argument))
            assert advice.title and advice.section and (advice.change or advice.example)
            assert "{" not in advice.change and "jit_step" not in advice.change


@pytest.mark.parametrize(
    ("cause", "line", "argument", "form", "change"),
    [
        ("wait", 13, "w", "large", "compute on the device what the host needs"),
        ("write", 26, "", "", "Leave out the compression"),
        ("write", 27, "", "", "Write less often"),
        ("eager", 16, "w", "method", "a function that takes them, also"),  # self is no array
        ("eager", 1, "w", "function", "Jit step as a whole: @jax.jit above it"),
        ("eager", 13, "w", "init", "Make jax.jit(step) once"),
        ("eager recompiles", 5, "w", "library", "Call step inside a function of yours"),
        ("eager recompiles", 5, "w", "optax", "Call step inside a function under jax.jit"),
        ("data", 4, "w", "slow", "Reading takes longer than the steps"),
        ("weak type", 5, "w", "tree", "w = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x))"),
        ("transfer", 5, "argument 1", "", "Call jax.device_put(self.x) once"),
        ("transfer", 12, "argument 1", "", "Call jax.device_put(x) once"),  # not a variable: the parameter
        ("transfer", 12, "", "", "Call jax.device_put(the array) once"),
        ("static value", 12, "argument 2", "", "Make rate an ordinary argument of step"),
        ("static object", 5, "argument 1", "", "Make x once"),
        ("new function", 5, "", "", "what varies is an argument"),
        ("new function", 5, "rate, x", "", "with rate, x as arguments"),
        ("constant", 5, "TABLE", "", "Put TABLE on the device once"),
        ("module state", 5, "donate_argnums=0", "", "Jit step with donate_argnums=0"),
        ("wait", 13, "", "", "jax.device_get"),
        ("wait", 6, "", "", "jax.lax.while_loop"),  # not after the loop, as the test needs it
        ("wait", 10, "", "", "jnp.where or jax.lax.cond"),
        ("wait", 17, "", "", "return the array itself"),
        ("callback", 22, "", "", "Leave it out where nobody reads it"),
        ("callback", 5, "", "", "Do the same with jnp or lax, if that is faster"),
        ("donation", 5, "donate_argnums=0", "", "Jit step with donate_argnums=0"),
        ("donation", 5, "", "", "donate_argnums or donate_argnames"),
    ],
)
def test_a_change_has_the_form_of_its_rule_and_names_the_readers_variables_and_functions(
    cause, line, argument, form, change, file
):
    finding = Finding(cause, Place(file, line, "<module>"), 1.0, "", "step", argument=argument, form=form)
    assert change in advice_for(finding).change


def test_a_wait_in_what_a_line_calls_cannot_be_left_out_there(places):
    at = places("for x in xs:\n    w = step(w, x)\n    jax.tree.map(jax.block_until_ready, w)\n")
    waits = (Finding("wait", at(line), 1.0, "", "block_until_ready") for line in (2, 3))
    inside, written = (advice_for(wait).change for wait in waits)
    assert "let one call do several turns" in inside and written.startswith("Leave out block_until_ready")


SCRIPT = Path(__file__).parents[3] / "docs" / "watch_causes.py"


def test_the_page_of_causes_is_as_the_table_makes_it(monkeypatch):
    script = scripts.load("watch_causes", SCRIPT, monkeypatch)
    text = script.page()
    assert script.PAGE.read_text(encoding="utf-8") == text
    assert all(f"| {name} |" in text for name in CAUSES) and all(f"\n## {kind}\n" in text for kind in KINDS)


@pytest.mark.parametrize(
    ("called", "change"),
    [
        ("tx.update", "Put the gradient, tx.update and what else the step does into one function"),
        ("apply_updates", "Put the gradient, apply_updates and"),
        ("tx.init", "Make jax.jit(tx.init) once"),
        ("losses.l2", "Call losses.l2 inside a function under jax.jit"),
    ],
)
def test_what_becomes_of_a_call_of_optax_depends_on_what_it_does(called, change):
    assert libraries.change_of_call("optax", called).startswith(change)


@pytest.mark.parametrize(("call", "answer"), [
    ("lib.Layer", True), ("Layer", True), ("lib.Rates", False), ("optax.EmaState", False), ("Other", False),
])  # fmt: skip
def test_modules_of_equinox_are_known_as_trees_that_jit_returns(call, answer, places, monkeypatch):
    module = type("Module", (), {"__module__": "equinox._module"})
    library = SimpleNamespace(Layer=type("Layer", (module,), {}), Rates=dict)
    monkeypatch.setitem(sys.modules, "treelib", library)
    imports = "import treelib as lib\nimport optax\nfrom treelib import Layer\nfrom other import Other\n"
    assert libraries.is_tree(places(imports)(1).file, call) == answer


@pytest.mark.parametrize(("imports", "said"), [
    ("import numpy as np\nimport jax.numpy as jnp", "np.asarray(x)[np.asarray(mask)]"),
    ("import jax.numpy as np\nimport numpy as onp", "onp.asarray(x)[onp.asarray(mask)]"),
    ("import jax.numpy as np", "numpy.asarray(x)[numpy.asarray(mask)]"),
])  # fmt: skip
def test_advice_has_the_names_of_the_program(imports, said, places):
    finding = Finding("eager shapes", places(f"{imports}\ny = x[x > 0]\n")(3), 1.0, "", form="values")
    change = advice_for(finding).change
    assert said in change
    assert ("np.where(mask, x, 0)" in change) and ("jnp." in change) == ("as jnp" in imports)
    assert ("needs import numpy" in change) == ("import numpy" not in imports)


def test_samples_of_numpyro_keep_the_axes_that_other_calls_take():
    change = libraries.change_of_call("numpyro", "mcmc.run")
    assert "mcmc.get_samples())[1])" in change
    assert "print_summary(samples, group_by_chain=False)" in change


@pytest.mark.parametrize(("head", "call", "batched"), [
    ("def near(x, w):", "near(x, 2)", False),  # not each element alone
    ("def near(x):", "near(x)", True),
    ("def near(self, x):", "near(x)", False),  # jit would keep the arrays of its object
])  # fmt: skip
def test_no_method_is_called_for_all_elements_at_once(head, call, batched, places):
    at = places(f"{head}\n    return jnp.sin(x) * 2\n\nfound = [{call} for x in xs]\n")
    samples = [StackSample(EAGER, at(2, "near"), t, t + 0.1, callers=(at(4, ""),)) for t in range(9)]
    analysis = Analysis(Log("a", samples=samples))
    finding = jit_advice.way_to_jit(Finding("eager", at(1, "near"), 1.0, ""), analysis)
    assert (finding.form == "elements") == batched


@pytest.mark.parametrize(
    ("read", "words"),
    [
        ("x * w", "Give cost w as an argument (a static one, if it is a size): it changes around it"),
        (
            "x * w + n",
            "Give cost w and n as arguments (static ones, if they are sizes): they change around it",
        ),
        ("x * fixed", ""),
    ],
)
def test_what_jit_would_keep_of_a_function_becomes_an_argument(read, words, places):
    at = places(
        f"fixed, n = 3, 1\n\ndef cost(x):\n    return {read}\n\n"
        "for x in data:\n    w = w - cost(x)\n    n += 1\n"
    )
    line, call = at(4, "cost"), at(7, "<module>")
    samples = [StackSample(EAGER, line, t, t + 1.0, callers=(call,)) for t in range(9)]
    finding = jit_advice.way_to_jit(
        Finding("eager", at(3, "cost"), 9.0, ""), Analysis(Log("a", samples=samples))
    )
    change = advice_for(finding).change
    assert words in change and ("keep the first value" in change) == bool(words)
