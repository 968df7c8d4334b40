# %% [markdown]
# # 8.0 A performance model
# What limits a program, how do you find out, and what makes a training step fast?
# After this section you can
# - name three lower bounds of a program's time: its calls, its bytes, and its arithmetic;
# - measure what your machine can do at best, and say which limit a program is close to;
# - write a bill for a training step, predict with it what a change saves, and see where it
#   is wrong;
# - make a training step many times as fast without changing what it computes;
# - trade arithmetic for memory with `jax.checkpoint`, and train in mixed precision.
#
# You need no GPU. What a CPU cannot show is [at the end of the lesson](#on-one-h200).

# %%
import re
import tempfile
import time
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from flax import nnx
from jax import lax

from jaxperf.chapter.section import section
from jaxperf.data import fashion_mnist
from jaxperf.measure import compile_together, interleaved, measure
from jaxperf.models import LeNet
from jaxperf.result import both, ratio

s = section("8.0", programs=200, rounds=12, side=2000, largest=28, moved=28,
            batch_size=16, steps=16, lr=0.1, tokens=32, tokens_steps=40,
            gpu={"side": 8192, "moved": 33, "rounds": 8},
            smoke={"side": 512, "largest": 22, "moved": 22, "steps": 4,
                   "rounds": 6, "batch_size": 4, "tokens": 4,
                   "tokens_steps": 2},
            full={"rounds": 100, "largest": 30, "tokens_steps": 120})
x, data = jnp.full((s.side, s.side), 0.01), fashion_mnist(source="mini")

# %% [markdown]
# ## 8.0.1 Why performance?
# Data sets in deep learning are large, and models compute a lot. A program that is twice
# as fast lets you try twice as many ideas in the same time, or costs half as much. *The
# book* is the first edition of Dive into Deep Learning, which is in Chinese, uses MXNet's
# Gluon, and has this chapter as number 8. It names the deciding factors: imperative and
# symbolic programming, asynchronous computation, automatic parallelism, and several GPUs.
# This chapter has these sections:
#
# | section | what it saves |
# |:--|:--|
# | [Imperative and symbolic programming](hybridize) | overhead and memory traffic |
# | [Asynchronous computation](async_computation) | waiting |
# | [Automatic parallelism](auto_parallelism) | waiting for what could run at the same time |
# | [Training on several devices](multiple_gpus) | time: each device does a share |
# | [The same, concisely](multiple_gpus_concise) | the same, and your own time |
# | [Using a GPU](use_gpu) | copies between devices |
# | [Collectives](collectives) | bytes and messages between devices |
# | [Splitting the model](model_parallelism) | memory on each device |
# | [From 2 to 1,000 devices](scaling) | renting devices to find out |
# | [Beside MXNet and PyTorch](peers) | a comparison of the three frameworks |
#
# This section comes first, because all others use its method:
# 1. **Measure.** Time the program, and wait for its results.
# 2. **Classify.** Compare the time with what the machine can do. Which limit is closest?
# 3. **Change** one thing that this limit depends on, and predict what it will save.
# 4. **Measure again**, with the old and new program in turns. Keep the change if it helps.
#
# ## 8.0.2 Measure
# JAX works in the background: a call returns before its result is ready
# ([section 8.2](async_computation)). The first call also compiles.

# %%
def seconds(f, *args, wait=True):
    start = time.perf_counter()
    out = f(*args)
    if wait:
        jax.block_until_ready(out)
    return time.perf_counter() - start

dot = jax.jit(lambda x: x @ x)
print(f"first call:                {seconds(dot, x):.6f} s")
print(f"second call, without wait: {seconds(dot, x, wait=False):.6f} s")
jax.block_until_ready(dot(x))
print(f"fourth call, waited for:   {seconds(dot, x):.6f} s")

# %% [markdown]
# Only the last line is the time of the product. The first line includes compiling. In the
# second, the clock stops when the work is only queued.
#
# ::::{tab-set}
# :::{tab-item} Gluon
# ```python
# start = time.time()
# y = nd.dot(x, x)
# y.wait_to_read()          # nd.waitall() waits for everything
# print(time.time() - start)
# ```
# :::
# :::{tab-item} PyTorch
# ```python
# start = time.time()
# y = x @ x
# torch.cuda.synchronize()  # on a GPU; on a CPU the call itself waits
# print(time.time() - start)
# ```
# :::
# ::::
#
# One timing is not enough, because other programs use the machine too. To compare two
# programs, this chapter lets them take turns, round after round (`interleaved`), so that
# a slow moment slows both. `ratio` divides the two times of each round and takes the
# median of the quotients, so it may differ from the quotient of the two medians. It also
# gives a 95% confidence interval. If the interval contains 1, or ends very close to it,
# the comparison is *undecided* ([the rule](../docs/trust.md)). In a table, *spread* is
# the width of the middle half of the values, divided by their median. A row is marked
# *noisy* if its median itself may be off by more than 10%.
#
# ## 8.0.3 Classify: three limits
# ![Three programs over time, each with a lane for calls, bytes, and FLOPs. In the first,
# calls fill the time, in the second bytes, in the third FLOPs.](images/three_regimes.svg
# "Three programs, and what each one waits for.")
#
# A program is *called*, it *moves bytes* between memory and cores, and it *computes*. At
# best the machine does all three at the same time. Then the slowest one sets the time:
#
# $$t \;\ge\; \max\left(t_\text{call},\; \frac{\text{bytes}}{\beta},\; \frac{\text{FLOPs}}{\pi}\right)$$
#
# Here $t_\text{call}$ is the time of an empty program, $\beta$ the memory bandwidth in
# bytes per second, and $\pi$ the peak rate of arithmetic. (On a CPU, JAX computes an empty program
# in the thread that calls it. A program that goes to other threads pays for that, too,
# [section 8.2](async_computation); this bound leaves it out.) A FLOP is one addition or
# multiplication of floating-point numbers. The last two terms are the *roofline model*
# ([Williams, Waterman, and Patterson, 2009](https://doi.org/10.1145/1498765.1498785)). The
# three numbers are properties of the machine. We measure the values that JAX reaches.

# %% tags=["slow"]
empty, product = jax.jit(lambda: jnp.zeros(())), jax.jit(lambda x: x @ x)
call_s = measure(empty, budget_s=0.5).median
queue_s = measure(empty, wait="end", budget_s=0.5).median
sides = {s.side, 2 ** (s.side.bit_length() - 1)}  # a power of two may be faster
peak = 0.0
for n in sides:
    took = measure(product, jnp.ones((n, n)), budget_s=0.5)
    peak = max(peak, 2 * n**3 / min(took.values))
s.fact("call_s", call_s, unit="s",
       meaning="an empty program, called and waited for")
s.fact("queue_s", queue_s, unit="s", meaning="the same, only queued")
s.fact("peak", peak, unit="FLOP/s",
       meaning="the fastest product of two matrices of "
       + " or ".join(f"{n} x {n}" for n in sorted(sides)))

# %% [markdown]
# Bandwidth depends on the array size, because small arrays stay in a cache. It also depends
# on the number of cores at work. This program reads and writes one array many times, in the
# same memory. `times` is static, so the compiler knows its value. How many cores work, the
# compiled program says: on a CPU, XLA cuts a large loop into *partitions*, at most one per
# core.

# %%
# the output may overwrite the input
@jax.jit(donate_argnums=0, static_argnums=1)
def sweep(x, times):
    return lax.fori_loop(0, times, lambda _, x: x * 0.5 + 0.5, x)

def cores_of(compiled):
    """How many cores the largest loop of a program for a CPU is cut over."""
    found = re.findall(
        r'outer_dimension_partitions":\["(\d+)"', compiled.as_text()
    )
    return max(map(int, found), default=1)

for kib in (16, 4096):
    compiled = sweep.lower(jnp.zeros(256 * kib), 10).compile()
    print(f"{kib} KiB, cores at work: {cores_of(compiled)}")

# %% [markdown]
# Each size needs its own program. `compile_together` compiles all of them at the same time,
# one per thread, without running them.

# %% tags=["slow"]
sizes = [2**n for n in range(14, s.largest + 1, 2)]
turns = {n: max(1, min(2**s.moved, 2000 * n) // (2 * n)) for n in sizes}
programs, compile_s = compile_together(
    {
        n: (sweep, jax.ShapeDtypeStruct((n // 4,), jnp.float32), turns[n])
        for n in sizes
    }
)
print(f"{len(sizes)} programs compiled in {compile_s:.1f} s")

def bytes_per_second(n):
    x, took = jnp.zeros(n // 4), []
    for _ in range(5):
        start = time.perf_counter()
        x = jax.block_until_ready(sweep(x, turns[n]))
        took.append(time.perf_counter() - start)
    return 2 * n * turns[n] / min(took)

rates = {n: bytes_per_second(n) for n in sizes}

# %% tags=["slow"]
def bandwidth(size):
    """Bytes/s of the measured array whose size is nearest."""
    return rates[min(rates, key=lambda n: abs(np.log(n / size)))]

memory = bandwidth(sizes[-1])
cores = {n: cores_of(program) for n, program in programs.items()}
s.fact("memory", memory, unit="bytes/s",
       meaning="reading and writing the largest array")
print(f"ridge point: {peak / memory:.1f} FLOP per byte from memory,",
      f"{peak / bandwidth(2**18):.1f} for arrays of 256 KiB")

# %% tags=["slow", "hide-input"]
fig, ax = plt.subplots()
names = [f"{n >> 20} MiB" if n >> 20 else f"{n >> 10} KiB" for n in rates]
ax.plot(names, [rate / 1e9 for rate in rates.values()], color="0.7", lw=1)
for count in sorted(set(cores.values())):
    ours = [i for i, n in enumerate(rates) if cores[n] == count]
    word = "program not divided" if count == 1 else f"{count} cores"
    ax.plot(ours, [rates[sizes[i]] / 1e9 for i in ours], "o", label=word)
ax.set(xlabel="array", ylabel="GB/s", ylim=(0, 1.1e-9 * max(rates.values())))
ax.legend()
best = max(rates, key=rates.get)
s.figure(fig,
         "Bandwidth of arrays of each size, and how many cores the program is "
         "divided over. Only points of one color show what the caches do. "
         f"The fastest array has {names[sizes.index(best)]} and "
         f"{rates[best] / 1e9:.0f} GB/s, the largest {names[-1]} and "
         f"{memory / 1e9:.0f} GB/s.",
         alt="Bandwidth over the size of the array; the color says how many "
         "cores work.")

# %% [markdown]
# Where an array outgrows a cache, points of one color may fall. Where XLA begins to divide the
# program, they may rise, since each further core brings a cache of its own.
#
# The *ridge point* $\pi / \beta$ is the number of FLOPs that the machine can do while it
# moves one byte. A program's *arithmetic intensity* is its number of FLOPs per byte. If
# this is below the ridge point, the program waits for memory, and otherwise for
# arithmetic. A GPU needs more arithmetic per byte, and more work per call, than a CPU.
#
# ### Overhead: a small network, op by op
# The MLP of section 8.1, here as a function of plain arrays, does 0.33 MFLOP for one
# example. Without `jit`, Python launches each operation on its own.
#
# <details><summary>Predict: op by op, how much longer do 8 examples take than one?</summary>
#
# Hardly longer: the arithmetic takes less time than launching it. This is the test for
# overhead: give the program more work. If the time does not grow, the work was not the
# limit.
# </details>

# %%
@jax.jit(static_argnums=1)  # one program draws all weights
def init_mlp(key, widths):
    keys = jax.random.split(key, len(widths) - 1)
    return [(jax.random.normal(key, (m, n)) * (2 / m) ** 0.5, jnp.zeros(n))
            for key, m, n in zip(keys, widths, widths[1:])]

def mlp(params, X):
    for W, b in params[:-1]:
        X = jax.nn.relu(X @ W + b)
    W, b = params[-1]
    return X @ W + b

small_mlp = init_mlp(jax.random.key(0), (512, 256, 128, 2))
one, eight = jnp.ones((1, 512)), jnp.ones((8, 512))
chex.assert_trees_all_close(jax.jit(mlp)(small_mlp, one), mlp(small_mlp, one),
                            rtol=1e-2, atol=1e-2)

# %% tags=["slow"]
compiled_mlp = jax.jit(mlp)
times = interleaved({
    "empty program": empty,
    "op by op, 1 example": partial(mlp, small_mlp, one),
    "op by op, 8 examples": partial(mlp, small_mlp, eight),
    "compiled, 1 example": partial(compiled_mlp, small_mlp, one),
    "compiled, 8 examples": partial(compiled_mlp, small_mlp, eight),
}, count=s.rounds)
s.table(times, title="The MLP of section 8.1", base="empty program")
mlp_s = times["op by op, 1 example"].median
growth = ratio(times["op by op, 8 examples"], times["op by op, 1 example"])
compiled_growth = ratio(
    times["compiled, 8 examples"], times["compiled, 1 example"]
)

# %% tags=["slow", "hide-input"]
s.claim("Op by op, overhead limits the MLP: eight examples take as long as one",
        holds=growth.below(1.5), expected="less than 1.5 times as long",
        observed=f"{growth}; compiled {compiled_growth}",
        if_holds=f"Op by op, eight times the work takes {growth} times as "
        "long, so the work is not the limit. Compiled, it takes "
        f"{compiled_growth} times as long.",
        if_not=f"Op by op, eight times the work takes {growth} times as long: "
        "on this machine the arithmetic shows beside the launches.",
        if_open=f"Op by op, eight times the work takes {growth} times as "
        "long. The interval contains the bound of 1.5.")

# %% [markdown]
# When compiled, the network is a single call. If that call set its time, eight examples
# would take as long as one, and both as long as an empty program. The last two rows show
# whether they do. If not, the limit is another one, or none of the three.
#
# ### Memory: elementwise operations
# `x * 0.5 + 1` does two FLOPs for 8 bytes: it reads one float and writes one. Op by op it
# moves 16 bytes, because the product is written and then read again.

# %%
def chain(x, length=10):
    for _ in range(length):
        x = x * 0.5 + 1
    return x

def cost(f, *args):
    """FLOPs and bytes of the jitted `f`, by XLA's estimate for a CPU."""

    def shape(a):
        return jax.ShapeDtypeStruct(a.shape, a.dtype)

    with jax.default_device(jax.devices("cpu")[0]):
        lowered = f.lower(*jax.tree.map(shape, args))
        moved = lowered.compile().cost_analysis()["bytes accessed"]
    return lowered.cost_analysis()["flops"], moved

for length in (1, 10):
    flops, moved = cost(jax.jit(partial(chain, length=length)), x)
    print(f"{length:2} lines: {flops / x.size:2.0f} FLOP per element, "
          f"{moved / x.nbytes:.0f} passes over memory")

# %% [markdown]
# The compiler *fuses* the chain: it reads an element once, does all operations, and writes
# once.
#
# <details><summary>Predict: how long do ten compiled lines take, compared with one? And ten
# lines op by op?</summary>
#
# Compiled, they should take about as long as one line, because they move the same bytes. Op
# by op, each of 20 operations reads and writes the whole array: about 20 times as long,
# where the bytes set the time. It is more where the operating system has to provide the new
# memory of each operation ([section 8.2](async_computation) measures this), and less where
# the calls show.
# </details>
#
# The compiled lines may overwrite their input here, so that they need no new memory. Each
# call gets a copy of `x`, which is made before the clock starts.

# %% tags=["slow"]
one_line, ten_lines = (
    jax.jit(partial(chain, length=n), donate_argnums=0) for n in (1, 10)
)
ways = {"one line, compiled": one_line, "ten lines, compiled": ten_lines,
        "ten lines, op by op": chain}
times = interleaved(ways, count=s.rounds,
                    before=dict.fromkeys(ways, lambda: jnp.copy(x)))
s.table(
    times, title=f"x * 0.5 + 1, {s.side} x {s.side}", base="one line, compiled"
)
fused = ratio(times["ten lines, compiled"], times["one line, compiled"])
unfused = ratio(times["ten lines, op by op"], times["one line, compiled"])

# %% tags=["slow", "hide-input"]
s.claim("Ten fused lines take about as long as one", holds=fused.below(2),
        expected="less than 2 times as long",
        observed=f"{fused}; op by op {unfused} times as long",
        if_holds=f"Ten times the FLOPs take {fused} times as long: the bytes "
        f"set the time. Op by op, the ten lines take {unfused} times as long "
        "as one.",
        if_not=f"Ten times the FLOPs take {fused} times as long, so arithmetic "
        "shows beside the bytes, e.g. because the array is in a cache.",
        if_open=f"Ten times the FLOPs take {fused} times as long: undecided.")

# %% [markdown]
# ### Arithmetic: matrix products
# The product `x @ x` of an $n \times n$ matrix does $2n^3$ FLOPs. It reads at least one
# matrix and writes one, $8 n^2$ bytes. So its intensity is at most $n / 4$ FLOP per byte.
# By the bounds, a small product waits for its call, and a large one for its arithmetic. How
# close does each come to the peak?

# %% tags=["slow", "hide-input"]
curve = {}
squares = {
    n: np.ones((n, n), np.float32) for n in (16, 64, 256, 1024) if n <= s.side
}
compile_together({n: (product, square) for n, square in squares.items()})
for n, square in squares.items():
    square = jax.device_put(square)
    curve[n] = (
        2 * n**3 / measure(product, square, budget_s=0.1, least_s=0.05).median
    )
    print(
        f"n = {n:4}: {n / 4:5.1f} FLOP/byte, {curve[n] / peak:.1%} of the peak"
    )

# %% [markdown]
# ## 8.0.4 The programs of this chapter on one roofline
# The next sections use the MLP, `x + 1`, products, and training steps of LeNet and of
# ResNet-18, which takes too long to compile here. A step computes the gradient of the loss
# and updates the parameters, in the same way for every network:

# %%
def cross_entropy(logits, y):
    return -(jax.nn.log_softmax(logits) * jax.nn.one_hot(y, 10)).sum(-1).mean()

def sgd(params, grads, lr=s.lr):
    return jax.tree.map(lambda p, g: p - lr * g, params, grads)

def training_step(net, params, X, y):
    def loss(params):
        return cross_entropy(net(params, X / 255), y)
    value, grads = jax.value_and_grad(loss)(params)
    return sgd(params, grads), value

def as_function(network):
    """A Flax network as a function of its parameters, and these."""
    structure, params, rest = nnx.split(network, nnx.Param, ...)
    def net(params, X):
        return nnx.merge(structure, params, rest, copy=True)(X)
    return net, params

# %%
images, labels = data.train_images, data.train_labels  # 6,000, as bytes
batch = 16 * s.batch_size
smalls = [jnp.ones((20, 20))] * 10
lenet, lenet_params = as_function(LeNet(rngs=nnx.Rngs(0)))
programs = {
    "ten 20 x 20 products (8.3)": (lambda xs: [x @ x for x in xs], smalls),
    "MLP, one example (8.1)": (mlp, small_mlp, one),
    f"x + 1, {s.side} x {s.side} (8.2)": (lambda x: x + 1, x),
    f"product, {s.side} x {s.side} (8.2)": (lambda x: x @ x, x),
    f"LeNet step, batch {batch} (8.4)": (
        partial(training_step, lenet),
        lenet_params,
        images[:batch],
        labels[:batch],
    ),
}
programs = {name: (jax.jit(f), *args) for name, (f, *args) in programs.items()}
_, compile_s = compile_together(programs)
print(f"{len(programs)} programs compiled in {compile_s:.1f} s")
work = {name: cost(*program) for name, program in programs.items()}

# %% [markdown]
# `cost_analysis` is the compiler's own estimate. It adds up the bytes that each fused
# operation reads and writes. It does not know which of them are in a cache. Does it know
# how often a loop runs?

# %%
def flops_of(length):
    def products(x):
        return lax.scan(lambda c, _: (c @ x, None), x, length=length)[0]
    with jax.default_device(jax.devices("cpu")[0]):
        lowered = jax.jit(products).lower(jnp.ones((20, 20)))
    return lowered.cost_analysis()["flops"]

once, often = flops_of(1), flops_of(100)
print(f"{once:,.0f} FLOP for one turn, {often:,.0f} for a hundred")

# %% tags=["hide-input"]
s.data_source(data.source)
s.claim("The compiler's estimate counts a loop's body once",
        holds=often < 2 * once,
        expected="100 turns count less than twice as much as one",
        observed=f"{once:,.0f} FLOP for one turn, {often:,.0f} for a hundred",
        if_holds="So multiply the estimate of a loop by its number of turns "
        "yourself.", if_not="This version of XLA counts the turns, too.")

# %% [markdown]
# <details><summary>Predict: which program is limited by the call, which by memory, which by
# arithmetic?</summary>
#
# The call should limit the ten 20 x 20 products, which do only 0.16 MFLOP. `x + 1`, with 1
# FLOP for 8 bytes, is a matter of memory, and the large product, with 500 FLOP per byte, of
# arithmetic. The MLP uses each weight for one example only, 0.5 FLOP per byte: memory, or
# the call, which takes about as long here. LeNet's step has 10 to 20 FLOP per byte, not far
# from the ridge point of many CPUs: memory or arithmetic.
# </details>
#
# A limit explains a program if it accounts for most of its time. We say *none* where the
# largest of the three bounds is less than half of the time. For the bandwidth we take that
# of an array as large as all the bytes that the program moves. If it reads some of them
# again, they may come from a cache, which is faster.

# %%
def bounds(flops, moved):
    """The least seconds of a program, by each of the three limits."""
    return {"overhead": call_s, "memory": moved / bandwidth(moved),
            "arithmetic": flops / peak}

def closest(flops, moved, took):
    """The largest bound, and its share of the time."""
    least = bounds(flops, moved)
    name = max(least, key=least.get)
    return name, least[name] / took

# %% tags=["slow", "hide-input"]
explained, rows, points = {}, [], {}
for name, (f, *args) in programs.items():
    flops, moved = work[name]
    took = measure(f, *args, budget_s=0.5).median
    limit, share = closest(flops, moved, took)
    explained[name] = limit if share >= 0.5 else "none"
    points[name] = flops / moved, flops / took
    rows.append((name, f"{flops / 1e6:,.2f}", f"{moved / 1e6:,.2f}",
                 f"{flops / moved:.3g}", f"{1e6 * took:,.0f}", limit,
                 f"{share:.0%}", explained[name]))
heads = ("program", "MFLOP", "MB", "FLOP/byte", "time (µs)", "largest bound",
         "of the time", "limit")
s.grid(heads, rows, title="The chapter's programs and their limits")

# %% tags=["slow", "hide-input"]
unexplained = [
    name.split(" (")[0] for name, limit in explained.items() if limit == "none"
]
s.claim("One of three limits explains each program of this chapter",
        needs=["size"], holds=not unexplained,
        expected="the largest bound is over half of the time, each",
        observed=f"true of {len(explained) - len(unexplained)} of "
        f"{len(explained)}",
        if_holds="Each program is as fast as one limit allows, within a "
        "factor of two.",
        if_not=f"No limit explains {', '.join(unexplained)}: the largest "
        "bound is less than half of the time. Such a program has other costs, "
        "e.g. several operations in one call, new memory, or operations that "
        "use the machine badly.", if_open="Toy sizes do not show it.")
three = [list(explained.values())[i] for i in (0, 2, 3)]
costs_more = {
    "overhead": "The bound of a call is an *empty* program's. It leaves out "
    "what inputs, outputs, ten operations, and other threads cost.",
    "memory": "The bound of the bytes leaves out what `x + 1` pays for new "
    "memory in each call.",
    "arithmetic": "The large product has less than half of the peak rate.",
}
reasons = " ".join(
    why for (limit, why), is_ in zip(costs_more.items(), three) if is_ != limit
)

# %% tags=["slow", "hide-input"]
s.claim("Overhead limits 20 x 20 products, memory limits x + 1, arithmetic a "
        "large product", holds=three == ["overhead", "memory", "arithmetic"],
        needs=["size"], expected="each explains over half of the time",
        observed=", ".join(three),
        if_holds="There is a program of this chapter in each regime.",
        if_not=f"By this rule the three are limited by: {', '.join(three)}. "
        f"{reasons}", if_open="Toy sizes do not show it.")

# %% tags=["slow", "hide-input"]
fig, ax = plt.subplots(figsize=(6, 4))
at = np.logspace(-1.5, 3, 200)
ink = "#1f2328"
ax.plot(
    at,
    np.minimum(peak, at * memory) / 1e9,
    color=ink,
    label="roof, from memory",
)
ax.plot(at, np.minimum(peak, at * bandwidth(2**18)) / 1e9, ":", color=ink,
        label="roof, arrays of 256 KiB")
ax.plot(
    [n / 4 for n in curve],
    [rate / 1e9 for rate in curve.values()],
    ".-",
    color="C5",
    lw=1,
    label="products, 16 x 16 and larger",
)

# %% tags=["slow", "hide-input"]
for i, (name, (intensity, rate)) in enumerate(points.items()):
    ax.plot(
        intensity, rate / 1e9, "oDs^vP"[i], ms=8, color=f"C{i % 5}", label=name
    )
ax.set(xscale="log", yscale="log", xlabel="FLOP per byte", ylabel="GFLOP/s")
ax.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
s.figure(fig,
         "Left of the ridge point memory sets the roof, right of it "
         "arithmetic. It does not show the call. A point far below it is "
         "limited by that, or by none of the three.",
         alt="Roofline: GFLOP per second over FLOP per byte, a point for each "
         "program.")

# %% [markdown]
# What the last columns mean:
# - *A limit is named*: the program is about as fast as its calls, bytes or FLOPs allow.
#   Reduce them: fewer calls, fusion, fewer bits, or more devices.
# - *None, and the time is short*: many small costs that the three numbers do not have. Make
#   fewer calls or operations.
# - *None, but the time is long*: the operations use the machine badly. The model says how
#   much you can gain, but not how. XLA's convolutions on a CPU are often such a case
#   ([Beside MXNet and PyTorch](peers)).
# - *Above 100%*: the estimate counts bytes that never left a cache, or the measured limit
#   is too low, since another size is faster than the one that we measured, or the machine
#   was busy. Trust the time.
#
# In this table each program runs alone, again and again. In turns with other programs, as
# in the tables above, it may take longer, e.g. because its data have left the caches.
#
# ## 8.0.5 Change: a ladder
# We now make one training step faster, one change (a *rung*) at a time. Our example is an
# MLP on Fashion-MNIST with batches of 16. The first eight rungs should compute the same
# parameters. Only the last changes the training.
#
# ![The path of a training step: a batch is prepared on the host and copied to the device,
# Python launches a program, the device computes and updates the parameters, and Python
# reads the loss. Each part is marked with the rungs that shorten
# it.](images/step_path.svg "The path of a training step, and the rungs that shorten each
# part.")
#
# **1. Op by op.** The first version prepares the batch with NumPy, logs the loss, and
# updates the parameters.

# %%
def loss(params, X, y):
    return cross_entropy(mlp(params, X), y)

def op_by_op(params):
    losses = []
    for X, y in batches:
        X = X.astype(np.float32) / 255
        losses.append(float(loss(params, X, y)))
        grads = jax.grad(loss)(params, X, y)
        params = sgd(params, grads)
    return params, losses

# %% [markdown]
# Every rung takes the parameters, makes the same steps, and returns the new parameters and
# the losses. When we compare two rungs, they take turns, each with its own copy of the
# parameters.

# %%
params = init_mlp(jax.random.key(0), (784, 256, 128, 10))
n_images, size = s.steps * s.batch_size, s.batch_size
images, labels = (
    data.train_images.reshape(-1, 784)[:n_images],
    labels[:n_images],
)
batches = [(images[i : i + size], labels[i : i + size])
           for i in range(0, n_images, size)]
device_images, device_labels = jax.device_put((images, labels))
copy, rungs = jax.jit(partial(jax.tree.map, jnp.copy)), {"op by op": op_by_op}

def take_turns(*names, count=s.rounds):
    return interleaved(
        {name: rungs[name] for name in names},
        count=count,
        items=n_images,
        before=dict.fromkeys(names, lambda: copy(params)),
    )

# %% [markdown]
# Before we climb, we classify, and for that we need a *bill*: what does each rung pay for?
# A step pays for each operation that Python launches on its own, for each call of a
# compiled program, for each time that Python waits, for each array that it copies to the
# device, for the bytes that the programs move, and for the FLOPs. The machine sets the
# prices. Small programs show them; the price of an operation is from the small MLP above.

# %%
def operations(f, *args):
    return len(jax.make_jaxpr(f)(*args).eqns)

print(operations(lambda x: 2 * x + 1, 1.0), "operations in 2 * x + 1")

# %% tags=["slow"]
tick, z = jax.jit(lambda z: z + 1), jnp.ones(2000)
host = np.ones(2000, np.float32)
queued = interleaved({"call": lambda: tick(z), "copied": lambda: tick(host)},
                     count=s.rounds, wait="end")
waited = interleaved({"call": lambda: tick(z)}, count=s.rounds)["call"].median
call, copied = queued["call"].median, queued["copied"].median
prices = {"operations": mlp_s / operations(mlp, small_mlp, one), "calls": call,
          "waits": max(waited - call, 0), "copies": max(copied - call, 0),
          "bytes": 1 / bandwidth(2**20), "FLOPs": 1 / peak}
units = "an operation", "a call", "a wait", "a copy", "a byte", "a FLOP"
s.grid(("item", "price in ns"),
       [(unit, f"{1e9 * each:,.0f}" if each > 1e-8 else f"{1e9 * each:.2g}")
        for unit, each in zip(units, prices.values())],
       title="What this machine charges")

# %% [markdown]
# The amounts can be counted: operations in the jaxpr, FLOPs and bytes by the compiler. The
# largest item of a rung's bill is its *closest limit*; as above, it explains the rung only
# if it is at least half of the time. A prediction takes the measured time of the old rung,
# subtracts its bill, and adds the new one. It cannot know what has no price here. Op by op,
# for example, JAX traces `jax.grad` anew in each step. Python's conversion of the images
# and new memory have no price either. A price of 0 means that these small programs show no
# cost: such a program may have ended before Python begins to wait. In a longer step, a wait
# also costs the time in which Python could have prepared the next call.

# %%
bills, predicted, limit_of, took_of = {}, {}, {}, {}

def write_bill(name, **amounts):
    """Keep a rung's bill: seconds of each item, for all steps of a turn."""
    bills[name] = {
        item: s.steps * n * prices[item] for item, n in amounts.items()
    }

def predict(old, took, new):
    """How many times as fast the new rung should be."""
    least = sum(bills[new].values())
    return took / max(took - sum(bills[old].values()) + least, least)

# %%
def climb(old, new, rung, **amounts):
    """Classify the old rung, predict the new one, and only then measure it."""
    if old not in took_of:  # the first; each other one has been climbed to
        took_of[old] = take_turns(old)[old].median
    took, bill = took_of[old], bills[old]
    limit = max(bill, key=bill.get)
    limit_of[new] = limit, bill[limit] / took
    print(f"{old}: {1e6 * took / s.steps:,.0f} µs a step. Closest limit:",
          f"{limit}, {bill[limit] / took:.0%} of the time")
    write_bill(new, **amounts)
    predicted[new], rungs[new] = predict(old, took, new), rung
    print(f"{new}, predicted: {predicted[new]:.2f} times as fast")
    times = take_turns(old, new)
    took_of[new] = times[new].median
    print(f"{new}, measured:  {ratio(times[old], times[new])}")

# %% tags=["slow", "hide-input"]
X0, y0 = jnp.float32(batches[0][0]) / 255, batches[0][1]
ops = (
    operations(loss, params, X0, y0)
    + operations(jax.grad(loss), params, X0, y0)
    + operations(sgd, params, params)
)
passes = [cost(jax.jit(f), params, X0, y0) for f in (loss, jax.grad(loss))]
flops, moved = np.sum(passes, axis=0)
# sgd: 2 read, 1 written
moved += 3 * sum(p.nbytes for p in jax.tree.leaves(params))
write_bill(
    "op by op", operations=ops, waits=1, copies=4, bytes=moved, FLOPs=flops
)
print(f"op by op: {ops} operations in a step,",
      f"{flops / 1e6:.1f} MFLOP, {moved / 1e6:.1f} MB (if compiled)")

# %% [markdown]
# **2. `jit`.** We compile the three functions. Each is now one call instead of dozens of
# operations.

# %%
@jax.jit
def loss_program(params, X, y):
    return loss(params, X, y)

@jax.jit
def gradient_program(params, X, y):
    return jax.grad(loss)(params, X, y)

@jax.jit
def sgd_program(params, grads):
    return sgd(params, grads)

def three_programs(params):
    losses = []
    for X, y in batches:
        X = X.astype(np.float32) / 255
        losses.append(float(loss_program(params, X, y)))
        params = sgd_program(params, gradient_program(params, X, y))
    return params, losses

# %% tags=["slow", "hide-input"]
climb("op by op", "jit", three_programs,
      calls=3, waits=1, copies=4, bytes=moved, FLOPs=flops)

# %% [markdown]
# **3. One program.** The three programs compute the forward pass twice. One program for the
# whole step computes it once. It may also move fewer bytes, which the cell below prints.
#
# <details><summary>Predict: is it three times as fast?</summary>
#
# No. It saves two of three calls, but only the second forward pass of the arithmetic. This
# is about a third here, because a gradient costs two to three forward passes.
# </details>

# %%
@jax.jit
def update(params, X, y):
    value, grads = jax.value_and_grad(loss)(params, X, y)
    return sgd(params, grads), value

def one_program(params):
    losses = []
    for X, y in batches:
        X = X.astype(np.float32) / 255
        params, value = update(params, X, y)
        losses.append(float(value))
    return params, losses

# %% tags=["slow", "hide-input"]
before = moved
flops, moved = cost(update, params, X0, y0)
print(f"three programs move {before / 1e6:.2f} MB, one {moved / 1e6:.2f} MB")
climb("jit", "one program", one_program,
      calls=1, waits=1, copies=2, bytes=moved, FLOPs=flops)

# %% [markdown]
# **4. Bytes.** The images are stored as bytes. As floats they are four times as large to
# copy. Inside the program, the compiler can fuse the conversion into what follows.

# %%
@jax.jit
def step(params, X, y):
    return update(params, X / 255, y)

def as_bytes(params):
    losses = []
    for X, y in batches:
        params, value = step(params, X, y)
        losses.append(float(value))
    return params, losses

# %% tags=["slow", "hide-input"]
climb("one program", "bytes", as_bytes,
      calls=1, waits=1, copies=2, bytes=moved, FLOPs=flops)

# %% [markdown]
# **5. Do not wait.** `float(value)` waits for the step. While Python then prepares the next
# call, the device is idle. Keep the losses on the device, and read them later ([section
# 8.2](async_computation)).

# %%
def no_wait(params):
    losses = []
    for X, y in batches:
        params, value = step(params, X, y)
        losses.append(value)
    return params, losses

# %% tags=["slow", "hide-input"]
climb("bytes", "no wait", no_wait, calls=1, copies=2, bytes=moved, FLOPs=flops)

# %% [markdown]
# **6. Donate.** The step does not need the old parameters afterwards, so the new ones may
# take their place ([buffer donation](https://docs.jax.dev/en/latest/buffer_donation.html)).
# This can save memory. It saves time only where memory allocation takes a visible part of the
# step, for which the bill has no item.

# %%
@jax.jit(donate_argnums=0)
def donated_step(params, X, y):
    return step(params, X, y)

def donate(params):
    losses = []
    for X, y in batches:
        params, value = donated_step(params, X, y)
        losses.append(value)
    return params, losses

# %% tags=["hide-input"]
needed = sum(p.nbytes for p in jax.tree.leaves(params))
compiled = donated_step.lower(params, *batches[0]).compile()
reused = compiled.memory_analysis().alias_size_in_bytes
s.claim("The donated step needs no second copy of the parameters",
        holds=reused >= needed,
        expected=f"{needed:,} bytes of outputs in the memory of inputs",
        observed=f"{reused:,} bytes",
        if_holds="The new parameters take the memory of the old ones, "
        f"{needed:,} bytes.",
        if_not="The compiler could not reuse the memory of all parameters.")

# %% tags=["slow", "hide-input"]
climb("no wait", "donate", donate, calls=1, copies=2, bytes=moved, FLOPs=flops)

# %% [markdown]
# **7. Data on the device.** So far JAX copies a NumPy array in each step. As bytes, this
# data set fits on the device. A step then takes only its batch number. If your data do not
# fit, copy the next batch while the device computes ([section 8.3](auto_parallelism)).

# %%
@jax.jit(donate_argnums=0)
def numbered_step(params, i, images, labels):
    start = i * s.batch_size
    X, y = (jax.lax.dynamic_slice_in_dim(a, start, s.batch_size)
            for a in (images, labels))
    return step(params, X, y)

def on_device(params):
    losses = []
    for i in range(s.steps):
        params, value = numbered_step(params, i, device_images, device_labels)
        losses.append(value)
    return params, losses

# %% tags=["slow", "hide-input"]
climb("donate", "on device", on_device,
      calls=1, copies=1, bytes=moved, FLOPs=flops)

# %% [markdown]
# **8. `scan`.** With the loop inside the program, one call makes many steps. This saves
# what a step costs beside its computation: the call, and its inputs and outputs.

# %%
@jax.jit(donate_argnums=0)
def many_steps(params, images, labels):
    X, y = (
        images.reshape(-1, s.batch_size, 784),
        labels.reshape(-1, s.batch_size),
    )
    return lax.scan(lambda params, batch: step(params, *batch), params, (X, y))

def scan(params):
    return many_steps(params, device_images, device_labels)

# %% tags=["slow", "hide-input"]
climb("on device", "scan", scan, calls=1 / s.steps, bytes=moved, FLOPs=flops)

# %% [markdown]
# So far only the speed should have changed. `chex` compares whole trees, and names the leaf
# that differs:

# %%
first_eight = (op_by_op, three_programs, one_program, as_bytes, no_wait, donate,
               on_device, scan)
trained = [rung(copy(params))[0] for rung in first_eight]
for other in trained[1:]:
    chex.assert_trees_all_close(other, trained[0], atol=1e-2)

# %% tags=["hide-input"]
def difference(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b))
    return max(float(jnp.abs(p - q).max()) for p, q in pairs)

worst = max(difference(trained[0], other) for other in trained)
tolerance = {"cpu": 1e-5}.get(s.environment.backend, 1e-2)
s.claim("The first eight rungs compute the same parameters",
        holds=worst < tolerance,
        expected=f"within {tolerance:g} after {s.steps} steps",
        observed=f"{worst:.0e}",
        if_holds="Eight ways, the same parameters: they differ by "
        f"{worst:.0e} at most.",
        if_not=f"The parameters differ by {worst:.0e}, more than rounding "
        "explains.")

# %% [markdown]
# **9. A larger batch.** This rung uses all images at once. Each weight that the device
# reads now serves 16 times as many images. But the training changes: it makes one update
# instead of sixteen, and needs another learning rate ([section 8.4](multiple_gpus)).

# %%
def large_batch(params):
    return donated_step(params, device_images, device_labels)

# %% tags=["slow", "hide-input"]
all_flops, all_moved = cost(donated_step, params, device_images, device_labels)
climb("scan", "large batch", large_batch, calls=1 / s.steps,
      bytes=all_moved / s.steps, FLOPs=all_flops / s.steps)

# %% [markdown]
# Now all rungs take turns. The times may differ from those above by more than their
# intervals, in both directions, and we did not find out why. An interval says how exactly
# one arrangement of programs was measured, not what another would give.

# %% tags=["slow", "hide-input"]
times = take_turns(*rungs)
gains = {new: ratio(times[old], times[new]) for old, new in pairwise(rungs)}
s.grid(
    ("rung", "images/s", "closest limit before", "predicted gain", "gain"),
    [
        (
            name,
            f"{n_images / times[name].median:,.0f}",
            "{}, {:.0%}".format(*limit_of[name]) if name in limit_of else "",
            f"{predicted[name]:.2f}" if name in predicted else "",
            gains.get(name, ""),
        )
        for name in rungs
    ],
    title=f"Training an MLP, {n_images} images per turn",
)
s.table(times, title="The same in seconds per turn", base="op by op", fold=True)
total = ratio(times["op by op"], times["scan"])

# %% tags=["slow", "hide-input"]
fig, ax = plt.subplots(figsize=(7, 3.2))
totals = {name: ratio(times["op by op"], times[name]) for name in rungs}
ends = [(r.median - r.low, r.high - r.median) for r in totals.values()]
ax.barh(
    list(rungs), [r.median for r in totals.values()], xerr=np.transpose(ends)
)
ax.invert_yaxis()
ax.set(xscale="log", xlabel="times as fast as op by op", xlim=(1, None))
s.figure(fig,
         "Each rung against the first. The scale is logarithmic, so gains "
         "that multiply add up as lengths.",
         alt="A bar for each rung: times as fast as op by op.")

# %% tags=["slow", "hide-input"]
wrong = [
    name
    for name, gain in gains.items()
    if both(
        gain.at_most(1.5 * predicted[name]),
        gain.at_least(predicted[name] / 1.5),
    )
    is False
]
misses = ", ".join(
    f"{name} ({predicted[name]:.3g}, measured {gains[name].median:.3g})"
    for name in wrong
)
silent = [  # which would agree with a bill that predicts no gain, too
    name
    for name, gain in gains.items()
    if both(gain.at_most(1.5), gain.at_least(1 / 1.5)) is not False
]
untested = ""
if silent:
    untested = (
        f" ({len(silent)} of {len(gains)} rungs are no test: they gained so "
        "little that a bill without any gain would agree, too.)"
    )

# %% tags=["slow", "hide-input"]
s.claim("The bill predicts what each rung gains", basis="predicted",
        needs=["size"], holds=not wrong,
        expected="each measured gain within a factor of 1.5 of the bill's",
        observed=", ".join(
                     (
                         f"{name} {predicted[name]:.2f}, {gain.median:.2f}"
                         for name, gain in gains.items()
                     )
                 ),
        if_holds="Every rung gained what the bill had predicted, within a "
        f"factor of 1.5.{untested}",
        if_not="The bill was wrong by more than a factor of 1.5 about: "
        f"{misses}. It has no item for what else Python does, e.g. for taking "
        "a gradient op by op, and none for a program's inputs and outputs or "
        f"for new memory.{untested}", if_open="Toy sizes do not show it.")

# %% tags=["slow", "hide-input"]
s.claim("The same training becomes at least ten times as fast",
        holds=total.above(10),
        expected="scan more than 10 times as fast as op by op",
        observed=f"{total}",
        if_holds=f"Eight rungs, the same parameters, {total} times as fast.",
        if_not=f"From the first rung to `scan`, the training became {total} "
        "times as fast.",
        if_open=f"From the first rung to `scan`, {total} times as fast.")

# %% tags=["slow", "hide-input"]
unpriced = [new for new, gain in gains.items()
            if gain.above(1.1) and limit_of[new][1] < 0.5]
s.say(not unpriced,
      if_holds="Before each rung that gained more than 10%, the closest limit "
      "was at least half of the time, so the bill explained the rung.",
      if_not="Before these rungs, no item of the bill was half of the time, "
      f"and yet they gained more than 10%: {', '.join(unpriced)}. Part of "
      "what they saved has no price here, so classify, but trust the "
      "measurement.")

# %% [markdown]
# A change that halves an item of 2% of the time gains 1% by that item, and no more. Another
# machine has other prices, and so another closest limit.
#
# **A trap.** On a CPU, beware of convolutions in `scan`. XLA may compute them there in a
# slower way, which exercise 3 measures. This is why our example is an MLP.
#
# ::::{tab-set}
# :::{tab-item} Gluon
# ```python
# net.hybridize(static_alloc=True)     # rungs 2 and 6, for the network
# losses.append(l)                     # rung 5; l.asscalar() waits
# X = X.as_in_context(mx.gpu())        # rung 7: once, before the loop
# net.cast("float16")                  # 8.0.6
# ```
# :::
# :::{tab-item} PyTorch
# ```python
# step = torch.compile(step)           # rungs 2 and 3
# losses.append(l.detach())            # rung 5; l.item() waits
# X = X.to("cuda")                     # rung 7: once, before the loop
# with torch.autocast("cuda", torch.bfloat16):  # 8.0.6
# ```
# :::
# ::::
#
# ## 8.0.6 A transformer block: the same ladder, and memory
# A transformer block has larger products, and it keeps more: the backward pass needs what
# the forward pass computed, its *activations*. So memory becomes a limit of its own. Each
# row of an image is a token here, and four blocks read the 28 tokens.

# %%
# a network: transformer blocks
def norm(h):
    return h * lax.rsqrt((h * h).mean(-1, keepdims=True) + 1e-6)

def transformer_block(p, h, heads=4):
    """Attention and an MLP, each beside a shortcut."""
    B, T, d = h.shape
    qkv = jnp.split(
        (norm(h) @ p["qkv"]).reshape(B, T, 3 * heads, -1), 3, axis=2
    )
    h = h + jax.nn.dot_product_attention(*qkv).reshape(B, T, d) @ p["out"]
    return h + jax.nn.relu(norm(h) @ p["up"]) @ p["down"]

@jax.jit(static_argnums=(1, 2))
def init_blocks(key, d=64, depth=4):
    def weights(name, m, n, i=0):
        draw = jax.random.fold_in(
            jax.random.fold_in(key, i), sum(map(ord, name))
        )
        return jax.random.normal(draw, (m, n)) * m**-0.5

    shapes = {
        "qkv": (d, 3 * d),
        "out": (d, d),
        "up": (d, 4 * d),
        "down": (4 * d, d),
    }
    blocks = [
        {name: weights(name, *shape, i) for name, shape in shapes.items()}
        for i in range(depth)
    ]
    ends = {"embed": (28, d), "place": (28, d), "logits": (d, 10)}
    return {name: weights(name, *shape) for name, shape in ends.items()}, blocks

# %% [markdown]
# *Mixed precision*: the parameters stay float32, so that small updates are not lost. The
# blocks compute with copies in bfloat16, and the loss is float32 again. `jax.checkpoint`
# keeps only a block's input, and computes the block a second time in the backward pass.

# %%
# a network: its forward pass and its training step
def transformer(params, X, block=None, dtype=jnp.float32):
    (ends, blocks), X = jax.tree.map(
        lambda a: a.astype(dtype), (params, X / 255)
    )
    h = X @ ends["embed"] + ends["place"]
    for p in blocks:
        h = (block or transformer_block)(p, h)
    return (norm(h.mean(1)) @ ends["logits"]).astype(jnp.float32)

def tokens_step(params, X, y, lr=0.02, **how):
    def loss(params):
        return cross_entropy(transformer(params, X, **how), y)
    value, grads = jax.value_and_grad(loss)(params)
    return sgd(params, grads, lr), value

def kinds_of_step():
    half, kept = (
        {"dtype": jnp.bfloat16},
        {"block": jax.checkpoint(transformer_block)},
    )
    return {
        "float32": tokens_step,
        "mixed": partial(tokens_step, **half),
        "checkpoint": partial(tokens_step, **kept),
        "both": partial(tokens_step, **half, **kept),
    }

# %% [markdown]
# <details><summary>Predict: for which kind is the memory for temporaries smallest? Which
# step is the slowest?</summary>
#
# bfloat16 takes half the bytes, so about half of the memory. `checkpoint` keeps one array
# per block instead of a dozen, and pays with a second forward pass: up to a third more
# FLOPs. Both together should be smallest. Whether bfloat16 is faster depends on the
# processor. Without units for it, a CPU computes in float32 and converts.
# </details>

# %%
count = len(data.train_labels) // s.tokens * s.tokens
rows = data.train_images[:count].reshape(-1, s.tokens, 28, 28)
row_labels = data.train_labels[:count].reshape(-1, s.tokens)
tokens = init_blocks(jax.random.key(0))
steps = {name: jax.jit(kind) for name, kind in kinds_of_step().items()}
compiled, _ = compile_together(
    {name: (f, tokens, rows[0], row_labels[0]) for name, f in steps.items()})
temporaries = {name: program.memory_analysis().temp_size_in_bytes
               for name, program in compiled.items()}
tokens_work = {name: cost(f, tokens, rows[0], row_labels[0])
               for name, f in steps.items()}
for name, size in temporaries.items():
    print(f"{name:10} {size / 1e6:6.1f} MB of temporaries,",
          f"{tokens_work[name][0] / 1e9:.2f} GFLOP")

# %% tags=["hide-input"]
s.claim("Checkpoints need less memory, and mixed precision too", needs=["size"],
        holds=max(temporaries["checkpoint"], temporaries["mixed"])
              < temporaries["float32"],
        expected="both need fewer temporaries than float32",
        observed=", ".join(
                     (
                         f"{name} {size / 1000000.0:.1f} MB"
                         for name, size in temporaries.items()
                     )
                 ),
        if_holds="Each saves memory, and this is certain before anything has "
        "run: the compiler plans it.",
        if_not="Here one of them saves none: XLA may convert bfloat16 to "
        "float32 for a processor without units for it.",
        if_open="Toy sizes do not show it.")

# %% [markdown]
# The ladder of this network is short: three programs, one program, and then mixed precision
# or checkpoints. For one program, the three bounds say which limit is closest. It explains
# the program only if it is at least half of the time.

# %% tags=["slow"]
def tokens_loss(params, X, y):
    return cross_entropy(transformer(params, X), y)

parts = [jax.jit(f) for f in (tokens_loss, jax.grad(tokens_loss), sgd)]

def three(params, X, y):
    value, grads = parts[0](params, X, y), parts[1](params, X, y)
    return parts[2](params, grads), value

args = tokens, rows[0], row_labels[0]
times = interleaved({"three programs": partial(three, *args)}
                    | {name: partial(f, *args) for name, f in steps.items()},
                    count=s.rounds)
for name, (flops, moved) in tokens_work.items():
    limit, share = closest(flops, moved, times[name].median)
    print(f"{name}: closest limit {limit}, {share:.0%} of the time")
s.table(times, title=f"A training step of four blocks, batch {s.tokens}",
        base="float32")

# %% tags=["slow", "hide-input"]
costs = ratio(times["checkpoint"], times["float32"])
more = tokens_work["checkpoint"][0] / tokens_work["float32"][0]
faster = ratio(times["float32"], times["mixed"])
s.claim("A checkpoint costs the time of its extra FLOPs", basis="predicted",
        needs=["size"],
        holds=both(costs.at_least(more / 1.2), costs.at_most(more * 1.2)),
        expected=f"{more:.2f} times the FLOPs, so {more / 1.2:.2f} to "
        f"{more * 1.2:.2f} times as long", observed=f"{costs} times as long",
        if_holds=f"`checkpoint` takes {costs} times as long, for {more:.2f} "
        "times the FLOPs.",
        if_not=f"`checkpoint` takes {costs} times as long, for {more:.2f} "
        "times the FLOPs: here the FLOPs do not set its time.",
        if_open=f"`checkpoint` takes {costs} times as long, for {more:.2f} "
        "times the FLOPs.")

# %% tags=["slow", "hide-input"]
s.claim("bfloat16 makes this step faster", holds=faster.above(1),
        needs=["size"], expected="a gain above 1; not on every machine",
        observed=f"{faster}",
        if_holds=f"Mixed precision is {faster} times as fast here.",
        if_not=f"Mixed precision is slower here, {faster} times as fast. Its "
        "products alone may be faster (section 8.6), but XLA may convert to "
        "float32 and back around other operations.",
        if_open=f"Mixed precision is {faster} times as fast: undecided.")

# %% [markdown]
# Does it still learn? We train with three seeds, and compare float32 and mixed precision on
# the 1,000 test images of the packaged set.

# %% tags=["slow"]
@jax.jit
def accuracy(params):
    X = data.test_images.reshape(-1, 28, 28)
    return (transformer(params, X).argmax(-1) == data.test_labels).mean()

def train_tokens(name, seed):
    params = init_blocks(jax.random.key(seed))
    for X, y in zip(rows[: s.tokens_steps], row_labels):
        params, _ = steps[name](params, X, y)
    return float(accuracy(params))

reached = {name: [train_tokens(name, seed) for seed in range(3)]
           for name in ("float32", "mixed")}
s.grid(("", "seed 0", "seed 1", "seed 2"),
       [(name, *(f"{a:.3f}" for a in each)) for name, each in reached.items()],
       title=f"Test accuracy after {s.tokens_steps} steps of {s.tokens} images")

# %% tags=["slow", "hide-input"]
apart = max(abs(a - b) for a, b in zip(*reached.values()))
between = max(reached["float32"]) - min(reached["float32"])
learned = min(map(min, reached.values())) > 0.3
s.claim("In so few steps, mixed precision becomes as accurate as float32",
        needs=["size"],
        holds=apart <= max(between, 0.02),
        expected="the two differ by no more than seeds do, or by at most 0.02",
        observed=f"{apart:.3f} apart, seeds {between:.3f}",
        cannot=""
               if learned
               else "a network has not learned yet: both only guess",
        if_holds=f"With equal seeds, the two are at most {apart:.3f} apart. "
        f"Two seeds of float32 alone are {between:.3f} apart.",
        if_not=f"With equal seeds, the two are up to {apart:.3f} apart, more "
        f"than two seeds of float32 ({between:.3f}).",
        if_open="The trainings are too short here to compare accuracies.")

# %% [markdown]
# ## 8.0.7 The rule: which limit, which change
# | you see | limit | what helps |
# |:--|:--|:--|
# | more work takes no longer | overhead | `jit`, one program, `scan`, larger batches |
# | the device is idle between steps | the host | do not wait, keep data on the device |
# | time follows the bytes | memory | fusion, fewer bits, larger batches |
# | time follows the FLOPs | arithmetic | lower precision with hardware for it, more devices |
# | it does not fit | memory size | donate, `jax.checkpoint`, mixed precision, more devices |
# | time is long, and far from every limit | single operations | a profile, then other operations |
#
# ## 8.0.8 See it in your own program
# Without jaxperf, you can ask for the compiler's estimate in any JAX program, and record a
# profile. Its events have the names of the instructions in the compiled program:

# %%
X, y = np.ones((64, 784), np.float32), np.zeros(64, np.int32)

@jax.jit
def forward(W, X, y):
    logits = jax.nn.relu(X @ W) @ W.T[:, :10]
    return -(jax.nn.log_softmax(logits) * jax.nn.one_hot(y, 10)).sum()

program = forward.lower(jnp.ones((784, 512)), X, y).compile()
W = jnp.ones((784, 512))
jax.block_until_ready(program(W, X, y))
names, took = set(re.findall(r"%([\w.-]+) =", program.as_text())), Counter()
with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
        jax.block_until_ready([program(W, X, y) for _ in range(20)])
    path = next(Path(folder).rglob("*.xplane.pb"))
    for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
        for line in plane.lines:
            for event in line.events:
                if event.name in names:
                    took[event.name] += event.duration_ns
for name, total_ns in took.most_common(4):
    print(f"{name}: {total_ns / 20e3:.1f} µs a call, summed over threads")

# %% [markdown]
# JAX's page [Benchmarking and profiling](https://docs.jax.dev/en/latest/201/profiling.html)
# says how to open the profile in Perfetto or XProf, and [Ahead-of-time
# lowering](https://docs.jax.dev/en/latest/201/aot.html) explains `lower` and `compile`. The
# [scaling book](https://jax-ml.github.io/scaling-book/roofline/) uses rooflines for large
# models on TPUs. jaxperf looks at a whole program without changing it:
#
# ```bash
# jaxperf roofline          # this machine's ceilings, measured once and stored
# jaxperf watch train.py    # a training: where its time goes, and which line to change
# ```
#
# ### On one H200
# A CPU cannot show what a GPU does. The first rows are of this section's own cells. The
# training steps were measured in [the comparison with PyTorch](../docs/peers.md), with the
# images on the card where nothing else is said.

# %% tags=["slow", "hide-input"]
mlp_title, chain_title = "The MLP of section 8.1", "x * 0.5 + 1"
turn, blocks = "seconds per turn", "A training step of four blocks"
lenet_title, resnet_title = (
    f"{name} TF32, batch 256" for name in ("LeNet", "ResNet-18")
)
fed = "jit, fed by the host"

# %% tags=["slow", "hide-input"]
s.on_one_gpu(
    {
        "an empty program, waited for": "call_s",
        "an empty program, queued": "queue_s",
        "the peak, by a product": "peak",
        "bandwidth": "memory",
        "the MLP, op by op": (mlp_title, "op by op, 1 example"),
        "the MLP, compiled": (mlp_title, "compiled, 1 example"),
        "one line of x * 0.5 + 1": (chain_title, "one line, compiled"),
        "ten lines": (chain_title, "ten lines, compiled"),
        "ten lines, op by op": (chain_title, "ten lines, op by op"),
        "ladder, op by op": (turn, "op by op"),
        "ladder, scan": (turn, "scan"),
        "ladder, large batch": (turn, "large batch"),
        "four blocks, float32": (blocks, "float32"),
        "mixed": (blocks, "mixed"),
        "checkpoint": (blocks, "checkpoint"),
        "LeNet's step, batches from the host": (lenet_title, fed),
        "LeNet's step, images on the card": (lenet_title, "jit"),
        "the same steps in one scan": (lenet_title, "scan"),
        "ResNet-18's step, TF32, batch 256": (resnet_title, "jit"),
        "in bfloat16": ("ResNet-18 bfloat16, batch 256", "jit"),
        "in bfloat16, batch 1024": ("ResNet-18 bfloat16, batch 1024", "jit"),
    }
)

# %% [markdown]
# A call that is waited for takes 69 µs there, a good part of the time of a compiled line.
# So ten lines op by op, which wait once, take less than 20 times as long as one line.
# LeNet's batches from the host more than double its step, and `scan` saves almost nothing.

# %% [markdown]
# ## 8.0.9 Summary
# - When you measure, wait for the results, leave out the first call, and compare in turns.
# - No program is faster than its calls, its bytes, and its FLOPs allow. Where the largest
#   of these three bounds is less than half of the time, something else limits the program:
#   take a profile.
# - First `jit` the whole step. Then, above all on a GPU, do not wait, keep data on the
#   device, and put the loop inside the program.
# - A change saves at most what the item that it reduces costs. After each change, classify
#   and measure again.
# - Memory can be bought: with FLOPs (`jax.checkpoint`), or with bits (mixed precision).
#
# ## 8.0.10 Exercises
# Think first, then open the code and the answer.
#
# **1.** From which $n$ on should an $n \times n$ product with its data in cache be limited
# by arithmetic, if its call cost nothing? Does this explain the measured curve?

# %% tags=["slow", "answer"]
n = 4 * peak / bandwidth(2**18)
print(f"n / 4 is the ridge point at n = {n:.0f}:",
      f"{2e9 * n**3 / peak:.1f} ns of arithmetic")
print(f"an empty program takes {1e9 * call_s:,.0f} ns")
for n, rate in curve.items():
    took = 2 * n**3 / rate
    print(f"n = {n:4}: {1e6 * took:,.1f} µs, of which the call's bound is",
          f"{call_s / took:.1%}, and the arithmetic's {rate / peak:.1%}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# At $n = 4 \pi / \beta$ the arithmetic takes less time than an empty program, so it cannot
# be what limits this product. A roofline shows only two of the three limits. The lines
# above say how much of each measured time the other two bounds explain. Where the larger
# one is less than half, neither is the reason: a product of medium size may use the cores
# badly.
# </details>
#
# **2.** At batch 16 you have seen what `scan` gains. Predict its gain at batch 256.

# %% tags=["slow", "answer"]
def loop_and_scan(size):
    """Seconds of 16 steps with batches on the device, in both ways."""
    X, y = (jax.device_put(a[: 16 * size].reshape(16, size, -1))
            for a in (data.train_images, data.train_labels))
    batches, y = list(zip(X, y[..., 0])), y[..., 0]

    def loop(p):
        for batch in batches:
            p, value = step(p, *batch)
        return p, value

    def scan(p):
        return lax.scan(lambda p, batch: step(p, *batch), p, (X, y))

    return interleaved({"loop": partial(loop, params),
                        "scan": partial(jax.jit(scan), params)}, count=s.rounds)

# %% tags=["slow", "answer"]
saved = {}
for size in (s.batch_size, batch):
    times = loop_and_scan(size)
    saved[size] = (times["loop"].median - times["scan"].median) / 16
    print(f"batch {size}: scan is {ratio(times['loop'], times['scan'])} times "
          f"as fast, and saves {1e6 * saved[size]:.1f} µs a step")
few, many = saved.values()
s.say(many < 2 * max(few, 0),
      if_holds="At the large batch, `scan` saves about the same time per step, "
      "or less: what a call costs beside its computation.",
      if_not="At the large batch, `scan` saves more per step. So it saves more "
      "than calls here: a body of `scan` is compiled for itself, and need not "
      "compute a step as the loop's program does.")

# %% [markdown]
# <details><summary>Answer</summary>
#
# If `scan` only saved the calls, it would save the same time in each step. A step of 256
# images has 16 times the FLOPs, so the gain should be close to 1. The sentence above says
# whether this is so. In any case the order of the rungs can matter: what one rung gains
# depends on the rungs before it.
# </details>
#
# **3.** Is `scan` also faster for LeNet, whose step has convolutions?

# %% tags=["slow", "answer"]
lenet_step = jax.jit(partial(training_step, lenet))
X4 = jax.device_put(data.train_images[:64].reshape(4, 16, 28, 28, 1))
y4 = jax.device_put(data.train_labels[:64].reshape(4, 16))
lenet_scan = jax.jit(
    lambda p: lax.scan(lambda p, b: lenet_step(p, *b), p, (X4, y4))
)

def lenet_loop(p):
    for X, y in zip(X4, y4):
        p, value = lenet_step(p, X, y)
    return p, value

times = interleaved({"loop": partial(lenet_loop, lenet_params),
                     "scan": partial(lenet_scan, lenet_params)}, count=s.rounds)
slower = ratio(times["scan"], times["loop"])
s.say(slower.above(1),
      if_holds=f"In this run, `scan` takes {slower} times as long as the "
      "loop. XLA does not use its fast convolutions in the body of a loop on "
      "a CPU.",
      if_not=f"In this run, `scan` takes {slower} times as long as the loop: "
      "it saves calls, and its convolutions are not slower.",
      if_open=f"In this run, `scan` takes {slower} times as long as the loop: "
      "undecided.")

# %% [markdown]
# <details><summary>Answer</summary>
#
# It depends on the processor. On the CPUs that we tried, XLA (JAX 0.10 to 0.12) does not
# use its fast convolutions in the body of a loop. On an H200 `scan` changed little (the
# table above). Measure on the machine that you will use.
# </details>
#
# **4.** A variance is the mean of $(x - \bar x)^2$, or the mean of $x^2$ minus $\bar x^2$.
# How many passes over memory does each need? Ask the compiler, then measure.

# %% tags=["slow", "answer"]
ways = {"(x - mean)²": lambda x: ((x - x.mean()) ** 2).mean(),
        "x² - mean²": lambda x: (x * x).mean() - x.mean() ** 2}
passes = {
    name: cost(jax.jit(way), x)[1] / x.nbytes for name, way in ways.items()
}
for name, count in passes.items():
    print(f"{name}: {count:.1f} passes")
times = interleaved(
    {name: partial(jax.jit(way), x) for name, way in ways.items()},
    count=s.rounds,
)
longer = ratio(*times.values())
first, second = passes.values()
s.say(second < 1.5,
      if_holds="The compiler computes both sums of the second formula in one "
      f"pass. The first takes {longer} times as long, for "
      f"{first / second:.1f} times the passes.",
      if_not="By the compiler's count both formulas move the same bytes. The "
      f"first takes {longer} times as long. A possible reason for a difference "
      "is that its second sum cannot start before the mean is known, while "
      "the two sums of the second formula may run side by side.")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The first needs two passes, because the mean must be known before the differences. One
# pass is enough for the second, if the compiler computes both sums in one loop; the cell
# says whether it does. The second is also less accurate where the mean is large, because it
# subtracts two nearly equal numbers.
# </details>
#
# **5.** On one H200, LeNet's step at batch 256 takes 0.32 ms and reaches 10.5 TFLOP/s.
# ResNet-18's step in bfloat16 at batch 1024 takes 9.0 ms and reaches 264 TFLOP/s. What
# would you change first?
#
# <details><summary>Answer</summary>
#
# LeNet reaches 2.9% of the rate of a large product in TF32 ([section 8.6](use_gpu)): its
# 3.4 GFLOP would take 9 µs. A call takes tens of microseconds there, and `scan`, which
# saves the calls, shortens the step by 2% only (table above). So none of the three limits
# explains most of it: the step is a chain of small kernels. Take larger batches, which make
# the kernels larger. ResNet-18 reaches 39% of the rate of a large product in bfloat16, and
# its step is far longer than a call. Use a profile to find the operations that move bytes,
# or use more devices.
# </details>
#
# **6.** Write the rule of this section as a function: `closest_limit(flops, moved, peak,
# bandwidth, call_s)` returns "arithmetic", "memory" or "overhead" for one call of a
# program. `moved` is in bytes, `peak` in FLOP/s, and `bandwidth` in bytes per second.
#
# Check it with `jaxperf check 8.0.6 mine.py`.
#
# <details><summary>Answer</summary>
#
# The three lower bounds are `flops / peak`, `moved / bandwidth` and `call_s`. The largest
# of them is the closest limit.
#
# </details>
