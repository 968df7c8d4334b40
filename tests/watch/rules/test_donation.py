from pathlib import Path

import pytest

from jaxperf.hlo import Shape
from jaxperf.watch.log import Compiled
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.source.loop_body import donating_option, passed_arguments, replaced_variables


@pytest.mark.parametrize(
    ("text", "donated"),
    [
        ("w, loss = step(w, x)  # call", True),
        ("y = step(w, x)  # call", False),
        ("self.w, loss = (\n    step(self.w,  # call\n    x))", True),
        ("w = [step(w)]  # call", True),
    ],
)
def test_only_what_a_call_replaces_can_be_donated(text, donated, program_file):
    assert bool(replaced_variables(_call(program_file(text)))[0]) == donated


def _call(file, mark="# call"):
    lines = enumerate(Path(file).read_text().splitlines(), start=1)
    return Place(file, next(i for i, line in lines if mark in line), "main")


LOOP = """\
def main():
    w, old = init(), []
    BEFORE
    for i in range(9):
        BEGIN
        w, loss = step(w, x)  # call
        END
    return w, old
"""


@pytest.mark.parametrize(
    ("place", "statement", "donated"),
    [
        ("BEGIN", "old = [*old[-3:], w]", False),
        ("BEGIN", "old.append(w)", False),
        ("BEGIN", "old += [w]", False),
        ("BEGIN", "total += w", True),
        ("END", "old, best = (w, loss) if loss < best else (old, best)", False),
        ("END", "old = {'w': w, 'loss': loss}", False),
        ("END", "old = w['bias']", False),
        ("END", "old = w.params", False),
        ("END", "yield w", False),
        ("BEFORE", "old = w", False),
        ("BEFORE", "w = old", False),  # which the end returns
        ("BEGIN", "w = start", False),  # the same in each turn
        ("BEFORE", "w = start", False),
        ("BEFORE", "w, state = carry", False),
        ("BEGIN", "old = 0.9 * old + 0.1 * w", True),
        ("BEGIN", "old = average(old, w)", True),
        ("END", "print(w, w.shape)", True),
        ("END", "shape = w.shape", True),
        ("END", "row = w[i]", True),
        ("END", "old.append(evaluate(w))", True),
        ("BEFORE", "def other(w):\n        kept = w", True),
    ],
)
def test_what_a_loop_keeps_of_the_old_arrays_cannot_be_donated(place, statement, donated, program_file):
    text = LOOP.replace(place, statement)
    for other in {"BEFORE", "BEGIN", "END"} - {place}:
        text = text.replace(other, "pass")
    assert bool(replaced_variables(_call(program_file(text)))[0]) == donated


@pytest.mark.parametrize(("value", "donated"), [("self.w", False), ("self.w.sum()", True)])
def test_what_another_method_keeps_cannot_be_donated(value, donated, program_file):
    text = "class Model:\n    def fit(self):\n        self.w = step(self.w)  # call\n"
    text += f"    def note(self):\n        self.best = {value}\n"
    assert bool(replaced_variables(_call(program_file(text)))[0]) == donated


FIT = """\
def fit(w, rate):
    for x in data:
        w = step(w, x)  # call
    return w

start = init()
for rate in rates:
    CALL  # caller
"""


@pytest.mark.parametrize(
    ("call", "donated"),
    [
        ("result = fit(start, rate)", False),  # the caller still has the arrays
        ("start = fit(start, rate)", True),
        ("result = fit(init(), rate)", True),
    ],
)
def test_what_the_caller_keeps_cannot_be_donated(call, donated, program_file):
    file = program_file(FIT.replace("CALL", call))
    assert bool(replaced_variables(_call(file), (_call(file, "# caller"),))[0]) == donated


def test_a_cache_is_donated_though_the_tokens_that_come_with_it_are_kept(program_file):
    loop = "for i in range(9):\n    cache, token = decode(params, cache, token, i)  # call\n"
    at = _call(program_file(loop + "    tokens.append(token)\n"))
    assert replaced_variables(at) == ({"cache"}, {"token"})
    signature = {"argument 0['w']": "float32[9]", "argument 1['k']": "float32[5,4]", "argument 2": "int32[4]"}
    call = Compiled("decode", at, signature=signature)
    assert [*passed_arguments(call, {"cache"})] == [("1", Shape("f32", (5, 4)))]


@pytest.mark.parametrize(("arguments", "option"), [
    (["0", "0"], "donate_argnums=0"), (["0", "2"], "donate_argnums=(0, 2)"),
    (["0", "net"], "donate_argnames=('net',)"),
])  # fmt: skip
def test_the_option_of_jit_names_numbers_or_names(arguments, option):
    assert donating_option(arguments) == option
