"""The line that operations outside of jit belong to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jaxperf.watch.observe.sampler import EAGER, StackSample
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.rules import eager

LOSS, GRAD, CALL = (Place("train.py", line) for line in (3, 8, 20))


def sample(at: Place, start: float, *callers: Place) -> StackSample:
    return StackSample(EAGER, at, start, start + 0.1, NOWHERE, callers)


def belongs(samples: list[StackSample]) -> set[Place]:
    analysis: Any = SimpleNamespace(samples=samples)
    line = eager._outermost(analysis)
    return {line(s) for s in samples if s.at == LOSS}


def test_what_a_caller_dispatches_in_turns_with_it_is_the_callers() -> None:
    """`jax.grad(loss)(w)` in a loop: operations of `loss`, and then those that `grad` makes of them."""
    turns = [s for t in range(9) for s in (sample(LOSS, t, GRAD, CALL), sample(GRAD, t + 0.5, CALL))]
    assert belongs(turns) == {GRAD}


def test_what_a_caller_dispatches_before_and_after_a_loop_changes_nothing() -> None:
    """`chain(jax.random.key(0)).mean()`: the key and the mean are not why the chain is slow."""
    loop = [sample(LOSS, t, CALL) for t in range(1, 9)]
    around = [sample(CALL, t) for t in (0.1, 0.2, 0.3, 10.1, 10.2, 10.3)]
    assert belongs([*around[:3], *loop, *around[3:]]) == {LOSS}
