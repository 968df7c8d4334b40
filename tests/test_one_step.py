"""One step by hand: its programs have lanes of their own, and gradients side by side are told from others."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stories import begin

from jaxperf.chapter import one_step as part
from jaxperf.parallel import first_devices, get_params, split_and_load, train_batch
from jaxperf.result import Span, Table, Timeline, Timelines

X, y = np.ones((8, 64), np.float32), np.ones(8, np.float32)


@jax.jit
def gradient(w: jax.Array, X: jax.Array, y: jax.Array) -> jax.Array:
    return jax.grad(lambda w: ((X @ w - y) ** 2).sum())(w)


@jax.jit
def update(w: jax.Array, total: jax.Array, n: int) -> jax.Array:
    return w - 0.01 * total / n


def step(devices: Any, X: Any, y: Any, copies: Any) -> Any:
    shards = (split_and_load(a, devices) for a in (X, y))
    return train_batch(*shards, copies, gradient=gradient, update=update)


@pytest.mark.usefixtures("several_devices")
def test_each_program_has_a_lane_on_each_device_in_the_order_of_their_work() -> None:
    story, devices = begin("8.4", devices=2), first_devices(2)
    copies = [get_params(jnp.zeros(64), d) for d in devices]
    part.timeline_of_a_step(story, partial(step, devices, X, y, copies), devices=devices)
    [shown] = story.result().of(Timelines)
    lanes = shown.runs[0].lanes
    wanted = ["cpu 0 gradient", "cpu 1 gradient", "cpu 0 add", "cpu 0 update", "cpu 1 update"]
    if jax.default_backend() == "cpu":
        assert set(wanted) <= set(lanes)
        assert lanes.index("cpu 0 gradient") < lanes.index("cpu 0 add") < lanes.index("cpu 0 update")


@pytest.mark.usefixtures("several_devices")
def test_gradients_one_after_the_other_are_not_called_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    device = first_devices(1)[0]
    name = f"{device.platform} "
    for start, verdict in ((0.2, "holds"), (0.95, "does not hold")):
        spans = (
            Span("python", "call", 0.0, 0.1),
            Span(f"{name}0 gradient", "a", 0.0, 1.0),
            Span(f"{name}1 gradient", "a", start, start + 1.0),
        )
        monkeypatch.setattr(
            part.timeline, "record", lambda *_, s=spans, **__: Timeline("x", s, 2.0, traced_s=2.0)
        )
        story = begin("8.4", devices=2)
        part.timeline_of_a_step(story, lambda: None, devices=first_devices(2))
        assert [c.holds for c in story.result().claims] == [verdict]
        assert story.facts["gradients_overlap"] == pytest.approx(1 - start)


def test_one_device_has_nothing_side_by_side() -> None:
    story, devices = begin("8.4", devices=1), first_devices(1)
    copies = [get_params(jnp.zeros(64), d) for d in devices]
    part.timeline_of_a_step(story, partial(step, devices, X, y, copies), devices=devices)
    assert [c.holds for c in story.result().claims] == ["cannot be measured here"]


@pytest.mark.usefixtures("several_devices")
def test_the_parts_of_a_step_are_timed_in_its_rounds() -> None:
    story, devices = begin("8.4", devices=2), first_devices(2)
    copies = [get_params(jnp.zeros(64), d) for d in devices]
    part.where_time_goes(
        story, partial(step, devices), (gradient, update), (X, y), copies, devices=devices, rounds=2
    )
    [table] = story.result().of(Table)
    assert table.bars == "stacked" and table.base == "train_batch"
    assert [m.name for m in table.rows] == [
        "split_and_load", "gradients", "allreduce", "updates", "dispatch and the rest", "train_batch",
    ]  # fmt: skip
    assert len({m.rounds for m in table.rows}) == 1
    assert story.facts["communication_share"] > 0
