"""Section 8.2.2: after each way that asks for a value the value is there, after the others it need not be."""

from __future__ import annotations

import threading

import jax.numpy as jnp
import pytest
from stories import begin

from jaxperf.chapter import waiting
from jaxperf.measure import pending


def test_after_every_way_that_asks_for_a_value_the_value_is_there() -> None:
    x = jnp.ones((700, 700))
    for way, wait in waiting.WAYS.items():
        y = waiting.total(x)
        wait(y)
        assert pending(y) == 0, way


def test_waiting_for_the_last_of_several_leaves_the_others() -> None:
    story = begin("8.2")
    waiting.last_is_not_all(story, size=900)
    [claim] = story.result().claims
    if waiting.two_devices() is None:
        assert claim.holds == "cannot be measured here"
        return
    assert story.facts["pending_after_waiting_for_last"] > 0
    assert claim.observed.endswith("and in 0 after block")


def test_with_one_device_the_trap_cannot_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "two_devices", lambda: None)
    story = begin("8.2")
    waiting.last_is_not_all(story, size=100)
    [claim] = story.result().claims
    assert (claim.holds, claim.observed) == ("cannot be measured here", "there is one device only")


def test_every_row_is_one_program_in_the_same_rounds() -> None:
    for beside_book in (True, False):
        story = begin("8.2")
        waiting.ways_to_wait(story, size=100, seed=0, rounds=6, beside_book=beside_book)
        rows = {m.name: m for m in story.result().measurements}
        assert {rows[way].rounds for way in (*waiting.WAYS, waiting.TWO)} == {rows[waiting.TWO].rounds}
        beside = [reference.beside for reference in story.result().references]
        assert len(beside) == (5 if beside_book else 0)
        assert set(beside) <= rows.keys()


def test_what_takes_the_place_of_waitall_is_tried_from_both_threads() -> None:
    story = begin("8.2")
    waiting.in_place_of_waitall(story, size=300)
    [grid] = [b for b in story.result().blocks if b.kind == "grid"]
    assert len(grid.rows) == 6
    assert [row[1] for row in grid.rows] == ["this", "another"] * 3


@pytest.mark.parametrize(("thread", "same"), [("this", True), ("another", False)])
def test_a_call_is_made_in_the_thread_that_was_asked_for(thread: str, same: bool) -> None:
    seen: list[bool] = []
    here = threading.current_thread()
    waiting.run_in(thread, lambda: seen.append(threading.current_thread() is here))
    assert seen == [same]
