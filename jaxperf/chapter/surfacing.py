"""Where an error of an asynchronous computation surfaces, tried in a separate process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxperf.measure import block, in_fresh_process
from jaxperf.script import Story

PENDING, DEPENDENT = "callback, argument pending", "work that depends on it"


def errors(story: Story) -> None:
    """Where an error of a queued computation surfaces, tried in a separate process."""
    story.heading("Where do errors surface?")
    story.text(
        """A call that has returned has not succeeded yet. If the computation fails later, the error waits
        where the value would have been: in `block`, or in whatever asks for the value. Work that depends on
        a failed result fails with it. NaN is not an error unless `jax_debug_nans` looks for it, and looking
        makes every call wait."""
    )
    rows = in_fresh_process(errors_child, True)
    story.grid(("what fails", "raised in", "message"), rows, detail=True)
    where = {title: step for title, step, _ in rows}
    for name, title in (("pending", PENDING), ("dependent", DEPENDENT)):
        story.fact(f"error_surfaces_{name}", where[title], words=f"where it surfaces: {title}")
    late = where[PENDING] == where[DEPENDENT] == "block"
    story.claim(
        ours="An error of an asynchronous computation is raised by block",
        holds=late,
        predicted="the call returns, block raises, and so does everything that depends on the result",
        right=late,
        observed=f"{where[PENDING]}; dependent work: {where[DEPENDENT]}",
    )


def errors_child(asynchronous: bool) -> list[tuple[str, str, str]]:
    """Provoke errors; for each, the first step that raised, and the last line of what it said.

    Args:
      asynchronous: whether the CPU may dispatch asynchronously; if not, the calls themselves raise.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", asynchronous)

    def complain(_: Any) -> None:
        raise ValueError("the callback refused")

    def with_callback(x: jax.Array) -> jax.Array:
        jax.debug.callback(complain, x[0, 0])
        return x + 1

    x = block(jnp.ones((1000, 1000)))
    dot = jax.jit(lambda x: x @ x)
    refuse = jax.jit(with_callback).lower(x).compile()  # compiled first, or the dot would finish meanwhile
    spoil = jax.jit(lambda x: jnp.log(x @ x - 1e9))
    block((dot(x), x + 1))
    rows = [
        surfaces("callback, argument there", lambda: refuse(x)),
        surfaces(PENDING, lambda: refuse(dot(x))),
        surfaces(DEPENDENT, lambda: refuse(dot(x)) + 1),
        surfaces("jax.effects_barrier afterwards", jax.effects_barrier),
        surfaces("NaN", lambda: spoil(x)),
    ]
    with jax.debug_nans(True):
        return [*rows, surfaces("NaN, jax_debug_nans on", lambda: spoil(x))]


def surfaces(title: str, call: Callable[[], Any]) -> tuple[str, str, str]:
    """Which of these raises: the call, its result's shape, or `block` on it; and the error's last line."""
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
