"""Changed snippets are code that Python takes, with the reader's own statements in them."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from jaxperf.watch.advice.advice import _TEXTS, advice
from jaxperf.watch.finding import Finding
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.source import statements

PROGRAM = """\
import jax, jax.numpy as jnp
from functools import partial
rule = jax.grad(lambda w, x: (w * x).sum())

def laplace(
    u,
):
    return (
        jnp.roll(u, 1) - 2 * u
    )

@jax.jit
def step(w, x):
    return w * x

def scale(w): return 2 * w

def solve(a, x):
    while float(x.sum()) > 1:
        x = x - a * x
    return x

class Model:
    def turn(self, x):
        self.w = self.w + x
        return self.w

u = jnp.ones(4)
for t in range(3):
    u = u + 0.1 * laplace(u)
    u += [k * t for k in (1, 2)][0]
    w = rule(u, u)
    if t:
        print(u)
    elif not t:
        print(
            t,
        )
    value = float(u[0])
    m = Model()
    u = m.turn(u)
    u = u.at[0].set(1.0)
    x = x if t else u
"""
LINES = PROGRAM.splitlines()


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def line(start: str) -> int:
    return next(i for i, text in enumerate(LINES, start=1) if text.strip().startswith(start))


def after(change: str) -> str:
    """The code that a change leaves: what it adds and what it keeps."""
    return "\n".join(row[2:] for row in change.splitlines() if not row.startswith("-"))


@pytest.mark.parametrize("cause", [*_TEXTS, "a cause of the future"])
def test_every_change_leaves_valid_code_at_every_line(cause: str, file: str) -> None:
    for number, text in enumerate(LINES, start=1):
        if text.strip(" ()u,t"):
            for name in ("step", "scale", "jit_step", "<lambda>", "elsewhere"):
                change = advice(Finding(cause, Place(file, number), 1.0, "", name)).change
                ast.parse(after(change))
                assert {row[:2] for row in change.splitlines()} <= {"+ ", "- ", "  "}, change


def test_a_function_of_arrays_is_jitted_whole(file: str) -> None:
    change = statements.jitted(Place(file, line("jnp.roll")))
    assert change[:2] == ["+ @jax.jit", "  def laplace("]


@pytest.mark.parametrize(
    ("start", "call"),
    [
        ("x = x - a", "update_x(x, a)"),  # its function has a `while float`
        ("u = u + 0.1", "update_u(u)"),  # a module has no head to decorate
        ("u += [k", "update_u(u, t)"),
        ("w = rule", "update_w(u)"),
        ("u = u.at", "update_u(u)"),
    ],
)
def test_a_statement_between_what_cannot_be_traced_becomes_a_function_of_what_it_reads(
    start: str, call: str, file: str
) -> None:
    change = statements.jitted(Place(file, line(start)))
    assert change[:2] == ["+ @jax.jit", f"+ def {call}:"]
    assert change[-1].endswith(f" = {call}")


SAMPLES = """\
import jax
import jax.numpy as jnp
import numpy as np

n, noise = 3, np.ones(4)
key, total = jax.random.key(0), 0.0
for i in range(n):
    size = n + i
    zeros = jnp.zeros(size, int)
    classes = jax.nn.one_hot(zeros, n)
    key, a, b = jax.random.split(key, 3)
    x = jax.random.normal(a, (4,))
    y = 2.0 * x + jax.random.normal(b, (4,))
    z = noise + np.asarray(y)
    total += float(jnp.sum(y)) + z.sum()
    key = jax.random.fold_in(key, 1)
"""


@pytest.mark.parametrize("number", [11, 12, 13])
def test_statements_that_follow_each_other_become_one_function_that_computes_the_same(
    number: int, tmp_path: Path
) -> None:
    """Not those that make or take sizes, use NumPy, need a value, or come after them."""
    path = tmp_path / "samples.py"
    path.write_text(SAMPLES)
    change = statements.jitted(Place(str(path), number))
    lines = SAMPLES.splitlines()
    assert change == [
        "+ @jax.jit",
        "+ def update_key(key):",
        *(f"+     {text.strip()}" for text in lines[10:13]),
        "+     return key, y",
        *(f"- {text.strip()}" for text in lines[10:13]),
        "+ key, y = update_key(key)",
    ]
    function = "\n".join(row[2:] for row in change[:6])
    changed = [*lines[:6], function, *lines[6:10], "    key, y = update_key(key)", *lines[13:]]
    totals = []
    for program in (SAMPLES, "\n".join(changed)):
        names: dict[str, Any] = {}
        exec(program, names)
        totals.append(names["total"])
    assert totals[0] == pytest.approx(totals[1], rel=1e-5)


def test_a_function_may_get_the_memory_of_what_it_assigns_to(file: str) -> None:
    change = statements.in_function(Place(file, line("u = u.at")), donated=True)
    assert change[0] == '+ @functools.partial(jax.jit, donate_argnames="u")'
    assert change[1:] == statements.jitted(Place(file, line("u = u.at")))[1:]


def test_what_needs_a_value_or_an_object_is_not_put_into_a_function(file: str) -> None:
    for start in ("value = float", "self.w", "print(u)", "u = m.turn"):
        assert statements.jitted(Place(file, line(start))) == []


def test_a_wait_in_a_test_is_not_told_to_be_read_after_the_loop(file: str) -> None:
    for start, words in (("while", "jax.lax.while_loop"), ("if t", "jnp.where"), ("value", "device_get")):
        assert words in advice(Finding("wait", Place(file, line(start)), 1.0, "", "float")).change


def test_a_statement_is_shown_whole_and_the_head_of_a_function_as_it_is(file: str) -> None:
    assert statements.whole(Place(file, line("t,"))) == ["print(", "    t,", ")"]
    assert statements.whole(Place(file, line("while"))) == ["while float(x.sum()) > 1:", "    ..."]
    assert statements.whole(Place("no such file", 3)) == ["..."]
    assert statements.head(file, "step") == ["def step(w, x):"]
    assert statements.head(file, "scale") == ["def scale(w):"]


def test_a_short_loop_is_shown_whole_and_of_a_long_one_the_head(file: str) -> None:
    assert statements.loop(Place(file, line("x = x - a"))) == [
        "while float(x.sum()) > 1:",
        "    x = x - a * x",
    ]
    assert statements.loop(Place(file, line("w = rule"))) == ["for t in range(3):", "    ..."]
    assert statements.loop(Place(file, line("return w"))) == ["return w * x"]
