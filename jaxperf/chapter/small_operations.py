"""Exercise 3 of section 8.3: products so small that calling them is the work. What then saves time?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from jaxperf.chapter.independent_products import run
from jaxperf.measure import Benchmark, Measurement, Reference, Series, block, interleaved
from jaxperf.script import Story

READER = {"system": "MXNet, a reader", "source": "reading notes on section 8.3, exercise 3", "unit": "s"}
Found = dict[int, dict[str, Measurement]]  # by size, then by way of running


def over_sizes(
    story: Story,
    *,
    device: jax.Device,
    other: jax.Device,
    sizes: Sequence[int],
    products: int,
    rounds: int,
) -> None:
    """Exercise 3: small products, five ways, over their size.

    Facts: `times_as_fast_as_calls/WAY, SIZE` for the smallest and the largest size, `calls_lose_up_to_size`.

    Args:
      story: is told times, curves, the reader's figures, facts and the claim.
      device: where the products are computed.
      other: where half of them are in the way "two devices".
      sizes: rows and columns of the matrices.
      products: how many in one run.
      rounds: of the comparison; three times as many here, where each is short.
    """
    story.heading("Exercise 3: small operations")
    found = {n: five_ways(n, device, other, products=products, rounds=3 * rounds) for n in sorted(sizes)}
    called = called_only(min(found), device, products=products, repeats=rounds)
    references = [
        Reference(f"ten 20 x 20, {kind}", value, beside=called.name * (kind == device.platform), **READER)
        for kind, value in {"cpu": 0.0006, "gpu": 0.0}.items()
    ]
    story.measured(called, references=references)
    for rows in found.values():
        story.measured(*rows.values(), base=rows["queued"].name)
    for way in found[min(found)]:
        medians = tuple(rows[way].median for rows in found.values())
        story.curve(Series(f"small products, {way}", tuple(map(float, found)), medians, "rows", "s"))
    _claim_faster_than_calls(story, found)


def _claim_faster_than_calls(story: Story, found: Found) -> None:
    smallest, largest = min(found), max(found)
    against = {
        way: {n: rows["queued"].median / rows[way].median for n, rows in found.items()}
        for way in ("one program", "vmap", "two devices")
    }
    for way, ratios in against.items():
        story.fact(f"times_as_fast_as_calls/{way}, {smallest}", ratios[smallest])
        story.fact(f"times_as_fast_as_calls/{way}, {largest}", ratios[largest])
    losing = [n for n in found if max(against["one program"][n], against["vmap"][n]) >= 1.2]
    story.fact("calls_lose_up_to_size", max(losing, default=None))
    gained = [f"{way} {ratios[smallest]:.2f} and {ratios[largest]:.2f}" for way, ratios in against.items()]
    story.claim(
        "With operations small enough, running them in parallel on one device can be faster",
        predicted="faster as one program or one batch, which saves calls; not on two devices",
        observed=f"times as fast as calls at sizes {smallest} and {largest}: {', '.join(gained)}",
        held=smallest in losing and against["two devices"][smallest] < 1.2,
    )


def five_ways(
    n: int, device: jax.Device, other: jax.Device, *, products: int, rounds: int
) -> dict[str, Measurement]:
    """Products of float32 (n, n), seconds for all of them, by way of running them."""
    xs = [jax.device_put(jnp.full((n, n), 1.0 + i), device) for i in range(products)]
    apart = [jax.device_put(x, other) if i % 2 else x for i, x in enumerate(xs)]
    program, batch = jax.jit(lambda xs: [jnp.dot(x, x) for x in xs]), jax.jit(jax.vmap(jnp.dot))
    stacked = jnp.stack(xs)
    parts: dict[str, Callable[[], Any]] = {
        "each awaited": lambda: [block(jnp.dot(x, x)) for x in xs],
        "queued": lambda: [jnp.dot(x, x) for x in xs],
        "one program": lambda: program(xs),
        "vmap": lambda: batch(stacked, stacked),
        "two devices": lambda: [jnp.dot(x, x) for x in apart],
    }
    rows = interleaved(parts, count=rounds)
    return {way: replace(m, name=f"{way}, {n}") for way, m in rows.items()}


def called_only(n: int, device: jax.Device, *, products: int, repeats: int) -> Measurement:
    """What the reader timed: calls that return, with nothing awaited, on float32 (n, n)."""
    x, seconds = jax.device_put(jnp.ones((n, n)), device), []
    for _ in range(repeats + 1):
        with Benchmark("Run.", show=None) as bench:
            outputs = run(x, products)
        seconds.append(bench.seconds)
        block(outputs)
    return Measurement(f"called, not awaited, {n}", "s", tuple(seconds[1:]), warmup=(seconds[0],))
