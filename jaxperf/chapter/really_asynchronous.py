"""Section 8.2.1: which programs a backend really queues, with and without asynchronous dispatch."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

import jax
import jax.numpy as jnp

from jaxperf.chapter.loops import add_one
from jaxperf.measure import in_fresh_process, measure, probe
from jaxperf.report.words import quantity
from jaxperf.result import Measurement
from jaxperf.script import Story


def really_asynchronous(story: Story, *, size: int, seed: int) -> None:
    """Find out for programs of several sizes whether their results were ready when the call returned."""
    story.text(
        """Was it really asynchronous, and is it always? An array knows whether it is ready. We call a
        compiled `x + 1` on arrays of several sizes and ask at once. A CPU runs a program of under 1000 FLOPs
        in the calling thread, because waking another costs more. Above that another thread computes, and
        where the core under it sleeps it has to be woken: that is most of the difference between the last two
        columns on an idle machine, and nothing on a busy one."""
    )
    add, rows = jax.jit(add_one), []
    for n in (10, 999, 1000, 100_000, 1000 * size):
        x = jnp.ones(n)
        asked = probe(add, x, calls=21)
        waited = measure(add, x, max_values=7, warmup_s=0.02, budget_s=0.1)
        called_s = statistics.median(asked.queued_s)
        ready = sum(asked.ready)
        rows.append((f"{n}", f"{ready} of 21", quantity(called_s, "s"), quantity(waited.median, "s")))
        story.fact(
            f"ready_at_return_{n}", ready / 21, words=f"share ready when the call returns, {n} elements"
        )
    heads = ("elements", "ready when the call returned", "the call", "call and wait")
    story.grid(heads, rows, right=(0, 1, 2, 3), detail=True)
    if story.environment.backend != "cpu":
        story.note("jax_cpu_enable_async_dispatch is for CPUs, so nothing is measured without it here")
        return
    story.text(
        """JAX can be told to compute in the calling thread. It reads the setting
        `jax_cpu_enable_async_dispatch` when it starts, so the last two rows are from another process."""
    )
    measured = []
    off = in_fresh_process(without_dispatch, size, seed)
    for word, found in (("on", asked_here(size, seed)), ("off", off)):
        measured.append(Measurement(f"dispatch {word}, queued", "s", tuple(found["queued_s"])))
        measured.append(Measurement(f"dispatch {word}, finished", "s", tuple(found["finished_s"])))
        words = f"asynchronous with jax_cpu_enable_async_dispatch {word}"
        story.fact(f"asynchronous_with_dispatch_{word}", found["asynchronous"], words=words)
    story.table(measured, title="a product with asynchronous dispatch on and off", detail=True)


def asked_here(size: int, seed: int) -> dict[str, Any]:
    """This process's answer: was a product asynchronous here?"""
    x = jax.random.uniform(jax.random.key(seed), (size, size))
    asked = probe(jax.jit(lambda x: jnp.dot(x, x)), x, calls=7)
    return {**dataclasses.asdict(asked), "asynchronous": asked.asynchronous}


def without_dispatch(size: int, seed: int) -> dict[str, Any]:
    """The answer of a process without asynchronous dispatch."""
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # only before JAX starts; no variable sets it
    return asked_here(size, seed)
