"""Where an error of an asynchronous computation surfaces, tried in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxperf.measure import block, in_fresh_process
from jaxperf.script import Story


def errors(story: Story) -> None:
    """Where an error of a queued computation surfaces, tried in a process of its own."""
    story.heading("Where do errors surface?")
    rows = in_fresh_process(errors_child)
    for title, surfaced, message in rows:
        story.say(f"{title:38} {surfaced:32} {message}")
        story.fact(f"error_surfaces/{title}", surfaced, show=False)
    where = {title: surfaced for title, surfaced, _ in rows}
    story.say(
        "A call that has returned has not succeeded yet, and work that depends on a failed result fails\n"
        "too. NaN is no error unless jax_debug_nans looks for it, which makes every call wait."
    )
    story.claim(
        "An error of an asynchronous computation is raised by block",
        predicted="the call returns, block raises, and so does everything that depends on the result",
        observed=f"{where['callback, argument pending']}; dependent work: {where['work that depends on it']}",
        held=where["callback, argument pending"] == where["work that depends on it"] == "block",
    )


def errors_child() -> list[tuple[str, str, str]]:
    """Provoke errors; for each, the first step that raised, and the last line of what it said."""

    def complain(_: Any) -> None:
        raise ValueError("the callback refused")

    def with_callback(x: jax.Array) -> jax.Array:
        jax.debug.callback(complain, x[0, 0])
        return x + 1

    x = block(jnp.ones((1000, 1000)))
    dot = jax.jit(lambda x: x @ x)
    refuse = jax.jit(with_callback).lower(x).compile()  # compiled first, or the dot would be through by then
    spoil = jax.jit(lambda x: jnp.log(x @ x - 1e9))
    block(dot(x))
    there = surfaces("callback, argument there", lambda: refuse(x))
    failed = refuse(dot(x))
    rows = [
        there,
        surfaces("callback, argument pending", lambda: refuse(dot(x))),
        surfaces("work that depends on it", lambda: failed + 1),
        surfaces("jax.effects_barrier afterwards", jax.effects_barrier),
        surfaces("NaN", lambda: spoil(x)),
    ]
    with jax.debug_nans(True):
        return [*rows, surfaces("NaN, jax_debug_nans on", lambda: spoil(x))]


def surfaces(title: str, call: Callable[[], Any]) -> tuple[str, str, str]:
    """Whether the call raises, or its shape, or block on what it returned; and the error's last line."""
    out: Any = None
    step = "call"
    try:
        out = call()
        step = "shape"
        _ = jax.tree.map(jnp.shape, out)
        step = "block"
        block(out)
    except (jax.errors.JaxRuntimeError, FloatingPointError) as e:
        return title, step, str(e).strip().splitlines()[-1]
    return title, "nowhere", ""
