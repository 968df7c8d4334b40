"""A loop that Python unrolled is told from layers with their own weights, and from updates of many arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxperf.watching.programs import Facts
from jaxperf.watching.unrolled import LEAST, Loop, loops

TURNS = LEAST + 6
W, X = jnp.ones((8, 8)), jnp.ones((4, 8))


def found(function: Callable[..., Any], *arguments: Any) -> list[Loop]:
    text = jax.jit(function).lower(*arguments).compile().as_text()
    assert text is not None
    return loops(Facts("f", "cpu", 1.0, 1.0, text=text))


def shared(w: jax.Array, x: jax.Array) -> jax.Array:
    for _ in range(TURNS):
        x = jnp.tanh(x @ w)  # shared
    return x


def stacked(ws: jax.Array, x: jax.Array) -> jax.Array:
    for i in range(TURNS):
        x = jnp.tanh(x @ ws[i])  # stacked
    return x


def layers(ws: list[jax.Array], x: jax.Array) -> jax.Array:
    for w in ws:
        x = x + jnp.tanh(x @ w)
    return x


def updates(ws: list[jax.Array], x: jax.Array) -> list[jax.Array]:
    norm = sum(jnp.sum(w**2) for w in ws)
    return jax.tree.map(lambda w: w / norm + x.sum(), ws)


def shapes(x: jax.Array) -> jax.Array:
    parts = [jnp.tanh(x[:i] * 2).sum() for i in range(1, TURNS)]
    return jnp.stack(parts)


@pytest.mark.parametrize(("function", "given"), [(shared, W), (stacked, jnp.ones((TURNS, 8, 8)))])
def test_turns_that_could_share_a_body_are_a_loop(function: Callable[..., Any], given: jax.Array) -> None:
    loop = found(function, given, X)[0]
    assert f"# {function.__name__}" in loop.at.source
    assert loop.copies >= TURNS and loop.turns >= TURNS
    assert 0.5 < loop.share <= 1.0


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (layers, ([W] * TURNS, X)),
        (jax.grad(lambda ws, x: layers(ws, x).sum()), ([W] * TURNS, X)),
        (updates, ([W] * TURNS, X)),
        (shapes, (jnp.ones(TURNS),)),
        (lambda w, x: jax.lax.fori_loop(0, TURNS, lambda _, x: jnp.tanh(x @ w), x), (W, X)),
    ],
)
def test_what_no_single_body_could_do_is_none(function: Callable[..., Any], arguments: Any) -> None:
    assert found(function, *arguments) == []


def test_a_loop_among_other_work_has_its_share_only() -> None:
    def both(w: jax.Array, ws: list[jax.Array], x: jax.Array) -> jax.Array:
        return layers(ws, shared(w, x))

    (loop,) = found(both, W, [W] * TURNS, X)
    assert "# shared" in loop.at.source and 0.1 < loop.share < 0.6
