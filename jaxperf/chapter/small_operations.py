"""Exercise 3 of section 8.3: products so small that most of the time goes into the calls. What saves time?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxperf.measure import Benchmark, block, interleaved
from jaxperf.result import Axis, Curve, Decision, Measurement, Ratio, Reference, both, negated, ratio
from jaxperf.story import Story

READER = {"system": "MXNet, a reader", "source": "reading notes on section 8.3, exercise 3", "unit": "s"}
CALLS, PROGRAM, BATCH, DEVICES = "called one by one", "one program", "one batch (vmap)", "on two devices"
Found = dict[int, dict[str, Measurement]]  # by size, then by way of running


def ways(n: int, devices: Sequence[jax.Device], products: int) -> dict[str, Callable[[], Any]]:
    """Products of float32 (n, n), computed in several ways."""
    xs = [jax.device_put(jnp.full((n, n), 1.0 + i), devices[0]) for i in range(products)]
    apart = [jax.device_put(x, devices[i % len(devices)]) for i, x in enumerate(xs)]
    program, batch = jax.jit(lambda xs: [jnp.dot(x, x) for x in xs]), jax.jit(jax.vmap(jnp.dot))
    stacked = jnp.stack(xs)
    found: dict[str, Callable[[], Any]] = {
        "each waited for": lambda: [block(jnp.dot(x, x)) for x in xs],
        CALLS: lambda: [jnp.dot(x, x) for x in xs],
        PROGRAM: lambda: program(xs),
        BATCH: lambda: batch(stacked, stacked),
    }
    return found if len(devices) < 2 else {**found, DEVICES: lambda: [jnp.dot(x, x) for x in apart]}


def over_sizes(
    story: Story, *, devices: Sequence[jax.Device], sizes: Sequence[int], products: int, rounds: int
) -> None:
    """Exercise 3: small products, in several ways, over their size.

    Facts: `calls_lose_up_to_size`.

    Args:
      story: is told text, code, times, curves, the reader's figures, the fact and the claim.
      devices: of one kind; the products are computed on the first, half of them on the second in one way.
      sizes: rows and columns of the matrices.
      products: how many in one run.
      rounds: of the comparison at each size; doubled here, since each is short.
    """
    story.heading("Exercise 3: small operations")
    story.text(
        """The book asks whether small operations gain from running in parallel on one device. When a product
        takes less than a microsecond, calling it from Python takes ten times as long. What helps is to call
        less often: one program of all products, or one batch. A second device does not call any faster."""
    )
    story.code(ways)
    found = {n: interleaved(ways(n, devices, products), count=2 * rounds) for n in sorted(set(sizes))}
    _reader(story, min(found), devices[0], products=products, repeats=rounds)
    for n, rows in found.items():
        story.table(rows.values(), title=f"{products} products of {n} x {n}", base=CALLS, detail=True)
    first, *_ = found.values()
    story.lines(
        "Small products over their size",
        [Curve(way, tuple(map(float, found)), tuple(r[way].median for r in found.values())) for way in first],
        x=Axis("rows and columns of the matrices"),
        y=Axis(f"time of {products} products", "s"),
        caption="Where the lines meet, computing takes the time and not calling.",
    )
    against = {
        n: {way: ratio(rows[CALLS], m) for way, m in rows.items() if way in (PROGRAM, BATCH, DEVICES)}
        for n, rows in found.items()
    }
    story.grid(
        ("size", *against[min(against)]),
        [(f"{n} x {n}", *map(str, ratios.values())) for n, ratios in against.items()],
        title="Small products: how many times as fast as called one by one",
        right=tuple(range(1, 1 + len(against[min(against)]))),
    )
    _claim_faster_than_calls(story, against)


def _reader(story: Story, n: int, device: jax.Device, *, products: int, repeats: int) -> None:
    """Repeat the reader's experiment, and show it next to the reader's figures."""
    story.text(
        """A reader timed ten products of 20 x 20 on a GPU and found 0.0000 s. The clock stopped when the
        calls had returned, so nothing was computed yet. Here is the same mistake."""
    )
    called = called_only(n, device, products=products, repeats=repeats)
    references = [
        Reference(f"ten 20 x 20, {kind}", value, beside=called.name * (kind == device.platform), **READER)
        for kind, value in {"cpu": 0.0006, "gpu": 0.0}.items()
    ]
    story.table([called], title="Called and not waited for", references=references, detail=True)


def called_only(n: int, device: jax.Device, *, products: int, repeats: int) -> Measurement:
    """Seconds until the calls have returned, without waiting for results, on float32 (n, n)."""
    x, seconds = jax.device_put(jnp.ones((n, n)), device), []
    for _ in range(repeats + 1):
        with Benchmark("Run.", show=None) as bench:
            outputs = [jnp.dot(x, x) for _ in range(products)]
        seconds.append(bench.seconds)
        block(outputs)
    return Measurement(f"called, not waited for, {n} x {n}", "s", tuple(seconds[1:]), warmup=(seconds[0],))


def _claim_faster_than_calls(story: Story, against: dict[int, dict[str, Ratio]]) -> None:
    """Judge fewer calls at every size, and the book's sentence at the smallest."""
    faster = {n: _either(r[PROGRAM].above(), r[BATCH].above()) for n, r in against.items()}
    losing = max((n for n, decision in faster.items() if decision), default=None)
    story.fact("calls_lose_up_to_size", losing, words="largest products that gain from fewer calls")
    smallest = min(against)
    others = [r.at_most(2) for way, r in against[smallest].items() if way == DEVICES]
    story.claim(
        book="With operations small enough, running them in parallel on one device can be faster",
        holds=faster[smallest],
        predicted="faster as one program or one batch, which saves calls; at most twice on two devices",
        right=both(faster[smallest], *others),
        observed=f"at size {smallest}: " + ", ".join(f"{way} {r}" for way, r in against[smallest].items()),
    )


def _either(a: Decision, b: Decision) -> Decision:
    return negated(both(negated(a), negated(b)))
