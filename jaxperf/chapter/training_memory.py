"""Section 8.2.4: what training without waiting costs in memory, each way in a process of its own."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxperf.chapter.book import book
from jaxperf.measure import (
    Measurement,
    MemorySampler,
    Series,
    block,
    device_memory,
    in_fresh_process,
    live_bytes,
)
from jaxperf.measure.memory import GIVE_BACK
from jaxperf.measure.run_ahead import run_ahead
from jaxperf.models import MLP
from jaxperf.report.text import quantity
from jaxperf.script import Story

Wait = Literal["each", "end", "window"]
RUNS: dict[str, tuple[Literal["device", "host"], Wait]] = {
    "synchronous": ("device", "each"),
    "asynchronous": ("device", "end"),
    "host synchronous": ("host", "each"),
    "host asynchronous": ("host", "end"),
    "host window": ("host", "window"),
}
BOOK_MADE_S = {"synchronous": (13.377381, 26.867962), "asynchronous": (0.083964, 0.166682)}  # batches 50, 100
BOOK_BYTES = {"synchronous": 4.648e6, "asynchronous": 0.016e6}


def train(step: Any, params: list[jax.Array], batches: Iterator[Any], *, wait: Wait) -> list[float]:
    """One pass over the batches; the losses are asked for after each step, one step late, or at the end."""

    def queued() -> Iterator[jax.Array]:
        nonlocal params
        for X, y in batches:
            params, loss = step(params, X, y)
            yield loss

    if wait == "each":
        losses = [loss.item() for loss in queued()]
    elif wait == "window":
        losses = [loss.item() for loss in run_ahead(queued(), depth=1)]
    else:
        losses = [loss.item() for loss in list(queued())]
    block(params)  # the last loss doesn't wait for the last update
    return losses


def make_step(seed: int) -> tuple[Any, list[jax.Array]]:
    """The book's MLP, L2 loss and SGD as one jitted step of the flat parameters, and the parameters."""
    graph, state = nnx.split(MLP((512, 2048, 512, 1), rngs=nnx.Rngs(seed)))
    params, tree = jax.tree.flatten(state)

    @jax.jit
    def step(params: list[jax.Array], X: jax.Array, y: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        def l2_loss(params: list[jax.Array]) -> jax.Array:
            net = nnx.merge(graph, jax.tree.unflatten(tree, params))
            return 0.5 * jnp.mean((net(X)[:, 0] - y) ** 2)

        loss, grads = jax.value_and_grad(l2_loss)(params)
        return [p - 0.005 * g for p, g in zip(params, grads)], loss

    return step, params


@functools.partial(jax.jit, static_argnums=2)
def draw(key: jax.Array, i: int, batch_size: int) -> jax.Array:
    """Batch number i, drawn by the back end in one program."""
    return jax.random.normal(jax.random.fold_in(key, i), (batch_size, 512))


def data_iter(
    feed: str, *, batches: int, batch_size: int, seed: int, produced: list[float], held: list[int]
) -> Iterator[tuple[jax.Array, jax.Array]]:
    """The book's `data_iter`: random batches, drawn by the back end as there or handed over from the host."""
    key, rng, start = jax.random.key(seed), np.random.default_rng(seed), time.perf_counter()
    for i in range(batches):
        if feed == "device":
            X, y = draw(key, i, batch_size), jnp.ones(batch_size)
        else:
            X, y = jax.device_put(
                (rng.standard_normal((batch_size, 512), np.float32), np.ones(batch_size, "f"))
            )
        produced.append(time.perf_counter() - start)
        held.append(live_bytes())
        yield X, y


def train_child(names: list[str], batches: int, batch_size: int, seed: int) -> dict[str, dict[str, Any]]:
    """Trainings of these names, watched; one to a process unless times and memory don't matter."""
    shares = {name: batches if RUNS[name][0] == "device" else -(-batches // 2) for name in names}
    return {name: watched(*RUNS[name], shares[name], batch_size, seed) for name in names}


def watched(feed: str, wait: Wait, batches: int, batch_size: int, seed: int) -> dict[str, Any]:
    """One training: when its batches were made, what it held, and its last loss."""
    step, params = make_step(seed)
    produced: list[float] = []
    held: list[int] = []
    data = functools.partial(data_iter, feed, batch_size=batch_size, seed=seed, produced=produced, held=held)
    train(step, params, data(batches=3), wait="each")  # compile
    time.sleep(0.2)  # a step's temporaries are freed a moment after its results are there
    produced.clear()
    held.clear()
    with MemorySampler() as sampled:
        began = time.perf_counter()
        losses = train(step, params, data(batches=batches), wait=wait)
        total_s = time.perf_counter() - began
    return {
        "produced_s": produced,
        "total_s": total_s,
        "increase_bytes": sampled.increase_bytes,
        "memory": dataclasses.asdict(sampled.series("memory")),
        "live_bytes": max(held),
        "device": device_memory(),
        "loss": losses[-1],
    }


def memory(story: Story, *, batches: int, batch_size: int, seed: int, beside_book: bool) -> None:
    """The book's training with and without a synchronising call, in a process each, watched from a thread."""
    story.heading("8.2.4 What asynchronous computation costs in memory")
    story.say(
        f"MLP 512-2048-512-1, {batches} batches of {batch_size} x 512 drawn by the back end,\n"
        "as in the book; then half as many handed over from the host. A process each, in which the C\n"
        "library gives freed memory back at once."
    )
    together = [list(RUNS)] if story.flags.smoke else [[name] for name in RUNS]
    runs: dict[str, dict[str, Any]] = {}
    for names in together:
        sizes = (batches, batch_size, seed)
        runs |= in_fresh_process(train_child, names, *sizes, environment=GIVE_BACK)
    for name, run in runs.items():
        keep_run(story, name, run)
    show_runs(story, runs, beside_book=beside_book)
    judge_memory(story, runs, batch_size=batch_size)


def keep_run(story: Story, name: str, run: dict[str, Any]) -> None:
    """One run's curves and facts."""
    curve, word = run["memory"], name.replace(" ", "_")
    story.curve(Series(f"memory/{name}", tuple(curve["x"]), tuple(curve["y"]), "s", "bytes"))
    batches = tuple(float(i + 1) for i in range(len(run["produced_s"])))
    story.curve(Series(f"produced/{name}", batches, tuple(run["produced_s"]), "batches", "s"))
    story.fact(f"last_batch_{word}_s", run["produced_s"][-1], show=False)
    story.fact(f"live_arrays_{word}_bytes", run["live_bytes"], show=False)
    if "peak_bytes_in_use" in run["device"]:
        story.fact(f"device_peak_{word}_bytes", run["device"]["peak_bytes_in_use"], unit="bytes")


def show_runs(story: Story, runs: dict[str, dict[str, Any]], *, beside_book: bool) -> None:
    """Times and memory of all runs, the book's at the side."""
    rows, grown, made, increased = [], [], [], []
    for name, run in runs.items():
        count = len(run["produced_s"])
        for i, batch in enumerate(dict.fromkeys((max(count // 2, 1), count))):
            label = f"{name}: batch {batch} made"
            rows.append(Measurement(label, "s", (run["produced_s"][batch - 1],)))
            if name in BOOK_MADE_S:
                made.append(book(f"batch {50 * (i + 1)}", BOOK_MADE_S[name][i], "8.2.4", label))
        rows.append(Measurement(f"{name}: trained", "s", (run["total_s"],)))
        label = f"{name}: peak over start"
        grown.append(Measurement(label, "bytes", (float(run["increase_bytes"]),)))
        if name in BOOK_BYTES:
            increased.append(book("increased memory", BOOK_BYTES[name], "8.2.4", label, "bytes"))
    story.measured(*rows, references=made if beside_book else ())
    story.measured(*grown, references=increased if beside_book else ())
    story.say(
        f"variables held at most {quantity(max(r['live_bytes'] for r in runs.values()), 'bytes')}; "
        + (
            ""
            if any(r["device"] for r in runs.values())
            else "this backend keeps no account of device memory"
        )
    )
    story.note(
        "the book's own figures contradict its text: synchronous training grew by 4.648 MB, asynchronous by "
        "0.016 MB, each the difference of two looks, before and after"
    )


def judge_memory(story: Story, runs: dict[str, dict[str, Any]], *, batch_size: int) -> None:
    """The section's sentences on memory, and the pattern that we recommend in place of its advice."""
    grown = {name: run["increase_bytes"] for name, run in runs.items()}
    batch_bytes = 4 * batch_size * 513

    def shown(name: str) -> str:
        return quantity(grown[name], "bytes")

    ahead = runs["asynchronous"]["produced_s"][-1] / runs["asynchronous"]["total_s"]
    story.claim(
        "Without synchronising calls all batches are made long before training is through",
        predicted="not on a CPU: with 32 programs in flight the last batch waits for all but a few",
        observed=f"the last batch was made after {ahead:.0%} of the run",
        held=ahead < 0.5,
    )
    story.claim(
        "Asynchronous training takes more memory: the book's program",
        predicted="no more on a CPU, which gives a queued program its memory only when it runs",
        observed=f"{shown('synchronous')} synchronous, {shown('asynchronous')} asynchronous",
        held=grown["asynchronous"] > 1.5 * grown["synchronous"],
    )
    more = grown["host asynchronous"] - grown["host synchronous"]
    story.claim(
        "Asynchronous training takes more memory: batches handed over by the host",
        predicted="more by the batches in flight",
        observed=f"{shown('host synchronous')} synchronous, {shown('host asynchronous')} asynchronous: "
        f"{more / batch_bytes:.0f} batches more",
        held=grown["host asynchronous"] > 1.5 * grown["host synchronous"],
    )
    story.claim(
        "To save memory, call a synchronising function for each batch",
        predicted="a window of one step (the loss of step k - 1 is read while step k runs) saves as much",
        observed=f"{shown('host window')} and {runs['host window']['total_s']:.1f} s with the window, "
        f"{shown('host synchronous')} and {runs['host synchronous']['total_s']:.1f} s synchronous, "
        f"{shown('host asynchronous')} and {runs['host asynchronous']['total_s']:.1f} s asynchronous",
        held=grown["host synchronous"] < grown["host asynchronous"],
    )
    losses = {run["loss"] for name, run in runs.items() if name.startswith("host")}
    story.fact("losses_equal_however_waited_for", len(losses) == 1)
