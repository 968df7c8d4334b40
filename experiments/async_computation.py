# %% [markdown]
# # 8.2 Asynchronous computation
# When does a call return, when is its result ready, and what do you gain if you do not
# wait?
#
# After this section you can
# - time a JAX program correctly, and say what a wrong timing measures;
# - say which operations make Python wait, and in which line a late error appears;
# - predict a loop's time from three numbers, $t_1$, $t_2$ and $t_3$;
# - bound the memory of a program that never waits;
# - decide whether your training loop should read the loss in every step.
#
# JAX is asynchronous to be fast. If you know how this works, you can write faster programs.
# You can also make a program slower *on purpose* to save memory. You need no GPU.

# %%
import ctypes
import logging
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import psutil

from jaxperf.measure import (
    MemorySampler,
    compile_together,
    device_memory,
    dispatch,
    interleaved,
    pending,
    probe,
)
from jaxperf.measure.keep_awake import cores_awake
from jaxperf.result import Measurement, both, ratio
from jaxperf.section import section

s = section("8.2", programs=80, cpu_devices=2, size=2000, gpu_size=10_000, calls=1000,
            points=13, rounds=9, batches=40, batch_size=256, window=2,
            smoke={"size": 1000, "gpu_size": 3000, "calls": 60, "points": 11, "rounds": 6,
                   "batches": 4, "batch_size": 32},
            full={"points": 17, "rounds": 15, "batches": 100, "batch_size": 1024})

on_cpu = jax.default_backend() == "cpu"
side = s.size if on_cpu else s.gpu_size  # a GPU computes the book's product too soon
toy = "" if s.size == 2000 else "the matrices are smaller than the book's"

# %% [markdown]
# ## 8.2.1 Asynchronous computation in JAX
# ![Python puts x + 1 into a queue, which takes t1. C++ threads take it from the queue and
# compute it, which takes t2. Python learns that the result is ready, which takes
# t3.](images/async_queue.svg)
#
# A framework has two ends. You write your program for the *front end*. MXNet has front ends
# in Python, R, Scala and C++; JAX's is in Python. The *back end* computes. It is written in
# C++, has threads of its own, and takes its work from a queue. A call in the front end puts
# a computation into the queue and returns at once, with an array whose values do not exist
# yet. JAX's documentation calls this [asynchronous
# dispatch](https://docs.jax.dev/en/latest/async_dispatch.html).
#
# Consider four statements. The first three only queue work. `print` needs the values, so it
# waits.
#
# ![a and b do not depend on each other. c is computed from both. print waits for
# c.](images/async_graph.svg)

# %%
a = jnp.ones((1, 2))
b = jnp.ones((1, 2))
c = a * b + 2
print(c)

# %% [markdown]
# ::::{tab-set}
# :::{tab-item} Gluon
# ```python
# a = nd.ones((1, 2))
# b = nd.ones((1, 2))
# c = a * b + 2
# c
# ```
# :::
# :::{tab-item} PyTorch
# ```python
# a = torch.ones(1, 2, device="cuda")  # asynchronous on a GPU; on a CPU, PyTorch
# b = torch.ones(1, 2, device="cuda")  # computes each operation before it returns
# c = a * b + 2
# print(c)
# ```
# :::
# ::::
#
# To show that a call returns early, the book defines a stopwatch. We also time NumPy, which
# has no queue: its call returns when the values exist. The book's matrix is 2000 × 2000. On
# a GPU we take a larger one. On one H200 (JAX 0.11.2, 2026-11-27), the book's product was
# ready 36 µs after its call returned, and the call itself took 142 µs. Such a small
# difference hardly shows that Python did not wait.

# %%
class Benchmark:
    """Prints the seconds that its block takes."""

    def __init__(self, prefix=None):
        self.prefix = prefix + " " if prefix else ""

    def __enter__(self):
        self.start = time.time()

    def __exit__(self, *args):
        print(f"{self.prefix}time: {time.time() - self.start:.4f} sec")

key = jax.random.key(0)
x = jax.random.uniform(key, (side, side))
jnp.dot(x, x).sum().block_until_ready()  # compiles
print(f"JAX multiplies {side} × {side}, NumPy {s.size} × {s.size}.")
with Benchmark("Workloads are queued."):
    x = jax.random.uniform(key, (side, side))
    y = jnp.dot(x, x).sum()
with Benchmark("Workloads are finished."):
    print("sum =", y)

host = np.random.default_rng(0).random((s.size, s.size), np.float32)
with Benchmark("NumPy."):
    np.dot(host, host).sum()

# %% [markdown]
# In the book the calls return after 0.0014 s, and `print` takes another 0.3517 s. Unless
# you print or save a result, you need not care whether it is ready: operations on JAX
# arrays are asynchronous by default. One sample proves little, so we repeat the
# measurement. `y.is_ready()` says whether the value of `y` exists.

# %% tags=["slow"]
product = probe(lambda: jnp.dot(x, x).sum(), calls=s.rounds)
s.table([Measurement("queued", "s", product.queued_s),
         Measurement("finished", "s", product.finished_s)],
        title=f"Product and sum, {side} × {side}: call returns, y is ready",
        book={"queued": 0.0014, "finished": 0.3517} if side == 2000 else None)
s.claim("y = nd.dot(x, x).sum() returns before y is computed",
        holds=both(product.asynchronous, product.queued_share.below(0.5)),
        expected="when it returns, y is not ready, and under half of the time is over",
        observed=f"ready after {sum(product.ready)} of {s.rounds} calls; "
                 f"{product.queued_share} of the time is over",
        source="section 8.2.1")

# %% [markdown]
# <details><summary>Predict: is the call <code>x + 1</code> asynchronous for arrays of every
# size?</summary>
#
# No. JAX's CPU back end computes a program of under 1000 floating-point operations in the
# calling thread, which is faster than waking another thread. Compare the last two columns
# below: where they are close, the value is ready almost at once.
#
# </details>

# %% tags=["slow"]
add_one, rows = jax.jit(lambda x: x + 1), []
arrays = {n: np.ones(n, np.float32) for n in (500, 999, 1001, 2000, 100_000, 4_000_000)}
compile_together({n: (add_one, array) for n, array in arrays.items()})  # a program per size
for n, array in arrays.items():
    one = probe(add_one, jax.device_put(array), calls=21)
    called, finished = map(statistics.median, (one.queued_s, one.finished_s))
    rows.append((f"{n:,}", f"{sum(one.ready)} of 21", f"{1e6 * called:.0f}",
                 f"{1e6 * finished:.0f}"))
s.grid(("elements", "ready when the call returned", "call, µs", "call and wait, µs"), rows,
       title="x + 1, compiled")

# %% [markdown]
# Both times come from the same calls. On a CPU, up to 999 elements, the value is always
# ready. At 1001 and 2000 elements another thread computes, which may finish before Python
# asks. At 100,000 elements and more the call returns first. A GPU has no such exception for
# small programs: on one H200, the value of 500 elements was ready in 1 of 21 calls (JAX
# 0.11.2, 2026-11-27).
#
# ### Does the speed of Python matter?
# The front end does not compute. Therefore, the book says, Python's speed hardly matters,
# as long as the back end is efficient.
#
# <details><summary>Predict: we make the front end ten times as slow. How much longer does a
# loop of large products take? And a loop of tiny products?</summary>
#
# The back end multiplies large matrices for milliseconds. Meanwhile even a slow front end
# has queued the next product, so the loop takes as long as before. A tiny product is
# finished sooner than the next one is queued. Then the front end sets the pace, and the
# loop takes much longer.
#
# </details>

# %% tags=["slow"]
dot = jax.jit(lambda x: x @ x)
large, tiny = jnp.ones((700 if on_cpu else 8192,) * 2), jnp.ones((10, 10))
t1 = dispatch.queueing_s(dot, tiny)

def slowly(x):
    """The same call, from a front end ten times as slow."""
    end = time.perf_counter() + 9 * t1
    while time.perf_counter() < end:
        pass
    return dot(x)

loops = {f"{name}, {pace}": partial(dispatch.asynchronous_loop, call, z, calls)
         for name, z, calls in (("large", large, 20), ("tiny", tiny, 100))
         for pace, call in (("fast front end", dot), ("slow front end", slowly))}
times = interleaved(loops, count=2 * s.rounds, loops=1)
s.table(times, title="A loop of products that waits once", fold=True)
large_ratio, tiny_ratio = (
    ratio(times[f"{name}, slow front end"], times[f"{name}, fast front end"])
    for name in ("large", "tiny"))
s.claim("The front end's speed hardly matters to the whole program",
        holds=large_ratio.at_most(1.2), expected="large products: at most 1.2 times",
        observed=f"{large_ratio} times as long; for tiny products {tiny_ratio} times",
        source="section 8.2.1", since="2026-11-26",
        first="at most 1.1 times; an idle run gave 1.04 (0.95 to 1.16)")

# %% [markdown]
# So Python's speed hardly matters *if the back end has enough to do*. A network of many
# small operations does not give it enough. The remedy is fewer, larger programs, which
# `jax.jit` makes ([section 8.1](hybridize)).
#
# One retelling of this chapter says that asynchrony reduces the communication between the
# two ends. It does not: the number of queued computations and returned results stays the
# same. Asynchrony *hides* the communication time, because the front end works meanwhile.
#
# ## 8.2.2 Synchronization functions: making the front end wait
# Some operations need a value and therefore wait for it. MXNet calls them synchronization
# functions. Whatever turns an array into something else, such as a NumPy array, a number, a
# string, or a condition, has to wait.
#
# | MXNet | JAX | waits for | gives you |
# |:--|:--|:--|:--|
# | `y.wait_to_read()` | `y.block_until_ready()` | `y` | `y` |
# | `nd.waitall()` | no equivalent, see below | | |
# | | `jax.block_until_ready((y, z))` | all arrays in a list, dict, ... | the same |
# | `y.asnumpy()` | `np.asarray(y)`, `jax.device_get(y)` | `y` and its copy | a NumPy array |
# | `y.asscalar()` | `y.item()`, `float(y)` | `y` and its copy | a number |
# | `print(y)` | `print(y)` | `y` and its copy | a string |
# | `if y > 0:` | `if y > 0:` | `y > 0` | a branch |
# | `y.shape` | `y.shape`, `y.dtype` | nothing | what is known without computing |
# | | `y.copy_to_host_async()` | nothing: it starts the copy | `None` |
#
# `block_until_ready` copies nothing, so use it for timing. (In MXNet, benchmarks use
# `waitall`.) To check the table, each line below starts a product, waits in one way, and
# asks whether the value is ready.

# %%
ways = {
    "y.block_until_ready()": lambda y: y.block_until_ready(),
    "np.asarray(y)": np.asarray,
    "y.item()": lambda y: y.item(),
    "float(y)": float,
    "str(y), as print does": str,
    "if y > 0": lambda y: bool(y > 0),
    "y.shape, y.dtype": lambda y: (y.shape, y.dtype),
    "y.copy_to_host_async()": lambda y: y.copy_to_host_async(),
}
ready = {}
for way, wait in ways.items():
    y = jnp.dot(x, x).sum()
    wait(y)
    ready[way] = y.is_ready()
    print(f"{way:24}", "waits" if ready[way] else "does not wait")
    y.block_until_ready()
first_six = list(ready.values())[:6]
s.claim("What turns an array into something else makes the front end wait",
        holds=all(first_six), expected="y is ready after the first six",
        observed=f"ready after {sum(first_six)} of 6", source="section 8.2.2")

# %% [markdown]
# <details><summary>Predict: which way of waiting takes the longest?</summary>
#
# If the computation is long, all ways take about equally long. Only the row *two products*
# of the next table waits for two computations. `if y > 0` adds a second program, the
# comparison, and copies one value to the host. For 2000 × 2000 on one H200, it took 0.69
# ms, and `block_until_ready` took 0.23 ms (JAX 0.11.2, 2026-11-27). On the H200, this
# product is so short that the comparison and the copy take longer.
#
# On a GPU, `np.asarray` also copies the whole product over the bus: on that H200, 16 MB
# took 3.9 ms, and 400 MB took 0.26 s. On a CPU it copies nothing, because JAX and NumPy
# share the memory.
#
# </details>
#
# The first four rows are the book's cells: `wait_to_read`, `waitall` after two products,
# `asnumpy`, and `norm().asscalar()`. The next row prints a value that is already ready. The
# last row converts a value to a condition. (The table shows the book's times if the matrix
# is as large as the book's.)

# %% tags=["slow"]
cells = {
    "block_until_ready()": lambda: jnp.dot(x, x).sum().block_until_ready(),
    "two products": lambda: jax.block_until_ready((jnp.dot(x, x), jnp.dot(x, x))),
    "np.asarray": lambda: np.asarray(jnp.dot(x, x)),
    "norm, item()": lambda: jnp.linalg.norm(jnp.dot(x, x)).item(),
    "print after waiting": lambda: str(y),
    "if y > 0": lambda: bool(jnp.dot(x, x).sum() > 0),
}
y = jnp.dot(x, x).sum().block_until_ready()
times = interleaved(cells, count=max(6, s.rounds // 2), loops=1)
book = dict(zip(cells, (0.3558, 0.6061, 0.3111, 0.3302, 0.0011)))
s.table(times, title=f"Until each way of waiting returns, {side} × {side}",
        base="block_until_ready()", book=book if side == 2000 else None)
waited = times["block_until_ready()"].median
converted = ratio(times["if y > 0"], times["block_until_ready()"])
s.claim("A way of waiting that converts takes as long, where the computation is long",
        holds=converted.at_most(1.15), observed=f"if y > 0 takes {converted} times as long",
        expected="if y > 0 takes at most 1.15 times as long as block_until_ready",
        cannot="" if waited > 1e-3 else f"the computation takes {1e6 * waited:.0f} µs here",
        since="2026-11-26", first="at most 1.15 times for every way and size; at toy size "
        "on one H200, if y > 0 took 2.62 (1.86 to 4.28) times as long")

# %% [markdown]
# ### There is no `waitall`
# MXNet's `waitall` waits for everything that was queued before. Which JAX call could
# replace it? The next cells queue a product and drop its result. Then they call a candidate
# and check whether a callback at the end of the product has run. The product is queued by
# this thread, by another thread, or on another device.

# %%
other = [*jax.devices(), *jax.devices("cpu")][1]
finished = threading.Event()

@jax.jit
def tell(y):
    """Set `finished` once y is computed."""
    def callback(value):
        finished.set()
        return np.float32(0)
    return jax.pure_callback(callback, jax.ShapeDtypeStruct((), jnp.float32), y[0, 0])

def long_work(x):
    return tell(x @ x)  # two programs; the second waits in the queue for the first

short_work, z = jax.jit(lambda z: z + 1), jnp.ones(2000)
x_other = jax.device_put(host, other)
jax.block_until_ready((long_work(x), long_work(x_other), short_work(z)))  # compiles

def in_another_thread():
    thread = threading.Thread(target=long_work, args=(x,))
    thread.start()
    thread.join()

# %%
queue_work = {"this thread": lambda: long_work(x), "another thread": in_another_thread,
              "another device": lambda: long_work(x_other)}
candidates = {
    "jax.effects_barrier()": jax.effects_barrier,
    "wait for jax.live_arrays()": lambda: jax.block_until_ready(jax.live_arrays()),
    "wait for short_work(z)": lambda: short_work(z).block_until_ready(),
}
rows, waited = [], {}
for name, wait in candidates.items():
    waited[name] = []
    for queue in queue_work.values():
        finished.clear()
        queue()
        wait()
        waited[name].append(finished.is_set())
        finished.wait(60)
    rows.append((name, *("waits" if done else "does not" for done in waited[name])))
s.grid(("candidate", *queue_work), rows,
       title="Does it wait for work whose result was dropped?")
s.claim("One call waits for everything that was queued before it, as waitall does",
        holds=None if any(map(all, waited.values())) else False,
        expected="a candidate waits in all three columns",
        observed=f"{sum(map(all, waited.values()))} of {len(waited)} do",
        source="section 8.2.2",
        cannot="" if other != jax.devices()[0] else "there is one device only")

# %% [markdown]
# Read the table row by row. `effects_barrier` waits only for side effects, such as
# `jax.debug.print`. `live_arrays` lists only arrays that a variable still holds. Waiting
# for a later program includes only work that the *same thread* queued on the *same device*,
# because a device works in order. This is how a CPU behaves. On one H200, all three waited
# for the work of both threads on the GPU, but for none on the other device, the CPU (JAX
# 0.11.2, 2026-11-27). So none of the three replaces `waitall` there either.
#
# **The rule:** keep every result that you need, and pass all of them to
# `jax.block_until_ready`. Waiting for the last result alone is a common mistake in
# benchmarks:

# %%
double = jax.jit(lambda z: 2 * z)
z_other = jax.device_put(z, other)
jax.block_until_ready((x @ x, double(z_other)))  # compiles
results = [x @ x, double(z_other)]  # two devices
results[-1].block_until_ready()
print("pending after waiting for the last:", pending(results))
jax.block_until_ready(results)
print("pending after waiting for all:     ", pending(results))

# %% [markdown]
# ### Where do errors appear?
# A call that has returned may still fail. The error is then stored in place of the value.
# Below, the back end calls a Python function that raises an error for an empty batch.
#
# <details><summary>Predict: which of the three lines raises the error?</summary>
#
# The third line. `checked(...)` returns, although its computation will fail, and `y + 1` is
# queued, although `y` will never exist. The error appears where Python waits, not in the
# line that caused it.
#
# </details>

# %%
@jax.jit
def checked(y):
    """Return y[0, 0]; the back end calls Python to check it."""
    def check(value):
        if np.asarray(value) == 0:
            raise ValueError("the batch is empty")
        return np.asarray(value)
    return jax.pure_callback(check, jax.ShapeDtypeStruct((), jnp.float32), y[0, 0])

print("a good batch:", checked(x @ x))
logging.getLogger("jax").setLevel(logging.CRITICAL)  # JAX also logs the traceback
empty, y, after = 0 * x, None, None
try:
    line = 1
    y = checked(empty @ empty)
    line = 2
    after = y + 1
    line = 3
    after.block_until_ready()
except Exception as error:
    message = str(error).strip().splitlines()[-1]
    print(f"line {line} raises {type(error).__name__}: {message}")
del y, after  # whoever waits for all arrays would get the error again
s.claim("An error appears where Python waits, not where the failing work was queued",
        holds=line == 3, expected="the call returns, and block_until_ready raises",
        observed=f"line {line} raises")

# %% [markdown]
# If an error seems to come from a harmless line, wait with `jax.block_until_ready` after
# each earlier statement. The first wait that raises an error follows the statement that
# caused it. A NaN is not an error. To find it, switch on
# [`jax_debug_nans`](https://docs.jax.dev/en/latest/debugging/flags.html), which checks each
# result. Every call then waits.
#
# ## 8.2.3 Using asynchronous computation to improve performance
# The book's loop assigns `y = x + 1` a thousand times. One version waits in each turn, the
# other only at the end. Each turn has three phases. The front end queues the computation
# ($t_1$), the back end computes it ($t_2$), and the front end learns that it is done
# ($t_3$).
#
# ![Two timelines for t2 < t1 and two for t2 > t1. If the loop waits for each result, the
# phases follow each other. If it waits once, the two ends work at the same time, and the
# slower one sets the pace.](images/async_timelines.svg)
#
# A loop of $n$ turns that waits in each turn takes $n (t_1 + t_2 + t_3)$. If it waits once,
# the two ends form a pipeline, and the slower end sets the pace:
#
# $$t_1 + t_2 + t_3 + (n - 1) \max(t_1, t_2)$$
#
# For $t_2 > t_1$ that is the book's $t_1 + n t_2 + t_3$. So waiting costs a factor of
# $(t_1 + t_2 + t_3) / \max(t_1, t_2)$.
#
# <details><summary>Predict: in the book the loop takes 7.3877 s with waiting in each turn
# and 3.5370 s without. Will JAX gain the same factor, 2.1?</summary>
#
# The book's figures give $t_2 = 3.54$ ms and $t_1 + t_3 = 3.85$ ms: queueing and waiting
# take about as long as the computation itself. In JAX, $t_1 + t_3$ takes microseconds (see
# the facts below), and reading and writing 16 MB takes much longer. The factor should be
# near 1. If you run the cell several times, either loop may win.
#
# </details>

# %% tags=["slow"]
x = jnp.ones((s.size, s.size))
(x + 1).block_until_ready()  # compiles

with Benchmark("synchronous."):
    for _ in range(s.calls):
        y = x + 1
        y.block_until_ready()
with Benchmark("asynchronous."):
    for _ in range(s.calls):
        y = x + 1
    y.block_until_ready()  # one device works in order, so the last is ready last

# %% tags=["slow"]
def add(x):
    return x + 1  # not compiled by us, as in the book

calls = max(2, s.calls // 20)
times = interleaved({"synchronous": partial(dispatch.synchronous_loop, add, x, calls),
                     "asynchronous": partial(dispatch.asynchronous_loop, add, x, calls)},
                    count=2 * s.rounds, loops=1)
at_book = ratio(times["synchronous"], times["asynchronous"])
s.table(times, title=f"{calls} times y = x + 1, {s.size} × {s.size}", fold=True)
s.claim("Asynchronous computation improves performance", holds=at_book.above(1),
        expected="at the book's size, 2000 × 2000, the synchronous loop takes longer",
        observed=f"{at_book} times as long (in the book 2.1)", source="section 8.2.3",
        cannot=toy, since="2026-11-26",
        first="judged at 1024 elements (1.2 to 1.3), then where the model says most "
              "(4.21); the book's size gave 1.08 (0.949 to 1.17)")

# %% [markdown]
# If the interval contains 1, the experiment is undecided. That is not a failure: at this
# size $t_2$ is so much larger than $t_1 + t_3$ that there is almost nothing to hide. Your
# result may differ. A slower Python, sleeping cores, and other programs make $t_1$ and
# $t_3$ larger. Faster memory makes $t_2$ smaller.
#
# A factor well above 1 on a CPU has another cause. Each result takes 16 MB of new memory.
# The synchronous loop may return this memory to the operating system and request it again
# in the next turn. So this loop's $t_2$ is longer. Where the process keeps freed memory,
# both loops take about equally long.
#
# The memory of an H200 is so fast that queueing the call takes the most time. In two runs
# on one (JAX 0.11.2, 2026-11-27), the synchronous loop took 1.52 (1.45 to 1.62) and 1.09
# (1.05 to 1.30) times as long.
#
# Now we vary the size. We fit $t_1$, $t_2$ and $t_3$ at every other size, and predict the
# times at the sizes between. The model for $t_2$ is a line with one bend over the number of
# elements. `cores_awake` runs an idle-priority program on each core. Otherwise $t_3$ would
# include the time to wake a sleeping core.

# %% tags=["slow"]
sizes = np.geomspace(1024, 2**21 if on_cpu else 2**26, s.points).astype(int)
with cores_awake():
    inputs = [(int(n), jax.device_put(np.ones(n, np.float32))) for n in sizes]
    samples = dispatch.sweep(add, inputs, calls=min(s.calls, 200 if on_cpu else 100),
                             rounds=s.rounds)
    t1 = dispatch.queueing_s(add, jnp.ones(1024))  # t1 alone, without a loop's t2

# %% tags=["slow"]
model = dispatch.fit(samples[::2], t1_s=t1)
last = int(sizes[-1])
s.fact("t1_s", model.t1_s, unit="s", meaning="t1, to queue x + 1")
s.fact("t2_s", model.t2_s(last), unit="s", meaning=f"t2, to compute {last:,} elements")
s.fact("t3_s", model.t3_s, unit="s", meaning="t3, to learn that it is ready")
s.fact("crossover_elements", model.crossover, meaning="elements at which t2 = t1")
errors = dispatch.prediction_errors(model, samples)[1::2]  # at sizes that were not fitted
median_errors = [statistics.median(abs(pair[i]) for pair in errors) for i in (0, 1)]
for loop, error in zip(("synchronous", "asynchronous"), median_errors):
    s.fact(f"prediction_error_{loop}", error,
           meaning=f"{loop} loop, median prediction error at sizes that were not fitted")
s.claim("n calls take n (t1 + t2 + t3) synchronously, and t1 + n t2 + t3 asynchronously",
        holds=max(median_errors) <= 0.25,
        expected="with max(t1, t2) for t2, 25% off at most (median) at sizes not fitted",
        observed="synchronous {:.0%} off, asynchronous {:.0%}".format(*median_errors),
        source="section 8.2.3")
best = max(samples[1::2], key=lambda sample: model.gain(sample.size))
s.claim("Where t2 is near t1 + t3 or below, waiting for each result costs time",
        holds=best.gain.above(1), observed=f"{best.gain} times as long",
        expected=f"by the model {model.gain(best.size):.2g} times, {best.size:,} elements")

# %% tags=["slow"]
line_x = np.geomspace(sizes[0], last, 300)
small_gain = next((n for n in line_x if n > model.crossover and model.gain(n) < 1.1), last)
ends = np.clip([sizes[0], model.crossover, small_gain, last], sizes[0], last)
fig, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.2))
for i, loop in enumerate(("synchronous", "asynchronous")):
    left.plot(line_x, [1e6 * getattr(model, f"{loop}_s")(n, 1000) / 1000 for n in line_x],
              color=f"C{i}", label=loop)
    measured = [1e6 * getattr(sample, f"{loop}_s") / sample.calls for sample in samples]
    left.plot(sizes, measured, "o", color=f"C{i}", ms=4)
right.plot(line_x, [model.gain(n) for n in line_x], color="C2")
for group, fill in ((samples[::2], "C2"), (samples[1::2], "none")):
    right.plot([sample.size for sample in group], [sample.gain.median for sample in group],
               "o", color="C2", ms=5, mfc=fill)
for ax in (left, right):
    for start, end, color in zip(ends, ends[1:], ("C0", "C2", "C1")):
        ax.axvspan(start, end, color=color, alpha=0.08, lw=0)
    ax.set(xscale="log", xlabel="elements")
left.set(yscale="log", ylabel="µs per turn")
left.legend(loc="upper left")
right.set(ylabel="synchronous / asynchronous", ylim=(0.8, None))
zones = ("front end\nslower", "both\nmatter", "hardly\na gain")
for start, end, zone in zip(ends, ends[1:], zones):
    if end > 1.5 * start:
        right.text((start * end) ** 0.5, 0.84, zone, ha="center", fontsize=9)
s.figure(fig, "Lines are the model, points are measured (hollow: not fitted). Left: t1 "
         "sets the pace of the asynchronous loop, whatever the size. Middle: t2 is larger, "
         "and waiting still costs over 10%. Right: waiting costs less.")

# %% [markdown]
# (If $t_3$ is 0, it was too short for the fit to detect. If the last claim is undecided,
# the machine was too busy to show a gain of microseconds.) On one H200 (JAX 0.11.2,
# 2026-11-27), $t_1$ was 91 µs, $t_3$ was 19 µs, and $t_2$ exceeded $t_1$ only from 44
# million elements on. The model was 2% off for the synchronous loop, and 1% for the other.
#
# **The rule:** asynchrony hides at most $t_1 + t_3$ per call. Compare that sum with your
# step time. If a step takes tens of milliseconds, there is nothing to gain. If it takes
# microseconds, $t_1$ itself is the limit, so make *fewer calls*. One program with the loop
# inside pays $t_1$ once:

# %% tags=["slow"]
steps, z = 100, jnp.ones(1024)
inside = jax.jit(lambda z: jax.lax.fori_loop(0, steps, lambda _, z: z + 1, z))

def outside(z):
    for _ in range(steps):
        z = add_one(z)
    return z

times = interleaved({"100 calls": partial(outside, z), "one call": partial(inside, z)},
                    count=2 * s.rounds)
s.table(times, title="100 times z = z + 1, 1024 elements, compiled", base="one call")
saving = ratio(times["100 calls"], times["one call"])
s.claim("A loop inside one program saves most of t1", holds=saving.above(2),
        expected="100 calls take more than twice as long",
        observed=f"{saving} times as long")

# %% [markdown]
# A GPU computes faster, and queueing work for it takes longer. On one H200 (JAX 0.11.2,
# 2026-11-26), an empty program is queued in 27 µs and finished in 55 µs. On a CPU it is
# queued in about 5 µs ([Using a GPU](use_gpu)). `lax.scan` over an epoch shortened LeNet's
# step of 256 images from 0.357 to 0.280 ms, because queueing is a large part of such a
# short step. For ResNet-18 in bfloat16 (batch 256), the step time fell only from 3.64 to
# 3.58 ms. Another program for LeNet, a day later, took 0.32 ms with and without `scan`
# ([figures](../docs/peers.md)).
#
# ## 8.2.4 The impact of asynchronous computation on memory
# Training usually reads the loss in every step with `asscalar` or `asnumpy`, which makes
# the front end wait. Otherwise, the book says, the front end queues all batches almost at
# once, and they fill the memory. How many computations does JAX queue before it makes a
# call wait?

# %%
x = jnp.ones((500, 500) if on_cpu else (4096, 4096))
multiply = jax.jit(lambda x: x @ x)
multiply(x).block_until_ready()
results, in_flight = [], []
for _ in range(100):
    results.append(multiply(x))
    in_flight.append(pending(results))
jax.block_until_ready(results)
depth = max(in_flight)
s.fact("inflight_depth", depth, meaning="most computations in flight while 100 are queued")
s.claim("Without synchronization, the front end hands over all computations at once",
        holds=depth >= 100, expected="all of 100 are in flight",
        observed=f"{depth} at most", source="section 8.2.4", since="2026-11-26",
        first="32 on a CPU and more on a GPU; one H200 had 32 too")

# %% [markdown]
# XLA's CPU client allows 32 computations in flight. Then the next call waits until one has
# ended. On one H200 the limit was 32, too (JAX 0.11.2, 2026-11-27). So the front end runs
# ahead, but at most 32 batches wait in the queue.
#
# ![Memory over time. Without waiting, it grows until the queue holds 32 batches. With a
# window, or waiting for each, it stays low.](images/async_memory.svg)
#
# Now we repeat the book's experiment: 100 batches of 1024 examples, an MLP with 2048, 512
# and 1 outputs, SGD with learning rate 0.005, and half the squared error. Your run may be
# shorter; `--full` uses the book's sizes. On a GPU a batch is 16 times as large, because
# one H200 made 40 steps of 256 examples in 28 ms (JAX 0.11.2, 2026-11-27). That is too
# short to read the memory often. As in the book, `data_iter` prints when it has made half
# and all of the batches.

# %%
batch_size = s.batch_size if on_cpu else 16 * s.batch_size

def data_iter(make, show=True):
    start = time.time()
    for i in range(s.batches):
        yield make(i)
        if show and (i + 1) % (s.batches // 2) == 0:
            print(f"batch {i + 1}, time {time.time() - start:.3f} sec")

@jax.jit
def drawn(i):
    """Batch number i, drawn by the back end, as in the book."""
    X = jax.random.normal(jax.random.fold_in(key, i), (batch_size, 512))
    return X, jnp.ones(batch_size)

def init_params(key, sizes=(512, 2048, 512, 1), scale=0.05):
    return [(scale * jax.random.normal(k, (m, n)), jnp.zeros(n))
            for k, m, n in zip(jax.random.split(key, 3), sizes, sizes[1:])]

def net(params, X):
    for W, b in params[:-1]:
        X = jax.nn.relu(X @ W + b)
    W, b = params[-1]
    return (X @ W + b)[:, 0]

def l2_loss(params, X, y):
    return 0.5 * jnp.mean((net(params, X) - y) ** 2)

@jax.jit
def step(params, X, y):
    loss, grads = jax.value_and_grad(l2_loss)(params, X, y)
    return jax.tree.map(lambda p, g: p - 0.005 * g, params, grads), loss

# %% [markdown]
# The book reads the memory before and after training, and takes the difference. A *trial
# run* comes first. In MXNet it creates the parameters, whose shapes are not known before.
# In JAX it compiles, so that the compiler's time and memory are not counted.
#
# <details><summary>The same in Gluon</summary>
#
# ```python
# def get_mem():
#     res = subprocess.check_output(["ps", "u", "-p", str(os.getpid())])
#     return int(str(res).split()[15]) / 1e3
#
# for X, y in data_iter():
#     break
# loss(y, net(X)).wait_to_read()  # the trial run
#
# for X, y in data_iter():
#     with autograd.record():
#         l = loss(y, net(X))
#     l_sum += l.mean().asscalar()  # waits; without this line, nothing does
#     l.backward()
#     trainer.step(X.shape[0])
# nd.waitall()
# ```
#
# </details>

# %%
def get_mem():
    return psutil.Process().memory_info().rss / 1e6  # MB

def hold_back(outputs, wait):
    """Wait for the last output, for the one `s.window` steps before it, or for none."""
    lag = {"each": 0, "window": s.window, "never": len(outputs)}[wait]
    if lag < len(outputs):
        outputs[-1 - lag].item()

def train(batches, wait):
    params, losses = initial, []
    for X, y in batches:
        params, loss = step(params, X, y)
        losses.append(loss)
        hold_back(losses, wait)
    jax.block_until_ready(params)  # the last loss does not depend on the last update
    return losses

initial = init_params(key)
jax.block_until_ready(step(initial, *drawn(0)))  # the trial run

for wait in ("each", "never"):
    print(f"wait: {wait}")
    mem = get_mem()
    train(data_iter(drawn), wait)
    print(f"increased memory: {get_mem() - mem:.3f} MB")

# %% [markdown]
# | the book | batch 50 after | batch 100 after | increased memory |
# |:--|--:|--:|--:|
# | waiting in each step | 13.377 s | 26.868 s | 4.648 MB |
# | never | 0.084 s | 0.167 s | 0.016 MB |
#
# The book says that not waiting takes more memory, but its own figures say the opposite.
# Its difference misses all memory that is allocated and freed in between. The book's times
# show what happens: without waiting, all batches are made almost at once. JAX does the same
# as long as they fit into the queue. Each batch needs two computations: one draws it, the
# other is the step.
#
# A better measure is the peak: `MemorySampler` reads the memory every 5 ms. We also let the
# *host* make the batches, as an input pipeline does. A batch from the host takes memory
# when it is made. A batch drawn by the back end takes none on a CPU until its computation
# runs.
#
# Three ways to train take turns:
# - `each`: read the loss in every step;
# - `never`: wait only at the end;
# - `window`: read the loss of the step that was queued two steps earlier.
#
# <details><summary>Predict: which way takes the most memory, and which the least
# time?</summary>
#
# `never` takes the most memory: up to 32 batches are in the queue. On a CPU, the times
# differ little. A step takes tens of milliseconds, and waiting costs microseconds. `each`
# can lose the time to *make* the next batch, because the back end is idle meanwhile.
# `window` loses neither time nor memory.
#
# A fast GPU may finish a step before the host has made the next batch. Then few batches
# wait in the queue, and the three ways need about the same memory.
#
# </details>

# %%
stored = np.random.default_rng(0).standard_normal((8, batch_size, 512), np.float32)

def from_host(i):
    X = stored[i % 8].copy()  # takes new memory, as a loader does
    return jax.device_put((X, np.ones(batch_size, np.float32)))

mean_output = jax.jit(lambda params, X: net(params, X).mean())

def predict(batches, wait):
    outputs = []
    for X, _ in batches:
        outputs.append(mean_output(initial, X))
        hold_back(outputs, wait)
    return jax.block_until_ready(outputs)

def watch(task, wait):
    """Run a task, and return its seconds, its memory over time, and its outputs."""
    time.sleep(0.05)  # JAX frees a step's memory a moment after its results are ready
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)  # give back what the run before has freed
    in_use = None if on_cpu else (lambda: device_memory()["bytes_in_use"])
    with MemorySampler(read=in_use) as memory:
        start = time.perf_counter()
        outputs = task(data_iter(from_host, show=False), wait)
        seconds = time.perf_counter() - start
    return seconds, memory, outputs

# %% tags=["slow"]
runs = {(train, "each"): [], (train, "never"): [], (train, "window"): [],
        (predict, "each"): [], (predict, "never"): []}
for task, wait in runs:
    watch(task, wait)  # the trial run
for _ in range(6):  # rounds
    for task, wait in random.sample(list(runs), len(runs)):
        runs[task, wait].append(watch(task, wait))

def measurements(task, unit, value):
    return {wait: Measurement(wait, unit, tuple(map(value, done)), rounds="runs")
            for (which, wait), done in runs.items() if which is task}

def peak(run):
    return max(run[1].increase_bytes, 4096)  # no growth counts as a page

times = measurements(train, "s", lambda run: run[0])
peaks = measurements(train, "bytes", peak)
batch = f"{s.batches} batches of {batch_size} from the host"
s.table(peaks, title=f"Training, {batch}: peak memory above the start", base="each")
s.table(times, title=f"Training, {batch}: time", base="each")

# %% tags=["slow"]
fig, ax = plt.subplots()
for wait in ("never", "window", "each"):
    _, memory, _ = runs[train, wait][0]
    above = (np.array(memory.resident_bytes) - memory.base_bytes) / 1e6
    ax.plot(memory.seconds, above, label=wait)
ax.set(xlabel="seconds", ylabel="MB above the start", ylim=(0, None))
ax.legend()
s.figure(fig, "Memory while training. Without waiting, up to 32 batches are queued. The "
         "C library keeps freed memory for later, so that the curves hardly fall.")

# %% tags=["slow"]
more_memory = ratio(peaks["never"], peaks["each"])
window_memory = ratio(peaks["window"], peaks["never"])
outputs = measurements(predict, "bytes", peak)
more_predicting = ratio(outputs["never"], outputs["each"])
time_cost = ratio(times["each"], times["never"])
s.claim("Training without synchronization takes more memory", holds=more_memory.above(1),
        expected="a higher peak", observed=f"{more_memory} times the peak",
        source="section 8.2.4")
s.claim("Predicting without synchronization takes more memory",
        holds=more_predicting.above(1), expected="a higher peak",
        observed=f"{more_predicting} times the peak", source="section 8.2.4")
s.claim("A window of a few steps saves the memory, too", holds=window_memory.below(1),
        expected="a lower peak than without waiting",
        observed=f"{window_memory} of that peak")
step_s = times["each"].median / s.batches
s.claim("With steps this long, waiting in each step costs no time",
        holds=time_cost.at_most(1.05), expected="at most 5% longer than without waiting",
        observed=f"{time_cost} times as long", since="2026-11-27",
        cannot="" if step_s > 0.01 else f"a step takes {1e3 * step_s:.2g} ms here",
        first="the same for steps of any length; a GPU's take less than a millisecond")

# %% [markdown]
# ### Do this
# Compare the two tables above: how much time does waiting cost, and how much memory does it
# save?
# - **Steps of tens of milliseconds or more, and batches that are ready:** read the loss in
#   every step, as the book recommends. It costs a few percent at most.
# - **Short steps, or batches that take the host time:** use a window. Read the loss of a
#   step that is a few steps old. The back end always has work, and few batches are in
#   memory.
# - **Never waiting** gains little or nothing over the window, and may keep 32 batches in
#   memory.
#
# The same holds for predicting: read or print each batch's prediction, or use a window.
#
# ## Summary
# - A JAX call queues work and returns. Only what needs a value waits: `block_until_ready`,
#   `np.asarray`, `item`, `print`, `if`. JAX has no `waitall`: wait for all results that you
#   keep.
# - A timing that does not wait measures only queueing. An error appears where Python waits.
# - A loop takes $n (t_1 + t_2 + t_3)$ with waiting and about $n \max(t_1, t_2)$ without. If
#   $t_2$ is much larger than $t_1 + t_3$, waiting costs nothing; if $t_1$ is the largest,
#   make fewer calls.
# - At most 32 computations are in flight, on a CPU and on one H200. Each keeps its inputs
#   in memory.
# - Read the loss in every step if steps take tens of milliseconds. Otherwise use a window.
#
# ## Exercises
# Think first, then open the code and the answer.
#
# **1 (the book's).** The book's formula, $t_1 + 1000 t_2 + t_3$, assumes
# $1000 t_2 > 999 t_1$. Why?

# %% tags=["answer", "slow"]
for sample in (samples[0], samples[-1]):
    share = model.book_s(sample.size, sample.calls) / sample.asynchronous_s
    print(f"{sample.size:,} elements: the formula gives {share:.0%} of the measured time")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The assumption says that the back end never runs out of work. While it computes 1000
# times, the front end queues the other 999 computations. If $t_2 < t_1$, the back end waits
# for the front end, and the loop takes $1000 t_1 + t_2 + t_3$, whatever the size. If your
# smallest size lies left of the crossover, the formula's time is too short there: see the
# first line. In general, $\max(t_1, t_2)$ replaces $t_2$.
#
# A reader guessed: "only if $t_2$ is large is it worth it to be asynchronous." It is the
# other way round. For a large $t_2$ the gain $(t_1 + t_2 + t_3) / \max(t_1, t_2)$ shrinks
# to nothing. It is largest where $t_1 = t_2$. Below that, asynchrony still gains, but less
# than the formula says.
#
# </details>
#
# **2.** JAX can compute in the calling thread: set `jax_cpu_enable_async_dispatch` to False
# before JAX starts. How long does a call of a large product take then, and what is left to
# wait for?

# %% tags=["answer"]
program = f"""
import time, jax, jax.numpy as jnp
jax.config.update("jax_cpu_enable_async_dispatch", False)
x = jnp.ones(({s.size}, {s.size}))
(x @ x).block_until_ready()
start = time.perf_counter(); y = x @ x
called = time.perf_counter(); ready = y.is_ready(); y.block_until_ready()
waited = time.perf_counter() - called
print(f"call {{called - start:.4f}} s, wait {{waited:.4f}} s, ready: {{ready}}")
"""
child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                       env=os.environ | {"JAX_PLATFORMS": "cpu"})
print(child.stdout or child.stderr)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The call takes as long as the product, the value is ready when it returns, and nothing is
# left to wait for. NumPy works this way, and so does PyTorch on a CPU. The setting helps to
# find an error's line. It needs a separate process, because JAX reads it at the start.
#
# </details>
#
# **3.** A colleague times a product and reports its speed. What is wrong?

# %% tags=["answer"]
x = jnp.ones((side, side))
jnp.dot(x, x).block_until_ready()
for wait in (False, True):
    start = time.perf_counter()
    y = jnp.dot(x, x)
    if wait:
        y.block_until_ready()
    seconds = time.perf_counter() - start
    print(f"wait: {wait}: {2e-12 * side**3 / seconds:,.2f} TFLOP/s")
    y.block_until_ready()

# %% [markdown]
# <details><summary>Answer</summary>
#
# The first timing stops when the product is queued, not when it is computed. The speed is
# then many times what the processor can do. Compare a measured speed with the machine's
# limit, as [section 8.0](performance_model) does: a result above the limit means that the
# timing is wrong.
#
# </details>
#
# **4.** Repeat the synchronous loop with the smallest array and let the cores sleep. Which
# of $t_1$, $t_2$, $t_3$ changes?

# %% tags=["answer", "slow"]
loop = partial(dispatch.synchronous_loop, add, jnp.ones(1024), 200)
with cores_awake() as keep:
    times = interleaved(
        {"cores kept awake": loop, "cores may sleep": loop}, count=s.rounds, loops=1,
        before={"cores kept awake": lambda: keep(True),
                "cores may sleep": lambda: keep(False)})
s.table(times, title="200 times y = x + 1, 1024 elements", base="cores kept awake")

# %% [markdown]
# <details><summary>Answer</summary>
#
# $t_3$ changes. While one end waits, its core goes to sleep, and every turn includes the
# time to wake it. On an idle machine this can be most of the turn, and the second row
# several times the first. Where other programs keep the cores busy, the two rows are alike.
# So it was in the run that this page shows. The same loop may take several times as long on
# another machine or at another moment.
#
# </details>
#
# **5.** A batch takes 100 MB, and your loop never waits. How much memory do the batches
# take at most? And with a window of two? Check the numbers of batches in flight.
#
# Check it with `jaxperf check 8.2.5 mine.py`: `mine.py` defines `run_all(compute, batches,
# window)`. It returns the list of the results `compute(batch)`, of which at most `window +
# 1` are unfinished at any time.

# %% tags=["answer"]
x = jnp.ones((500, 500) if on_cpu else (4096, 4096))
for window in (2, 100):
    results, in_flight = [], []
    for _ in range(100):
        results.append(multiply(x))
        in_flight.append(pending(results))
        if len(results) > window:
            results[-1 - window].block_until_ready()
    print(f"window of {window}: {max(in_flight)} in flight at most")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The queue holds 32 computations. If each has a batch of its own, they hold 3.2 GB. With a
# window of two there are three batches, one that is computed and two that wait. They take
# 300 MB.
#
# </details>
