# %% [markdown]
# # 8.2 Asynchronous computation
# When does a call return, when is its result ready, and what do you gain if you do not
# wait?
#
# After this section you can
# - time a JAX program correctly, and say what a wrong timing measures;
# - say which operations make Python wait, and in which line a late error appears;
# - predict a loop's time from three numbers, $t_1$, $t_2$ and $t_3$, and say where the
#   prediction fails;
# - tell the cost of waiting from the cost of new memory;
# - bound the memory of a program that never waits;
# - decide whether your training loop should read the loss in every step.
#
# JAX is asynchronous to be fast. If you know how this works, you can write faster programs.
# You can also make a program slower *on purpose* to save memory. You need no GPU. What a
# GPU does differently is in one table, [at the end of the lesson](#on-one-h200).

# %%
import logging
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from functools import partial

import chex
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import psutil

from jaxperf.chapter.section import section
from jaxperf.measure import (
    MemorySampler,
    compile_together,
    device_memory,
    interleaved,
    pending,
    probe,
)
from jaxperf.measure.keep_awake import cores_awake
from jaxperf.result import Measurement, both, ratio, ratio_of

s = section("8.2", programs=90, cpu_devices=2, rounds=9, calls=1000, size=2000,
            side=2000, large=700, largest=24, queued=500, batches=36,
            examples=256, gpu={"side": 10_000, "large": 8192, "largest": 28,
                               "queued": 4096, "examples": 4096},
            smoke={"rounds": 6, "calls": 60, "size": 500, "side": 500,
                   "large": 200, "largest": 18, "batches": 4, "examples": 32},
            full={"rounds": 60, "batches": 100, "examples": 1024})
x = jnp.full((s.side, s.side), 0.5)

# %% [markdown]
# ## 8.2.1 Asynchronous computation in JAX
# ![Python puts x + 1 into a queue, which takes t1. C++ threads take it from the queue and
# compute it, which takes t2. Python learns that the result is ready, which takes
# t3.](images/async_queue.svg "A call and its three times: t₁ to queue, t₂ to compute, t₃
# to tell Python.")
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
# c.](images/async_graph.svg "Which statement waits for which.")

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
# # asynchronous on a GPU; on a CPU, PyTorch
# # computes each operation before it returns
# a = torch.ones(1, 2, device="cuda")
# b = torch.ones(1, 2, device="cuda")
# c = a * b + 2
# print(c)
# ```
# :::
# ::::
#
# To show that a call returns early, the book defines a stopwatch. We also time NumPy, which
# has no queue: its call returns when the values exist. The book's matrix is 2000 × 2000. On
# a GPU such a product is ready soon after its call has returned, so there we take a larger
# matrix.

# %%
class Benchmark:
    """Prints the seconds that its block takes."""

    def __init__(self, prefix=None):
        self.prefix = prefix + " " if prefix else ""

    def __enter__(self):
        self.start = time.time()

    def __exit__(self, *args):
        print(f"{self.prefix}time: {time.time() - self.start:.4f} sec")

jnp.dot(x, x).sum().block_until_ready()  # compiles
with Benchmark("Workloads are queued."):
    y = jnp.dot(x, x).sum()
with Benchmark("Workloads are finished."):
    print("sum =", y)
host = np.ones((s.size, s.size), np.float32)
with Benchmark("NumPy."):
    np.dot(host, host).sum()

# %% [markdown]
# In the book the calls return after 0.0014 s, and `print` takes another 0.3517 s. (Below,
# both times count from the start of the call.) Unless you print or save a result, you need
# not care whether it is ready: operations on JAX arrays are asynchronous by default. One
# sample proves little, so we repeat the measurement. `y.is_ready()` says whether the value
# of `y` exists.

# %% tags=["slow"]
product = probe(lambda: jnp.dot(x, x).sum(), calls=3 * s.rounds)
s.table([Measurement("queued", "s", product.queued_s),
         Measurement("finished", "s", product.finished_s)],
        title=f"Product and sum, {s.side} × {s.side}: call returns, y is ready",
        book={"queued": 0.0014, "finished": 0.3517} if s.side == 2000 else None)

# %% tags=["slow", "hide-input"]
s.claim("y = nd.dot(x, x).sum() returns before y is computed",
        holds=both(product.asynchronous, product.queued_share.below(0.5)),
        expected="y is not ready when the call returns, under half of the "
        "time is over",
        observed=f"ready after {sum(product.ready)} of {len(product.ready)} "
        f"calls; {product.queued_share} of the time is over",
        source="section 8.2.1",
        if_holds="The call returned long before the value existed, as in the "
        "book.",
        if_not="Here the value existed when the call returned. Either the "
        "back end computes in the calling thread (exercise 2), or queueing "
        "takes most of the time.",
        if_open="In this run, some calls returned early and others did not. "
        "Other programs may have taken the core from Python meanwhile.")

# %% [markdown]
# <details><summary>Predict: is the call <code>x + 1</code> asynchronous for arrays of every
# size?</summary>
#
# No. JAX's CPU back end computes a program of under 1000 floating-point operations in the
# calling thread, which is faster than waking another thread. A GPU has no such exception.
#
# </details>

# %% tags=["slow"]
add_one, rows = jax.jit(lambda x: x + 1), []
arrays = {n: np.ones(n, np.float32)
          for n in (500, 999, 1001, 2000, 100_000, 4_000_000)}
compile_together({n: (add_one, array) for n, array in arrays.items()})
for n, array in arrays.items():
    one = probe(add_one, jax.device_put(array), calls=21)
    called, finished = map(statistics.median, (one.queued_s, one.finished_s))
    rows.append((f"{n:,}", f"{sum(one.ready)} of 21", f"{1e6 * called:.0f}",
                 f"{1e6 * finished:.0f}"))
s.grid(("elements", "ready when the call returned", "call, µs",
        "call and wait, µs"), rows, title="x + 1, compiled")

# %% [markdown]
# Both times come from the same calls. Where the value is ready at once, the two columns are
# close. From 1000 elements on, a CPU's other thread computes. It may finish a short program
# before Python asks, so the second column need not fall to zero at once. A single call, as
# here, may also take several times as long as one of many in a row (exercise 4).
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
work = {"large": (jnp.ones((s.large, s.large)), 20),
        "tiny": (jnp.ones((10, 10)), 500)}

def products(name, pause):
    """Queue products, with a pause before each: a slower front end."""
    z, calls = work[name]
    for _ in range(calls):
        end = time.perf_counter() + pause
        while time.perf_counter() < end:
            pass
        y = dot(z)
    return y

call_s = interleaved({"call": lambda: dot(work["tiny"][0])}, count=9,
                     wait="end", loops=100)["call"].median
paces = {"fast": 0, "slow": 9 * call_s}
times = interleaved({f"{name}, {pace} front end": partial(products, name, pause)
                     for name in work for pace, pause in paces.items()},
                    count=2 * s.rounds, loops=1)
s.table(times, title="A loop of products that waits once", fold=True)

# %% tags=["slow", "hide-input"]
large_ratio, tiny_ratio = (
    ratio(times[f"{name}, slow front end"], times[f"{name}, fast front end"])
    for name in ("large", "tiny"))
s.claim("The front end's speed hardly matters to the whole program",
        holds=both(large_ratio.below(1.2), tiny_ratio.below(1.2)),
        expected="large and tiny products: at most 1.2 times as long",
        observed=f"large {large_ratio} times as long, tiny {tiny_ratio} times",
        source="section 8.2.1",
        if_holds="Here neither loop was slowed down much.",
        if_not="The slow front end made the loop of large products "
        f"{large_ratio} times as long, and the loop of tiny products "
        f"{tiny_ratio} times. The book's sentence needs its second half: *as "
        "long as the back end has enough to do*.",
        if_open=f"Large products took {large_ratio} times as long, tiny "
        f"products {tiny_ratio} times; one interval contains the bound.")

# %% [markdown]
# A network of many small operations does not give the back end enough to do. The remedy is
# fewer, larger programs, which `jax.jit` makes ([section 8.1](hybridize)).
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
# | `y.asnumpy()` | `np.asarray(y)`, `jax.device_get(y)` | `y` and its copy (none on a CPU) | a NumPy array |
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

# %% tags=["hide-input"]
first_six = list(ready.values())[:6]
s.claim("What turns an array into something else makes the front end wait",
        holds=all(first_six), expected="y is ready after the first six",
        observed=f"ready after {sum(first_six)} of 6", source="section 8.2.2",
        if_holds="After each of the first six, the value was there.",
        if_not="One of the first six returned before the value was there.",
        if_open="This run does not decide it.")

# %% [markdown]
# <details><summary>Predict: which way of waiting takes the longest?</summary>
#
# If the computation is long, all ways take about equally long. Only the row *two products*
# of the next table waits for two computations. `if y > 0` adds a second program, the
# comparison, and copies one value to the host. This matters where the computation itself is
# short. On a GPU, `np.asarray` also copies the whole product over the bus. On a CPU it
# copies nothing, because JAX and NumPy share the memory.
#
# </details>
#
# The first four rows are the book's cells: `wait_to_read`, `waitall` after two products,
# `asnumpy`, and `norm().asscalar()`. The next row prints a value that is already ready. The
# last row converts a value to a condition. (The table shows the book's times if the matrix
# is as large as the book's.)

# %% tags=["slow"]
y = jnp.dot(x, x).sum().block_until_ready()
cells = {
    "block_until_ready()": lambda: jnp.dot(x, x).sum().block_until_ready(),
    "two products": lambda: jax.block_until_ready(
        (jnp.dot(x, x), jnp.dot(x, x))
    ),
    "np.asarray": lambda: np.asarray(jnp.dot(x, x)),
    "norm, item()": lambda: jnp.linalg.norm(jnp.dot(x, x)).item(),
    "print after waiting": lambda: str(y),
    "if y > 0": lambda: bool(jnp.dot(x, x).sum() > 0),
}
times = interleaved(cells, count=max(6, s.rounds // 2), loops=1)
book = dict(zip(cells, (0.3558, 0.6061, 0.3111, 0.3302, 0.0011)))
s.table(times, title=f"Until each way of waiting returns, {s.side} × {s.side}",
        base="block_until_ready()", book=book if s.side == 2000 else None)

# %% tags=["slow", "hide-input"]
waited = times["block_until_ready()"].median
converted = ratio(times["if y > 0"], times["block_until_ready()"])
s.claim("A way of waiting that converts takes as long, where the computation "
        "is long", holds=converted.below(1.15),
        observed=f"if y > 0 takes {converted} times as long",
        expected="if y > 0 takes at most 1.15 times as long as "
        "block_until_ready",
        cannot=""
               if waited > 0.001
               else f"the computation takes {1000000.0 * waited:.0f} µs here",
        if_holds="The conversion did not show beside the product.",
        if_not="The conversion took a visible part of the time.",
        if_open="This run cannot tell the conversion from other programs on "
        "the machine.")

# %% [markdown]
# ### There is no `waitall`
# MXNet's `waitall` waits for everything that was queued before. Which JAX call could
# replace it? We queue a product and drop its result. Then we call a candidate and check
# whether a callback at the end of the product has run.

# %%
finished = threading.Event()

def set_finished(value):
    finished.set()
    return np.float32(0)

@jax.jit
def tell(y):
    """Set `finished` once y is computed."""
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    return jax.pure_callback(set_finished, shape, y[0, 0])

def long_work(x):
    return tell(x @ x)  # two programs; the second waits for the first

long_work(x).block_until_ready()
print("the callback has run:", finished.is_set())

# %% [markdown]
# The product is queued by this thread, by another thread, or on another device.

# %%
other = [*jax.devices(), *jax.devices("cpu")][1]
x_other = jax.device_put(x, other)
short_work, z = jax.jit(lambda z: z + 1), jnp.ones(2000)
jax.block_until_ready((long_work(x_other), short_work(z)))  # compiles

def in_another_thread():
    thread = threading.Thread(target=long_work, args=(x,))
    thread.start()
    thread.join()

queue_work = {"this thread": lambda: long_work(x),
              "another thread": in_another_thread,
              "another device": lambda: long_work(x_other)}
candidates = {
    "jax.effects_barrier()": jax.effects_barrier,
    "wait for jax.live_arrays()":
        lambda: jax.block_until_ready(jax.live_arrays()),
    "wait for short_work(z)": lambda: short_work(z).block_until_ready(),
}

# %%
waited = {name: [] for name in candidates}
for name, wait in candidates.items():
    for queue in queue_work.values():
        finished.clear()
        queue()
        wait()
        waited[name].append(finished.is_set())
        finished.wait(60)
words = {True: "waits", False: "does not"}
s.grid(("candidate", *queue_work),
       [(name, *map(words.get, done)) for name, done in waited.items()],
       title="Does it wait for work whose result was dropped?")

# %% tags=["hide-input"]
all_three = [name for name, done in waited.items() if all(done)]
s.claim("One of the three waits for everything that was queued before it, as "
        "waitall does", holds=None if all_three else False,
        expected="a candidate waits in all three columns",
        observed=f"{len(all_three)} of {len(waited)} do",
        source="section 8.2.2",
        cannot="" if other != jax.devices()[0] else "there is one device only",
        if_holds="", if_not="None of the three replaces `waitall`.",
        if_open="A candidate that waited in all three columns may have been "
        "lucky: the work may have ended while it was called.")

# %% [markdown]
# Read the table row by row. Each field is one trial: *does not* is certain, while *waits*
# could be luck. `effects_barrier` promises only side effects, such as `jax.debug.print`.
# `live_arrays` lists only arrays that a variable still holds. Waiting for a later program
# includes only work that is queued on the *same device*, and on a CPU only work of the
# *same thread*.
#
# **The rule:** keep every result that you need, and pass all of them to
# `jax.block_until_ready`. Waiting for the last result alone is a common mistake in
# benchmarks:

# %%
other = [*jax.devices(), *jax.devices("cpu")][1]
double, z = jax.jit(lambda z: 2 * z), jax.device_put(jnp.ones(2000), other)
jax.block_until_ready((x @ x, double(z)))  # compiles
results = [x @ x, double(z)]  # two devices
results[-1].block_until_ready()
print("pending after waiting for the last:", pending(results))
jax.block_until_ready(results)
print("pending after waiting for all:     ", pending(results))

# %% [markdown]
# ### Where do errors appear?
# A call that has returned may still fail. The error is then stored in place of the value.
# Below, the back end calls a Python function that raises an error for an empty batch.

# %%
def check(value):
    if np.asarray(value) == 0:
        raise ValueError("the batch is empty")
    return np.asarray(value)

@jax.jit
def checked(y):
    """Return y[0, 0]; the back end calls Python to check it."""
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    return jax.pure_callback(check, shape, y[0, 0])

print("a good batch:", checked(x @ x))

# %% [markdown]
# <details><summary>Predict: which of the three lines raises the error?</summary>
#
# The third line, unless the work has failed before Python gets there. `checked(...)`
# returns, although its computation will fail, and `y + 1` is queued, although `y` will never
# exist. The error appears where Python waits, not in the line that caused it.
#
# </details>

# %%
logging.getLogger("jax").setLevel(logging.CRITICAL)  # it logs the error, too
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

# %% tags=["hide-input"]
s.claim("An error appears where Python waits, not where the failing work was "
        "queued", holds=line == 3,
        expected="the call returns, and block_until_ready raises",
        observed=f"line {line} raises",
        if_holds="The error came in the line that waits.",
        if_not="Here the work had failed before Python reached the line that "
        "waits.", if_open="This run does not decide it.")

# %% [markdown]
# If an error seems to come from a harmless line, wait with `jax.block_until_ready` after
# each earlier statement. The first wait that raises an error follows the statement that
# caused it. A NaN is not an error. To find it, switch on
# [`jax_debug_nans`](https://docs.jax.dev/en/latest/debugging/flags.html), which checks each
# result. Every call then waits.
#
# ## 8.2.3 Using asynchronous computation to improve performance
# The book's loop assigns `y = x + 1` a thousand times. One version waits in each turn, the
# other only at the end.
#
# <details><summary>Predict: in the book the loop takes 7.3877 s with waiting in each turn
# and 3.5370 s without. Will JAX gain the same factor, 2.1?</summary>
#
# The book's figures say that queueing and waiting took 3.85 ms per turn, as long as the
# addition itself. In JAX they take microseconds, and reading and writing 16 MB takes much
# longer. So the factor should be near 1. Now look at the result.
#
# </details>

# %% tags=["slow"]
x2000 = jnp.ones((s.size, s.size))

def thousand(wait, calls=s.calls):
    """The book's loop."""
    for _ in range(calls):
        y = x2000 + 1
        if wait:
            y.block_until_ready()
    return y.block_until_ready()  # one device works in order

thousand(wait=False, calls=2)  # compiles
for name, wait in {"synchronous": True, "asynchronous": False}.items():
    start = time.time()
    thousand(wait)
    print(f"{name}. time: {time.time() - start:.4f} sec")

# %% [markdown]
# One run of each is an anecdote, and in one process the loop that waits may even be the
# faster one. For the two loops differ in two things: one waits, and one lives with less
# *memory*. Each turn makes a new array of 16 MB. Where does it come from? The C library
# keeps freed memory, up to a limit, and gives the rest back to the operating system. Memory
# that comes from the system has to be mapped and cleared, page by page, at its first use.
# Each page of 4 KiB is a *page fault*, which the system counts.
#
# So we run the same loop in processes that treat memory differently:
# - *as installed*: whatever the C library does, in three processes;
# - *kept*: it keeps all freed memory. In glibc, the C library of most Linux systems, three
#   environment variables say so. They must be set before the process starts;
# - *given back*: it gives every array back at once;
# - *in place*: as installed, but each turn writes into the memory of the turn before. In
#   JAX you ask for this with `@jax.jit(donate_argnums=0)`: the caller donates the argument.

# %%
LOOPS = """
import resource, sys, time
import jax, jax.numpy as jnp

side, calls, in_place = map(int, sys.argv[1:])
x = y = jnp.ones((side, side))
into = jax.jit(lambda x: x + 1, donate_argnums=0)

def loop(wait):
    global y
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    start = time.perf_counter()
    for _ in range(calls):
        y = into(y) if in_place else x + 1
        if wait:
            y.block_until_ready()
    y.block_until_ready()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    return (time.perf_counter() - start) / calls, faults / calls

for line in sys.stdin:  # a round
    print(*loop(wait=True), *loop(wait=False), flush=True)
"""

# %% tags=["slow"]
INSTALLED = "as installed", "the same, 2nd process", "the same, 3rd process"
settings = {name: {} for name in INSTALLED} | {
    "kept": {
        "MALLOC_MMAP_THRESHOLD_": f"{2**25}",
        "MALLOC_TRIM_THRESHOLD_": f"{2**30}",
        "MALLOC_TOP_PAD_": f"{2**26}",
    },
    "given back": {"MALLOC_MMAP_THRESHOLD_": f"{2**17}"},
    "in place": {},
}

def start_loops(name):
    arguments = [str(s.size), "20", str(int(name == "in place"))]
    return subprocess.Popen(
        [sys.executable, "-c", LOOPS, *arguments], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=os.environ | settings[name] | {"JAX_PLATFORMS": "cpu"})

# %% tags=["slow"]
children = {name: start_loops(name) for name in settings}
rounds = {name: [] for name in settings}
for _ in range(1 + s.rounds):  # the first round compiles
    for name in random.sample(list(children), len(children)):
        print(file=children[name].stdin, flush=True)
        rounds[name].append(children[name].stdout.readline().split())
for child in children.values():
    child.communicate()  # no more rounds: it ends

# %% tags=["slow"]
rows, turn = [], {}
for name, figures in rounds.items():
    turn[name] = np.array(figures[1:], float).T
    waiting, faults, once, faults_once = turn[name]
    rows.append((name, f"{1e3 * np.median(waiting):.3g}",
                 f"{1e3 * np.median(once):.3g}", ratio_of(waiting / once),
                 f"{np.mean(faults):,.0f}", f"{np.mean(faults_once):,.0f}"))
s.grid(
    (
        "memory",
        "ms, waiting",
        "ms, once",
        "waiting / once",
        "page faults, waiting",
        "page faults, once",
    ),
    rows,
    title=f"One turn of y = x + 1, {s.size} × {s.size}: time and page faults",
)

# %% tags=["slow", "hide-input"]
costs = {name: waits / once for name, (waits, _, once, _) in turn.items()}
factors = [ratio_of(costs[name]) for name in INSTALLED]
decisions = {factor.above(1) for factor in factors}
listed = ", ".join(map(str, factors))
s.claim("The book's loop takes longer if it waits in each turn, in each of "
        "three new processes",
        holds=decisions.pop() if len(decisions) == 1 else None,
        expected="at the book's size, the synchronous loop takes longer in "
        "each of three processes as installed",
        observed=f"{listed} times as long (in the book 2.1)",
        source="section 8.2.3", needs=["size"],
        if_holds="In each of three processes, waiting in each turn made the "
        f"loop longer: {listed} times. The next two claims look for the "
        "reason.",
        if_not="In none of three processes did waiting in each turn make the "
        f"loop longer: {listed} times.",
        if_open="In three processes, waiting in each turn made the loop "
        f"{listed} times as long. That decides nothing.")
extra = {name: waits - once for name, (waits, _, once, _) in turn.items()}
extra["as installed"] = np.median([extra[name] for name in INSTALLED], axis=0)
as_installed, in_place = (
    f"{1e6 * np.median(extra[name]):,.0f} µs"
    for name in ("as installed", "in place")
)
mapped = ratio_of(turn["given back"][0] / turn["kept"][0])
by_memory = ratio_of(extra["as installed"] - extra["in place"])
faults, faults_once = (
    f"{np.mean([turn[name][column] for name in INSTALLED]):,.0f}"
    for column in (1, 3)
)

# %% tags=["slow", "hide-input"]
s.claim("An array whose memory comes from the system costs more than the "
        "addition", holds=mapped.above(2), observed=f"{mapped} times as long",
        needs=["size"],
        expected="given back in each turn, the loop takes over twice as long "
        "as kept",
        cannot=""
               if sys.platform == "linux"
               else "the three variables are glibc's",
        if_holds="With every array given back, the same loop takes "
        f"{mapped} times as long.",
        if_not="Here, mapping and clearing pages takes less time than the "
        "addition.",
        if_open="This run does not show what mapping and clearing pages costs.")

# %% tags=["slow", "hide-input"]
s.claim("As installed, waiting costs more time than in place",
        holds=by_memory.above(0),
        expected="in the median of three processes, more time a turn",
        observed=f"{as_installed} a turn as installed, {in_place} in place",
        needs=["size"],
        if_holds=f"In place, waiting costs {in_place} a turn, and as installed "
        f"{as_installed}. As installed, a turn that waits has {faults} page "
        f"faults, and one that does not wait has {faults_once}.",
        if_not=f"As installed, waiting costs {as_installed} a turn, no more "
        f"than in place ({in_place}). A turn that waits has {faults} page "
        "faults. Another process may have more.",
        if_open=f"In place, waiting costs {in_place} a turn, and as installed "
        f"{as_installed}. That decides nothing.")

# %% [markdown]
# The loop that waits frees one array and makes the next, turn by turn. The loop that does
# not wait has several arrays in flight. So the C library sees other requests, and whether
# it gives memory back in between also depends on what else is on its heap. The same loop
# has been seen to take 0.8, 1.1, and 3 times as long with waiting, in three processes on
# one machine. An interval says nothing about this: its rounds are of one process.
# **The rule:** before you explain a factor by waiting,
# count the page faults, or donate. (Arrays of more than 32 MiB get new pages in each turn
# even with these three variables.)
#
# ### Three numbers
# In place, only waiting is left, and we can look at it closely. Each turn has three phases.
# The front end queues the computation ($t_1$), the back end computes it ($t_2$), and the
# front end learns that it is done ($t_3$).
#
# ![Two timelines for t2 < t1 and two for t2 > t1. If the loop waits for each result, the
# phases follow each other. If it waits once, the two ends work at the same time, and the
# slower one sets the pace.](images/async_timelines.svg "A loop that waits for each
# result, and one that waits once.")
#
# A loop of $n$ turns that waits in each turn takes $n (t_1 + t_2 + t_3)$. If it waits once,
# the two ends form a pipeline, and the slower end sets the pace:
#
# $$t_1 + t_2 + t_3 + (n - 1) \max(t_1, t_2)$$
#
# For $t_2 > t_1$ that is the book's $t_1 + n t_2 + t_3$. So waiting costs a factor of
# $(t_1 + t_2 + t_3) / \max(t_1, t_2)$. We vary the size, from 1024 elements to four times
# the book's 4 million, and measure both loops.

# %% tags=["slow"]
@jax.jit(donate_argnums=0)
def add_in_place(z):
    return z + 1

sizes = [int(n) for n in 2 ** np.arange(10, s.largest + 1)]
held = {n: jnp.zeros(n) for n in sizes}
turns = {n: min(200, max(10, 2**27 // n)) for n in sizes}

def loop(n, wait):
    for _ in range(turns[n]):
        held[n] = add_in_place(held[n])
        if wait:
            held[n].block_until_ready()
    return held[n]

loops = {
    (n, wait): partial(loop, n, wait) for n in sizes for wait in (True, False)
}
measured = interleaved(loops, count=s.rounds, loops=1)
waiting, once = (
    {n: np.array(measured[n, wait].values) / turns[n] for n in sizes}
    for wait in (True, False)
)

# %% [markdown]
# The model's numbers come from every other size, the *fitted* ones:
# - $t_1$ is the time of a turn of the smallest size that does not wait. There the front end
#   sets the pace.
# - $t_2$ is the time of a turn that does not wait, where the back end sets the pace. Between
#   the measured sizes we draw straight lines, down to 0 for an array without elements.
# - $t_3$ is what the waiting loop takes longer there, less $t_1$.

# %% tags=["slow"]
fitted, unseen = sizes[::2], sizes[1::2]
median_once = {n: np.median(once[n]) for n in sizes}
t1 = median_once[fitted[0]]
back_end = [n for n in fitted if median_once[n] > 2 * t1] or fitted[-1:]

def t2(n):
    return np.interp(
        n, [0, *back_end], [0, *(median_once[m] for m in back_end)]
    )

# one value per round
t3 = ratio_of(np.median([waiting[n] - once[n] - t1 for n in back_end], axis=0))
crossover = next(
    (n for n in np.geomspace(1, sizes[-1], 1000) if t2(n) > t1), sizes[-1]
)
for name, seconds in {"t1": t1, "t2 of the largest": t2(sizes[-1])}.items():
    print(f"{name}: {1e6 * seconds:.1f} µs")
print(
    f"t3: {1e6 * t3.median:.1f} µs, {1e6 * t3.low:.1f} to {1e6 * t3.high:.1f}"
)
print(f"t2 = t1 at {crossover:,.0f} elements")

# %% tags=["slow", "hide-input"]
s.fact("t1_s", t1, unit="s", meaning="t1, to queue the addition",
       basis="fitted")
s.fact("t3_s", t3.median, unit="s", basis="fitted",
       meaning="t3, to learn that it is ready, by arrays of "
       f"{back_end[0]:,} elements and more")
s.fact("crossover_elements", crossover, meaning="elements at which t2 = t1",
       basis="fitted")
s.say(t3.above(0),
      if_holds=f"With arrays of {back_end[0]:,} elements and more, $t_3$ can "
      f"be measured. It is {t3.median / t1:.1f} times as long as $t_1$. "
      "Exercise 4 shows what it depends on.",
      if_not="$t_3$ is below what this run can measure: its interval includes "
      "0 or less.",
      if_open="$t_3$ is below what this run can measure: its interval "
      "includes 0.")

# %% [markdown]
# Now the model predicts both loops at the sizes that it has *not* seen. The row that counts
# is the one next to the crossover, $t_2 = t_1$. There, by the model, waiting costs the
# largest factor. The last two columns are what waiting costs: the difference of both loops.

# %% tags=["slow"]
def predicted(n):
    """Seconds of a turn, waiting and not, by the model."""
    return t1 + t2(n) + t3.median, max(t1, t2(n))

rows, off = [], {}
for n in unseen:
    pairs = [*zip(predicted(n), (np.median(waiting[n]), median_once[n]))]
    off[n] = [says / was - 1 for says, was in pairs]
    costs = predicted(n)[0] - predicted(n)[1], np.median(waiting[n] - once[n])
    rows.append((f"{n:,}", *(f"{1e6 * seconds:.1f}"
                             for pair in (*pairs, costs) for seconds in pair)))
s.grid(("elements", "waiting, predicted (µs)", "measured", "once, predicted",
        "measured", "difference, predicted", "measured"), rows,
       title="The model at sizes that it has not seen")

# %% tags=["slow", "hide-input"]
nearest = min(unseen, key=lambda n: abs(np.log(n / crossover)))
worst_at = max(off, key=lambda n: max(map(abs, off[n])))
worst, at_crossover = (max(off[n], key=abs) for n in (worst_at, nearest))
s.claim("n calls take n (t1 + t2 + t3) synchronously, and t1 + n t2 + t3 "
        "asynchronously", holds=max(abs(worst), abs(at_crossover)) <= 0.25,
        basis="predicted",
        expected="with max(t1, t2) for t2, at most 25% off at every size not "
        "fitted",
        observed=f"{at_crossover:+.0%} at {nearest:,}, next to the crossover; "
        f"{worst:+.0%} at {worst_at:,}, the worst", source="section 8.2.3",
        if_holds="Three numbers predict all loops: the largest error is "
        f"{worst:+.0%}, and next to the crossover it is {at_crossover:+.0%}.",
        if_not="Three numbers were too few in this run. The largest error is "
        f"{worst:+.0%}, at {worst_at:,} elements, and next to the crossover it "
        f"is {at_crossover:+.0%}. The model takes $t_1$ and $t_3$ for the same "
        "at every size, and $t_2$ for a straight line between the fitted "
        "sizes. *Once* has no $t_3$: where it is off, $t_1$ or $t_2$ is.",
        if_open="This run does not decide it.")

# %% tags=["slow", "hide-input"]
fig, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.2))
line = np.geomspace(sizes[0], sizes[-1], 300)
for i, (name, values) in enumerate({"waiting": waiting, "once": once}.items()):
    left.plot(
        line, [1e6 * predicted(n)[i] for n in line], color=f"C{i}", label=name
    )
    left.plot(
        sizes,
        [1e6 * np.median(values[n]) for n in sizes],
        "o",
        color=f"C{i}",
        ms=4,
    )
right.plot(line, [predicted(n)[0] / predicted(n)[1] for n in line], color="C2")

# %% tags=["slow", "hide-input"]
for group, fill in ((fitted, "C2"), (unseen, "none")):
    right.plot(
        group,
        [np.median(waiting[n] / once[n]) for n in group],
        "o",
        color="C2",
        ms=5,
        mfc=fill,
    )
for ax in (left, right):
    ax.axvline(crossover, color="0.6", lw=1, ls=":")
    ax.set(xscale="log", xlabel="elements")
left.set(yscale="log", ylabel="µs per turn")
left.legend()
right.set(ylabel="waiting / once", ylim=(0.8, None))
s.figure(fig,
         "Lines are the model, points are measured, and hollow points were "
         "not fitted. The dotted line marks the crossover, where $t_2 = t_1$.",
         alt="Left: time of a turn over the number of elements, for both "
         "loops. Right: the factor that waiting costs.")

# %% tags=["slow", "hide-input"]
cost = {n: 1e6 * np.median(waiting[n] - once[n]) for n in sizes}
least, most = (choose(cost, key=cost.get) for choose in (min, max))
s.text(f"In this run, waiting costs from {cost[least]:.1f} µs a turn, at "
       f"{least:,} elements, to {cost[most]:.1f} µs, at {most:,} elements. The "
       f"model says at most {1e6 * (t1 + t3.median):.1f} µs.")

# %% [markdown]
# **The rule:** where memory plays no part, what waiting costs is a *time* per turn. It
# depends on the size. Compare it with your step. If a step takes tens of milliseconds,
# there is little to gain. If it takes microseconds, $t_1$ itself is the limit, so make
# *fewer calls*. One program with the loop inside pays $t_1$ once:

# %% tags=["slow"]
steps, z, add_one = 100, jnp.ones(1024), jax.jit(lambda z: z + 1)
inside = jax.jit(
    lambda z: jax.lax.fori_loop(0, steps, lambda _, z: z + 1, z))

def outside(z):
    for _ in range(steps):
        z = add_one(z)
    return z

chex.assert_trees_all_equal(outside(z), inside(z))  # the same result
times = interleaved({"100 calls": partial(outside, z),
                     "one call": partial(inside, z)}, count=2 * s.rounds)
s.table(times, title="100 times z = z + 1, 1024 elements", base="one call")
saving = ratio(times["100 calls"], times["one call"])

# %% tags=["slow", "hide-input"]
s.claim("A loop inside one program saves most of t1", holds=saving.above(2),
        expected="100 calls take more than twice as long",
        observed=f"{saving} times as long",
        if_holds="Most of the loop outside was calls.",
        if_not="Here, calls were less than half of the loop outside.",
        if_open="The interval contains the bound: calls were about half of "
        "the loop.")

# %% [markdown]
# ## 8.2.4 The impact of asynchronous computation on memory
# Training usually reads the loss in every step with `asscalar` or `asnumpy`, which makes
# the front end wait. Otherwise, the book says, the front end queues all batches almost at
# once, and they fill the memory. How many computations does JAX queue before it makes a
# call wait?

# %%
z = jnp.ones((s.queued, s.queued))
multiply = jax.jit(lambda z: z @ z)
multiply(z).block_until_ready()
results, in_flight = [], []
for _ in range(100):
    results.append(multiply(z))
    in_flight.append(pending(results))
jax.block_until_ready(results)
depth = max(in_flight)
print(f"of 100 queued products, at most {depth} were in flight")

# %% tags=["hide-input"]
s.fact("inflight_depth", depth,
       meaning="most computations in flight, of 100 queued")
s.claim("Without synchronization, the front end hands over all computations "
        "at once", holds=depth >= 100, expected="all of 100 are in flight",
        observed=f"{depth} at most", source="section 8.2.4",
        if_holds="The front end can run ahead as far as it likes.",
        if_not=f"The front end ran ahead, but by at most {depth} of 100 "
        "computations.",
        if_open="This run does not decide it.")

# %% [markdown]
# XLA's CPU client allows 32 computations in flight (JAX 0.10 to 0.12). The next call then
# waits until one has ended, unless the back end is so fast that there never are as many. So
# on a CPU at most 32 batches wait in the queue, however long the training is.
#
# ![Memory over time. Without waiting, it grows until the queue holds 32 batches. With a
# window, or waiting for each, it stays low.](images/async_memory.svg "What keeps batches
# in memory.")
#
# Now we repeat the book's experiment: 100 batches of 1024 examples, an MLP with 2048, 512
# and 1 outputs, SGD with learning rate 0.005, and half the squared error. Your run may be
# shorter; `--full` uses the book's sizes. As in the book, `data_iter` prints when it has
# made half and all of the batches.

# %%
def data_iter(make, batches=s.batches, show=True):
    start = time.time()
    for i in range(batches):
        yield make(i)
        if show and (i + 1) % (batches // 2) == 0:
            print(f"batch {i + 1}, time {time.time() - start:.3f} sec")

@jax.jit
def drawn(i):
    """Batch number i, drawn by the back end, as in the book."""
    key = jax.random.fold_in(jax.random.key(0), i)
    X = jax.random.normal(key, (s.examples, 512))
    return X, jnp.ones(s.examples)

made = list(data_iter(drawn))
print(len(made), "batches of", made[0][0].shape)

# %%
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
# The book reads the memory before and after training, and takes the difference. Its
# function works on Linux and macOS only, because it calls `ps`; psutil works on Windows,
# too. A *trial run* comes first. In MXNet it creates the parameters, whose shapes are not
# known before. In JAX it compiles, so that the compiler's time and memory are not counted.
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

def hold_back(outputs, wait, window=2):
    """Wait for the last output, the one `window` steps before, or none."""
    lag = {"each": 0, "window": window, "never": len(outputs)}[wait]
    if lag < len(outputs):
        outputs[-1 - lag].item()

def train(batches, wait):
    params, losses = initial, []
    for X, y in batches:
        params, loss = step(params, X, y)
        losses.append(loss)
        hold_back(losses, wait)
    jax.block_until_ready(params)  # the last loss does not need the last update
    return losses

# %%
initial = init_params(jax.random.key(0))
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
# The book says that not waiting takes more memory, but its own figures say the opposite,
# and the two lines above may do so, too. This difference misses all memory that is
# allocated and freed in between. The book's times show what happens: without waiting, all
# batches are made almost at once. JAX does the same as long as they fit into the queue.
# Each batch needs two computations: one draws it, the other is the step.
#
# A better measure is the peak: `MemorySampler` reads the memory every 5 ms. It first gives
# back what the run before has freed, which the C library would otherwise keep. We also let
# the *host* make the batches, as an input pipeline does. A batch from the host takes memory
# when it is made. A batch drawn by the back end takes none on a CPU until its computation
# runs. A peak is more than batches: each step makes new parameters and temporary arrays.
#
# Three ways to train take turns:
# - `each`: read the loss in every step;
# - `never`: wait only at the end;
# - `window`: read the loss of the step that was queued two steps earlier.
#
# <details><summary>Predict: which way takes the most memory, and which the least
# time?</summary>
#
# `never` should take the most memory: up to 32 batches are in the queue. `each` can lose
# the time to *make* the next batch, because the back end is idle meanwhile. `window` should
# lose neither. (If making batches and computing need the same cores, there is nothing to
# lose, and `each` may even be the fastest.) How much all this is depends on the step:
# waiting costs microseconds, and a step takes milliseconds. If the back end is faster than
# the host that makes the batches, few batches wait in the queue, and the three ways need
# about the same memory.
#
# </details>

# %%
stored = np.random.default_rng(0).standard_normal(
    (8, s.examples, 512), np.float32)

def from_host(i):
    X = stored[i % 8].copy()  # takes new memory, as a loader does
    return jax.device_put((X, np.ones(s.examples, np.float32)))

@jax.jit
def mean_output(params, X):
    return net(params, X).mean()

def predict(batches, wait):
    outputs = []
    for X, _ in batches:
        outputs.append(mean_output(initial, X))
        hold_back(outputs, wait)
    return jax.block_until_ready(outputs)

# %%
def memory_in_use():
    """Bytes of the device, if it counts them, otherwise of this process."""
    in_use = device_memory().get("bytes_in_use")
    return in_use or psutil.Process().memory_info().rss

watched = min(s.batches, 40)  # more than the queue holds

def watch(task, wait):
    """Run a task; return its seconds, its memory over time, and its outputs."""
    time.sleep(0.05)  # JAX frees memory a moment after the results are ready
    with MemorySampler(read=memory_in_use, trim=True) as memory:
        start = time.perf_counter()
        outputs = task(data_iter(from_host, watched, show=False), wait)
        seconds = time.perf_counter() - start
    return seconds, memory, outputs

# %% tags=["slow"]
runs = {(train, "each"): [], (train, "never"): [], (train, "window"): [],
        (predict, "each"): [], (predict, "never"): []}
watch(predict, "each")  # compiles
for _ in range(max(6, s.rounds // 4)):  # rounds
    for task, wait in random.sample(list(runs), len(runs)):
        runs[task, wait].append(watch(task, wait))

# %% tags=["slow"]
def measurements(task, unit, value):
    return {
        wait: Measurement(wait, unit, tuple(map(value, done)), rounds="runs")
        for (which, wait), done in runs.items()
        if which is task
    }

def peak(run):
    return max(run[1].increase_bytes, 4096)  # no growth counts as a page

times = measurements(train, "s", lambda run: run[0])
peaks = measurements(train, "bytes", peak)
batch = f"{watched} batches of {s.examples} from the host"
s.table(
    peaks, title=f"Training, {batch}: peak memory above the start", base="each"
)
s.table(times, title=f"Training, {batch}: time", base="each")

# %% tags=["slow", "hide-input"]
fig, ax = plt.subplots()
for wait in ("never", "window", "each"):
    _, memory, _ = runs[train, wait][0]
    above = (np.array(memory.resident_bytes) - memory.base_bytes) / 1e6
    ax.plot(memory.seconds, above, label=wait)
ax.set(xlabel="seconds", ylabel="MB above the start", ylim=(0, None))
ax.legend()
s.figure(fig,
         "Memory during one training of each kind. Memory that the C library "
         "keeps for later counts, too, so a curve need not fall when arrays "
         "are freed.",
         alt="Memory above the start over time, for waiting never, with a "
         "window, and in each step.")

# %% tags=["slow", "hide-input"]
more_memory = ratio(peaks["never"], peaks["each"])
window_memory = ratio(peaks["window"], peaks["never"])
outputs = measurements(predict, "bytes", peak)
more_predicting = ratio(outputs["never"], outputs["each"])
time_cost, window_cost = (
    ratio(times[way], times["never"]) for way in ("each", "window")
)
s.claim("Training without synchronization takes more memory",
        holds=more_memory.above(1), expected="a higher peak",
        observed=f"{more_memory} times the peak", source="section 8.2.4",
        if_holds=f"Never waiting took {more_memory} times the memory, as the "
        "book's text says.",
        if_not=f"Never waiting took no more memory: {more_memory} times the "
        "peak.",
        if_open=f"Never waiting took {more_memory} times the memory, so this "
        "run decides nothing. One possible reason is that few batches waited "
        "in the queue.")

# %% tags=["slow", "hide-input"]
s.claim("Predicting without synchronization takes more memory",
        holds=more_predicting.above(1), expected="a higher peak",
        observed=f"{more_predicting} times the peak", source="section 8.2.4",
        if_holds=f"Predicting without waiting took {more_predicting} times the "
        "memory.",
        if_not=f"Predicting took no more memory: {more_predicting} times.",
        if_open=f"Predicting took {more_predicting} times the memory: "
        "undecided.")
s.claim("A window of a few steps saves the memory, too",
        holds=window_memory.below(1),
        expected="a lower peak than without waiting",
        observed=f"{window_memory} of that peak",
        if_holds=f"The window took {window_memory} of the memory of never "
        f"waiting, and {window_cost} of its time.",
        if_not="The window took no less memory than never waiting: "
        f"{window_memory} of it.",
        if_open=f"The window took {window_memory} of the memory of never "
        f"waiting, and {window_cost} of its time: undecided.")

# %% tags=["slow", "hide-input"]
s.claim("Waiting in each step costs at most 5% of this training's time",
        holds=time_cost.below(1.05),
        expected="at most 1.05 times as long as never",
        observed=f"{time_cost} times as long, a window {window_cost} times",
        if_holds="Reading the loss in each step cost at most 5%: the training "
        f"that reads it took {time_cost} times as long as the one that never "
        f"waits, and a window {window_cost} times.",
        if_not=f"Reading the loss in each step made this training {time_cost} "
        f"times as long, and a window {window_cost} times.",
        if_open="Reading the loss in each step made this training "
        f"{time_cost} times as long, a window {window_cost} times. The "
        "interval contains the bound.")

# %% [markdown]
# ### Do this
# Compare the two tables above: how much time does waiting cost, and how much memory does it
# save? Where neither shows, the training has nothing to gain from it.
# - **Steps of tens of milliseconds or more, and batches that are ready:** read the loss in
#   every step, as the book recommends. Waiting takes a small part of them.
# - **Short steps, or batches that take the host time:** use a window. Read the loss of a
#   step that is a few steps old. Then the back end has work while Python waits, and few
#   batches are in memory.
# - **Never waiting** may keep as many batches in memory as the queue holds, 32.
#
# The same holds for predicting: read or print each batch's prediction, or use a window.
#
# ### On one H200
# A GPU computes faster, and queueing work for it takes longer. The training steps were
# measured in [the comparison with PyTorch](../docs/peers.md). `block_until_ready()` took
# twice as long there as the first rows say that the same product and sum needs, and longer
# than `if y > 0`, which computes more. We did not find out why.
#
# All three candidates for `waitall` waited there for the work of both threads on the GPU,
# but not for the other device, the CPU. Reading a loss in each step costs a GPU more than a
# CPU, because its steps are shorter and its $t_1 + t_3$ longer.

# %% tags=["slow", "hide-input"]
product_title, ways_title = "Product and sum", "Until each way of waiting"
s.on_one_gpu(
    {
        "product and sum: the call": (product_title, "queued"),
        "product and sum: ready": (product_title, "finished"),
        "block_until_ready()": (ways_title, "block_until_ready()"),
        "np.asarray": (ways_title, "np.asarray"),
        "if y > 0": (ways_title, "if y > 0"),
        "t1": "t1_s",
        "t3": "t3_s",
        "elements at which t2 = t1": "crossover_elements",
        "100 calls of z + 1": "100 calls",
        "one call": "one call",
        "in flight, of 100 queued": "inflight_depth",
        "a step of LeNet": ("LeNet TF32, batch 256", "jit"),
        "in one scan": ("LeNet TF32, batch 256", "scan"),
        "a step of ResNet-18": ("ResNet-18 bfloat16, batch 256", "jit"),
        "its steps in one scan": ("ResNet-18 bfloat16, batch 256", "scan"),
    }
)

# %% [markdown]
# ## 8.2.5 Summary
# - A JAX call queues work and returns. Only what needs a value waits: `block_until_ready`,
#   `np.asarray`, `item`, `print`, `if`. JAX has no `waitall`: wait for all results that you
#   keep.
# - A timing that does not wait measures only queueing. An error appears where Python waits.
# - Waiting costs a time in each turn. It depends on the size, and a model of three numbers
#   may be far off. A loop that waits may also get its memory from the
#   operating system, page by page, which can cost far more. Donate, and it does not.
# - The queue is limited, on a CPU to 32 computations. Each keeps its inputs in memory.
# - Read the loss in every step if steps take tens of milliseconds. Otherwise use a window.
#
# ## 8.2.6 Exercises
# Think first, then open the code and the answer.
#
# **1 (the book's).** The book's formula, $t_1 + 1000 t_2 + t_3$, assumes
# $1000 t_2 > 999 t_1$. Why?

# %% tags=["answer", "slow"]
for n in (unseen[0], unseen[-1]):
    share = (t1 + turns[n] * t2(n) + t3.median) / (turns[n] * median_once[n])
    print(f"{n:,} elements: the formula gives {share:.0%} of the measured time")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The assumption says that the back end never runs out of work. While it computes 1000
# times, the front end queues the other 999 computations. If $t_2 < t_1$, the back end waits
# for the front end, and the loop takes $1000 t_1 + t_2 + t_3$, whatever the size. If your
# smallest size lies left of the crossover, the formula's time is too short there: see the
# first line. (Its $t_2$ is not measured: no loop shows it where the front end sets the
# pace.) In general, $\max(t_1, t_2)$ replaces $t_2$.
#
# A reader guessed: "only if $t_2$ is large is it worth it to be asynchronous." It is the
# other way round. For a large $t_2$ the gain $(t_1 + t_2 + t_3) / \max(t_1, t_2)$ shrinks
# to 1. By the model it is largest where $t_1 = t_2$; the figure of 8.2.3 shows where it
# was largest in this run.
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
child = subprocess.run(
    [sys.executable, "-c", program],
    capture_output=True,
    text=True,
    env=os.environ | {"JAX_PLATFORMS": "cpu"},
)
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
jnp.dot(x, x).block_until_ready()
for wait in (False, True):
    start = time.perf_counter()
    y = jnp.dot(x, x)
    if wait:
        y.block_until_ready()
    seconds = time.perf_counter() - start
    print(f"wait: {wait}: {2e-12 * len(x)**3 / seconds:,.2f} TFLOP/s")
    y.block_until_ready()

# %% [markdown]
# <details><summary>Answer</summary>
#
# The first timing stops when the product is queued, not when it is computed. The speed is
# then often many times what the processor can do. Compare a measured speed with the machine's
# limit, as [section 8.0](performance_model) does: a result far above the limit means that the
# timing is wrong.
#
# </details>
#
# **4.** Time a call that you wait for, once right after the call before, and once after a
# pause of a millisecond. Repeat the second while a program of idle priority keeps the cores
# awake. What does a pause change, and is it a core that sleeps?

# %% tags=["answer", "slow"]
z = jnp.ones(2048)
add_one(z).block_until_ready()  # compiles

def call_after(pause, calls=20):
    """Median seconds of a call and of the wait for it, each after a pause."""
    took = []
    for _ in range(calls):
        ends = time.perf_counter() + pause
        while time.perf_counter() < ends:
            pass
        start = time.perf_counter()
        y = add_one(z)
        queued = time.perf_counter()
        y.block_until_ready()
        took.append((queued - start, time.perf_counter() - queued))
    return np.median(took, axis=0)

# %% tags=["answer", "slow"]
states = {"at once": (0, False), "after a pause": (1e-3, False),
          "after a pause, cores kept awake": (1e-3, True)}
took = {name: [] for name in states}
with cores_awake() as keep:
    for _ in range(s.rounds):
        for name in random.sample(list(states), len(states)):
            pause, awake = states[name]
            keep(awake)
            took[name].append(call_after(pause))
totals = {name: np.sum(seconds, axis=1) for name, seconds in took.items()}
longer = {name: ratio_of(totals[name] / totals["at once"])
          for name in list(states)[1:]}
s.grid(("x + 1, 2048 elements", "call, µs", "wait, µs", "times as long"),
       [(name, *(f"{1e6 * v:.1f}" for v in np.median(seconds, axis=0)),
         longer.get(name, 1)) for name, seconds in took.items()],
       title="A call that is waited for")

# %% tags=["answer", "slow", "hide-input"]
paused, awake = longer.values()
s.say(paused.above(1.1),
      if_holds=f"After a pause, call and wait take {paused} times as long as "
      f"at once. With the cores kept awake, they take {awake} times as long.",
      if_not=f"After a pause, call and wait take {paused} times as long as at "
      "once: here a pause costs little or nothing.",
      if_open=f"After a pause, call and wait take {paused} times as long as at "
      "once: this run cannot tell.")

# %% [markdown]
# <details><summary>Answer</summary>
#
# All three rows compute the same. During a pause, the thread that computes has nothing to
# do and may go to sleep, and so may its core. The next call has to wake it. You see this
# time in *call* if the woken thread runs before Python goes on, and in *wait* otherwise. So
# it can be in $t_1$ or in $t_3$. If the last row takes as long as the row above it, the
# core's sleep does not matter. If it takes as long as the first row, only that matters. The
# model's numbers hold for calls as close to each other as those that they were fitted to.
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
z = jnp.ones((s.queued, s.queued))
for window in (2, 100):
    results, in_flight = [], []
    for _ in range(100):
        results.append(multiply(z))
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
