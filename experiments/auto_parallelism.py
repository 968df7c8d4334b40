# %% [markdown]
# # 8.3 Automatic parallelism
# Which operations does JAX run at the same time by itself, and what does that gain?
#
# After this section you can
# - tell which operations may run at the same time, and which must wait for each other;
# - keep two devices busy from a plain Python loop;
# - copy one result while the next is computed;
# - say why two products at once on one device gain little;
# - explain why `run` computes ten products, but `jax.jit(run)` only one.
#
# You need no GPU. JAX can divide a CPU into two devices, if you set this before its first
# operation: `jax.config.update("jax_num_cpu_devices", 2)`. Here `section` does it. Such
# devices show *when* operations run. They do not show what a second device gains, because
# they share the same cores. If you have a GPU, the two devices are the CPU and the GPU.

# %%
import random
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import lax

from jaxperf.measure import Benchmark, count_ops, interleaved, timeline, together
from jaxperf.result import ratio, ratio_of
from jaxperf.result.intervals import most_at_once
from jaxperf.section import section

s = section("8.3", programs=30, cpu_devices=2, size=1000, gpu_size=6000, products=10, rounds=12,
            copied=4_000_000, powers=200, nodes=200, node_size=64,
            small=(20, 50, 100, 200, 400),
            smoke={"size": 400, "gpu_size": 500, "rounds": 6, "copied": 100_000, "powers": 10,
                   "nodes": 40, "node_size": 16, "small": (20, 50)},
            full={"size": 2000, "rounds": 20})

cpus = jax.devices("cpu")[:2]
real = jax.default_backend() == "gpu"  # a CPU and a GPU, not one CPU divided
assert len(cpus) > 1, "this section needs two CPU devices"
devices = [cpus[0], jax.devices()[0]] if real else cpus
cores = s.environment.cores
print(f"devices {devices}, {cores} cores")

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
# On *one* device, two separate calls do not overlap, because the queue is in order. That
# costs less than it seems, as the next part shows.
#
# ## One operator uses the whole device
# A large product uses all cores of a CPU, or all of a GPU. Two products at once would each
# get half. The CPU time shows this. It adds up the seconds of all cores, so CPU time
# divided by elapsed time is the number of busy cores.
#
# <details><summary>Predict: how many cores does one product of large matrices use? And a
# loop in which each step needs the step before?</summary>
#
# The product uses all of them, because its rows can be computed independently. The loop
# uses fewer than two: one core computes, and other threads of the process add up to 0.8. On
# CPU devices, a third line shows that they share the cores: two products together cannot
# use more cores than one alone.
#
# </details>

# %%
def run(x, products=s.products):
    return [jnp.dot(x, x) for _ in range(products)]

@jax.jit
def averages(x):
    """Moving averages of the rows of x. Each row needs the one before."""
    def step(average, row):
        average = 0.9 * average + 0.1 * row
        return average, average
    return lax.scan(step, x[0], x)[1]

def busy_cores(fn):
    """The most cores in any round, since other programs can only take cores away."""
    jax.block_until_ready(fn())  # compiles
    most = 0.0
    for _ in range(s.rounds):
        cpu_time, start = time.process_time(), time.perf_counter()
        jax.block_until_ready(fn())
        elapsed = time.perf_counter() - start
        most = max(most, (time.process_time() - cpu_time) / elapsed)
    return most

# %% tags=["slow"]
def square(device):
    n = s.gpu_size if device.platform == "gpu" else s.size
    return jax.device_put(jax.random.uniform(jax.random.key(0), (n, n)), device)

xs = [square(d) for d in devices]
on_host = [square(d) for d in cpus]
rows = jax.device_put(jnp.ones((100, s.copied // 100)), cpus[0])
busy = {"ten products, one device": busy_cores(lambda: run(on_host[0])),
        "a loop over rows": busy_cores(lambda: [averages(rows) for _ in range(4)])}
if not real:
    busy["ten products on each of two devices"] = busy_cores(lambda: [run(x) for x in xs])
for name, most in busy.items():
    print(f"{name}: {most:.1f} of {cores} cores busy")

most = busy["ten products, one device"]
s.claim("One operator uses all cores of a CPU", source="section 8.3", since="2026-11-26",
        holds=most > 0.75 * cores or None, observed=f"{most:.1f} cores",
        expected=f"over 75% of {cores} cores in some round",
        first="over 75% in the median round; a busy machine gave 1 of 2 cores",
        cannot="there is only one core" * (cores == 1))

# %% [markdown]
# If other programs use all cores the whole time, a lower number proves nothing, so the
# claim is then undecided, not refuted. Two kinds of parallelism can still gain something:
# *different* hardware works at once, such as a CPU and a GPU, or one part computes while
# another copies.
#
# ## 8.3.1 Parallel computation on the CPU and a GPU
# The book's `run` computes ten products, none of which needs another. The book times it on
# the CPU, then on a GPU, then on both. Here "both" is a plain loop that does not wait
# between the devices.

# %% tags=["slow"]
def run_on_all(xs):
    return [run(x) for x in xs]

jax.block_until_ready(run_on_all(xs))  # warm up: compile and start the threads

for x in xs:
    with Benchmark(f"Run on {x.device}.") as bench:
        bench.wait_for(run(x))
with Benchmark("Run on both in parallel.") as bench:
    bench.wait_for(run_on_all(xs))

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
lanes = [timeline.lane_of(d) for d in devices]
recorded = [timeline.record(run_on_all, xs) for _ in range(3)]
both = max(recorded, key=lambda r: timeline.overlap(r, *lanes))  # the least disturbed one
s.timeline(both, "Python queues everything at the start and then waits. The devices' bars "
                 "lie under each other: the loop is not serial.")
shared = timeline.overlap(both, *lanes)
s.claim("A loop over devices looks serial, but it runs in parallel",
        source="retelling in PyTorch", holds=shared > 0.5, since="2026-11-26",
        expected="more than half of the less busy device's work overlaps",
        first="the same of a single recording; a busy machine gave 0% and 48% at toy sizes",
        observed=f"{shared:.0%} overlaps in the best of three recordings")

# %% [markdown]
# Two devices that work at the same time need not save time. At worst, both together take as
# long as one after the other. At best, they take as long as the slower one.

# %% tags=["slow"]
parts = {f"run on {x.device}": lambda x=x: run(x) for x in xs}
parallel_run = together("two devices", {**parts, "both": lambda: run_on_all(xs)}, count=s.rounds)
s.table(parallel_run.rows(), title="Apart and together", base=parallel_run.total.name)
saved = ratio_of(parallel_run.overlap.values)
s.claim("A CPU and a GPU take less time together than one after the other",
        source="section 8.3.1", holds=parallel_run.ratio.above(),
        expected="the sum takes longer than both together",
        observed=f"the sum takes {parallel_run.ratio} times as long", since="2026-11-26",
        cannot="" if real else "this needs a GPU; two CPU devices share the same cores")
if not real:
    s.claim("Several operators at once on the same cores gain little", source="section 8.3",
            holds=saved.at_most(0.25), expected="at most 25% of the possible saving",
            observed=f"{saved} of it", since="2026-11-26")

# %% [markdown]
# On CPU devices, compare the row "both" with the sum: the products share the cores, so they
# take about as long as one after the other. Two GPUs have cores and memory of their own, so
# they should take less (not measured here). For one H200 and its host, the sum took 1.59
# (1.26 to 1.70) times as long as both together (JAX 0.11.2, 2026-11-27).
#
# ## 8.3.2 Parallel computation and communication
# ![Two timelines of four results. Above, all results are computed and then copied. Below,
# each result is copied while the next one is computed, and only the last copy is left at
# the end.](images/compute_and_copy.svg)
#
# Results often have to leave the device that computed them. Here there *is* a dependency:
# `ys[i]` must be computed before it can be copied. But while `ys[i]` is computed, `ys[i-1]`
# can be copied. JAX does that by itself if you request the copies right after the
# computation, with
# [`copy_to_host_async`](https://docs.jax.dev/en/latest/_autosummary/jax.Array.copy_to_host_async.html),
# and do not wait in between:

# %%
def copy_to_host(ys):
    for y in ys:
        y.copy_to_host_async()  # a request; returns at once
    copies = []
    for y in ys:
        y.block_until_ready()
        with timeline.mark("copy", lane="copies"):  # for the figure below
            copies.append(np.array(y))
    return copies

@jax.jit
def power(x):
    """A power of x: many products, and one result."""
    return lax.fori_loop(0, s.powers, lambda _, y: jnp.dot(y, x), x)

def work(x, count=s.products):
    return [power(x) if real else averages(x) for _ in range(count)]

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
# (`asyncEngineCount` says how many), so a copy need not slow down the computation (not
# measured here). A CPU has no such engines: a copy needs a core, and a large product leaves
# none free. An array on a CPU device is also in the host's memory already, so `np.asarray`
# would not copy at all. On a CPU, therefore, we compute something that uses one core, the
# moving averages, and let Python copy with `np.array` on another.
#
# On a GPU, a copy takes far longer than a product. One H200 (JAX 0.11.2, 2026-11-27)
# computes 354 to 368 TFLOP/s, but copies 1.4 to 1.6 GB/s to the host's ordinary memory. A
# product of 6000 × 6000 takes 1.2 ms, and copying its result takes 90 to 103 ms, so there
# is almost nothing to save. So on a GPU we compute a power of a smaller matrix. It needs
# many products for one copy, and both parts take milliseconds.

# %% tags=["slow"]
n = 2 * s.size
source = jax.device_put(jnp.full((n, n), 1 / n), devices[1]) if real else rows
parallel_run = together("compute and copy", {
    "compute": lambda: work(source),
    "copy": copy_to_host,
    "both": lambda: copy_to_host(work(source)),
}, before={"copy": lambda: work(source)}, count=max(6, s.rounds // 2) if real else 2 * s.rounds)
s.table(parallel_run.rows(), title="Computing, then copying, and both", base=parallel_run.total.name)

gain, less_time = parallel_run.ratio, "both together take less time than the sum"
observed = f"the sum takes {gain} times as long, {parallel_run.possible.median:.2f} at best"
s.claim("Computing on a GPU and copying from it take less time together",
        source="section 8.3.2", holds=gain.above(), expected=less_time, observed=observed,
        since="2026-11-26", cannot="" if real else "this needs a GPU")
if not real:
    s.claim("While one core computes, another can copy", holds=gain.above(),
            expected=less_time, observed=observed, since="2026-11-26",
            cannot="there is only one core" * (cores == 1))

# %% tags=["slow"]
few = timeline.record(lambda: copy_to_host(work(source, 4)), name="compute and copy")
s.timeline(few, "Each copy begins when its result exists, while the device computes the "
                "next one. Only the last copy has nothing to hide behind.")

# %% [markdown]
# (If copying beside computing does not save time in your run, no second core was free.)
# You can save at most the shorter of the two times. If a copy takes ten times as long as
# computing a result, you save less than a tenth. On one H200, computing and copying
# together were 1.13 (1.06 to 1.47) times as fast as one after the other, where 1.63 was
# possible (JAX 0.11.2, 2026-11-27).
#
# ## Inside one program
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
    return count_ops(jax.jit(fn).lower(*args).compile().as_text() or "")["dot"]

def each(xs):
    return [jnp.dot(x, x) for x in xs]

x = jax.random.uniform(jax.random.key(1), (64, 64))
operands = [x + i for i in range(s.products)]
equal, different = dots(run, x), dots(each, operands)
print(f"products in the program: {equal} if the operands are equal, {different} if not")
s.claim("Under jit, the book's run is one product",
        holds=(equal, different) == (1, s.products),
        expected=f"1 product with equal operands, {s.products} with operands of their own",
        observed=f"{equal} and {different}", since="2026-11-26")

# %% [markdown]
# A benchmark of `jax.jit(run)` therefore measures a tenth of the work. Give each product
# its own operand, and check the number of operations in the compiled program, as this cell
# does.
#
# ## Summary
# - Operations that do not need each other's results may run at the same time. JAX finds
#   them by itself.
# - One device runs separate calls in the order in which you made them. Different devices
#   work at once, even if you call them from a plain loop.
# - A large operator already uses the whole device. A second one beside it gains little.
# - Request copies right after computing, without waiting. Then a result is copied while the
#   next is computed. This saves at most the shorter of the two times.
# - Inside one program the compiler sees all operations. It may run them in parallel, and it
#   computes equal ones only once.
#
# ## Exercises
# **1 (the book's).** `run` computes ten products that do not depend on each other. Are they
# executed in parallel? A reader answered: "They depend on each other, so they are not
# executed in parallel." Count how many products run at the same moment, when called one by
# one and as one program.

# %% tags=["answer", "slow"]
x = on_host[0]
operands = [x + i for i in range(s.products)]
program = jax.jit(each)
lane = timeline.lane_of(cpus[0])
at_once = {}
ways = {"one by one": lambda: each(operands), "one program": lambda: program(operands)}
for name, fn in ways.items():
    recorded = [timeline.record(fn, name=name) for _ in range(3)]
    at_once[name] = max(most_at_once(r.intervals(lane)) for r in recorded)
    s.timeline(recorded[-1], f"Ten products, {name}.")
    print(f"{name}: at most {at_once[name]} at once")

s.claim("The ten products of run are not executed in parallel", since="2026-11-26",
        source="a reader, section 8.3", holds=at_once["one by one"] == 1,
        expected="never two at once on one device",
        observed=f"{at_once['one by one']} at once")
s.claim("The system can execute independent tasks in parallel", source="section 8.3",
        holds=at_once["one program"] > 1 or None,
        expected="in one program, at least two at once",
        first="the same, but one at once was a refutation; a busy machine gave it at toy size",
        observed=f"{at_once['one program']} at once", since="2026-11-26",
        cannot="there is only one core" * (cores == 1))

# %% [markdown]
# <details><summary>Answer</summary>
#
# The reader's conclusion is right for one device, but the reason is wrong. The products do
# *not* depend on each other: all read `x`, and none reads another's result. They run one
# after the other because a device works through its queue in order. In one compiled
# program, XLA may run several at once. Then each of them gets fewer cores, so do not expect
# much.
#
# </details>
#
# **2 (the book's).** Design a task with more complex dependencies. Is the result correct
# when JAX parallelizes it, and is it faster? Use integers: they overflow in the same way
# everywhere, so the result must equal NumPy's in every bit.

# %% tags=["answer"]
OPS = {"add": 2, "subtract": 2, "maximum": 2, "dot": 2, "flip": 1}  # number of inputs

def random_graph(seed):
    """Operations, each of earlier values and on a random device."""
    rng, graph = random.Random(seed), []
    for known in range(4, 4 + s.nodes):
        op = rng.choice(list(OPS))
        recent = max(0, known - 30)  # mostly recent values, so that chains are long
        graph.append((op, rng.sample(range(recent, known), OPS[op]), rng.randrange(2)))
    return graph

def leaves(seed):
    draw = np.random.default_rng(seed).integers
    return [draw(-(2**31), 2**31, (s.node_size, s.node_size), np.int32) for _ in range(4)]

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
    pairs = zip(run_graph(graph, start, devices), by_numpy(graph, start))
    return all(np.array_equal(a, b) for a, b in pairs)

correct = sum(equal_in_every_bit(seed) for seed in range(5))
s.claim("Complex dependencies are respected", source="section 8.3, exercise 2",
        holds=correct == 5,
        expected=f"all {s.nodes} values of 5 graphs equal NumPy's in every bit",
        observed=f"{correct} of 5 graphs are equal", since="2026-11-26")

# %% tags=["answer", "slow"]
alone = [cpus[0]] * 2
graph, start = random_graph(0), jax.device_put(leaves(0), cpus[0])
ways = {"each operation waited for": lambda: run_graph(graph, start, alone, wait=True),
        "not waited for": lambda: run_graph(graph, start, alone),
        "on two devices": lambda: run_graph(graph, start, devices)}
times = interleaved(ways, count=s.rounds)
s.table(times, title=f"A graph of {s.nodes} operations", base="not waited for")
gain = ratio(times["not waited for"], times["on two devices"])
s.claim("Two devices compute such a task faster than one", source="section 8.3, exercise 2",
        holds=gain.above(), expected="less time on two devices", since="2026-11-26",
        observed=f"{gain} times as fast",
        cannot="" if real else "this needs two real devices")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The result is correct in every bit, although nobody declared the dependencies. An
# operation that started too early would have read unfinished values.
#
# Whether it is faster depends on the size. The first two rows differ by the cost of waiting
# after each operation. The third row adds copies between devices, and a CPU that is divided
# into two devices cannot show what a second device gains. Two real devices gain only if an
# operation takes longer than its call and the copies that it needs. Try `--node-size 512`.
#
# </details>
#
# **3 (the book's).** If operators are small enough, parallel computation on a single CPU or
# GPU can help, too. Design an experiment. A reader measured ten 20 × 20 products: 0.0006 s
# on a CPU and 0.0000 s on a GPU. What is wrong with the second figure?

# %% tags=["answer", "slow"]
x = jax.device_put(jnp.ones((20, 20)), cpus[0])
run(x, 10)  # warm up
with Benchmark("As the reader did: ten calls, not waited for.", show=None) as bench:
    outputs = run(x, 10)
print(f"{bench.label} {1e6 * bench.seconds:.0f} µs; the reader: 600 µs on a CPU")
with Benchmark("Ten calls, waited for.", show=None) as bench:
    bench.wait_for(run(x, 10))
print(f"{bench.label} {1e6 * bench.seconds:.0f} µs")

# %% tags=["answer", "slow"]
def ways_to_multiply(n, count=10):
    xs = [jax.device_put(jnp.full((n, n), 1.0 + i), cpus[0]) for i in range(count)]
    program, batch, stacked = jax.jit(each), jax.jit(jax.vmap(jnp.dot)), jnp.stack(xs)
    return {"called one by one": lambda: each(xs),
            "one program": lambda: program(xs),
            "one batch (vmap)": lambda: batch(stacked, stacked)}

small = {n: interleaved(ways_to_multiply(n), count=2 * s.rounds) for n in s.small}
n = min(s.small)
s.table(small[n], title=f"Ten products of {n} × {n}", base="called one by one")

fig, ax = plt.subplots()
for way in small[n]:
    ax.plot(s.small, [1e6 * small[m][way].median for m in s.small], "o-", label=way)
ax.set(xlabel="rows and columns", ylabel="µs for ten products", xscale="log", yscale="log")
ax.legend()
s.figure(fig, "Where the lines meet, computing takes the time. To the left, calling does.")

fewer = {way: ratio(small[n]["called one by one"], small[n][way])
         for way in ("one program", "one batch (vmap)")}
s.claim("Small operators are faster in parallel on one device",
        source="section 8.3, exercise 3", since="2026-11-26",
        holds=fewer["one batch (vmap)"].above(),
        expected=f"as one batch of {n} × {n}, faster than ten calls",
        observed=", ".join(f"{way} {gain} times as fast" for way, gain in fewer.items()),
        first="one program or one batch is faster; in an earlier run one program took "
              "longer than ten calls, and the batch decided")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The clock stopped when the calls had returned. The results were not ready: the reader's
# `nd.waitall()` comes after both measurements. So both figures are queueing times, and the
# second was rounded to zero.
#
# A product of 20 × 20 needs 16,000 floating-point operations, which take less time than the
# call. So the gain comes from fewer calls, not from more cores. (The verdict above is about
# the time, not about its cause.) With `vmap` there is one call with one input array and one
# output array. One program of ten products is one call, too, but JAX must check ten
# arguments and make ten output arrays. This can take longer than ten cached calls, as in an
# earlier run on two cores. On other machines one program is faster. Look at your own table,
# and stack the operands if you can. Where the lines meet, the choice no longer matters.
#
# </details>
#
# **4.** Three programs need ten results on the host. The first calls and fetches in turns:
# `[np.array(averages(x)) for _ in range(10)]`. The second computes all, waits for all, and
# then fetches. The third is `copy_to_host(work(x))`. Which is fastest, and which two are
# alike?
#
# Check it with `jaxperf check 8.3.4 mine.py`: `mine.py` defines `fetch_all(f, xs)`, which
# returns the results `f(x)` as NumPy arrays and lets copies and computations overlap.

# %% tags=["answer", "slow"]
def in_turns():
    return [np.array(work(source, 1)[0]) for _ in range(s.products)]

def all_then_copy():
    return [np.array(y) for y in jax.block_until_ready(work(source))]

ways = {"in turns": in_turns, "all, then copy": all_then_copy,
        "copy when ready": lambda: copy_to_host(work(source))}
orders = interleaved(ways, count=s.rounds)
s.table(orders, title="Ten results on the host", base="copy when ready")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The first two are alike: nothing overlaps, because the device has nothing to do while
# Python copies. In the first program the next computation is not queued yet, and in the
# second none is left. The first may still be the faster of the two, because it drops each
# result and can reuse its memory. The third overlaps computing and copying. If it is not
# the fastest in your table, no core was free for the copies. A training loop that calls
# `float(loss)` in each step works like the first program.
#
# </details>
#
# **5.** A chain of products alternates between the devices: `y = dot(y, x)` on one, then on
# the other, and so on. How much of the devices' work overlaps?

# %% tags=["answer", "slow"]
def chain(count=s.products):
    y = on_host[0]
    for i in range(count):
        x = on_host[i % 2]
        y = jnp.dot(jax.device_put(y, x.device), x) / len(x)
    return y

turns = timeline.record(chain)
lanes = [timeline.lane_of(x.device) for x in on_host]
s.timeline(turns, "A chain over two devices: they take turns.")
print(f"{timeline.overlap(turns, *lanes):.0%} overlaps")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Almost nothing. Each product needs the one before, so one device always waits for the
# other, and the copies take extra time. More devices help only if there is independent
# work. A model that is split by layers is such a chain; [pipelining](model_parallelism)
# gives it independent work.
#
# </details>
