"""Changes made from a loop's statements compute what the loop computes."""

from __future__ import annotations

import ast
import functools
import inspect
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxperf.watch.advice.advice import advice
from jaxperf.watch.finding import Finding
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.source import snippets, statements

STEPS = """\
@jax.jit
def step(w, x, rate=1.0):
    return w - rate * x * w, w.sum()

def main(w, rate, batches):
    for i in range(100):
        {statement}
    return w
"""


def place(folder: Path, text: str, line: int) -> Place:
    path = folder / f"program_{len(list(folder.iterdir()))}.py"  # a file is read once
    path.write_text(text)
    return Place(str(path), line)


def added(rows: list[str]) -> str:
    return "\n".join(row[2:] for row in rows if row.startswith("+ "))


@pytest.mark.parametrize(
    ("statement", "call"),
    [
        ("w, loss = step(w, 0.01)", "several(w)"),
        ("w, loss = step(w, i * 1e-3, rate=rate)", "several(w, rate, all_i)"),
    ],
)
def test_turns_in_one_program_give_what_single_turns_give(statement: str, call: str, tmp_path: Path) -> None:
    rows = snippets.several_steps(place(tmp_path, STEPS.format(statement=statement), 7))
    assert rows[1].startswith(f"+ def {call}:") and rows[-1] == f"+ w, all_loss = {call}"
    names: dict[str, Any] = {"jax": jax, "w": jnp.ones(3), "rate": 0.5, "all_i": jnp.arange(100)}
    exec(STEPS.format(statement=statement), names)
    single = names["main"](names["w"], 0.5, None)
    exec(added(rows), names)
    assert names["w"] == pytest.approx(single) and names["all_loss"].shape == (100,)


@pytest.mark.parametrize(
    "statement", ["loss = step(w, 0.01)[1]", "print(step(w, 0.01))", "self.w, loss = step(self.w, 0.01)"]
)
def test_turns_that_hand_nothing_on_in_variables_are_left_to_words(statement: str, tmp_path: Path) -> None:
    assert snippets.several_steps(place(tmp_path, STEPS.format(statement=statement), 7)) == []


def test_turns_between_which_the_host_computes_are_left_to_words(tmp_path: Path) -> None:
    text = "while True:\n    state, action = act(state, seen)\n    seen = env.step({})\n"
    assert snippets.several_steps(place(tmp_path, text.format("action"), 2)) == []
    assert snippets.several_steps(place(tmp_path, text.format(""), 2))[-1].endswith(
        "several(state, all_seen)"
    )


def test_a_module_that_keeps_state_is_not_put_into_a_scan_of_arrays(tmp_path: Path) -> None:
    text = "from flax import nnx\nfor _ in range(9):\n    w = step(w)\n"
    assert snippets.several_steps(place(tmp_path, text, 3)) == []
    assert snippets.several_steps(place(tmp_path, text.replace("nnx", "struct"), 3))


@pytest.mark.parametrize("value", ["get_batch(i)", "get_batch(n=i)", "2 * get_batch(i) - get_batch(i)"])
def test_reading_ahead_gives_each_turn_its_own_batch(value: str, tmp_path: Path) -> None:
    rows = snippets.read_ahead(place(tmp_path, f"for i in range(9):\n    x = {value}\n", 2))
    before, turn = added(rows[:2]), added(rows[2:])
    names: dict[str, Any] = {
        "deque": deque,
        "ThreadPoolExecutor": ThreadPoolExecutor,
        "get_batch": lambda n: n,
    }
    exec(before, names)
    seen = []
    for i in range(9):
        exec(turn, names | {"i": i}, names)
        seen.append(names["x"])
    assert seen == [*range(9)]


@pytest.mark.parametrize("turns", ["range(9)", "range(2, 11)", "range(0, 90, k)", "range(90, 0, -10)"])
def test_reading_ahead_follows_the_steps_of_a_range(turns: str, tmp_path: Path) -> None:
    rows = snippets.read_ahead(place(tmp_path, f"for i in {turns}:\n    x = read(data[i : i + k])\n", 2))
    names: dict[str, Any] = {
        "deque": deque,
        "ThreadPoolExecutor": ThreadPoolExecutor,
        "read": list,
        "data": range(200),
        "k": 10,
    }
    exec(added(rows[:2]), names)
    for i in eval(turns, names):
        exec(added(rows[2:]), names | {"i": i}, names)
        assert names["x"] == [*range(i, i + 10)]


def test_an_array_that_is_put_on_its_way_to_a_step_is_put_before_the_loop(tmp_path: Path) -> None:
    text = "for ids in batches:\n    total = total + look(jnp.asarray(self.table), ids)\n"
    assert snippets.put_once(place(tmp_path, text, 2)) == [
        "+ table_on_device = jnp.asarray(self.table)     # before the loop, once",
        "- total = total + look(jnp.asarray(self.table), ids)",
        "+ total = total + look(table_on_device, ids)",
    ]
    for statement in (
        "table = jnp.asarray(values)",  # all of it can move
        "look(jnp.asarray(2 * table), ids)",
        "look(jnp.asarray(table), jnp.asarray(ids))",
        "look(table, ids)",
    ):
        assert snippets.put_once(place(tmp_path, f"for ids in batches:\n    {statement}\n", 2)) == []


@pytest.mark.parametrize("call", ["jax.jit(step)(w, x)", "f(w, x)"])
def test_what_each_turn_jits_is_jitted_once_before_the_loop(call: str, tmp_path: Path) -> None:
    making = "" if "jit" in call else "    f = jax.jit(functools.partial(step, opt))\n"
    text = f"for epoch in range(3):\n{making}    for x in batches:\n        w = {call}\n"
    rows = snippets.jitted_once(place(tmp_path, text, text.count("\n")))
    if making:
        assert rows == [
            "+ f = jax.jit(functools.partial(step, opt))     # before the loop, once",
            "- f = jax.jit(functools.partial(step, opt))     # in line 2",
        ]
    else:
        assert rows == [
            "+ jitted_step = jax.jit(step)     # before the loop, once",
            "- w = jax.jit(step)(w, x)",
            "+ w = jitted_step(w, x)",
        ]


@pytest.mark.parametrize(
    "body",
    [
        "    w = jax.jit(lambda w: w * x)(w)\n",  # what varies would stay the first
        "    self.w = jax.jit(self.step)(x)\n",
        "    opt = made(x)\n    f = jax.jit(partial(step, opt))\n    w = f(w, x)\n",
        "    def f(w): return w * x\n    w = jax.jit(f)(w)\n",
        "    w = jax.jit(step)(w) + jax.jit(step)(x)\n",
        "    w = step(w, x)\n",
    ],
)
def test_what_depends_on_the_turn_or_is_not_jitted_there_stays(body: str, tmp_path: Path) -> None:
    text = f"for x in batches:\n{body}"
    assert snippets.jitted_once(place(tmp_path, text, text.count("\n"))) == []


def test_outside_of_loops_nothing_is_jitted_once(tmp_path: Path) -> None:
    assert snippets.jitted_once(place(tmp_path, "w = jax.jit(step)(w)\n", 1)) == []


def test_of_a_step_only_the_batch_that_it_is_passed_is_read_ahead(tmp_path: Path) -> None:
    turn = "w = step(w, get_batch(i), 2)"
    rows = snippets.read_ahead(place(tmp_path, f"for i in range(9):\n    {turn}\n", 2))
    assert rows[3] == "+ w = step(w, coming.popleft().result(), 2)" and "step" not in rows[1] + rows[4]
    names: dict[str, Any] = {
        "deque": deque,
        "ThreadPoolExecutor": ThreadPoolExecutor,
        "get_batch": lambda n: n,
        "step": lambda w, x, k: k * w + x,
        "w": 0,
    }
    exec(added(rows[:2]), names)
    for i in range(9):
        exec(added(rows[2:]), names | {"i": i}, names)
    assert names["w"] == functools.reduce(lambda w, x: 2 * w + x, range(9), 0)


@pytest.mark.parametrize(
    "body",
    [
        "    w = step(w, 2)\n",
        "    key, sub = split(key)\n    w = step(w, draw(sub))\n",
        "    n += 1\n    w = step(w, get_batch(n))\n",
    ],
)
def test_what_needs_an_earlier_turn_is_not_read_ahead(body: str, tmp_path: Path) -> None:
    text = f"for _ in range(9):\n{body}"
    assert snippets.read_ahead(place(tmp_path, text, text.count("\n"))) == []


def test_a_batch_named_by_what_the_loop_goes_over_is_left_to_words(tmp_path: Path) -> None:
    assert snippets.read_ahead(place(tmp_path, "for p in paths:\n    x = load(p)\n", 2)) == []
    rows = snippets.read_ahead(place(tmp_path, "while True:\n    x = loader.get()\n", 2))
    assert rows[0].startswith("+ pool = ThreadPoolExecutor(1) ")  # the loader keeps count
    assert rows[1] == "+ coming = deque(pool.submit(lambda: loader.get()) for _ in range(4))"


@pytest.mark.parametrize(
    ("statement", "rows"),
    [
        ("w.block_until_ready()", ["- w.block_until_ready()", "+ w.block_until_ready()"]),
        (
            "w = jax.block_until_ready(step(w))",
            ["- w = jax.block_until_ready(step(w))", "+ w = step(w)", "+ jax.block_until_ready(w)"],
        ),
        (
            "w = step(w).block_until_ready()",
            ["- w = step(w).block_until_ready()", "+ w = step(w)", "+ jax.block_until_ready(w)"],
        ),
        ("if jax.block_until_ready(w): pass", []),
    ],
)
def test_a_needless_wait_is_taken_out_of_the_loop(statement: str, rows: list[str], tmp_path: Path) -> None:
    change = snippets.without_wait(place(tmp_path, f"for _ in x:\n    {statement}\n", 2))
    assert [row for row in change if "# " not in row] == rows


def test_an_array_with_its_final_length_holds_what_one_that_grows_holds(tmp_path: Path) -> None:
    turn = "rows = jnp.concatenate([rows, jnp.full((2, 3), 0.5 * i)])"
    text = f"rows = jnp.ones((2, 3))\nfor i in range(5):\n    {turn}\n"
    rows = snippets.preallocated(place(tmp_path, text, 3))
    before, turn = added(rows[:2]), added(rows[2:])
    grown: dict[str, Any] = {"jnp": jnp}
    exec(text, grown)
    names: dict[str, Any] = {"jax": jax, "jnp": jnp, "LONGEST": 20}
    exec(text.splitlines()[0] + "\n" + before, names)
    for i in range(5):
        exec(turn, names | {"i": i}, names)
    assert (names["rows"][: names["filled"]] == grown["rows"]).all() and names["filled"] == 12
    for other in ("concatenate([rows, a, b])", "concatenate([a, rows])", "concatenate([rows, a], axis=1)"):
        assert snippets.preallocated(place(tmp_path, f"rows = jnp.{other}\n", 1)) == []


def test_a_loop_with_its_body_in_a_jitted_function_gives_the_same(tmp_path: Path) -> None:
    text = "import jax\nx = jax.lax.fori_loop(0, 3, lambda i, x: x * rate + i, x)\n"
    rows = snippets.with_its_body(place(tmp_path, text, 2))
    names: dict[str, Any] = {"jax": jax, "jnp": jnp, "x": jnp.ones(3), "rate": 0.5}
    once = dict(names)
    exec(text, once)
    exec(added(rows), names)
    assert names["x"] == pytest.approx(once["x"])
    text = "for n in range(3):\n    def body(i, x): return x * n\n    x = jax.lax.fori_loop(0, 3, body, x)\n"
    assert snippets.with_its_body(place(tmp_path, text, 3)) == []


PROGRAMS = Path(__file__).parents[2] / "slow_programs"


def changed(name: str) -> tuple[Path, str]:
    """A slow program, and its source with the advice in place of the statement that it is about."""
    path = PROGRAMS / f"{name}.py"
    rows = path.read_text().splitlines()
    line, cause = next(
        (i, r.partition("# cause: ")[2]) for i, r in enumerate(rows, start=1) if "# cause: " in r
    )
    kinds = {
        "block_every_step": "block_until_ready",
        "static_config": "update",
    }
    argument = "config" if name == "static_config" else ""
    at = Place(str(path), line)
    change = advice(Finding(cause, at, 1.0, "", kinds.get(name, "step"), argument=argument)).change
    assert any(row.startswith("+ ") and not row.startswith("+ #") for row in change.splitlines()), change
    statement = statements.enclosing(at, ast.stmt)[-1]
    left = [" " * statement.col_offset + row[2:] for row in change.splitlines() if not row.startswith("-")]
    return path, "\n".join([*rows[: statement.lineno - 1], *left, *rows[statement.end_lineno :]])


@pytest.mark.parametrize(
    "name",
    [
        "block_every_step",
        "copy_by_at",
        "eager_gradient",
        "eager_loop",
        "new_body",
        "put_every_step",
        "static_config",
    ],
)
def test_a_slow_program_with_its_change_computes_the_same(name: str) -> None:
    path, source = changed(name)
    results = []
    for text in (path.read_text(), source):
        names: dict[str, Any] = {"__name__": __name__, "functools": functools, "jax": jax, "jnp": jnp}
        exec(compile(text, str(path), "exec"), names)
        steps = inspect.signature(names["main"]).parameters
        results.append(float(names["main"](*[3 for _ in steps])))
    assert results[1] == pytest.approx(results[0], rel=1e-5)
