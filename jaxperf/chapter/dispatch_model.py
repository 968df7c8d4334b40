"""Section 8.2.3: t1, t2 and t3 fitted to half of the sizes of y = x + 1, and the other half predicted."""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxperf.launch import ALLOCATOR
from jaxperf.measure import Series, block, in_fresh_process
from jaxperf.measure.dispatch import Fit, Sample, fit, leaves_plateau, prediction_errors, queueing_s, sweep
from jaxperf.report.text import quantity
from jaxperf.script import Story

CALLS = 200  # in one loop of the sweep


def add_one(x: jax.Array) -> jax.Array:
    """The book's statement, dispatched eagerly."""
    return x + 1


def the_model(story: Story, *, sizes: Sequence[int], rounds: int) -> None:
    """t1, t2 and t3 fitted to half of the sizes, and the other half predicted."""
    story.heading("8.2.3 t1, t2 and t3")
    one_thread = {"NPROC": "1", **ALLOCATOR}
    found = in_fresh_process(sweep_child, list(sizes), rounds, environment=one_thread)
    story.say(
        f"{CALLS} times y = x + 1, {rounds} rounds, in a process whose back end has one thread, as\n"
        f"in the book's picture (a program is split in {found['parts']}); two would make large operations\n"
        "pay for waking the second"
    )
    for way in ("jitted", "eager"):
        samples = [
            Sample(row["size"], row["calls"], tuple(row["sync_s"]), tuple(row["async_s"]))
            for row in found[way]
        ]
        model = fit(samples[::2], t1_s=found["t1_alone_s"][way])
        errors = prediction_errors(model.costs, samples)
        show_model(story, way, model, samples, errors)
        missed = statistics.median(abs(e) for pair in errors[1::2] for e in pair)
        if way == "jitted":
            keep_model(story, model, samples, missed)
        else:
            story.fact("t1_eager_s", model.costs.t1_s, unit="s")
            story.fact("prediction_error_median_eager", missed)
            why_999(story, model, samples)
    story.say("the front end alone, 16 jitted calls queued and the clock read before any waiting, a call:")
    story.fact("t1_alone_s", found["t1_alone_s"]["jitted"], unit="s")


def sweep_child(sizes: list[int], rounds: int) -> dict[str, Any]:
    """Both loops over all sizes, jitted and eager; into how many parts a large program is split; t1 alone."""
    jitted = jax.jit(add_one)
    inputs = [(float(size), block(jnp.ones(size))) for size in sizes]
    program = jitted.lower(inputs[-1][1]).compile().as_text() or ""
    parts = re.search(r'outer_dimension_partitions":\["(\d+)"', program)
    return {
        "jitted": [dataclasses.asdict(s) for s in sweep(jitted, inputs, calls=CALLS, rounds=rounds)],
        "eager": [dataclasses.asdict(s) for s in sweep(add_one, inputs, calls=CALLS, rounds=-(-rounds // 2))],
        "parts": int(parts.group(1)) if parts else 1,
        "t1_alone_s": {
            "jitted": queueing_s(jitted, inputs[0][1]),
            "eager": queueing_s(add_one, inputs[0][1]),
        },
    }


def show_model(
    story: Story, way: str, model: Fit, samples: list[Sample], errors: Sequence[tuple[float, float]]
) -> None:
    """Costs with their standard errors, then prediction against measurement for every size."""
    costs, error = model.costs, model.errors
    each_ns = costs.t2_per_unit_s * 1e9
    story.say(
        f"\n{way}, us: t1 = {costs.t1_s * 1e6:.2f} +- {error.t1_s * 1e6:.2f}, "
        f"t3 = {costs.t3_s * 1e6:.2f} +- {error.t3_s * 1e6:.2f}, "
        f"t2 = {costs.t2_fixed_s * 1e6:.2f} +- {error.t2_fixed_s * 1e6:.2f} + {each_ns:.3f} for each 1000 "
        f"elements, {each_ns + costs.t2_per_unit_beyond_s * 1e9:.3f} beyond {costs.knee:.0f}"
    )
    story.say(f"{'':20}{'synchronous, ms':>28}{'asynchronous, ms':>28}")
    story.say(f"{'elements':>10}{'':10}" + f"{'measured':>10}{'predicted':>10}{'':8}" * 2)
    for i, (s, missed) in enumerate(zip(samples, errors)):
        totals = (
            (s.synchronous_s, costs.synchronous_s(s.size, s.calls)),
            (s.asynchronous_s, costs.asynchronous_s(s.size, s.calls)),
        )
        columns = (f"{m * 1e3:10.2f}{p * 1e3:10.2f}  {e:+6.1%}" for (m, p), e in zip(totals, missed))
        story.say(f"{s.size:10.0f}{'  held out' if i % 2 else '  fitted  '}" + "".join(columns))


def keep_model(story: Story, model: Fit, samples: list[Sample], missed: float) -> None:
    """The fitted costs as facts, the curves for the report, and the verdict on the predictions."""
    costs, largest = model.costs, samples[-1].size
    for name in ("t1_s", "t3_s"):
        story.fact(name, getattr(costs, name), unit="s")
        story.fact(f"{name}_error", getattr(model.errors, name), unit="s", show=False)
    story.fact("t2_s", costs.t2_s(largest), unit="s")
    story.fact("t2_elements", largest)
    story.fact("prediction_error_median", missed)
    sizes = tuple(s.size for s in samples)
    curves = {
        "sync/measured": [s.synchronous_s for s in samples],
        "sync/predicted": [costs.synchronous_s(s.size, s.calls) for s in samples],
        "async/measured": [s.asynchronous_s for s in samples],
        "async/predicted": [costs.asynchronous_s(s.size, s.calls) for s in samples],
    }
    for name, totals in curves.items():
        story.curve(Series(name, sizes, tuple(totals), "elements", "s"))
    gap = statistics.median((s.synchronous_s - s.asynchronous_s) / s.calls for s in samples)
    story.claim(
        "n calls take about n (t1 + t2 + t3) one by one, and t1 + n t2 + t3 asynchronously",
        predicted="with max(t1, t2) for t2, held-out sizes are predicted within 15 % (median)",
        observed=f"median error {missed:.1%} at {len(samples) // 2} held-out sizes; waiting for each costs "
        f"{quantity(gap, 's')} a call",
        held=missed <= 0.15,
    )


def why_999(story: Story, model: Fit, samples: list[Sample]) -> None:
    """The exercise: the book's formula assumes 1000 t2 > 999 t1. What happens where that is false?"""
    costs = model.costs
    low, high = leaves_plateau(samples)
    story.fact("crossover_elements", costs.crossover)
    story.fact("crossover_elements_error", model.crossover_error)
    story.fact("plateau_ends_after_elements", low)
    story.fact("plateau_ends_before_elements", high)
    share = [costs.book_s(s.size, s.calls) / s.asynchronous_s for s in samples]
    above = statistics.median([v for v, s in zip(share, samples) if s.size > costs.crossover] or [0.0])
    story.say(
        "1000 t2 > 999 t1 says that the back end never runs dry: the front end has queued the last call\n"
        "before its turn has come. With t2 under t1 it runs dry, the front end is the bottleneck, and the\n"
        "loop takes n t1 + t2 + t3 whatever the size: a plateau."
    )
    story.claim(
        "t1 + 1000 t2 + t3 holds if 1000 t2 > 999 t1 (exercise 1)",
        predicted="right within 15 % beyond the crossover t2 = t1, too little before it",
        observed=f"crossover at {costs.crossover:.0f} elements by the model, the plateau ends between "
        f"{low:.0f} and {high:.0f}; the book's formula gives {share[0]:.0%} of the time measured at "
        f"{samples[0].size:.0f} elements, {above:.0%} beyond the crossover",
        held=abs(above - 1) <= 0.15 if above else None,
    )
