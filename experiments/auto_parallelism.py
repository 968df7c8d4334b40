# %% [markdown]
# # 8.3 Automatic parallelism
# Which operations does JAX run at the same time by itself, and what does that gain?
#
# After this section you can
# - tell which operations may run at the same time, and which must wait for each other;
# - keep two devices busy from a plain Python loop;
# - copy one result while the next is computed, load a batch while the device computes, and
#   measure whether it pays;
# - say why two products at once on one device gain little;
# - explain why `run` computes ten products, but `jax.jit(run)` only one.
#
# You need no GPU, but the book's two measurements do: the CPU beside a GPU, and copies from
# a GPU. A page made on a CPU says *not measurable here* about both, and shows
# figures of one GPU at the end. JAX can divide a CPU into several devices, if you ask
# before its first operation: `jax.config.update("jax_num_cpu_devices", 2)`. Here the set-up
# does it, and this section uses two of them. Such devices show *when* operations run. They
# do not show what a second device gains, because they share the same cores. If you have a
# GPU, the two devices are the CPU and the GPU.

# %%
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxperf.chapter.section import section
from jaxperf.measure import (
    Benchmark,
    count_ops,
    interleaved,
    timeline,
)
from jaxperf.result import ratio, ratio_of
from jaxperf.result.intervals import most_at_once

s = section("8.3", programs=45, cpu_devices=2, sizes=(1000, 1000), rounds=12,
            products=10, rows=2000, nodes=200, gpu={"sizes": (2000, 6000)},
            smoke={"sizes": (300, 300), "rounds": 6, "rows": 200, "nodes": 40},
            full={"sizes": (2000, 2000), "rounds": 150})
cpu = jax.devices("cpu")[0]
other = next(d for d in [*jax.devices(), *jax.devices("cpu")] if d != cpu)
xs = [jnp.full((n, n), 1e-3, device=d) for n, d in zip(s.sizes, (cpu, other))]

# %% [markdown]
# ## What depends on what
# [Section 8.2](async_computation) began with these lines:

# %%
a = jnp.ones((1, 2))
b = jnp.ones((1, 2))
c = a * b + 2
print(c)

# %% [markdown]
# `a` and `b` do not depend on each other, so they may be computed at the same time. `c`
# needs both. You need not declare this: each call gets arrays that may not be computed yet,
# and the runtime starts an operation when its inputs exist.
#
# MXNet's back end builds a graph of all pending operations and runs any that is ready. JAX
# has no such graph across calls. It finds independent work in two places:
# - **Between devices.** Each device works through its own queue, in order. Devices wait for
#   each other only where one needs the other's result.
# - **Inside one compiled program.** XLA sees all operations of a jitted function, and may
#   run independent ones at the same time.
#
# On *one* device, two separate calls from one thread do not overlap, because the queue is
# in order. Does that cost much?
#
# ## One operator uses the whole device
# A large product uses all cores of a CPU, or all of a GPU. Two products at once would each
# get half. Is it true? The CPU time does not show it, because a thread that waits in a loop
# uses CPU time, too. The *speed* shows it: we run the same work in a process that has
# threads for one core, and in one that has threads for all. (XLA's CPU client reads their
# number from `NPROC`.) As a control we run a loop in which each step needs
# the step before.
#
# <details><summary>Predict: how many times as fast is a product with all cores? And the
# loop?</summary>
#
# The rows of a product can be computed independently, so with a few equal cores it should
# be nearly as many times as fast as there are cores. The loop should hardly gain: each row
# needs the one before, and a row is too short to share.
#
# </details>

# %%
WORK = """
import sys, time
import jax, jax.numpy as jnp

side = int(sys.argv[1])
x, rows = jnp.full((side, side), 1 / side), jnp.ones((side, 2000))
product = jax.jit(lambda x: x @ x)
average = jax.jit(lambda x: jax.lax.scan(
    lambda m, row: (0.9 * m + 0.1 * row, None), x[0], x)[0])

def seconds(f, x):
    start = time.perf_counter()
    jax.block_until_ready([f(x) for _ in range(10)])
    return time.perf_counter() - start

for line in sys.stdin:  # a round
    print(seconds(product, x), seconds(average, rows), flush=True)
"""

# %% tags=["slow"]
def start_work(**settings):
    return subprocess.Popen(
        [sys.executable, "-c", WORK, str(s.sizes[0])], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=os.environ | {"JAX_PLATFORMS": "cpu"} | settings)

children = {"one core": start_work(NPROC="1"), "all cores": start_work()}
took = {name: [] for name in children}
for _ in range(1 + min(s.rounds, 20)):  # the first round compiles
    for name in random.sample(list(children), 2):
        print(file=children[name].stdin, flush=True)
        took[name].append(children[name].stdout.readline().split())
for child in children.values():
    child.communicate()  # no more rounds: it ends
one_core, all_cores = (np.array(took[name][1:], float).T for name in children)
product_gain, loop_gain = map(ratio_of, one_core / all_cores)
print(f"with all cores, {s.environment.cores} here, ten products:",
      f"{product_gain} times as fast")
print(f"the loop over rows: {loop_gain} times as fast")

# %% tags=["slow", "hide-input"]
cores = s.environment.cores
control = loop_gain.below(0.75 * cores)  # which must not pass the same test
s.claim("A product is nearly as many times as fast as there are cores",
        source="section 8.3",
        needs=["cores", "size"],
        holds=product_gain.above(0.75 * cores) if control else None,
        observed=f"{product_gain} times as fast; the loop, which is no such "
        f"operator, {loop_gain} times",
        expected=f"with {cores} cores over {0.75 * cores:g} times as fast as "
        "with one",
        if_holds=f"The product is {product_gain} times as fast with all "
        f"{cores} cores.",
        if_not=f"The product is {product_gain} times as fast with all {cores} "
        "cores. This cannot tell a product that leaves cores idle from cores "
        "that are not equal or share a limit, such as clock or memory.",
        if_open=f"With all cores, {cores} here, the product is {product_gain} "
        f"times as fast, and the loop {loop_gain} times. If there is only one, "
        "if the loop gains as much, or if other programs use the cores, that "
        "proves nothing.")
s.say(loop_gain.above(1.2),
      if_holds=f"The loop gains, too, {loop_gain} times, although its rows "
      "need each other. So the two processes differ in more than the cores "
      "that compute.",
      if_not="The loop, whose rows need each other, is "
      f"{loop_gain} times as fast with all cores.",
      if_open="The loop, whose rows need each other, is "
      f"{loop_gain} times as fast with all cores.")

# %% [markdown]
# Two kinds of parallelism can still gain something: *different* hardware works at once,
# such as a CPU and a GPU, or one part computes while another copies.
#
# ## 8.3.1 Parallel computation on the CPU and a GPU
# The book's `run` computes ten products, none of which needs another. The book times it on
# the CPU, then on a GPU, then on both. Here "both" is a plain loop that does not wait
# between the devices.

# %%
def run(x, products=s.products):
    return [jnp.dot(x, x) for _ in range(products)]

jax.block_until_ready([run(x) for x in xs])  # warm up

for x in xs:
    with Benchmark(f"Run on {x.device}.") as bench:
        bench.wait_for(run(x))
with Benchmark("Run on both in parallel.") as bench:
    bench.wait_for([run(x) for x in xs])

# %% [markdown]
# ::::{tab-set}
# :::{tab-item} Gluon
# ```python
# x_cpu = nd.random.uniform(shape=(2000, 2000))
# x_gpu = nd.random.uniform(shape=(6000, 6000), ctx=mx.gpu(0))
# with d2l.Benchmark('Run on both CPU and GPU in parallel.'):
#     run(x_cpu)
#     run(x_gpu)
#     nd.waitall()
# ```
# JAX has no `waitall`: wait for the outputs of *all* devices.
# :::
# :::{tab-item} PyTorch
# ```python
# x_gpu1 = torch.rand(size=(4000, 4000), device="cuda:0")
# x_gpu2 = torch.rand(size=(4000, 4000), device="cuda:1")
# run(x_gpu1)
# run(x_gpu2)
# torch.cuda.synchronize()       # jax.block_until_ready((ys1, ys2))
# ```
# :::
# ::::
#
# The loop looks serial. Is it? The profiler shows when each device worked.
#
# <details><summary>Predict: does the second device start only when the first has
# finished?</summary>
#
# No. `run(x)` only queues ten products and returns, long before they are computed. The loop
# then queues ten more on the other device, so both work at the same time.
#
# </details>

# %% tags=["slow"]
def run_on_all(xs):
    return [[jnp.dot(x, x) for _ in range(s.products)] for x in xs]

lanes = [timeline.lane_of(d) for d in (cpu, other)]
recorded = [timeline.record(run_on_all, xs) for _ in range(3)]
_, middle, _ = sorted(recorded, key=lambda r: timeline.overlap(r, *lanes))
shared = timeline.overlap(middle, *lanes)
s.timeline(middle,
           "Python queues everything at the start and then waits. Where the "
           "devices' bars lie under each other, they work at the same time.",
           words={"ynn_fusion": "product", "dot": "product"},  # XLA's names
           alt="A lane for Python and one for each device, with bars where "
           "they are busy, over milliseconds.")

# %% tags=["slow", "hide-input"]
s.claim("A loop over devices looks serial, but it runs in parallel",
        source="retelling in PyTorch", holds=shared > 0.5,
        needs=["cores", "size"],
        expected="over half of the less busy device's work overlaps",
        observed=f"{shared:.0%} overlaps, the median of three recordings",
        if_holds=f"{shared:.0%} of the less busy device's work overlaps: not "
        "serial.",
        if_not=f"Only {shared:.0%} of the less busy device's work overlaps.",
        if_open="To see it takes two cores, and products that take longer than "
        "their calls.")

# %% [markdown]
# What does *not* overlap? In the next loop, each product needs the one before, and the
# products alternate between the devices.
#
# <details><summary>Predict: how much of the devices' work overlaps now?</summary>
#
# Nothing, or almost nothing. One device always waits for the other, and the copies take
# extra time.
#
# </details>

# %% tags=["slow"]
def chain(count=s.products):
    y = jax.device_put(xs[0], cpu)
    here = {d: jax.device_put(y, d) for d in (cpu, other)}
    for i in range(count):
        device = (cpu, other)[i % 2]
        y = jnp.dot(jax.device_put(y, device), here[device])
    return y

turns = timeline.record(chain)
chained = timeline.overlap(turns, *(timeline.lane_of(d) for d in (cpu, other)))
s.timeline(turns, "A chain over two devices.",
           words={"ynn_fusion": "product", "dot": "product"},
           alt="A lane for each device, with a bar for each product, over "
           "milliseconds.")
print(f"{chained:.0%} of the less busy device's work overlaps")

# %% tags=["slow", "hide-input"]
s.claim("A chain over two devices does not overlap", holds=chained < 0.1,
        expected="under 10% overlaps", observed=f"{chained:.0%} overlaps",
        if_holds="The devices take turns. More devices help only where there "
        "is independent work. A model that is split by layers is such a "
        "chain; the pipeline of section 8.8 gives it independent work.",
        if_not=f"{chained:.0%} overlaps, although each product needs the one "
        "before: look at the lanes.",
        if_open="This run does not decide it.")

# %% [markdown]
# Two devices that work at the same time need not save time. Where they share cores, both
# together may take as long as one after the other, or longer.

# %% tags=["slow"]
def one_after_the_other():
    return [jax.block_until_ready(run(x)) for x in xs]

apart = interleaved(
    {f"two devices: run on {x.device}": partial(run, x) for x in xs}
    | {"two devices: one after the other": one_after_the_other,
       "two devices: both": partial(run_on_all, xs)},
    count=min(s.rounds, 12))  # a round may take seconds
s.table(apart, title="Apart and together",
        base="two devices: one after the other")

# %% tags=["slow", "hide-input"]
by_two = ratio(apart["two devices: one after the other"],
               apart["two devices: both"])
s.claim("A CPU and a GPU take less time together than one after the other",
        source="section 8.3.1", holds=by_two.above(), needs=["gpu"],
        expected="one after the other takes longer than both together",
        observed=f"it takes {by_two} times as long",
        if_holds=f"One after the other takes {by_two} times as long as "
        "together.", if_not=f"Together they save nothing: {by_two}.",
        if_open="This page cannot judge it; the table of one GPU at the end "
        "can.")
s.claim("Two devices on the same cores gain little or nothing",
        source="section 8.3", holds=by_two.below(1.2),
        expected="one after the other takes at most 1.2 times as long",
        cannot="" if other.platform == "cpu"
               else "these are two devices, a CPU and a GPU",
        observed=f"it takes {by_two} times as long",
        if_holds=f"One after the other takes {by_two} times as long as both "
        "together. (Below 1, both together lose time.)",
        if_not=f"One after the other takes {by_two} times as long as both "
        "together, although both use the same cores. One possible reason is "
        "that one product leaves some of them idle.",
        if_open=f"One after the other takes {by_two} times as long as both "
        "together: this run cannot tell.")

# %% [markdown]
# Two CPU devices share the cores. Two GPUs have cores and memory of their own (not measured
# here).
#
# ## 8.3.2 Parallel computation and communication
# ![Two timelines of four results. Above, all results are computed and then copied. Below,
# each result is copied while the next one is computed, and only the last copy is left at
# the end.](images/compute_and_copy.svg "Computing all results before copying them, and
# copying while computing.")
#
# Results often have to leave the device that computed them. Here there *is* a dependency:
# `ys[i]` must be computed before it can be copied. But while `ys[i]` is computed, `ys[i-1]`
# can be copied. JAX can do that by itself if you request the copies right after the
# computation, with
# [`copy_to_host_async`](https://docs.jax.dev/en/latest/_autosummary/jax.Array.copy_to_host_async.html),
# and do not wait in between. `into` is memory that the host has already: new memory would
# take its own time ([section 8.2](async_computation)).

# %%
def copy_to_host(ys, into):
    for y in ys:
        y.copy_to_host_async()  # a request; returns at once
    for y, place in zip(ys, into):
        y.block_until_ready()
        with timeline.mark("copy", lane="copies"):  # for the figure below
            np.copyto(place, y)
    return list(into[: len(ys)])

@jax.jit
def averages(x):
    """Moving averages of the rows of x. Each row needs the one before."""
    def step(average, row):
        average = 0.9 * average + 0.1 * row
        return average, average
    return lax.scan(step, x[0], x)[1]

def work(x, count=s.products):
    return [averages(x) for _ in range(count)]

# %% [markdown]
# ::::{tab-set}
# :::{tab-item} Gluon
# ```python
# def copy_to_cpu(x):
#     return [y.copyto(mx.cpu()) for y in x]
#
# y = run(x_gpu)
# copy_to_cpu(y)
# nd.waitall()
# ```
# :::
# :::{tab-item} PyTorch
# ```python
# def copy_to_cpu(x, non_blocking=False):
#     return [y.to('cpu', non_blocking=non_blocking) for y in x]
#
# y = run(x_gpu1)
# y_cpu = copy_to_cpu(y, non_blocking=True)
# torch.cuda.synchronize()
# ```
# :::
# ::::
#
# A GPU has [engines that only
# copy](https://docs.nvidia.com/cuda/cuda-runtime-api/structcudaDeviceProp.html)
# (`asyncEngineCount` says how many). A CPU has no such engines: a copy needs a core, and a
# large product leaves none free. An array on a CPU device is also in the host's memory
# already, so `np.asarray` would not copy at all. We therefore compute something that uses
# one core, the moving averages, and let Python copy with `np.copyto` on another. On a GPU, a
# copy takes far longer than a product of the same size, so there, too, the averages are the
# better partner.

# %% tags=["slow"]
source = jax.device_put(jnp.ones((s.rows, 2000)), other)
host = np.ones((s.products, s.rows, 2000), np.float32)

def all_then_copy():
    return copy_to_host(jax.block_until_ready(work(source)), host)

def when_ready():
    return copy_to_host(work(source), host)

def by_turns():
    for place in host:
        np.copyto(place, averages(source))
    return list(host)

def keep_two():
    y = averages(source)
    for place in host[1:]:
        last, y = y, averages(source)
        np.copyto(place, last)
        del last  # the next result may have its memory
    np.copyto(host[0], y)
    return list(host)

# %% [markdown]
# The first two programs hold all ten results. They are the book's *compute, then copy* and
# *both together*. The other two hold few. `by_turns` computes one result, copies it, and
# drops it. `keep_two` queues the next result before it copies the last one, so the two can
# overlap, too.

# %% tags=["slow"]
ways = {"compute and copy: compute": lambda: work(source),
        "all, then copy": all_then_copy,
        "compute and copy: both": when_ready,
        "one at a time": by_turns, "keep two": keep_two}
copying = interleaved(ways, count=s.rounds)
s.table(copying, title="Ten results on the host", base="all, then copy")

# %% tags=["slow", "hide-input"]
few = timeline.record(
    lambda: copy_to_host(work(source, 4), host), name="compute and copy"
)
s.timeline(few,
           "Computing four results and copying each. A copy can begin when "
           "its result exists, and the last one has nothing to hide behind.",
           words={"wrapped_broadcast": "averages"},  # XLA's name
           alt="A lane for the device, with a bar for each result, and a lane "
           "for the copies, over milliseconds.")

# %% tags=["slow", "hide-input"]
by_overlap = ratio(copying["all, then copy"], copying["compute and copy: both"])
s.claim("Computing on a GPU and copying from it take less time together",
        source="section 8.3.2", holds=by_overlap.above(), needs=["gpu"],
        expected="both together take less time than all, then copy",
        observed=f"all, then copy takes {by_overlap} times as long",
        if_holds=f"Copying at the end takes {by_overlap} times as long as "
        "copying each result when it is ready.",
        if_not="Copying each result when it is ready saves no time over "
        f"copying at the end ({by_overlap}).",
        if_open=f"Copying at the end takes {by_overlap} times as long as "
        "copying each result when it is ready, on this machine.")

# %% tags=["slow", "hide-input"]
by_keeping_two = ratio(copying["one at a time"], copying["keep two"])
of_ten = ratio(copying["compute and copy: both"], copying["keep two"])
s.claim("With two results, copying one while the next is computed saves time",
        holds=by_keeping_two.above(), needs=["cores"],
        expected="one at a time takes longer than keeping two",
        observed=f"one at a time takes {by_keeping_two} times as long",
        if_holds=f"One at a time takes {by_keeping_two} times as long as "
        "keeping two.",
        if_not=f"Keeping two saves no time over one at a time: "
        f"{by_keeping_two}.",
        if_open=f"One at a time takes {by_keeping_two} times as long as "
        "keeping two: this run cannot tell.")
s.say(of_ten.above(),
      if_holds=f"Keeping all ten takes {of_ten} times as long as keeping two. "
      "One possible reason is new memory for ten results (section 8.2).",
      if_not=f"Keeping all ten takes {of_ten} times as long as keeping two.",
      if_open=f"Keeping all ten takes {of_ten} times as long as keeping two: "
      "this run cannot tell them apart.")

# %% [markdown]
# If both parts took as long together as alone, you could save at most the shorter of the
# two times. But they may share cores and memory. So compare whole programs, not a sum of
# times that were measured apart.
#
# ### Compute while data comes in
# A reader of the book sums the section up: *for example, compute while data is copied in*.
# This is the more common case: the host loads the next batch, and copies it to the device,
# while the device computes. If the training loop reads its loss in each step, Python waits
# meanwhile and cannot load. A second thread can:

# %%
def prefetch(load, count):
    """Load batch i + 1, and copy it to the device, while batch i is used."""
    with ThreadPoolExecutor(1) as loader:
        ahead = loader.submit(lambda: jax.device_put(load(0)))
        for i in range(1, count + 1):
            batch = ahead.result()
            if i < count:
                ahead = loader.submit(lambda i=i: jax.device_put(load(i)))
            yield batch

print(list(prefetch(lambda i: np.float32(i), 3)))

# %% [markdown]
# Our loader decodes a batch: it turns bytes into scaled floats. NumPy does this without
# Python's lock, so both threads can run at the same time.

# %%
pixels = np.random.default_rng(0).integers(0, 256, (s.rows, 2000), np.uint8)

def load(i):
    return np.sqrt((pixels + np.uint8(i)).astype(np.float32) / 255)

def train(batches):
    """Each step reads its result, as float(loss) does."""
    return [float(averages(X)[-1, 0]) for X in batches]

def in_turns():
    return train(jax.device_put(load(i), other) for i in range(s.products))

def ahead():
    return train(prefetch(lambda i: jax.device_put(load(i), other), s.products))

def load_only():
    for i in range(s.products):
        jax.block_until_ready(jax.device_put(load(i), other))

# %% tags=["slow"]
loaded = [jax.device_put(load(i), other) for i in range(s.products)]
chex.assert_trees_all_close(in_turns(), ahead())  # the same losses, in order
times = interleaved({"load, then compute": in_turns, "prefetch": ahead,
                     "load only": load_only,
                     "compute only": lambda: train(loaded)}, count=s.rounds)
s.table(
    times, title="Ten batches that the host loads", base="load, then compute"
)

# %% tags=["slow", "hide-input"]
hidden = ratio(times["load, then compute"], times["prefetch"])
s.claim("A batch that is loaded while the device computes saves time",
        source="a reader, section 8.3", holds=hidden.above(), needs=["cores"],
        expected="in turns takes longer than with a prefetching thread",
        observed=f"in turns takes {hidden} times as long",
        if_holds=f"Loading in turns takes {hidden} times as long as "
        "prefetching.",
        if_not=f"Prefetching saves nothing here ({hidden}).",
        if_open=f"In turns takes {hidden} times as long: this run cannot tell.")

# %% [markdown]
# ## 8.3.3 Inside one program
# `run` multiplies the same matrix ten times. What if we compile all of it?
#
# <details><summary>Predict: how many products does jax.jit(run) compute?</summary>
#
# One. The compiler sees that the ten products are equal, computes one, and returns it ten
# times. Without `jit`, each call is a separate program, so no compiler sees all ten
# products.
#
# </details>

# %%
def dots(fn, *args):
    return count_ops(jax.jit(fn).lower(*args).compile().as_text())["dot"]

def equal_products(x):
    return [jnp.dot(x, x) for _ in range(s.products)]

def different_products(xs):
    return [jnp.dot(x, x) for x in xs]

x = jax.random.uniform(jax.random.key(1), (64, 64))
operands = [x + i for i in range(s.products)]
equal, different = dots(equal_products, x), dots(different_products, operands)
print(
    f"products in the program: {equal} of equal operands, {different} of others"
)

# %% tags=["hide-input"]
s.claim("Under jit, the book's run is one product",
        holds=(equal, different) == (1, s.products),
        expected=f"1 product with equal operands, {s.products} with their own",
        observed=f"{equal} and {different}",
        if_holds="The compiler computes equal products once.",
        if_not=f"The compiled program has {equal} products.",
        if_open="This run does not decide it.")

# %% [markdown]
# So a benchmark of `jax.jit(run)` may measure a tenth of the work. Give each product its own
# operand, and check the number of operations in the compiled program, as `dots` does.
#
# ### On one H200
# With a GPU, the two devices are the CPU and the GPU. There, matrices of 2000 × 2000 were
# on the CPU, and of 6000 × 6000 on the GPU. That run timed the parts apart, so compare
# *together* with the sum of the two rows above it, and *prefetch* with *load, then compute*.
# Its copies hardly hid behind the averages; we did not find out why. That both together
# took less time than the CPU alone may be noise of the CPU's times.

# %% tags=["slow", "hide-input"]
s.on_one_gpu(
    {
        "run on the CPU": ("Apart and together", "two devices: run on cpu:0"),
        "run on the GPU": ("Apart and together", "two devices: run on cuda:0"),
        "both together": ("Apart and together", "two devices: both"),
        "compute": "compute and copy: compute",
        "copy": "compute and copy: copy",
        "compute and copy, together": "compute and copy: both",
        "load, then compute": "load, then compute",
        "prefetch": "prefetch",
    }
)

# %% [markdown]
# ## 8.3.4 Summary
# - Operations that do not need each other's results may run at the same time. JAX finds
#   them by itself.
# - One device runs separate calls of one thread in the order in which you made them.
#   Different devices work at once, even if you call them from a plain loop.
# - A large operator can use the whole device. A second one beside it then gains little, or
#   loses.
# - To copy a result while the next is computed, queue the next one first, and keep few
#   results. To load a batch while the device computes, use a thread. Measure whether it pays.
# - Inside one program the compiler sees all operations. It may run them in parallel, and
#   compute equal ones only once.
#
# ## 8.3.5 Exercises
# **1 (the book's).** `run` computes ten products that do not depend on each other. Are they
# executed in parallel? A reader answered: "They depend on each other, so they are not
# executed in parallel." Count how many products have begun and not ended at the same
# moment, when called one by one and as one program.

# %% tags=["answer", "slow"]
operands = [xs[0] + i for i in range(s.products)]
program = jax.jit(different_products)
lane = timeline.lane_of(cpu)
at_once = {}
ways = {
    "one by one": lambda: different_products(operands),
    "one program": lambda: program(operands),
}
for name, fn in ways.items():
    recorded = [timeline.record(fn, name=name) for _ in range(3)]
    at_once[name] = max(most_at_once(r.intervals(lane)) for r in recorded)
    print(f"{name}: at most {at_once[name]} begun and not ended")

# %% tags=["answer", "slow", "hide-input"]
s.claim("The ten products of run are not executed in parallel",
        source="a reader, section 8.3", holds=at_once["one by one"] == 1,
        expected="never two at once on one device",
        observed=f"{at_once['one by one']} at once",
        if_holds="Called one by one, the products ran one after the other.",
        if_not=f"Called one by one, {at_once['one by one']} ran at once.",
        if_open="This run does not decide it.")
s.claim("In one program, a product begins before the one before has ended",
        source="section 8.3", holds=at_once["one program"] > 1,
        needs=["cores"], expected="at least two have begun and not ended",
        observed=f"{at_once['one program']} at one moment",
        if_holds=f"In one program, {at_once['one program']} products had begun "
        "and not ended at one moment. (Some of them may wait for a core.)",
        if_not="In one program, the products ran one after the other in these "
        "recordings.",
        if_open="With one core, products cannot run at the same time.")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Whatever the verdict, the reader's reason is wrong. The products do *not* depend on each
# other: all read `x`, and none reads another's result. Where they run one after the other, it
# is because a device works through its queue in order. In one compiled program, XLA may
# begin several at once. They share the cores, so do not expect much.
#
# </details>
#
# **2 (the book's).** Design a task with more complex dependencies. Is the result correct
# when JAX parallelizes it, and is it faster? Use integers: they overflow in the same way
# everywhere, so the result must equal NumPy's in every bit.

# %% tags=["answer"]
# number of inputs
OPS = {"add": 2, "subtract": 2, "maximum": 2, "dot": 2, "flip": 1}

def random_graph(seed):
    """Operations, each of earlier values and on a random device."""
    rng, graph = random.Random(seed), []
    for known in range(4, 4 + s.nodes):
        op = rng.choice(list(OPS))
        recent = max(
            0, known - 30
        )  # mostly recent values, so that chains are long
        graph.append(
            (op, rng.sample(range(recent, known), OPS[op]), rng.randrange(2))
        )
    return graph

def leaves(seed, side=64):
    draw = np.random.default_rng(seed).integers
    return [draw(-(2**31), 2**31, (side, side), np.int32) for _ in range(4)]

def run_graph(graph, values, devices, wait=False):
    for op, inputs, number in graph:
        operands = [jax.device_put(values[i], devices[number]) for i in inputs]
        values = [*values, getattr(jnp, op)(*operands)]
        if wait:
            values[-1].block_until_ready()
    return values

def by_numpy(graph, values):
    for op, inputs, _ in graph:
        values = [*values, getattr(np, op)(*(values[i] for i in inputs))]
    return values

# %% tags=["answer"]
def equal_in_every_bit(seed):
    graph, start = random_graph(seed), leaves(seed)
    pairs = zip(run_graph(graph, start, (cpu, other)), by_numpy(graph, start))
    return all(np.array_equal(a, b) for a, b in pairs)

correct = sum(equal_in_every_bit(seed) for seed in range(5))
print(f"{correct} of 5 graphs equal NumPy's in every bit")

# %% tags=["answer", "hide-input"]
s.claim("Complex dependencies are respected", source="section 8.3, exercise 2",
        holds=correct == 5,
        expected=f"all {s.nodes} values of 5 graphs equal NumPy's in every bit",
        observed=f"{correct} of 5 graphs are equal",
        if_holds="All values are as if each operation had waited for its "
        "inputs.",
        if_not=f"Only {correct} of 5 graphs are right: a bug, please report "
        "it.", if_open="This run does not decide it.")

# %% tags=["answer", "slow"]
alone = [cpu] * 2
graph, start = random_graph(0), jax.device_put(leaves(0), cpu)
ways = {
    "each operation waited for": lambda: run_graph(
        graph, start, alone, wait=True
    ),
    "not waited for": lambda: run_graph(graph, start, alone),
    "on two devices": lambda: run_graph(graph, start, (cpu, other)),
}
times = interleaved(ways, count=s.rounds)
s.table(times, title=f"A graph of {s.nodes} operations", base="not waited for")
gain = ratio(times["not waited for"], times["on two devices"])

# %% tags=["answer", "slow", "hide-input"]
s.claim("Two devices compute such a task faster than one",
        source="section 8.3, exercise 2", holds=gain.above(),
        expected="less time on two devices", needs=["gpu"],
        observed=f"{gain} times as fast",
        if_holds=f"Two devices are {gain} times as fast.",
        if_not=f"Two devices are not faster ({gain}): the copies and calls "
        "take longer.", if_open="Two parts of one CPU cannot show it.")

# %% [markdown]
# <details><summary>Answer</summary>
#
# JAX must respect the dependencies, although nobody declared them. An operation that started
# too early would read unfinished values, and some bit would differ.
#
# Whether it is faster depends on the size. The first two rows differ by the cost of waiting
# after each operation. The third row adds copies between devices, and a CPU that is divided
# into two devices cannot show what a second device gains. Two real devices gain only if an
# operation takes longer than its call and the copies that it needs. Try `side=512`.
#
# </details>
#
# **3 (the book's).** If operators are small enough, parallel computation on a single CPU or
# GPU can help, too. Design an experiment. A reader measured ten 20 × 20 products: 0.0006 s
# on a CPU and 0.0000 s on a GPU. What is wrong with the second figure?

# %% tags=["answer", "slow"]
x = jax.device_put(jnp.ones((20, 20)), cpu)
run(x, 10)  # warm up
with Benchmark(
    "As the reader did: ten calls, not waited for.", show=None
) as bench:
    outputs = run(x, 10)
print(
    f"{bench.label} {1e6 * bench.seconds:.0f} µs; the reader: 600 µs on a CPU"
)
with Benchmark("Ten calls, waited for.", show=None) as bench:
    bench.wait_for(run(x, 10))
print(f"{bench.label} {1e6 * bench.seconds:.0f} µs")

# %% tags=["answer", "slow"]
SMALL = 20, 50, 100, 200, 400

def ways_to_multiply(n, count=10):
    xs = [jax.device_put(jnp.full((n, n), 1.0 + i), cpu) for i in range(count)]
    program, batch, stacked = (
        jax.jit(different_products),
        jax.jit(jax.vmap(jnp.dot)),
        jnp.stack(xs),
    )
    return {
        "called one by one": lambda: different_products(xs),
        "one program": lambda: program(xs),
        "one batch (vmap)": lambda: batch(stacked, stacked),
    }

small = {n: interleaved(ways_to_multiply(n), count=2 * s.rounds) for n in SMALL}
rows = []
for n, times in small.items():
    calls, program, batch = times.values()
    rows.append((f"{n} × {n}", f"{1e6 * calls.median:.3g}",
                 ratio(calls, program), ratio(calls, batch)))
s.grid(("ten products of", "called one by one (µs)",
        "one program, times as fast", "one batch, times as fast"), rows,
       title="Ten small products in three ways")

# %% tags=["answer", "slow", "hide-input"]
n = min(SMALL)
calls, program, batch = small[n].values()
by_batch, by_program = ratio(calls, batch), ratio(calls, program)
s.claim("One batch of ten 20 × 20 products is faster than ten calls",
        source="section 8.3, exercise 3", holds=by_batch.above(),
        expected="ten calls take longer",
        observed=f"ten calls take {by_batch} times as long",
        if_holds=f"One batch of {n} × {n} products is {by_batch} times as fast "
        "as ten calls.",
        if_not=f"One batch of {n} × {n} products is {by_batch} times as fast "
        "as ten calls: no faster.",
        if_open=f"One batch of {n} × {n} products is {by_batch} times as fast "
        "as ten calls: this run cannot tell.")
s.say(by_program.above(),
      if_holds=f"One program of ten {n} × {n} products is {by_program} times "
      "as fast as ten calls.",
      if_not=f"One program of ten {n} × {n} products is {by_program} times as "
      "fast as ten calls. So fewer calls alone need not save time. We did not "
      "look for the reason.",
      if_open=f"One program of ten {n} × {n} products is {by_program} times as "
      "fast as ten calls: this run cannot tell.")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The clock stopped when the calls had returned. The results were not ready: the reader's
# `nd.waitall()` comes after both measurements. So both figures are queueing times, and the
# second was rounded to zero.
#
# A product of 20 × 20 needs 16,000 floating-point operations, which take less time than the
# call. So more cores cannot help there. Fewer calls can, but need not. A product of some
# hundred rows computes for longer than its call, but may be too small to keep all cores
# busy. Then several at once can help, as the book expects. Read the columns from top to
# bottom: near 1, one product uses the whole device, and the choice does not matter.
#
# </details>
#
# **4.** Look at the four programs of 8.3.2 that bring ten results to the host. In which two
# can nothing overlap, and which need memory for ten results? Write one in which computing
# and copying overlap.
#
# Check it with `jaxperf check 8.3.4 mine.py`: `mine.py` defines `fetch_all(f, xs)`, which
# returns the results `f(x)` as NumPy arrays and lets copies and computations overlap.
#
# <details><summary>Answer</summary>
#
# Nothing overlaps in `by_turns` and `all_then_copy`, because the device has nothing to do
# while Python copies. In the first, the next computation is not queued yet, and in the
# second none is left. `all_then_copy` and `when_ready` need memory for ten results.
# `when_ready` is the program that the check wants. A training loop that calls `float(loss)`
# in each step works like `by_turns`.
#
# </details>
#
# **5.** A loader needs twice as long for a batch as the device for a step. What can
# prefetching gain at most, and what would you do next?
#
# <details><summary>Answer</summary>
#
# With times of 2 and 1, in turns takes 3, and prefetching takes 2, if neither slows down the
# other: a factor of 1.5. Then the loader is the limit, and the device is idle half of the time. Use two
# loading threads or processes, load bytes and decode on the device ([section
# 8.0](performance_model), rung 4), or keep the data there.
#
# </details>
