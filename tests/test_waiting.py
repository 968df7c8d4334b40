"""Section 8.2.2: after each way that asks for a value the value is there, after the others it need not be."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import pytest
from stories import begin

from jaxperf.chapter import waiting
from jaxperf.measure import pending

WAITING = [way for way in waiting.WAYS if way not in waiting.NO_WAIT]


@pytest.mark.parametrize("way", WAITING)
def test_after_every_way_that_asks_for_a_value_the_value_is_there(way: str) -> None:
    kind, wait = waiting.WAYS[way]
    dot, norm = jax.jit(lambda x: x @ x), jax.jit(lambda x: jnp.linalg.norm(x @ x))
    x = jnp.ones((700, 700))
    y = {"matrix": lambda: dot(x), "scalar": lambda: norm(x), "tree": lambda: (dot(x), norm(x))}[kind]()
    wait(y)
    assert pending(y) == 0


def test_waiting_for_the_last_of_several_leaves_the_others() -> None:
    story = begin("8.2")
    waiting.last_is_not_all(story, size=900)
    assert story.facts["pending_after_waiting_for_last"] > 0
    [claim] = story.claims
    assert claim.observed.endswith("and in 0 after block")


@pytest.mark.parametrize("beside_book", [True, False])
def test_the_books_figures_stand_beside_rows_that_are_there_and_only_when_asked_for(
    beside_book: bool,
) -> None:
    story = begin("8.2")
    waiting.ways_to_wait(story, size=100, seed=0, beside_book=beside_book)
    beside = [reference.beside for reference in story.references]
    assert bool(beside) is beside_book
    assert set(beside) <= {m.name for m in story.measurements}


@pytest.mark.parametrize(("thread", "same"), [("this", True), ("another", False)])
def test_a_call_is_made_in_the_thread_that_was_asked_for(thread: str, same: bool) -> None:
    seen: list[bool] = []
    here = threading.current_thread()
    waiting.run_in(thread, lambda: seen.append(threading.current_thread() is here))
    assert seen == [same]
