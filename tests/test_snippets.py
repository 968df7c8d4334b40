"""Changes made from a loop's statements compute what the loop computes."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxperf.watching import snippets
from jaxperf.watching.place import Place

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
