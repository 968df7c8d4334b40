"""Section 8.2.2: every way to make the front end wait, a pitfall, and what could replace `waitall`."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxperf.chapter.book import book
from jaxperf.measure import block, interleaved, pending
from jaxperf.report.words import quantity
from jaxperf.result import Measurement, both, ratio
from jaxperf.script import Story

WAYS: dict[str, Callable[[jax.Array], Any]] = {
    "y.block_until_ready()": lambda y: y.block_until_ready(),
    "block(y)": block,
    "np.asarray(y)": np.asarray,
    "y.item()": lambda y: y.item(),
    "float(y)": float,
    "print(y)": lambda y: print(y, file=io.StringIO()),
    "if y > 0": lambda y: bool(y > 0),
}
NO_WAIT: dict[str, Callable[[jax.Array], Any]] = {
    "y.shape, y.dtype": lambda y: (y.shape, y.dtype),
    "y.copy_to_host_async()": lambda y: y.copy_to_host_async(),
    "jax.effects_barrier()": lambda y: jax.effects_barrier(),
}
TWO = "two products, block((y, z))"
AFTER = "print(y) after waiting"


def total(x: jax.Array) -> jax.Array:
    """The program in every row: a product, and its sum as a scalar that all ways accept."""
    return jnp.dot(x, x).sum()


def ways_to_wait(story: Story, *, size: int, seed: int, rounds: int, beside_book: bool) -> None:
    """Try each way on a result that is still pending: is it ready afterwards, and how long did it take?"""
    story.heading("8.2.2 Making the front end wait")
    story.text(
        """Sooner or later a program wants a value. Whatever turns an array into something that is not
        asynchronous has to wait for it: a NumPy array, a Python number, a printed line, a condition. MXNet
        calls such functions synchronizing. To wait and take nothing, as a clock needs it, there is
        `block_until_ready`. Below, the program is the same in every row and only the way of waiting differs,
        so the times should not differ."""
    )
    story.habit(
        gluon="y.wait_to_read()\nnd.waitall()\ny.asnumpy()\ny.norm().asscalar()",
        jax="y.block_until_ready()\njax.block_until_ready((y, z))\nnp.asarray(y)\njnp.linalg.norm(y).item()",
        remark="Our `block` is `jax.block_until_ready` that refuses what it cannot wait for.",
    )
    story.code(total)
    x = block(jax.random.uniform(jax.random.key(seed), (size, size)))
    block(total(x))
    left = {way: still_pending(total(x), wait) for way, wait in {**WAYS, **NO_WAIT}.items()}
    parts = {way: partial(lambda wait: wait(total(x)), wait) for way, wait in WAYS.items()}
    found = interleaved({**parts, TWO: lambda: block((total(x), total(x)))}, count=rounds, loops=1)
    after = Measurement(AFTER, "s", tuple(timed(str, block(total(x))) for _ in range(3)))
    base = next(iter(WAYS))
    references = (
        book("wait_to_read", 0.3558, "8.2.2", beside=base),
        book("asnumpy", 0.3111, "8.2.2", beside="np.asarray(y)"),
        book("norm().asscalar()", 0.3302, "8.2.2", beside="y.item()"),
        book("two dots, waitall", 0.6061, "8.2.2", beside=TWO),
        book("print after wait_to_read", 0.0011, "8.2.2", beside=AFTER),
    )
    story.table(
        [*found.values(), after],
        title=f"one program ({size} x {size}), from queueing it until the way of waiting returned",
        base=base,
        references=references if beside_book else (),
        detail=True,
    )
    early = [way for way in WAYS if left[way]]
    idle = [way for way in NO_WAIT if left[way]]
    with story.output(detail=True):
        print(f"these do not wait: {', '.join(idle) or 'none'}")
    story.claim(
        book="Whatever turns an array into something that is not asynchronous makes the front end wait",
        holds=not early,
        predicted="the result is there after each way that asks for its value",
        right=not early,
        observed=f"still pending after: {', '.join(early) or 'none of them'}",
    )
    ratios = {way: ratio(found[way], found[base]) for way in WAYS if way != base}
    same = both(*(r.within(0.15) for r in ratios.values()))
    far = max(ratios, key=lambda way: abs(ratios[way].median - 1))
    story.claim(
        ours="All ways of waiting take as long: the computation is what is waited for",
        holds=same,
        predicted="within 15 % of block_until_ready",
        right=same,
        observed=f"the farthest, {far}, takes {ratios[far]} times as long",
    )


def still_pending(y: jax.Array, wait: Callable[[jax.Array], Any]) -> bool:
    """Whether the result is still pending after this way of waiting; it is ready when this returns."""
    wait(y)
    left = pending(y) > 0
    block(y)
    return left


def timed(fn: Callable[..., Any], *args: Any) -> float:
    """Seconds until `fn(*args)` returns."""
    began = time.perf_counter()
    fn(*args)
    return time.perf_counter() - began


def last_is_not_all(story: Story, *, size: int) -> None:
    """The pitfall: a long computation on one device, then a short one on another; wait only for the last."""
    story.heading("8.2.2 The last result, and all of them")
    story.text(
        """A common mistake in benchmarks is to wait for the last result only. One device works in the order
        in which it was told to, so there the last is the last. Two devices are independent: the short
        computation on the second is done while the first still multiplies."""
    )
    statement = "Waiting for the last of several independent results leaves the others pending"
    predicted = "the product is pending after waiting for the last, nothing is after block"
    devices = two_devices()
    if devices is None:
        one = "there is one device only"
        story.claim(ours=statement, holds=None, predicted=predicted, right=None, observed="", cannot=one)
        return
    long, short = jax.jit(lambda x: x @ x), jax.jit(lambda x: x + 1)
    x = jax.device_put(jnp.ones((size, size)), devices[0])
    z = jax.device_put(jnp.ones((100, 100)), devices[1])
    block((long(x), short(z)))
    left_last = left_all = 0
    for _ in range(5):
        results = [long(x), short(z)]
        results[-1].block_until_ready()
        left_last += pending(results) > 0
        block(results)
        left_all += pending(results) > 0
    story.fact("pending_after_waiting_for_last", left_last / 5, words="share of runs with a pending result")
    found = left_last > 0 and left_all == 0
    story.claim(
        ours=statement,
        holds=found,
        predicted=predicted,
        right=found,
        observed=f"pending in {left_last} of 5 runs, and in {left_all} after block",
    )


def two_devices() -> tuple[jax.Device, jax.Device] | None:
    """Two devices: of the default kind, or an accelerator and the CPU; None on a single CPU device."""
    first, *others = jax.devices()
    others += jax.devices("cpu") if first.platform != "cpu" else []
    return (first, others[0]) if others else None


def in_place_of_waitall(story: Story, *, size: int) -> None:
    """What could replace `waitall`, each tried on work whose results have been dropped."""
    story.text(
        """MXNet has `waitall`, one call that waits for everything. JAX has none, and its candidates differ:
        `effects_barrier` waits for side effects; `live_arrays` knows what a variable still holds; a program
        runs after those that its own thread queued on its own device. So keep what you compute and give all
        of it to `block`: it waits for every leaf and raises what a computation raised."""
    )
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
    rows = []
    for way, wait in ways.items():
        for thread in ("this", "another"):
            finished.clear()
            run_in(thread, lambda: then_tell(dot(x)))  # the result is dropped
            took = timed(wait)
            waited[way].append(finished.is_set())
            finished.wait(60)
            rows.append((way, thread, "yes" if waited[way][-1] else "no", quantity(took, "s")))
    story.grid(
        ("call", "work queued by thread", "waited for it", "returned after"), rows, right=(3,), detail=True
    )
    complete = [way for way, tries in waited.items() if all(tries)]
    story.claim(
        book="One call, waitall, waits for all computations before it",
        holds=None if complete else False,  # a way that waited in two tries may have been lucky
        predicted="no call of JAX does",
        right=None if complete else True,
        observed=f"waited whatever thread queued the work: {', '.join(complete) or 'none'}",
    )


def run_in(thread: str, fn: Callable[[], Any]) -> None:
    """Call `fn` in "this" thread or in "another", and return when the call has."""
    if thread == "this":
        fn()
    else:
        other = threading.Thread(target=fn)
        other.start()
        other.join()
