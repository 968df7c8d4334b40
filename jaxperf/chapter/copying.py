"""Section 8.3.2: are results copied, to another device and to NumPy, while the next ones are computed?

At the end, the CPU, the GPU and the copies between them work at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxperf.chapter.devices_together import overview, saved, share
from jaxperf.measure import Together, interleaved, per_round, timeline, together
from jaxperf.measure.sizes import size_that_lasts
from jaxperf.result import Timeline, both, ratio
from jaxperf.story import Story

Compute = Callable[[int], list[jax.Array]]  # takes the number of results wanted
Copy = Callable[[list[jax.Array]], list[Any]]
THIN = 64  # columns of the thin factors: copying their product costs about as much as computing it
STEPS = 100  # rows of the averages; XLA splits rows of 256 KB and more over several cores
SHOWN = 3  # results in a timeline: each leaves 400 spans
JUDGED = 4  # times the rounds where a claim is judged: the other core is free for a copy only in some rounds
ALREADY = 1.1  # the least possible gain for a meaningful comparison: a copy takes a tenth of the computing


def copy_to_device(ys: Sequence[jax.Array], device: jax.Device) -> list[jax.Array]:
    """Copies on another device, each started as soon as its original exists."""
    return [jax.device_put(y, device) for y in ys]


def copy_to_numpy(ys: Sequence[jax.Array]) -> list[np.ndarray]:
    """Copies in NumPy: all are started at once, then fetched in order.

    A CPU device's arrays are already in the host's memory, and `np.asarray` returns a view of them; in that
    case Python makes the copy.
    """
    for y in ys:
        y.copy_to_host_async()
    copies = []
    for y in ys:
        with timeline.mark("output"):
            shown = np.asarray(y)
        with timeline.mark("to host", lane="copies"):
            copies.append(np.array(shown) if {d.platform for d in y.devices()} == {"cpu"} else shown)
    return copies


@jax.jit
def moving_averages(x: jax.Array) -> jax.Array:
    """Moving averages of the rows of `x`, (n, m); each needs the one before, so XLA uses one core."""

    def step(average: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        average = 0.9 * average + 0.1 * row
        return average, average

    return lax.scan(step, x[0], x)[1]


@jax.jit
def products_in_a_row(x: jax.Array, count: int) -> jax.Array:
    """`x`, (n, n), times itself `count` times, each product scaled by its rows so that it stays finite."""
    return lax.fori_loop(0, count, lambda _, y: jnp.dot(y, x) / len(x), x)


def compute_and_copy(
    story: Story,
    *,
    xs: Sequence[jax.Array],
    size: int,
    products: int,
    rounds: int,
) -> None:
    """Results copied after all are computed, and each as soon as it exists.

    Facts: `copies_saved_numpy`, `copies_saved_device`.

    Args:
      story: is told text, code, times, timelines and claims.
      xs: the products' operands, float32 (n, n). The device of the last one computes; results are copied to
        NumPy and, where there are two, to the device of the first.
      size: rows and columns of the results of a CPU device.
      products: how many results one run computes.
      rounds: of the comparison.
    """
    [target], [source] = xs[0].devices(), xs[-1].devices()
    on_cpu = source.platform == "cpu"
    _explain(story, on_cpu=on_cpu)
    ways: dict[str, Copy] = {"NumPy": copy_to_numpy}
    if target != source:
        ways[timeline.lane_of(target)] = partial(copy_to_device, device=target)
    work = _on_one_core_and_on_all(source, size) if on_cpu else {"products": as_long_as_a_copy(xs[-1])}
    free, *busy = (
        {
            where: _timed(story, f"{what} to {where}", partial(compute, products), copy, rounds * often)
            for where, copy in ways.items()
        }
        for (what, compute), often in zip(work.items(), (JUDGED, 1))
    )
    for where, found in free.items():
        name = "numpy" if where == "NumPy" else "device"
        hidden = f"share of what copies to {where} could save that was saved"
        story.fact(f"copies_saved_{name}", share(found).median, words=hidden)
    everything = [found for group in (free, *busy) for found in group.values()]
    overview(story, everything, title="Computing and copying")
    compute = partial(next(iter(work.values())), min(SHOWN, products))
    story.timeline(
        *(_recorded(story, compute, where, copy) for where, copy in ways.items()),
        title="Computing and copying",
        caption="The copies lie under the computing of the next result, but for the last copy.",
    )
    cores = story.environment.cores
    _claim_hidden(story, free, real=not on_cpu, lacking="1 core" if on_cpu and cores < 2 else "")


def _explain(story: Story, *, on_cpu: bool) -> None:
    story.heading("8.3.2 Computing and copying")
    story.text(
        """Results often have to leave the device that computed them. A copy depends on its own result only:
        while the second one is computed, the first can be copied. Nothing has to be arranged for that. Ask
        for the copy right after asking for the result, and wait for neither."""
    )
    story.habit(
        gluon="ys = run(x_gpu)\ncopies = [y.copyto(mx.cpu()) for y in ys]\nnd.waitall()",
        jax="ys = run(x_gpu)\ncopies = copy_to_device(ys, jax.devices('cpu')[0])\n"
        "jax.block_until_ready(copies)",
    )
    story.code(copy_to_device, copy_to_numpy)
    if on_cpu:
        story.text(
            """A GPU has engines that only copy. On a CPU a copy needs a core, and a product leaves none
            free. So the results here are moving averages: each row needs the row before it, so XLA computes
            them on one core and another core can copy. Thin products, which use all cores and whose copies
            cost about as much as they do, are timed in the same way to compare."""
        )
        story.code(moving_averages)
    else:
        story.text(
            """On a GPU a product is there long before its copy would be, and then there is little to save. So
            each result is made of as many products in a row as take about as long as a copy of it."""
        )
        story.code(products_in_a_row)


def as_long_as_a_copy(x: jax.Array) -> Compute:
    """Work whose results, of the size of `x`, each take at least as long as a copy of one to NumPy."""
    copied = interleaved(
        {"copy": copy_to_numpy}, before={"copy": lambda: [products_in_a_row(x, 1)]}, count=3
    )["copy"]
    products = size_that_lasts(
        1, lambda count: partial(products_in_a_row, x, count), seconds=min(copied.values), most=1024
    )
    return lambda count: [products_in_a_row(x, products) for _ in range(count)]


def _on_one_core_and_on_all(device: jax.Device, n: int) -> dict[str, Compute]:
    x = jax.device_put(jnp.ones((STEPS, n * n // STEPS)), device)
    thin = jax.device_put(jnp.ones((n, THIN)), device)
    return {
        "averages (one core)": lambda count: [moving_averages(x) for _ in range(count)],
        "products (all cores)": lambda count: [jnp.dot(thin, thin.T) for _ in range(count)],
    }


def _together(compute: Callable[[], list[jax.Array]], copy: Copy) -> Any:
    ys = compute()
    return ys, copy(ys)


def _timed(
    story: Story, tag: str, compute: Callable[[], list[jax.Array]], copy: Copy, rounds: int
) -> Together:
    """Computed, copied, and both."""
    parts: dict[str, Callable[..., Any]] = {
        "compute": compute,
        "copy": copy,
        "compute and copy": partial(_together, compute, copy),
    }
    # results that were not fetched before: an array keeps the NumPy copy that was made of it
    found = together(tag, parts, count=rounds, before={"copy": compute})
    story.table(found.rows(), title=found.tag, base=found.total.name, detail=True)
    return found


def _recorded(story: Story, compute: Callable[[], list[jax.Array]], where: str, copy: Copy) -> Timeline:
    name = f"compute and copy to {where}"
    return timeline.record(partial(_together, compute, copy), name=name, folder=story.traces)


def _claim_hidden(story: Story, found: Mapping[str, Together], *, real: bool, lacking: str = "") -> None:
    """Judge every way whose copies take a tenth of the computing, against what it could save."""
    worth = [t for t in found.values() if t.possible.above(ALREADY)]
    faster = both(*(t.ratio.above() for t in worth))
    verdict: dict[str, Any] = {
        "holds": faster,
        "predicted": "less time together",
        "right": faster,
        "observed": saved(worth),
    }
    lacking = lacking or ("" if worth else "no copy takes a tenth of the computing")
    if not real:
        ours = (
            "While one core computes, another copies: together they take less time than one after the other"
        )
        story.claim(ours=ours, cannot=lacking, **verdict)
        lacking = "no GPU here; these copies stay in one host's memory"
    book = "Computing on a GPU and copying from it take less time together than one after the other"
    story.claim(book=book, cannot=lacking, **verdict)


def everything_at_once(
    story: Story,
    run: Callable[[jax.Array, int], list[jax.Array]],
    *,
    xs: Sequence[jax.Array],
    products: int,
    rounds: int,
) -> None:
    """CPU, GPU and the copies between them, all at the same time: what hides behind what.

    Args:
      story: is told times, a timeline and a claim, which cannot be measured without a CPU and a GPU.
      run: the book's `run`.
      xs: the products' operands, float32 (n, n), on the CPU and on the GPU.
      products: how many a device computes in one run.
      rounds: of the comparison.
    """
    story.heading("CPU, GPU and copies at once")
    story.text("Both kinds of parallelism go together: the CPU computes while the GPU computes and copies.")
    statement = "A CPU and a GPU compute at the same time as results are copied between them"
    predicted = "all at once faster than the CPU, then the GPU with its copies"
    devices = [device for x in xs for device in x.devices()]
    if len(devices) < 2 or devices[0].platform != "cpu" or devices[1].platform == "cpu":
        verdict: dict[str, Any] = {"holds": None, "right": None, "observed": ""}
        story.claim(ours=statement, predicted=predicted, cannot="it takes a CPU and a GPU", **verdict)
        return
    (on_cpu, on_gpu), cpu = xs, devices[0]
    parts: dict[str, Callable[[], Any]] = {
        "CPU": lambda: run(on_cpu, products),
        "GPU": lambda: run(on_gpu, products),
        "GPU, copied to the CPU": lambda: copy_to_device(run(on_gpu, products), cpu),
        "all at once": lambda: (copy_to_device(run(on_gpu, products), cpu), run(on_cpu, products)),
    }
    rows = interleaved(parts, count=rounds)
    total = per_round("CPU, then GPU and copies", float.__add__, rows["CPU"], rows["GPU, copied to the CPU"])
    story.table([*rows.values(), total], title="CPU, GPU and copies", base=total.name)
    recorded = timeline.record(parts["all at once"], name="CPU, GPU and copies", folder=story.traces)
    story.timeline(recorded, title="CPU, GPU and copies at once")
    found = ratio(total, rows["all at once"])
    story.claim(
        ours=statement,
        holds=found.above(),
        predicted=predicted,
        right=found.above(),
        observed=f"one after the other takes {found} times as long",
    )
