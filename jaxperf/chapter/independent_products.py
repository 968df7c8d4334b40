"""Exercise 1 of section 8.3: products on one device, independent of each other. Do they run in parallel?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxperf.measure import count_ops, interleaved, timeline
from jaxperf.result.intervals import most_at_once
from jaxperf.story import Story

RECORDINGS = 3  # on a busy machine a second core may come too late for one run


def products_of(xs: list[jax.Array]) -> list[jax.Array]:
    """The product of each matrix, (n, n), with itself."""
    return [jnp.dot(x, x) for x in xs]


def dots_in(fn: Any, *args: Any) -> int:
    """How many matrix products the optimized program of a jitted function holds."""
    return count_ops(fn.lower(*args).compile().as_text())["dot"]


def on_one_device(
    story: Story,
    run: Callable[[jax.Array, int], list[jax.Array]],
    *,
    x: jax.Array,
    products: int,
    rounds: int,
) -> None:
    """Exercise 1: do independent products on one device run in parallel, one by one or in one program?

    Facts: `dots_at_once_eager`, `dots_at_once_program` (the most spans at one time), `dots_in_program`,
    `dots_in_program_merged`, `dots_in_program_vmap`.

    Args:
      story: is told text, code, times, timelines, facts and claims.
      run: the book's `run`, whose operands are all the same.
      x: what the products' operands are made of, float32 (n, n), on the device.
      products: how many.
      rounds: of the comparison.
    """
    [device] = x.devices()
    lane = timeline.lane_of(device)
    story.heading(f"Exercise 1: {products} independent products on {lane}")
    story.text(
        """The products of `run` do not depend on each other. Does one device run several of them at the same
        time? The profiler can tell: count how many are busy at one moment. They are called one by one, and
        as one program, where the compiler sees all of them.""",
        """Every product gets an operand of its own. With equal operands, as in `run`, the compiler notices
        that all products are the same and computes one.""",
    )
    story.code(products_of)
    operands = [x + i for i in range(products)]
    programs: dict[str, tuple[Any, Any]] = {
        "one program": (jax.jit(products_of), operands),
        "one program, equal operands": (jax.jit(lambda x: run(x, products)), x),
        "one program, vmap": (jax.jit(jax.vmap(lambda x: jnp.dot(x, x))), jnp.stack(operands)),
    }
    dots = {name: dots_in(fn, given) for name, (fn, given) in programs.items()}
    parts: dict[str, Callable[[], Any]] = {
        "one product": lambda: jnp.dot(x, x),
        "one by one": lambda: products_of(operands),
        **{name: partial(fn, given) for name, (fn, given) in programs.items()},
    }
    rows = interleaved(parts, count=rounds)
    story.table(rows.values(), title="Products on one device", base="one by one", detail=True)
    most, shown = {}, []
    for way in ("one by one", "one program"):
        name = f"{products} products, {way}"
        recorded = [timeline.record(parts[way], name=name) for _ in range(RECORDINGS)]
        at_once = [most_at_once(one.intervals(lane)) for one in recorded]
        most[way] = max(at_once)
        shown.append(recorded[at_once.index(most[way])])
    story.timeline(*shown, title="Independent products on one device")
    _claims(story, dots, most, products=products)


def _claims(story: Story, dots: dict[str, int], most: dict[str, int], *, products: int) -> None:
    """Check the book's and its reader's claims against the programs, and how many products ran at once."""
    alone, program = most["one by one"], most["one program"]
    kept, merged = dots["one program"], dots["one program, equal operands"]
    story.fact("dots_at_once_eager", alone, words="products at once, called one by one")
    story.fact("dots_at_once_program", program, words="products at once, in one program")
    story.fact("dots_in_program", kept, words="products in the program")
    story.fact("dots_in_program_merged", merged, words="products in the program of equal operands")
    story.fact("dots_in_program_vmap", dots["one program, vmap"], words="products in the program of a batch")
    story.claim(
        book="The products of run are not executed in parallel on one device (a reader's answer)",
        holds=alone == 1,
        predicted="called one by one, never two at once, although they are independent",
        right=alone == 1,
        observed=f"{alone} at once",
    )
    story.claim(
        book="The system knows all dependencies and can choose to run independent tasks in parallel",
        holds=program >= 2,
        predicted="within one program, at least two products at once",
        right=program >= 2,
        observed=f"{program} at once",
        cannot="1 core" if story.environment.cores == 1 else "",
    )
    story.claim(
        ours="Under jit the book's run, with equal operands, is one product",
        holds=merged == 1,
        predicted=f"{products} products with operands of their own, 1 with equal ones",
        right=kept == products and merged == 1,
        observed=f"{kept} and {merged}",
    )
