"""Section 8.2.2: every way to make the front end wait, a trap, and what could take `waitall`'s place."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxperf.chapter.book import book
from jaxperf.measure import Measurement, block, pending
from jaxperf.report.text import quantity
from jaxperf.script import Story

# what is queued, and what is then done with it; the scalar is for ways that need one
WAYS: dict[str, tuple[Literal["matrix", "scalar", "tree"], Callable[[Any], Any]]] = {
    "y.block_until_ready()": ("scalar", lambda y: y.block_until_ready()),
    "jax.block_until_ready((y, z))": ("tree", jax.block_until_ready),
    "our block((y, z))": ("tree", block),
    "np.asarray(y)": ("matrix", np.asarray),
    "y.item()": ("scalar", lambda y: y.item()),
    "float(y)": ("scalar", float),
    "print(y)": ("scalar", lambda y: print(y, file=io.StringIO())),
    "if y > 0": ("scalar", lambda y: bool(y > 0)),
    "copy_to_host_async, np.asarray": ("matrix", lambda y: (y.copy_to_host_async(), np.asarray(y))),
    "y.copy_to_host_async()": ("matrix", lambda y: y.copy_to_host_async()),
    "y.shape, y.dtype": ("matrix", lambda y: (y.shape, y.dtype)),
    "jax.effects_barrier()": ("matrix", lambda y: jax.effects_barrier()),
}
NO_WAIT = ("y.copy_to_host_async()", "y.shape, y.dtype", "jax.effects_barrier()")


def ways_to_wait(story: Story, *, size: int, seed: int, beside_book: bool) -> None:
    """Each way on a computation of its own that is still pending: does it wait, and how long?"""
    story.heading("8.2.2 Every way to make the front end wait")
    x = block(jax.random.uniform(jax.random.key(seed), (size, size)))
    dot = jax.jit(lambda x: jnp.dot(x, x))
    norm = jax.jit(lambda x: jnp.linalg.norm(jnp.dot(x, x)))
    queue = {"matrix": lambda: dot(x), "scalar": lambda: norm(x), "tree": lambda: (dot(x), norm(x))}
    rows, left = [], {}
    for way, (kind, wait) in WAYS.items():
        block(queue[kind]())
        times, unfinished = [], 0
        for _ in range(3):
            began = time.perf_counter()
            y = queue[kind]()
            wait(y)
            times.append(time.perf_counter() - began)
            unfinished += pending(y)
            block(y)
        rows.append(Measurement(way, "s", tuple(times)))
        left[way] = unfinished
    there = [block(norm(x)) for _ in range(3)]
    rows.append(Measurement("print(y) after waiting", "s", tuple(timed(str, y) for y in there)))
    references = (
        book("print after wait_to_read", 0.0011, "8.2.2", "print(y) after waiting"),
        book("wait_to_read", 0.3558, "8.2.2", "y.block_until_ready()"),
        book("two dots, waitall", 0.6061, "8.2.2", "jax.block_until_ready((y, z))"),
        book("asnumpy", 0.3111, "8.2.2", "np.asarray(y)"),
        book("norm().asscalar()", 0.3302, "8.2.2", "y.item()"),
    )
    story.measured(
        *rows,
        references=references if beside_book else (),
        title="from queueing the dot until the way returned",
    )
    waiting = [way for way in WAYS if way not in NO_WAIT]
    early = [way for way in waiting if left[way]]
    idle = [way for way in NO_WAIT if left[way]]
    story.say(f"these did not wait: {', '.join(idle) or 'none'}")
    story.claim(
        "Whatever turns an array into something that isn't asynchronous makes the front end wait",
        predicted="the result is there after each of the ways above that ask for its value",
        observed=f"still pending after: {', '.join(early) or 'none of them'}",
        held=not early,
    )


def timed(fn: Callable[..., Any], *args: Any) -> float:
    """Seconds until `fn(*args)` returns."""
    began = time.perf_counter()
    fn(*args)
    return time.perf_counter() - began


def last_is_not_all(story: Story, *, size: int) -> None:
    """The trap: a long computation on one device, then a short one on another; wait for the last only."""
    story.heading("8.2.2 The trap: waiting for the last result is not waiting for all")
    statement = "Waiting for the last of several independent results leaves the others to come"
    devices = two_devices()
    if devices is None:
        story.claim(statement, predicted="pending results", observed="there is one device only", held=None)
        return
    long, short = jax.jit(lambda x: x @ x), jax.jit(lambda x: x + 1)
    x = jax.device_put(jnp.ones((size, size)), devices[0])
    z = jax.device_put(jnp.ones((100, 100)), devices[1])
    block((long(x), short(z)))
    last_s, all_s, left_last, left_all = [], [], 0, 0
    for _ in range(5):
        began = time.perf_counter()
        results = [long(x), short(z)]
        results[-1].block_until_ready()
        last_s.append(time.perf_counter() - began)
        left_last += pending(results)
        block(results)
        all_s.append(time.perf_counter() - began)
        left_all += pending(results)
    story.measured(
        Measurement("results[-1].block_until_ready()", "s", tuple(last_s)),
        Measurement("block(results)", "s", tuple(all_s)),
        base="block(results)",
        title=f"a dot on {devices[0]}, then x + 1 on {devices[1]}",
    )
    story.fact("pending_after_waiting_for_last", left_last / 5)
    story.claim(
        statement,
        predicted="the dot is pending after waiting for the last, nothing is after block",
        observed=f"pending in {left_last} of 5 runs, and in {left_all} after block",
        held=left_last > 0 and left_all == 0,
    )


def two_devices() -> tuple[jax.Device, jax.Device] | None:
    """Two devices: of the default kind, or an accelerator and the CPU; None on a single CPU device."""
    first, *others = jax.devices()
    others += jax.devices("cpu") if first.platform != "cpu" else []
    return (first, others[0]) if others else None


def in_place_of_waitall(story: Story, *, size: int) -> None:
    """What could take `waitall`'s place, each tried on work whose results nobody holds any more."""
    story.heading("8.2.2 What takes the place of waitall")
    finished = threading.Event()
    zero = jax.ShapeDtypeStruct((), jnp.float32)

    def tell(_: Any) -> Any:
        finished.set()
        return np.float32(0)

    dot, add = jax.jit(lambda x: x @ x), jax.jit(lambda x: x + 1)
    then_tell = jax.jit(lambda y: jax.pure_callback(tell, zero, y[0, 0]))
    x, z = block((jnp.ones((size, size)), jnp.ones(2000)))
    block((dot(x), then_tell(x), add(z)))
    ways: dict[str, Callable[[], Any]] = {
        "jax.effects_barrier()": jax.effects_barrier,
        "block(jax.live_arrays())": lambda: block(jax.live_arrays()),
        "block(a program queued behind)": lambda: block(add(z)),
    }
    waited: dict[str, list[bool]] = {way: [] for way in ways}
    for way, wait in ways.items():
        for thread in ("this", "another"):
            finished.clear()
            run_in(thread, lambda: then_tell(dot(x)))  # the result is dropped
            took = quantity(timed(wait), "s")
            waited[way].append(finished.is_set())
            finished.wait(60)
            verdict = "waited" if waited[way][-1] else "DID NOT WAIT"
            story.say(f"{way:31} work queued by {thread:8} thread: {verdict:13} ({took})")
            story.fact(f"waited/{way}/{thread} thread", waited[way][-1], show=False)
    story.say(
        "effects_barrier waits for side effects, live_arrays names what a variable still holds, and a\n"
        "program runs after those that its own thread queued on its own device. So keep what you compute\n"
        "and hand all of it to block: it waits for every leaf, refuses one that it can't wait for\n"
        "(TypeError), and raises what a computation raised."
    )
    complete = [way for way, tries in waited.items() if all(tries)]
    story.claim(
        "One call, waitall, waits for all computations before it",
        predicted="no call of JAX does",
        observed=f"waited whatever thread queued the work: {', '.join(complete) or 'none'}",
        held=bool(complete),
    )


def run_in(thread: str, fn: Callable[[], Any]) -> None:
    """Call `fn` in "this" thread or in "another", and return when the call has."""
    if thread == "this":
        fn()
    else:
        other = threading.Thread(target=fn)
        other.start()
        other.join()
