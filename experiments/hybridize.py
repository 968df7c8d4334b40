# %% [markdown]
# # 8.1 Imperative and symbolic programming
# Python runs a network operation by operation. JAX can also compile it into one program.
# What does compiling gain, what does it cost, and which code does it forbid? After this
# section you can
# - read the programs that JAX makes from a function: a jaxpr, StableHLO, and XLA's program;
# - compile a Flax network in eight lines, and choose among Flax's own ways to do it;
# - say which calls trace a function again;
# - export a network and run it without the code that made it;
# - repair networks that JAX cannot trace because of `if`, `for`, NumPy, or assignments.
#
# You need no GPU.

# %%
import contextlib
import io
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import chex
import flax
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from flax import nnx
from jax import export, lax

import jaxperf.models
from jaxperf.chapter.section import section
from jaxperf.measure import count_ops, interleaved, per_round
from jaxperf.measure.compile_log import watch_compilation
from jaxperf.result import both, ratio

s = section("8.1", programs=150, calls=100, rounds=10, images=8,
            batches=(1, 32, 1024), gpu={"batches": (1, 1024, 131_072)},
            smoke={"calls": 20, "rounds": 6, "batches": (1, 8), "images": 1},
            full={"calls": 1000, "rounds": 25, "images": 16,
                  "batches": (1, 8, 64, 512, 4096)})
x = jax.random.normal(jax.random.key(0), (1, 512))
x4 = jax.random.normal(jax.random.key(0), (1, 4))
net = jaxperf.models.MLP((512, 256, 128, 2), rngs=nnx.Rngs(0))

# %% [markdown]
# ## Two ways to run a program
# Python is *imperative*: each statement runs when Python reaches it, and changes the
# program's state. After `e = add(a, b)`, the variable `e` has a value.

# %%
def add(a, b):
    return a + b

def fancy_func(a, b, c, d):
    e = add(a, b)
    f = add(c, d)
    return add(e, f)

print(fancy_func(1, 2, 3, 4))

# %% [markdown]
# This is convenient but can be slow, for two reasons. Python makes the three calls one by
# one. It also keeps `e` and `f` in memory until `fancy_func` returns, because it cannot
# know whether a later statement uses them.
#
# A *symbolic* program is complete before anything runs. There are three steps: define the
# computation, compile it, and run it on inputs. The book shows them with a program in a
# string.

# %%
def add_str():
    return """
def add(a, b):
    return a + b
"""

def fancy_func_str():
    return """
def fancy_func(a, b, c, d):
    e = add(a, b)
    f = add(c, d)
    return add(e, f)
"""

def evoke_str():
    return add_str() + fancy_func_str() + "\nprint(fancy_func(1, 2, 3, 4))\n"

prog = evoke_str()
print(prog)
y = compile(prog, "", "exec")
exec(y, {})

# %% [markdown]
# ![Imperative: Python makes three calls of add, and the arrays e and f stay in memory
# until fancy_func returns. Symbolic: the program is defined and compiled, then one call
# computes g, and e and f never exist.](images/imperative_symbolic.svg "The same
# computation, imperative and symbolic.")
#
# In JAX you write no such string. `jax.jit` runs your function once with *tracers*, which
# have a shape and a dtype but no value, and records each operation on them. This is called
# *tracing*. The record is a *jaxpr*. JAX then *lowers* the jaxpr to StableHLO, the language
# that the XLA compiler reads. Both contain only three additions. The calls of `add` and all
# other Python are gone.

# %%
def fancy(a, b, c, d):
    e = a + b
    f = c + d
    return e + f

number = jax.ShapeDtypeStruct((), jnp.float32)
traced = jax.jit(fancy).trace(number, number, number, number)
print(traced.jaxpr)
print(traced.lower().as_text().strip())

# %% [markdown]
# A compiler that sees the whole program can rewrite it. The book suggests `print((1 + 2) +
# (3 + 4))`, or even `print(10)`.
#
# <details><summary>Predict: if all four inputs are known while tracing, how many additions
# are in the jaxpr, and how many in XLA's program?</summary>
#
# Three in the jaxpr, because tracing only records. XLA should leave none, and return the
# constant 10: the cell below prints its program.
#
# </details>

# %%
numbers = [jnp.float32(i) for i in (1, 2, 3, 4)]
ten = jax.jit(lambda: sum(numbers[1:], start=numbers[0]))
optimized = ten.lower().compile().as_text()
print(optimized[optimized.index("ENTRY"):].strip())

# %% tags=["hide-input"]
adds = str(ten.trace().jaxpr).count("add "), count_ops(optimized)["add"]
s.claim("The compiler can rewrite the program to print(10)",
        source="section 8.1",
        holds=adds[1] == 0 and "constant(10)" in optimized,
        expected="no addition left, and the constant 10",
        observed=f"{adds[0]} additions traced, {adds[1]} compiled",
        if_holds=f"XLA made {adds[0]} additions into the constant 10.",
        if_not=f"XLA left {adds[1]} of {adds[0]} additions.")

# %% [markdown]
# The book says that compiling saves function calls and memory. First we check the memory,
# with four 1 MB arrays. We add up all live arrays just before `fancy_func` would return its
# result, here called `g`.

# %%
def bytes_kept(a, b, c, d):
    before = sum(array.nbytes for array in jax.live_arrays())
    e = a + b
    f = c + d
    g = e + f
    return sum(array.nbytes for array in jax.live_arrays()) - before, g

megabytes = [jnp.full(250_000, i, jnp.float32) for i in (1, 2, 3, 4)]
eager_bytes = bytes_kept(*megabytes)[0]
plan = (
    jax.jit(lambda a, b, c, d: (a + b) + (c + d))
    .lower(*megabytes)
    .compile()
    .memory_analysis()
)
needed = plan.output_size_in_bytes + plan.temp_size_in_bytes
print(
    f"operation by operation {eager_bytes:,} bytes, compiled {needed:,} bytes"
)

# %% tags=["hide-input"]
s.claim("Compiling saves memory: e and f need not be kept",
        source="section 8.1", holds=needed < eager_bytes,
        expected="3 MB for e, f, and g; compiled 1 MB for g alone",
        observed=f"{eager_bytes / 1000000.0:g} MB one by one, "
        f"{needed / 1000000.0:g} MB compiled",
        if_holds="The compiled program needs memory for its result only.",
        if_not="The compiled program keeps as much as Python does.")

# %% [markdown]
# Next we check the calls. With four single numbers, almost all time goes into calls. The
# first row makes three calls, and the second row makes one. The last row calls a program
# that only returns the constant 10, so it shows what a call costs at least.

# %% tags=["slow"]
numbers = [jnp.float32(i) for i in (1, 2, 3, 4)]
fused = jax.jit(lambda a, b, c, d: (a + b) + (c + d))
ten = jax.jit(lambda: jnp.float32(10))
a, b, c, d = numbers
small = interleaved(
    {
        "operation by operation": lambda: (a + b) + (c + d),
        "compiled": lambda: fused(a, b, c, d),
        "print(10)": ten,
    },
    count=s.rounds,
    wait="end",
    loops=s.calls,
)
s.table(small, title="fancy_func on four numbers, seconds per call",
        base="compiled")

# %% tags=["slow", "hide-input"]
fewer = ratio(small["operation by operation"], small["compiled"])
s.claim("Compiling saves calls", holds=fewer.above(1), source="section 8.1",
        expected="three additions one by one take longer than one program of "
        "three", observed=f"{fewer} times as long",
        if_holds=f"Three calls take {fewer} times as long as one.",
        if_not=f"Three calls take {fewer} times as long as one: nothing is "
        "saved.",
        if_open=f"Three calls take {fewer} times as long as one: undecided.")

# %% [markdown]
# The book compares the two styles:
# - *Imperative programs are easier to write and to debug.* You can print every intermediate
#   value, and a debugger stops at any line.
# - *Symbolic programs are faster and more portable.* A compiler can optimize the whole
#   program, which can then run without Python. Section 8.1.2 runs one without the code that
#   made it; the process there is still Python, so the last step is not shown here.
#
# ## 8.1.1 Hybrid programming: the best of both
# Theano and the first TensorFlow were symbolic. Chainer and the first PyTorch were
# imperative. The authors of Gluon wanted both: imperative programming for developing and
# debugging, symbolic programming for product-level performance and deployment. Today
# TensorFlow has `tf.function`, and PyTorch has `torch.compile`. JAX was built on this idea:
# `jax.jit` [traces your Python](https://docs.jax.dev/en/latest/201/jit.html).
#
# ![The path of a call: the Python function is traced to a jaxpr, lowered to StableHLO,
# compiled by XLA to machine code. A trace cache holds the jaxpr, an executable cache the
# machine code, and later calls with the same key go straight from Python to the machine
# code.](images/tracing.svg "The path of a first call, and the short path of later ones.")
#
# Every step's result is cached. A later call with the same key goes straight to the machine
# code. Section 8.1.3 shows what the key is.
#
# The book says that nearly all models can be run this way. Nobody can count all models, so
# this page does not judge the sentence. But the condition is clear: a network can be
# compiled if its Python code does not depend on the *values* of arrays. Shapes and dtypes
# are known while tracing, so code may depend on them. The networks of this chapter compile
# unchanged (exercise 3); section 8.1.3 has code that does not.

# %% [markdown]
# ## 8.1.2 A network from layers, and `hybridize`
# The book's MLP has three layers. Its `HybridSequential` becomes a Flax module.
#
# ::::{tab-set}
# :::{tab-item} Gluon
# ```python
# net = nn.HybridSequential()
# net.add(nn.Dense(256, activation="relu"), nn.Dense(128, activation="relu"), nn.Dense(2))
# net.initialize()
# net.hybridize()
# net(x)
# ```
# :::
# :::{tab-item} PyTorch
# ```python
# net = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(),
#                     nn.Linear(128, 2))
# compiled = torch.compile(net)
# compiled(x)
# ```
# :::
# ::::

# %%
class MLP(nnx.Module):
    def __init__(self, rngs):
        self.hidden1 = nnx.Linear(512, 256, rngs=rngs)
        self.hidden2 = nnx.Linear(256, 128, rngs=rngs)
        self.output = nnx.Linear(128, 2, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.hidden1(x))
        x = nnx.relu(self.hidden2(x))
        return self.output(x)

net = MLP(nnx.Rngs(0))
before = net(x)
print("before hybridizing:", before)

# %% [markdown]
# `jax.jit` compiles functions of arrays, and a network is an object. So `nnx.split` splits
# it into its structure, which is fixed in the program, and its variables, which the program
# takes as an argument. While tracing, `nnx.merge` builds the network again.

# %%
def hybridize(net):
    structure, variables = nnx.split(net)

    @jax.jit
    def program(variables, x):
        return nnx.merge(structure, variables)(x)

    return lambda x: program(variables, x)

# %% [markdown]
# `variables` refers to the variables of `net` itself, so the compiled network sees
# parameters that you train later. `watch_compilation` notes what JAX traces and compiles
# meanwhile.

# %%
compiled = hybridize(net)
after = compiled(x)
print("after hybridizing: ", after)
chex.assert_trees_all_close(after, before, atol=1e-2)  # a GPU may use TF32

with watch_compilation() as log:
    compiled(x)
print("traced or compiled at the second call:", list(log))

# %% tags=["hide-input"]
worst = float(abs(before - after).max())
tolerance = {"cpu": 1e-6}.get(s.environment.backend, 1e-2)
s.fact("trace_count_second", sum("traced" in line for line in log),
       meaning="traces at the second call")
s.fact("outputs_max_abs_diff", worst,
       meaning="largest difference of the outputs")
s.claim("After hybridize the output stays the same", source="section 8.1.2",
        holds=worst <= tolerance, expected="equal except for rounding",
        observed=f"largest difference {worst:.0e}",
        if_holds="Both outputs are the same, except for rounding "
        f"({worst:.0e}).",
        if_not=f"The outputs differ by {worst:.0e}, more than rounding.")

# %% [markdown]
# In Gluon, only layers that inherit from `HybridBlock` are optimized, and MXNet refuses to
# put another layer into a `HybridSequential`. JAX does not look at classes. It traces
# *operations*, so any class works. Plain Python code runs while JAX traces. NumPy functions
# that compute do not accept tracers.
#
# ### Computational performance
# The book calls the network 1000 times, and waits for all results at the end.

# %% tags=["slow"]
def benchmark(net, x):
    start = time.time()
    for _ in range(1000):
        y = net(x)
    jax.block_until_ready(y)  # the book's nd.waitall()
    return time.time() - start

seconds = [benchmark(net, x), benchmark(compiled, x)]
print(f"before hybridizing: {seconds[0]:.4f} sec (the book, MXNet: 0.4943)")
print(f"after hybridizing:  {seconds[1]:.4f} sec (the book, MXNet: 0.2053)")

# %% [markdown]
# How long does MXNet itself take on this machine? The next cell runs the book's code in an
# environment that `uv` makes from the first lines, if it has the packages already.

# %% tags=["slow"]
# a network: the book's, and its benchmark
BOOK = """
# /// script
# requires-python = ">=3.8,<3.12"
# dependencies = ["mxnet==1.9.1", "numpy==1.23.5"]
# ///
import time
from mxnet import nd
from mxnet.gluon import nn

def benchmark(net, x):
    start = time.time()
    for i in range(1000):
        _ = net(x)
    nd.waitall()
    return time.time() - start

net = nn.HybridSequential()
net.add(nn.Dense(256, activation="relu"),
        nn.Dense(128, activation="relu"), nn.Dense(2))
net.initialize()
x = nd.random.normal(shape=(1, 512))
net(x)
print("before hybridizing: %.4f sec" % benchmark(net, x))
net.hybridize()
net(x)
print("after hybridizing:  %.4f sec" % benchmark(net, x))
"""
uv = [sys.executable, "-m", "uv", "run", "--offline", "--quiet", "-"]
done = subprocess.run(uv, input=BOOK, capture_output=True, text=True)
if done.returncode == 0:
    print(f"MXNet 1.9.1 on this machine:\n{done.stdout}")
else:
    print(
        "MXNet is not here. To fetch it (300 MB), in a clone: pip install uv;",
        "uv run --script benchmarks/frameworks/with_mxnet.py",
    )

# %% [markdown]
# If MXNet is here, compare each of its lines with ours. A larger factor can also mean a
# slower start: a Flax module does more in Python for each operation than MXNet does. So the
# factors of two frameworks do not compare; their compiled times do.
#
# Flax has its own ways to compile a module. They differ in what Python does at each call.
#
# | way | at each call, Python | writes changed variables back |
# |:--|:--|:--|
# | `nnx.jit` | walks through all objects of the module | yes |
# | `nnx.jit(graph=False)` | walks through it as a tree; refuses shared layers | yes |
# | `nnx.cached_partial` | uses a cached walk | yes |
# | `jax.jit` of the module | lets JAX flatten the module's tree | **no, silently** |
# | our `hybridize` | lets JAX flatten the variables | **no, silently** |
# | `jaxperf.models.hybridize` | checks whether the module changed | yes |
# | `jax.jit` of arrays | flattens a list | you return them |
#
# "Writes back" matters for BatchNorm and dropout, which change variables when called
# (exercise 4). Flax's [performance
# guide](https://flax.readthedocs.io/en/latest/guides/performance.html) explains the
# overhead of `nnx.jit` and how to reduce it.

# %%
call = nnx.jit(lambda net, x: net(x))
as_tree = nnx.jit(lambda net, x: net(x), graph=False)
as_graph = nnx.jit(lambda net, x: net(x), graph=True, graph_updates=True)
by_jax = jax.jit(lambda net, x: net(x))

@jax.jit
def mlp(params, x):
    *hidden, (W, b) = params
    for V, c in hidden:
        x = jax.nn.relu(x @ V + c)
    return x @ W + b

# %%
layers = net.hidden1, net.hidden2, net.output
params = [(layer.kernel[...], layer.bias[...]) for layer in layers]
cached = nnx.cached_partial(as_graph, net, graph=True, graph_updates=True)
by_jaxperf = jaxperf.models.hybridize(net)
ways = {
    "operation by operation": lambda: net(x),
    "nnx.jit": lambda: call(net, x),
    "nnx.jit(graph=False)": lambda: as_tree(net, x),
    "nnx.cached_partial": lambda: cached(x),
    "jax.jit of the module": lambda: by_jax(net, x),
    "hybridize": lambda: compiled(x),
    "jaxperf.models.hybridize": lambda: by_jaxperf(x),
    "jax.jit of arrays": lambda: mlp(params, x),
}
for way in ways.values():
    chex.assert_trees_all_close(way(), before, atol=1e-2)

# %% [markdown]
# <details><summary>Predict: which compiled way is the slowest?</summary>
#
# `nnx.jit` does the most in Python: it walks through all objects of the module, at each
# call. The program itself is nearly the same in all compiled ways, and for one example it
# is short. How many times as long a call takes, the next table says.
#
# </details>

# %% tags=["slow"]
times = interleaved(ways, count=s.rounds, wait="end", loops=s.calls)
s.table(
    times,
    title="One call, batch 1, waiting once at the end",
    base="hybridize",
    book={"operation by operation": 0.4943e-3, "hybridize": 0.2053e-3},
)

# %% tags=["slow", "hide-input"]
gain = ratio(times["operation by operation"], times["hybridize"])
over = ratio(times["nnx.jit"], times["hybridize"])
s.fact("eager_over_hybridize", gain.median,
       meaning="operation by operation over hybridize")
s.fact("nnx_jit_over_hybridize", over.median, meaning="nnx.jit over hybridize")
s.claim("Symbolic execution is faster (the book: 2.4 times)",
        source="section 8.1.2", holds=gain.above(1),
        expected="faster than operation by operation",
        observed=f"{gain} times as fast",
        if_holds=f"Compiled, this network is {gain} times as fast, in the "
        "book 2.4 times.",
        if_not=f"Compiled, this network is not faster: {gain} times.",
        if_open=f"Compiled, this network is {gain} times as fast: undecided.")

# %% tags=["slow", "hide-input"]
s.claim("Most of an nnx.jit call of this MLP is Python's work on the module",
        holds=over.above(2),
        expected="hybridize takes less than half the time",
        observed=f"nnx.jit takes {over} times as long",
        if_holds=f"`nnx.jit` takes {over} times as long as `hybridize`. Both "
        "run nearly the same program, so the difference is Python.",
        if_not=f"`nnx.jit` takes {over} times as long as `hybridize`: Python's "
        "work on the module is less than half of the call.",
        if_open=f"`nnx.jit` takes {over} times as long as `hybridize`: "
        "undecided.")

# %% [markdown]
# The rule: all compiled ways run nearly the same program, but Python's work per call
# differs. For short calls, choose the way with the least work. For long calls, choose the
# most convenient way.
#
# Compiling takes time at the first call.

# %% tags=["slow"]
structure, variables = nnx.split(net)
fresh = jax.jit(lambda variables, x: nnx.merge(structure, variables)(x))
clock = [time.perf_counter()]
traced = fresh.trace(variables, x)
clock.append(time.perf_counter())
lowered = traced.lower()
clock.append(time.perf_counter())
lowered.compile()
clock.append(time.perf_counter())
for stage, paid in zip(("trace", "lower", "compile"), np.diff(clock)):
    print(f"{stage:8} {1e3 * paid:6.1f} ms")
saved = times["operation by operation"].median - times["hybridize"].median
pays = math.ceil((clock[-1] - clock[0]) / saved) if saved > 0 else None
s.fact("break_even_calls", pays, meaning="calls that pay for compiling")

# %% [markdown]
# To find the number of calls that pay for compiling, divide this time by the time that
# each call saves. (Op by op, the first call compiles, too, a small program for each
# operation. This count leaves that out.) If your program makes fewer calls, do not
# compile the network, or keep XLA's machine code on disk between runs with
# `jax_compilation_cache_dir`.
#
# How much does a call save when there is more to compute? We give the MLP larger batches,
# and on a GPU much larger ones.

# %% tags=["slow"]
batches = sorted(s.batches)
inputs = {n: jnp.ones((n, 512)) for n in batches}
calls = {}
for n in batches:
    calls[f"one by one, {n}"] = lambda x=inputs[n]: net(x)
    calls[f"compiled, {n}"] = lambda x=inputs[n]: compiled(x)
sweep = interleaved(calls, count=8 * s.rounds, wait="end")
s.table(sweep, title="Seconds per call, over batch sizes", fold=True)

# %% tags=["slow", "hide-input"]
fig, ax = plt.subplots()
for way, mark in (("one by one", "o-"), ("compiled", "s-")):
    medians = [1e6 * sweep[f"{way}, {n}"].median for n in batches]
    ax.loglog(batches, medians, mark, label=way)
ax.set(xlabel="batch", ylabel="µs per call")
ax.legend()
s.figure(fig,
         "Time per call over the batch. Where the lines come closer, "
         "compiling gains less.",
         alt="Two lines, one by one and compiled, over the batch size.")
gains = {
    n: (sweep[f"one by one, {n}"], sweep[f"compiled, {n}"]) for n in batches
}
least, most = (per_round("gain", lambda a, b: a / b, *gains[n], unit="")
               for n in (batches[-1], batches[0]))
gains = {n: ratio(*pair) for n, pair in gains.items()}

# %% tags=["slow", "hide-input"]
s.claim("Compiling gains less where a call computes more",
        holds=ratio(most, least).above(1),
        expected="a larger gain at the smallest batch than at the largest",
        observed=f"batch {batches[0]}: {most.median:.3g} times as fast, batch "
        f"{batches[-1]}: {least.median:.3g}",
        if_holds="Compiling saves Python's work per operation, and at large "
        "batches passes over memory. Both are a smaller part of a call that "
        "computes more.",
        if_not="Here the largest batch gains at least as much as the smallest. "
        "One possible reason: op by op, each operation writes its result to "
        "new memory, and compiling saves that, too.",
        if_open="This run cannot tell the gains of the two batches apart.")

# %% tags=["slow", "hide-input"]
s.claim("At none of these batches is the compiled MLP more than 5% slower",
        holds=both(*(gain.at_least(0.95) for gain in gains.values())),
        expected="each gain 0.95 or more",
        observed=", ".join(f"batch {n}: {gain}" for n, gain in gains.items()),
        if_holds="Compiling did no harm at any of these batches.",
        if_not="At one of these batches, compiling made the network slower: a "
        "compiler may choose worse code for a whole program than for its "
        "operations one by one.",
        if_open="At one of these batches, the run cannot exclude that "
        "compiling harms.")

# %% [markdown]
# ### Getting the symbolic program
# A compiled network needs no Python, so you can store it and use it elsewhere. Gluon writes
# a program (`.json`) and parameters (`.params`). In JAX, `jax.export` serializes StableHLO
# for arguments of a given shape. Parameters are plain arrays, which NumPy can write.
# Gluon's call is `net.export("my_mlp")`, and PyTorch's is
# `torch.export.save(torch.export.export(net, (x,)), path)`.

# %%
structure = nnx.graphdef(net)
# a dictionary of dictionaries of arrays
arrays = nnx.to_pure_dict(nnx.state(net))

@jax.jit
def program(arrays, x):
    return nnx.merge(structure, arrays)(x)

exported = export.export(program)(arrays, x)
print("runs on:", exported.platforms)
for line in exported.mlir_module().splitlines():
    if "= stablehlo.dot_general" in line:
        print(line[line.index("tensor<1x"):].split(" loc(")[0])

# %% [markdown]
# Now we write both files, and a new process reads them. The new process imports neither
# Flax nor the class `MLP`. It imports JAX only to use the XLA compiler.

# %%
READER = """
import sys, time
import jax, numpy as np
from jax import export

exported = export.deserialize(bytearray(open("my_mlp.jaxexport", "rb").read()))
with np.load("my_mlp.npz") as file:
    leaves = [*file.values(), np.load("x.npy")]
(arrays, x), _ = jax.device_put(jax.tree.unflatten(exported.in_tree, leaves))
run = jax.jit(exported.call)
np.save("y.npy", run(arrays, x))

start = time.time()
for _ in range(1000):
    y = run(arrays, x)
y.block_until_ready()
print(f"another process: {time.time() - start:.4f} sec for 1000 calls")
print("imported:", *{"jax", "flax", "jaxperf"} & {*sys.modules})
"""

# %%
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder)
    (path / "my_mlp.jaxexport").write_bytes(exported.serialize())
    np.savez(path / "my_mlp.npz", *jax.tree.leaves(arrays))
    np.save(path / "x.npy", x)
    for file in sorted(path.iterdir()):
        print(f"{file.name}: {file.stat().st_size:,} bytes")
    share = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # of the GPU's memory
             "JAX_PLATFORMS": {"cpu": "cpu"}.get(s.environment.backend, "cuda")}
    reader = subprocess.run(
        [sys.executable, "-c", READER],
        cwd=folder,
        text=True,
        env=os.environ | share,
        capture_output=True,
    )
    print(reader.stdout or reader.stderr)
    read_back = np.load(path / "y.npy")
chex.assert_trees_all_close(read_back, np.asarray(before), atol=1e-2)

# %% tags=["hide-input"]
far = float(abs(read_back - before).max())
s.claim("Program and parameters can be used without the code that made them",
        source="section 8.1.2",
        holds=far <= tolerance and "flax" not in reader.stdout,
        expected="the same output in a process that does not import Flax",
        observed=f"largest difference {far:.0e}, "
        f"{reader.stdout.splitlines()[-1]}",
        if_holds="The new process computed the same output without Flax and "
        "without `MLP`.",
        if_not="The new process computed another output, or imported Flax.")

# %% [markdown]
# The book adds that an exported program is often faster than the imperative one. To compare
# them in turns, we also load the exported program in this process. There is one trap:
# without `jax.jit`, `exported.call` runs JAX's Python code at each call. Wrap it in
# `jax.jit`, as above.

# %% tags=["slow"]
loaded = export.deserialize(exported.serialize())
deployed = jax.jit(loaded.call)
served = interleaved(
    {
        "operation by operation": lambda: net(x),
        "exported, without jit": lambda: loaded.call(arrays, x),
        "exported, with jit": lambda: deployed(arrays, x),
        "the jitted program it was made from": lambda: program(arrays, x),
    },
    count=s.rounds,
    wait="end",
    loops=s.calls,
)
s.table(
    served,
    title="The exported program, seconds per call",
    base="exported, with jit",
)

# %% tags=["slow", "hide-input"]
better = ratio(served["operation by operation"], served["exported, with jit"])
s.claim("The exported MLP is faster than the imperative one",
        source="section 8.1.2", holds=better.above(1),
        expected="faster, for this MLP", observed=f"{better} times as fast",
        if_holds=f"The exported program of this MLP is {better} times as fast.",
        if_not=f"The exported program of this MLP is not faster: {better} "
        "times.",
        if_open=f"The exported program of this MLP is {better} times as fast: "
        "undecided.")

# %% [markdown]
# How long can you keep the file? JAX
# [promises](https://docs.jax.dev/en/latest/501/export.html) that versions up to six months
# newer or three weeks older can read it. The promise covers custom calls, such as a
# vendor's kernels, only if JAX lists them as stable. `export` refuses all others, unless
# you switch off its check. So keep the code and the parameters, too.
#
# Other programs can run the same StableHLO: a C++ program through a PJRT plugin, or a
# compiler such as IREE on a device without Python (neither was tried here). In the book,
# MXNet's front ends in other languages read the same files. `jaxperf.models.export_net`
# stores named arrays and exports for several platforms.
#
# In MXNet a symbolic program consists of `Symbol`s. A hybridized network called with
# `sym.var("data")` returns a `Symbol`, in the book `<Symbol dense5_fwd>`. In JAX you pass a
# `ShapeDtypeStruct`, which describes an array and holds no data. `jax.eval_shape` traces
# the call and describes its output without computing it. A dimension may even be a
# variable.

# %%
data = jax.ShapeDtypeStruct((1, 512), jnp.float32)
print(jax.eval_shape(lambda x: net(x), data))
any_batch = jax.ShapeDtypeStruct(
    export.symbolic_shape("batch, 512"), jnp.float32
)
print(jax.eval_shape(lambda x: net(x), any_batch))

# %% [markdown]
# ## 8.1.3 A network of your own: what tracing changes
# The book's `HybridNet` prints its values. In Gluon, `hybrid_forward` has an argument `F`:
# the module `nd` when the network runs imperatively, and `sym` when it is hybridized. JAX
# needs no `F`, because `jnp` takes both arrays and tracers. We print the type of `x`
# instead.
#
# ::::{tab-set}
# :::{tab-item} Gluon
# ```python
# class HybridNet(nn.HybridBlock):
#     def hybrid_forward(self, F, x):
#         print("F: ", F)
#         print("x: ", x)
#         x = F.relu(self.hidden(x))
#         print("hidden: ", x)
#         return self.output(x)
# ```
# :::
# :::{tab-item} PyTorch
# ```python
# class HybridNet(nn.Module):
#     def forward(self, x):
#         print("x: ", x)  # torch.compile splits the program here and prints at every call
#         return self.output(torch.relu(self.hidden(x)))
# ```
# :::
# ::::

# %%
class HybridNet(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(4, 10, rngs=rngs)
        self.output = nnx.Linear(10, 2, rngs=rngs)

    def __call__(self, x):
        print("type:", type(x).__name__)
        print("x:", x)
        x = nnx.relu(self.hidden(x))
        print("hidden:", x)
        return self.output(x)

hybrid_net = HybridNet(nnx.Rngs(0))
print(hybrid_net(x4))
print(hybrid_net(x4))  # the same again

# %% [markdown]
# <details><summary>Predict: what do the first and the second call print after
# <code>hybridize</code>?</summary>
#
# The first call prints a tracer's type and no values, because JAX runs the Python code to
# record its operations. The second call runs only the compiled program, so it should print
# the output alone.
#
# </details>

# %%
def printed(call):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        print("output:", call())
    return out.getvalue()

hybrid = hybridize(hybrid_net)
first, second = printed(lambda: hybrid(x4)), printed(lambda: hybrid(x4))
print(f"first call:\n{first}\nsecond call:\n{second}")

# %% tags=["hide-input"]
silent = [
    sum(map(text.count, ("type:", "x:", "hidden:"))) for text in (first, second)
]
s.claim("After hybridize, the prints are silent from the second call on",
        source="section 8.1.3", holds=silent == [3, 0],
        expected="3 prints in the first call, none in the second",
        observed=f"{silent[0]} in the first call, {silent[1]} in the second",
        if_holds="From the second call on, only the compiled program runs. "
        "This is one reason for the speed, but the prints no longer help you "
        "to debug.",
        if_not=f"The second call printed {silent[1]} times: it ran Python "
        "again.")

# %% [markdown]
# If you want to see values, JAX has two remedies. `jax.debug.print` becomes an operation of
# the program and prints values at every call. `jax.disable_jit` makes everything imperative
# again, so that debuggers and prints work.

# %%
@jax.jit
def double(x):
    jax.debug.print("value at run time: {}", x)
    return 2 * x

double(1.0), double(2.0)
jax.effects_barrier()  # wait for the prints
with jax.disable_jit():
    double(3.0)

# %% [markdown]
# ### When is a function traced again?
# A compiled program works for only one kind of arguments. We call one jitted function in
# many ways and count the traces and compilations.
#
# <details><summary>Predict: does a call with a Python number, <code>jitted(X, 1.0)</code>,
# trace again? And the next one, <code>jitted(X, 2.0)</code>?</summary>
#
# The first one does: a Python number has a *weak type*, which is another kind of argument
# than a `float32` array. The second one does not, because only the value differs.
#
# </details>

# %%
traces = []

def scale(x, factor, flip=False):
    traces.append(1)  # Python runs only while JAX traces
    x = x["x"] if isinstance(x, dict) else x
    return x * factor * (-1 if flip else 1)

jitted = jax.jit(scale, static_argnames="flip")
X, one = jnp.ones((2, 3)), jnp.float32(1)
mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
on_mesh = jax.device_put(X, jax.NamedSharding(mesh, jax.P()))
on_device = jax.device_put(X, jax.devices()[-1])
more, row, half = X + 1, X[:1], X.astype(jnp.bfloat16)

# %%
calls = {
    "first call": (lambda: jitted(X, one), 1),
    "other values": (lambda: jitted(more, one), 0),
    "another shape": (lambda: jitted(row, one), 1),
    "another dtype": (lambda: jitted(half, one), 1),
    "a Python number (weak type)": (lambda: jitted(X, 1.0), 1),
    "another Python number": (lambda: jitted(X, 2.0), 0),
    "another tree: a dictionary": (lambda: jitted({"x": X}, one), 1),
    "a keyword": (lambda: jitted(X, factor=one), 1),
    "a static value": (lambda: jitted(X, one, flip=True), 1),
    "another sharding: on a mesh": (lambda: jitted(on_mesh, one), 1),
    "committed to a device": (lambda: jitted(on_device, one), 0),
    "jit of the same function":
        (lambda: jax.jit(scale, static_argnames="flip")(X, one), 0),
    "jit of a lambda": (lambda: jax.jit(lambda x, k: scale(x, k))(X, one), 1),
    "the same line once more":
        (lambda: jax.jit(lambda x, k: scale(x, k))(X, one), 1),
}

# %% tags=["hide-input"]
counts = {}
for name, (call_it, _) in calls.items():
    traces.clear()
    with watch_compilation() as log:
        call_it()
    counts[name] = len(traces), log.programs
s.grid(("call", "traced", "compiled"),
       [(name, *count) for name, count in counts.items()],
       title="Traces and compilations of each call")

# %% tags=["hide-input"]
s.claim("jit's key: function object, tree, shapes, dtypes, weak types, "
        "shardings, statics",
        holds=all(
                  (
                      counts[name][0] == traces
                      for name, (_, traces) in calls.items()
                  )
              ),
        expected=f"{sum((n for _, n in calls.values()))} traces of "
        f"{len(calls)} calls",
        observed=f"{sum((n for n, _ in counts.values()))} traces",
        if_holds="Each call traced as often as this key says.",
        if_not="Some call traced more or less often than this key says: see "
        "the table.")

# %% [markdown]
# The rule of JAX 0.10 to 0.12: values never matter, unless they are static. Everything else
# in a call is part of the key: the function object, the tree (which includes keywords),
# shapes, dtypes, weak types, and shardings. If you commit an array to a device, JAX keeps
# the trace and compiles again. A trace costs many calls, and a compilation far more, as the
# cell above that prints *trace*, *lower* and *compile* shows. So define and jit functions
# once, outside of loops.
#
# A program that traces again and again still computes the right values, so nobody notices.
# Put a guard around the function. `chex.assert_max_traces` counts the runs of its Python
# body, and raises an error where there is one too many:

# %%
@jax.jit
@chex.assert_max_traces(n=2)
def guarded_sum(x):
    return x.sum()

for rows in (64, 64, 64, 17):  # the last batch of an epoch is smaller
    guarded_sum(jnp.ones((rows, 4)))
print("two shapes: no error")
try:
    guarded_sum(jnp.ones((18, 4)))
except AssertionError as error:
    print("a third:", str(error).strip().splitlines()[0])

# %% [markdown]
# To learn *why* a call missed the cache, `jax.config.update("jax_explain_cache_misses",
# True)` logs the reason
# ([guide](https://docs.jax.dev/en/latest/debugging/slow_tracing_compilation.html)).
#
# ### What tracing forbids
# The book lists what a hybridized network cannot do: functions that `Symbol` does not have,
# such as `asnumpy`, and in-place operations, such as `a += b` and `a[:] = a + b`. We try
# each under `jax.jit`. What MXNet 1.9.1 does was recorded once, and is not run here.

# %%
def set_all(a, b):
    a[:] = a + b
    return a

def add_in_place(a, b):
    a += b
    return a

def if_value(x):
    if x.sum() > 1:
        return x / x.sum()
    return x

def if_shape(x):
    return x.sum(1) if x.ndim == 2 else x

def for_range(x, n):
    for _ in range(n):
        x = 2 * x
    return x

# %%
def attempt(fn, *args):
    """Return what fn does under jit: "works", or its error."""
    try:
        jax.jit(fn)(*args)
    except (jax.errors.JAXTypeError, TypeError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return "works"

rows = jnp.ones((3, 2))

# %%
trials = {
    "np.asarray(x)": (
        attempt(lambda x: np.asarray(x), rows),
        "not implemented for Symbol",
    ),
    "a[:] = a + b": (attempt(set_all, rows, rows), "TypeError"),
    "a += b": (attempt(add_in_place, rows, rows), "not implemented for Symbol"),
    "if x.sum() > 1": (attempt(if_value, rows), "not implemented for Symbol"),
    "if x.ndim == 2": (attempt(if_shape, rows), "AttributeError: no ndim"),
    "for row in x": (
        attempt(lambda x: sum(row.sum() for row in x), rows),
        "runs, over outputs",
    ),
    "for _ in range(n)": (attempt(for_range, rows, 3), "TypeError"),
}
s.grid(("in the network", "JAX under jit", "MXNet 1.9.1, hybridized"),
       [(what, jax_says.split(":")[0], says)
        for what, (jax_says, says) in trials.items()],
       title="What a traced function may do")
print(trials["if x.sum() > 1"][0])

# %% [markdown]
# Why do they differ? In JAX, `a += b` gives the name `a` to a new array and changes no
# array. An `if` on a shape needs no value: a tracer has a shape, and a `Symbol` has none.
# `a[:] = ...` would change an array, and JAX's arrays are immutable, with and without `jit`.
# Write `a.at[:].set(a + b)` instead. A `for` over a tracer takes its rows. A `for` over a
# `Symbol` takes its *outputs*, and a layer has one: the loop runs once, for the whole array.

# %% tags=["hide-input"]
s.claim("In-place operations such as a += b and a[:] = a + b cannot be used",
        source="section 8.1.3",
        holds="works" not in (trials["a[:] = a + b"][0], trials["a += b"][0]),
        expected="a[:] = fails, a += b works, so the sentence does not hold "
        "in JAX",
        observed="; ".join(f"{what}: {trials[what][0].split(':')[0]}"
                           for what in ("a[:] = a + b", "a += b")),
        if_holds="Neither works here.",
        if_not="At least one of the two works: the sentence is about MXNet.")
s.claim("asnumpy cannot be used in a hybridized network",
        source="section 8.1.3", holds=trials["np.asarray(x)"][0] != "works",
        expected="TracerArrayConversionError",
        observed=trials["np.asarray(x)"][0].split(":")[0],
        if_holds="NumPy needs a value, and a tracer has none.",
        if_not="NumPy accepted the argument.")

# %% [markdown]
# ### What a compiled network forgets
# Two ways of the table in 8.1.2 do not write changed variables back, *silently*. Which
# fault would you not notice? We train a parameter after compiling, and put BatchNorm into
# the network. Which ways see the new parameter, and which update BatchNorm's running mean?

# %%
class WithNorm(nnx.Module):
    def __init__(self):
        self.linear = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
        self.norm = nnx.BatchNorm(2, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.norm(self.linear(x))

def outcome(way):
    network, X = WithNorm(), jnp.array([[1.0, 2.0], [3.0, 5.0]])
    run = way(network)
    try:
        old = run(X)
    except flax.errors.TraceContextError as error:
        return type(error).__name__, ""
    network.norm.bias[...] += 100.0  # "training"
    sees = bool((run(X) != old).any())
    return sees, bool((network.norm.mean[...] != 0).any())

# %% tags=["hide-input"]
kept = {name: outcome(way) for name, way in {
    "imperative": lambda net: net,
    "nnx.jit": lambda net: lambda x: call(net, x),
    "nnx.jit(graph=False)": lambda net: lambda x: as_tree(net, x),
    "nnx.cached_partial": lambda net: nnx.cached_partial(
        as_graph, net, graph=True, graph_updates=True
    ),
    "jax.jit of the module": lambda net: lambda x: by_jax(net, x),
    "our hybridize": hybridize,
    "jaxperf.models.hybridize": jaxperf.models.hybridize,
    "jax.jit(net)": jax.jit,
}.items()}
s.grid(("way", "sees the new parameter", "updates the running mean"),
       [(name, *map(str, found)) for name, found in kept.items()],
       title="What a compiled network keeps")

# %% tags=["hide-input"]
forgetful = [name for name, (_, updates) in kept.items() if updates is False]
s.claim("Every way that compiles a network also updates its running mean",
        holds=not forgetful, expected="True in the last column, or an error",
        observed=f"False without an error: {', '.join(forgetful) or 'none'}",
        if_holds="Each way either writes the mean back or raises an error.",
        if_not="Without an error, the new mean is lost by: "
        f"{', '.join(forgetful)}. The output is right, so you notice only "
        "when you evaluate.")

# %% [markdown]
# The rule: a training program must *return* what it changes. `jax.jit(net)` makes all
# variables of the network constants of the program. Flax stops it here, because BatchNorm
# writes to two of them, the running mean and variance. Without BatchNorm there is no error,
# and the program never sees a trained parameter:

# %%
plain = nnx.Linear(5, 1, rngs=nnx.Rngs(0))
frozen, five = jax.jit(plain), jnp.ones((1, 5))
frozen(five)  # compiles, with the parameters as they are
plain.kernel[...] = jnp.zeros((5, 1))
print("the network says", plain(five), "and the program", frozen(five))

# %% [markdown]
# ### On one H200
# A call costs more on a GPU, and its arithmetic less. So compiling gains much even at very
# large batches: compare the last four rows with the table of batch sizes above. (The two
# columns also differ in the host's processor and in the version of JAX.)

# %% tags=["slow", "hide-input"]
title, sizes = "One call, batch 1", "Seconds per call, over batch"
s.on_one_gpu({f"batch 1, {way}": (title, way) for way in ways}
             | {f"{way}, {n}": (sizes, f"{way}, {n}") for n in (1024, 131072)
                for way in ("one by one", "compiled")})

# %% [markdown]
# ## 8.1.4 Summary
# - Imperative programs run statement by statement and are easy to debug. Symbolic programs
#   are complete before they run, so a compiler can make them faster, and they can run
#   without Python.
# - `jax.jit` makes imperative code symbolic: it traces to a jaxpr, lowers to StableHLO, and
#   compiles with XLA.
# - Compiling saves Python's work per operation, and memory traffic between elementwise
#   operations. It gains little where a few large products take most of the time.
# - JAX traces once for each combination of function, tree, shapes, dtypes, weak types,
#   shardings, and static values.
# - `chex.assert_max_traces` guards a function against silent retracing.
# - Code may depend on shapes, not on values. For values, use `jnp.where`, `lax.cond`, and
#   `lax.fori_loop`.
#
# ## 8.1.5 Exercises
# Think first, then open the code and the answer.
#
# **1 (the book's).** Call `asnumpy` in the first line of `HybridNet`. What is the error,
# and where is it raised: when you hybridize, or when you call?

# %% tags=["answer"]
class WithNumpy(HybridNet):
    def __call__(self, x):
        np.asarray(x)  # Gluon's x.asnumpy()
        return super().__call__(x)

with_numpy = WithNumpy(nnx.Rngs(0))
print("imperative:", printed(lambda: with_numpy(x4)).splitlines()[-1])
with_numpy = hybridize(with_numpy)
print("hybridize: no error")
try:
    with_numpy(x4)
except jax.errors.TracerArrayConversionError as error:
    lines = str(error).replace(". ", "\n").splitlines()
    print(*(line for line in lines if "occurred" not in line), sep="\n")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The first compiled call raises the error, in the line that asks for the value. The message
# names the argument. MXNet's first call raises, too: `Function asnumpy is not implemented
# for Symbol and only available in NDArray`. Its `hybridize` only sets a flag. (A reader of
# the book thought that `hybridize` fails.) If a program needs NumPy, `jax.pure_callback`
# calls it at run time.
#
# </details>
#
# **2 (the book's).** What if you add Python's `if` and `for` to `hybrid_forward`? Repair
# `if_value` and `for_range` above so that they work for any values.
#
# Check it with `jaxperf check 8.1.2 mine.py`: `mine.py` defines both functions.

# %% tags=["answer"]
def if_where(x):
    return jnp.where(x.sum() > 1, x / x.sum(), x)  # computes both, and chooses

# runs one
def if_cond(x):
    return lax.cond(x.sum() > 1, lambda x: x / x.sum(), lambda x: x, x)

def for_fori(x, n):
    return lax.fori_loop(0, n, lambda _, x: 2 * x, x)  # a loop in the program

# unrolled, and traced again for each n
static = jax.jit(for_range, static_argnames="n")
print(
    "if: ",
    *(fn(rows).sum() for fn in (if_value, jax.jit(if_where), jax.jit(if_cond))),
)
print(
    "for:",
    *(fn(rows, n=3).sum() for fn in (for_range, static, jax.jit(for_fori))),
)
low = rows / 12  # whose sum is below 1
print(
    "if: ",
    *(fn(low).sum() for fn in (if_value, jax.jit(if_where), jax.jit(if_cond))),
)

# %% tags=["answer"]
for name, fn in (("unrolled", for_range), ("fori_loop", for_fori)):
    traced = jax.jit(fn, static_argnames="n").trace(rows, n=500)
    size = len(traced.lower().as_text())
    print(f"n = 500, {name}: {size:,} characters of StableHLO")

# %% tags=["answer", "hide-input"]
s.claim("An if on a value fails, a for over rows works",
        source="section 8.1, exercise 2, a reader's answer",
        holds=trials["if x.sum() > 1"][0] != "works"
              and trials["for row in x"][0] == "works",
        expected="TracerBoolConversionError; works, unrolled",
        observed=f"{trials['if x.sum() > 1'][0][:25]}; "
        f"{trials['for row in x'][0]}",
        if_holds="For these two the reader's answer is right in JAX, too. It "
        "is not for an `if` on a shape, nor for a `for` over `range(n)`, as "
        "the table above shows.",
        if_not="In JAX, the reader's answer does not hold for these two.")

# %% [markdown]
# <details><summary>Answer</summary>
#
# A reader of the book found that `if` fails, with `Function __bool__ (namely operator
# "bool") is not implemented for Symbol`, and that `for` works (in MXNet, over outputs,
# not over rows). In JAX, what matters is whether the code needs a value. An `if` on a
# shape does not, so it works. A `for` over `range(n)` fails when `n` is an argument,
# because `range` needs a value.
#
# `jnp.where` computes both sides. `lax.cond` runs one of them (under `vmap` it becomes a
# `where`). `lax.fori_loop` puts the loop into the program. A static argument makes `n` part
# of the key. Use it only if `n` has few values, because JAX traces each value, and the
# program grows with `n`. See [control
# flow](https://docs.jax.dev/en/latest/201/control-flow.html).
#
# </details>
#
# **3 (the book's).** Take networks of earlier chapters, and compile them. How much do LeNet
# and ResNet-18 gain? Guess which one gains more.

# %% tags=["answer", "slow"]
images = jax.random.uniform(jax.random.key(0), (s.images, 28, 28, 1))
nets = {"LeNet": jaxperf.models.LeNet(rngs=nnx.Rngs(0)),
        "ResNet-18": jaxperf.models.resnet18(10, rngs=nnx.Rngs(0))}
for name, earlier in nets.items():
    earlier.eval()
    quick = hybridize(earlier)
    pair = interleaved(
        {
            "one by one": lambda net=earlier: net(images),
            "compiled": lambda net=quick: net(images),
        },
        count=s.rounds,
        wait="end",
    )
    faster = ratio(pair["one by one"], pair["compiled"])
    print(f"{name}, {s.images} images: {faster} times as fast compiled")
    s.fact(
        f"eager_over_hybridize_{name.lower().replace('-', '')}",
        faster.median,
        meaning=f"operation by operation over compiled, {name}",
    )

# %% [markdown]
# <details><summary>Answer</summary>
#
# LeNet computes little, so most of its time with a small batch is Python's work per
# operation, and it should gain more. ResNet-18 computes much more per operation, so on a
# CPU there is less to save. In Gluon you would change `Block` to `HybridBlock`. In Flax you
# change nothing.
#
# </details>
#
# **4.** Repair `WithNorm` for our `hybridize`, which loses the running mean: write a
# `hybridize_training` whose program returns what the network changed.

# %% tags=["answer"]
def hybridize_training(net):
    structure = nnx.graphdef(net)

    @jax.jit
    def program(variables, x):
        inside = nnx.merge(structure, variables)
        return inside(x), nnx.state(inside)

    def call(x):
        y, changed = program(nnx.state(net), x)
        nnx.update(net, changed)
        return y

    return call

print("sees the parameter, updates the mean:", outcome(hybridize_training))

# %% [markdown]
# <details><summary>Answer</summary>
#
# The program returns the state, and `nnx.update` writes it into the network. This is what
# `nnx.jit` does for you, and what a training step in plain JAX does with its parameters.
#
# </details>
#
# **5.** A server gets requests of 1 to 20 rows. How often does it compile? Round each
# request up to a power of two and cut the output. How often does it compile now, and what
# does padding cost?

# %% tags=["answer"]
def pad(x):
    return np.pad(x, ((0, (1 << (len(x) - 1).bit_length()) - len(x)), (0, 0)))

requests = [np.ones((n, 512), np.float32) for n in range(1, 21)]
for name, prepare in {"as they come": np.asarray, "padded": pad}.items():
    server = hybridize(net)
    with watch_compilation() as log:
        for request in requests:
            server(prepare(request))
    total = sum(len(prepare(request)) for request in requests)
    print(f"{name}: {log.programs} compilations for {len(requests)} requests,",
          f"{total} rows computed")

# %% [markdown]
# <details><summary>Answer</summary>
#
# At first it compiles 20 times, once per shape. With padding it compiles 6 times: for 1, 2,
# 4, 8, 16, and 32 rows. It computes 299 rows instead of 210, which costs little time where
# a call is mostly Python's work. Rows of this network do not influence each other. Where
# they do (a mean over the batch, BatchNorm), you need a mask.
#
# </details>
