"""Section 8.2.4: how far the front end runs ahead, and what that costs in memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxperf.chapter.book import book
from jaxperf.chapter.loops import rows_that_last
from jaxperf.chapter.training_memory import (
    Runs,
    Wait,
    data_iter,
    make_step,
    one_step,
    taken,
    train,
    watch_child,
)
from jaxperf.measure import block, device_memory, in_fresh_process, run_ahead_depth
from jaxperf.measure.memory import GIVE_BACK
from jaxperf.measure.sizes import size_for
from jaxperf.report.words import quantity
from jaxperf.result import Axis, Curve, Measurement, Ratio, both, ratio, ratio_of
from jaxperf.script import Story

PAGE = 4096  # bytes; a run that does not grow counts as this much, to avoid dividing by zero
IN_FLIGHT = 32  # computations that XLA's CPU client queues before it holds the front end back
PER_BATCH = 3  # computations: the random numbers, the labels, the step
SHORT = "asynchronous, fits the queue"
BOOK_BYTES = {"synchronous": 4.648e6, "asynchronous": 0.016e6}
BOOK_BATCH_S = {"synchronous": 26.867962 / 100, "asynchronous": 0.166682 / 100}


def how_deep(story: Story) -> None:
    """How many computations may be queued before the client holds the front end back; also with donation."""
    story.heading("8.2.4 How far does the front end run ahead?")
    story.text(
        """If the front end never waits, how much does it queue? XLA's CPU client lets 32 computations be in
        flight and then makes the next call wait until one has ended."""
    )
    on_cpu = story.environment.backend == "cpu"
    rows = 500 if on_cpu else rows_that_last(1e-3)
    x = block(jnp.ones((rows, rows)))
    curves, deepest = [], {}
    for word, donated in (("arguments kept", ()), ("arguments donated", (0,))):
        step = jax.jit(lambda x: (x @ x / 1000, x[0, 0]), donate_argnums=donated)
        state, _ = block(step(x + 0))

        def enqueue() -> jax.Array:
            nonlocal state
            state, metric = step(state)  # noqa: B023, called within this turn of the loop
            return metric

        counts = run_ahead_depth(enqueue, calls=100)
        deepest[word] = max(counts)
        curves.append(Curve(word, tuple(map(float, range(1, 101))), tuple(map(float, counts)), draw="line"))
    kept, donated_too = deepest.values()
    story.fact("inflight_depth", kept, words="most computations in flight")
    story.fact("inflight_depth_donated", donated_too, words="the same with donated arguments")
    story.lines("Computations in flight", curves, x=Axis("calls"), y=Axis("computations"), zero=True)
    story.claim(
        book="Without synchronization the front end hands over all computations at once",
        holds=kept >= 100,
        predicted="on a CPU 32 are in flight, on a GPU more",
        right=kept <= 32 if on_cpu else kept > 32,
        observed=f"at most {kept} of 100 in flight, {donated_too} with donated arguments",
    )


def of(runs: Runs, name: str, figure: Callable[[dict[str, Any]], float], unit: str) -> Measurement:
    """One figure for all passes of a run, by round."""
    return Measurement(name, unit, tuple(figure(run) for run in runs[name]), rounds="memory")


def peak(runs: Runs, name: str) -> Measurement:
    """The peak memory of each pass above its start."""
    return of(runs, name, lambda run: float(max(run["peak_bytes"], PAGE)), "bytes")


def made_share(runs: Runs, name: str) -> Ratio:
    """The fraction of a pass after which its last batch was made."""
    return ratio_of([run["produced_s"][-1] / run["total_s"] for run in runs[name]])


def memory(story: Story, *, batches: int, batch_size: int, seed: int, rounds: int, beside_book: bool) -> None:
    """Run both programs in a process that gives freed memory back at once, then tell what each shows."""
    backend = story.environment.backend
    step = partial(one_step, seed=seed)  # a large GPU computes the book's in 0.1 ms, less than the front end
    batch_size = size_for(backend, batch_size, step, seconds=2e-3, most=64 * batch_size)
    few = max(2, batches // 4)  # the memory held when waiting does not depend on their number
    book_ways = {
        "synchronous": ("train", "each", few),
        "asynchronous": ("train", "end", batches),
        SHORT: ("train", "end", min(8, batches)),
    }
    host_ways = {name: (*how, 2 * batches if how[1] == "end" else few) for name, how in HOST.items()}
    host_size = max(1, batch_size // 4)
    programs = {"device": (batch_size, book_ways), "host": (host_size, host_ways)}
    found = watch(programs, seed, rounds, each=rounds if backend == "cpu" else 1)
    books_program(story, found["device"], beside_book=beside_book)
    handed_over(story, found["host"], batch_bytes=4 * host_size * 513)


def watch(programs: dict[str, Any], seed: int, rounds: int, *, each: int) -> dict[str, Runs]:
    """Run all ways of all programs, in fresh processes that do `each` of the rounds, by feed and by way.

    On a GPU, a pass fills the memory up to the peak of the passes before it, so each process does one round.
    """
    found = [
        in_fresh_process(watch_child, programs, seed, each, environment=GIVE_BACK, timeout_s=1800)
        for _ in range(0, rounds, each)
    ]
    return {
        feed: {way: [run for one in found for run in one[feed][way]] for way in ways}
        for feed, (_, ways) in programs.items()
    }


def books_program(story: Story, runs: Runs, *, beside_book: bool) -> None:
    """Train as the book does, with and without waiting, and with few enough batches for the queue."""
    story.heading("8.2.4 What asynchronous computation costs in memory")
    story.text(
        """Training usually asks for the loss of every batch, which makes the front end wait. Without that,
        the book says, the front end queues all batches within moments, and batches that are made but not yet
        used fill the memory. The text and its figures contradict each other: there the synchronous run grew
        by 4.648 MB and the asynchronous one by 0.016 MB. Both are differences of two looks, before and after,
        and miss whatever comes and goes. We show that difference next to the book's, and our peak, sampled
        every 5 ms, alone.""",
        f"""As in the book, the back end draws the batches. Each takes three computations: the random numbers,
        the labels, and the step. XLA's CPU client queues {IN_FLIGHT} computations, so a short run fits into
        the queue and a long one does not.""",
    )
    story.code(data_iter, make_step, train, taken)
    changes = [of(runs, name, lambda run: float(run["change_bytes"]), "bytes") for name in BOOK_BYTES]
    made = [
        of(runs, name, lambda run: run["produced_s"][-1] / len(run["produced_s"]), "s") for name in BOOK_BYTES
    ]
    grown = [book("increased memory", v, "8.2.4", beside=k, unit="bytes") for k, v in BOOK_BYTES.items()]
    took = [book("time of 100 batches / 100", v, "8.2.4", beside=k) for k, v in BOOK_BATCH_S.items()]
    story.table(
        changes, title="difference of two looks at the memory, before and after", detail=True,
        references=grown if beside_book else (),
    )  # fmt: skip
    story.table(made, title="time per batch made", references=took if beside_book else (), detail=True)
    story.table([peak(runs, name) for name in runs], title="peak above the start", detail=True)
    if "peak_bytes_in_use" in device_memory():
        story.note("peaks are the device's own, its peak_bytes_in_use, and not sampled")
    when_made(story, runs)
    found = ratio(peak(runs, "asynchronous"), peak(runs, "synchronous"))
    on_cpu = story.environment.backend == "cpu"
    story.claim(
        book="Asynchronous training takes more memory",
        holds=found.above(1.2),
        predicted="not on a CPU, which gives a queued program its memory only when it runs"
        if on_cpu
        else "more by the batches in flight",
        right=found.at_most(1.2) if on_cpu else found.above(1.2),
        observed=f"{found} times the peak of synchronous training",
    )


def when_made(story: Story, runs: Runs) -> None:
    """Draw and judge how far the front end runs ahead of the training."""
    curves = []
    for name in runs:
        made = runs[name][0]["produced_s"]
        curves.append(Curve(name, tuple(float(i + 1) for i in range(len(made))), tuple(made)))
    story.lines(
        "When each batch was made", curves, x=Axis("batch"), y=Axis("since the start", "s"), zero=True
    )
    batches, short = (len(runs[name][0]["produced_s"]) for name in ("asynchronous", SHORT))
    long, fits = made_share(runs, "asynchronous"), made_share(runs, SHORT)
    waits = 1 - IN_FLIGHT / (PER_BATCH * batches)  # the share of computations that do not fit into the queue
    held_back = story.environment.backend == "cpu" and waits > 0.25
    story.claim(
        book="Without synchronization all batches are made long before training is done",
        holds=long.below(0.25),
        predicted=f"no: only {IN_FLIGHT} computations can be in flight, so after about {waits:.2f} of it"
        if held_back
        else "all are made in the first quarter of the run",
        right=long.above(0.25) if held_back else long.below(0.25),
        observed=f"the last of {batches} was made after {long} of the run",
    )
    story.claim(
        ours="That is so where all computations fit into the queue",
        holds=fits.below(0.25),
        predicted=f"{short} batches are made in the first quarter of the run",
        right=fits.below(0.25),
        observed=f"the last of {short} was made after {fits} of the run",
    )


HOST: dict[str, tuple[str, Wait]] = {
    "synchronous": ("train", "each"),
    "asynchronous": ("train", "end"),
    "window of one step": ("train", "window"),
    "predicting, synchronous": ("predict", "each"),
    "predicting, asynchronous": ("predict", "end"),
}


def handed_over(story: Story, runs: Runs, *, batch_bytes: int) -> None:
    """The same with batches from the host, which take memory as soon as they are made."""
    story.peers("8.2 memory")
    story.text(
        """A real input pipeline hands batches over from the host, and they take memory at once. Then the
        queue is full of batches. Between waiting for each and never waiting there is a window: read the loss
        of step k - 1 while step k runs. The device never idles, and no more than two batches are held. The
        same holds for predicting."""
    )
    peaks = {name: peak(runs, name) for name in runs}
    held = max(run["live_bytes"] for run in runs["asynchronous"])
    story.table(peaks.values(), title="peak above the start, batches handed over by the host", detail=True)
    story.text(
        f"""Python's variables held at most {quantity(held, "bytes")} of arrays at any time, parameters
        included, yet the asynchronous run grew by {quantity(peaks["asynchronous"].median, "bytes")} on top of
        its parameters. The rest is in no variable: a queued step keeps the batch that it will read after
        Python has dropped it ({quantity(batch_bytes, "bytes")} each, up to {IN_FLIGHT} of them), and the step
        that runs needs room for activations and gradients."""
    )
    story.fact("live_arrays_bytes", held, unit="bytes", words="most that variables held, asynchronous")
    curves = [
        Curve(name, tuple(runs[name][0]["curve"][0]), tuple(runs[name][0]["curve"][1]), draw="line")
        for name, (task, _) in HOST.items()
        if task == "train"
    ]
    story.lines("Memory above the start", curves, x=Axis("since the start", "s"), y=Axis("memory", "bytes"))
    trained = [runs[name][0]["outputs"] for name, (task, _) in HOST.items() if task == "train"]
    same = {tuple(losses[: min(map(len, trained))]) for losses in trained}
    story.fact("losses_equal_however_waited_for", len(same) == 1, words="the same losses, however waited for")
    slow_host = story.environment.backend != "cpu" and made_share(runs, "asynchronous").median > 0.9
    judge(
        story,
        peaks,
        cannot="the host makes batches more slowly than the device uses them" if slow_host else "",
    )


def judge(story: Story, peaks: dict[str, Measurement], *, cannot: str) -> None:
    """The section's advice on memory, and the pattern that we recommend with it."""
    more = ratio(peaks["asynchronous"], peaks["synchronous"])
    story.claim(
        book="Asynchronous training takes more memory (batches handed over by the host)",
        holds=more.above(1.2),
        predicted="more by the batches in flight",
        right=more.above(1.2),
        observed=f"{more} times the peak of synchronous training",
        cannot=cannot,
    )
    less, window = (
        ratio(peaks["synchronous"], peaks["asynchronous"]),
        ratio(peaks["window of one step"], peaks["asynchronous"]),
    )
    story.claim(
        book="To save memory, synchronize for each batch when training",
        holds=less.below(1),
        predicted="less memory, and also with a window of one step",
        right=both(less.below(1), window.below(1)),
        observed=f"{less} of the asynchronous peak, with the window {window}",
        cannot=cannot,
    )
    predicting = ratio(peaks["predicting, synchronous"], peaks["predicting, asynchronous"])
    story.claim(
        book="To save memory, synchronize for each batch when predicting",
        holds=predicting.below(1),
        predicted="less memory, for the same reason",
        right=predicting.below(1),
        observed=f"{predicting} of the asynchronous peak",
        cannot=cannot,
    )
