"""Exercise 1 of section 8.3: the book's `run`, products of which none needs another; are they parallel?"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxperf.measure import count_ops, interleaved, timeline
from jaxperf.measure.intervals import most_at_once
from jaxperf.script import Story


def run(x: jax.Array, products: int = 10) -> list[jax.Array]:
    """The book's `run`: products of `x`, (n, n), with itself, none of which needs another."""
    return [jnp.dot(x, x) for _ in range(products)]


def dots_in(fn: Any, *args: Any) -> int:
    """Matrix products in the optimised program of a jitted function."""
    return count_ops(fn.lower(*args).compile().as_text())["dot"]


def on_one_device(story: Story, *, x: jax.Array, products: int, rounds: int) -> None:
    """Exercise 1: are independent products on one device run in parallel, one by one or in one program?

    Facts: `dots_at_once/eager`, `dots_at_once/one program` (the most spans at one time), `dots_in_program`,
    `dots_in_program_merged`, `dots_in_program_vmap`.

    Args:
      story: is told times, timelines, facts and claims.
      x: what the products' operands are made of, float32 (n, n), on the device.
      products: how many.
      rounds: of the comparison.
    """
    [device] = x.devices()
    story.heading(f"Exercise 1: {products} independent products on {timeline.lane_of(device)}")
    operands = [x + i for i in range(products)]
    programs: dict[str, tuple[Any, Any]] = {
        "one program": (jax.jit(lambda xs: [jnp.dot(x, x) for x in xs]), operands),
        "one program, equal operands": (jax.jit(lambda x: run(x, products)), x),
        "one program, vmap": (jax.jit(jax.vmap(lambda x: jnp.dot(x, x))), jnp.stack(operands)),
    }
    dots = {name: dots_in(fn, given) for name, (fn, given) in programs.items()}
    parts: dict[str, Callable[[], Any]] = {
        "one product": lambda: jnp.dot(x, x),
        "eager": lambda: [jnp.dot(x, x) for x in operands],
        **{name: functools.partial(fn, given) for name, (fn, given) in programs.items()},
    }
    story.measured(*interleaved(parts, count=rounds).values(), base="eager")
    most = {}
    for name in ("eager", "one program"):
        recorded = timeline.record(parts[name], name=f"{products} products, {name}")
        story.timeline(recorded)
        most[name] = most_at_once(recorded.intervals(timeline.lane_of(device)))
        story.fact(f"dots_at_once/{name}", most[name])
    _claims(story, dots, most, products=products)


def _claims(story: Story, dots: dict[str, int], most: dict[str, int], *, products: int) -> None:
    """What the programs hold and how many products ran at once, against the book and its reader."""
    story.fact("dots_in_program", dots["one program"])
    story.fact("dots_in_program_merged", dots["one program, equal operands"])
    story.fact("dots_in_program_vmap", dots["one program, vmap"])
    assert dots["one program"] == products, f"the compiler left {dots['one program']} products"
    story.claim(
        "The products of run, called one by one on one device, are not run in parallel (a reader's answer)",
        predicted="never two at once, although none needs another",
        observed=f"{most['eager']} at once",
        held=most["eager"] == 1,
    )
    story.claim(
        "The system knows all needs and can choose to run what is independent in parallel",
        predicted="within one program, at least two products at once",
        observed=f"{most['one program']} at once",
        held=most["one program"] >= 2,
    )
    story.claim(
        "Under jit the book's run, with equal operands, is one product",
        predicted=f"{products} products with operands of their own, 1 with equal ones",
        observed=f"{dots['one program']} and {dots['one program, equal operands']}",
        held=dots["one program"] == products and dots["one program, equal operands"] == 1,
    )
