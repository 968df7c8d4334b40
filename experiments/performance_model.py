# %% [markdown]
# # 8.0 A performance model
# What limits a program, how do you find out, and what makes a training step fast?
# After this section you can
# - name the three things that limit a program: overhead, memory, and arithmetic;
# - measure what your machine can do at best, and say which limit a program is close to;
# - choose the change that helps, and predict which changes will not;
# - make a training step many times as fast without changing what it computes.
#
# You need no GPU. Where a GPU behaves differently, the text quotes its figures.

# %%
import tempfile
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from flax import nnx
from jax import lax

from jaxperf.data import fashion_mnist
from jaxperf.measure import compile_together, interleaved, measure
from jaxperf.models import resnet18
from jaxperf.result import ratio
from jaxperf.section import section

s = section("8.0", programs=160, rounds=15, side=2000, gpu_side=8192, largest=2**28,
            batch_size=16, steps=16, lr=0.1, resnet=0,  # images in a batch of ResNet-18
            smoke={"rounds": 2, "side": 512, "gpu_side": 1024, "largest": 2**22,
                   "batch_size": 4, "steps": 4},
            full={"rounds": 40, "largest": 2**30, "resnet": 16})

on_cpu = jax.default_backend() == "cpu"
side = s.side if on_cpu else s.gpu_side  # a GPU multiplies 2000 x 2000 in less than a call
x = jax.random.normal(jax.random.key(0), (side, side))
print(f"{jax.devices()[0].device_kind}: a matrix of {x.nbytes / 1e6:.0f} MB")

# %% [markdown]
# ## 8.0.1 Why performance?
# Data sets in deep learning are large, and models compute a lot. A program that is twice as
# fast lets you try twice as many ideas in the same time, or costs half as much. The book
# names the deciding factors: imperative and symbolic programming, asynchronous computation,
# automatic parallelism, and several GPUs. This chapter has these sections:
#
# | section | what it saves |
# |:--|:--|
# | [8.1 Imperative and symbolic programming](hybridize) | overhead and memory traffic |
# | [8.2 Asynchronous computation](async_computation) | waiting |
# | [8.3 Automatic parallelism](auto_parallelism) | waiting for what could run at the same time |
# | [Using a GPU](use_gpu) | copies between devices |
# | [8.4 Training on several devices](multiple_gpus) | time: each device does a share |
# | [8.5 The same, concisely](multiple_gpus_concise) | the same, and your own time |
# | [Collectives](collectives) | bytes and messages between devices |
# | [Splitting the model](model_parallelism) | memory on each device |
# | [From 2 to 1,000 devices](scaling) | renting devices to find out |
# | [Beside MXNet and PyTorch](peers) | a comparison of the three frameworks |
#
# This section comes first, because all others use its method:
# 1. **Measure.** Time the program, and wait for its results.
# 2. **Classify.** Compare the time with what the machine can do. Which limit is closest?
# 3. **Change** one thing that this limit depends on.
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
# programs, this chapter lets them take turns, round after round (`interleaved`), so that a
# slow moment slows both. `ratio` divides the two times of each round and takes the median
# of the quotients, so it may differ from the quotient of the two medians. It also gives a
# 95% confidence interval. If the interval contains 1, the comparison is *undecided*. In a
# table, *spread* is the width of the middle half of the values, divided by their median. A
# spread above 10% is marked *noisy*.
#
# ## 8.0.3 Classify: three limits
# ![Three programs over time, each with a lane for calls, bytes, and FLOPs. In the first,
# calls fill the time, in the second bytes, in the third FLOPs.](images/three_regimes.svg)
#
# A program is *called*, it *moves bytes* between memory and cores, and it *computes*. At
# best the machine does all three at the same time. Then the slowest one sets the time:
#
# $$t \;\ge\; \max\left(t_\text{call},\; \frac{\text{bytes}}{\beta},\; \frac{\text{FLOPs}}{\pi}\right)$$
#
# Here $t_\text{call}$ is the time of an empty program, $\beta$ the memory bandwidth in
# bytes per second, and $\pi$ the peak rate of arithmetic. A FLOP is one addition or
# multiplication of floating-point numbers. The last two terms are the *roofline model*
# ([Williams, Waterman, and Patterson, 2009](https://doi.org/10.1145/1498765.1498785)). The
# three numbers are properties of the machine. We measure the values that JAX reaches. On a
# GPU the matrix has 8192 rows, because 2000 are too few. On one H200, an NVIDIA GPU, a
# product of 2000 rows is ready 36 µs after its call returns, while even an empty program
# takes 72 µs to call and wait for (JAX 0.11.2, 2026-11-27).

# %% tags=["slow"]
empty = jax.jit(lambda: jnp.zeros(()))
call_s = measure(empty, budget_s=0.5).median
peak = 2 * side**3 / min(measure(dot, x, budget_s=1.0).values)
s.fact("call_s", call_s, unit="s", meaning="an empty program, called and waited for")
s.fact("peak", peak, unit="FLOP/s", meaning=f"product of two {side} x {side} matrices")

# %% [markdown]
# Bandwidth depends on the array size, because small arrays stay in a cache. This program
# reads and writes one array many times, in the same memory. `times` is static, so the
# compiler knows its value. If the number were not known, a GPU would have to ask the host,
# where Python runs, after each turn whether to continue.

# %%
@partial(jax.jit, donate_argnums=0, static_argnums=1)  # the output may overwrite the input
def sweep(x, times):
    return lax.fori_loop(0, times, lambda _, x: x * 0.5 + 0.5, x)

def turns(size):
    moved = 2**28 if on_cpu else min(2**33, 2000 * size)  # more, to outlast a GPU's call
    return max(1, moved // (2 * size))

def bytes_per_second(size):
    x = jax.device_put(np.ones(size // 4, np.float32))
    times, took = turns(size), []
    for _ in range(5):
        start = time.perf_counter()
        x = jax.block_until_ready(sweep(x, times))
        took.append(time.perf_counter() - start)
    return 2 * size * times / min(took)

# %% [markdown]
# Each size needs its own program. `compile_together` compiles all of them at the same time,
# one per thread, without running them. On a GPU, XLA needs a second or more per program.
# Most of a first run is then compiling, so we show the compile time separately.

# %% tags=["slow"]
sizes = [2**n for n in range(14, 31, 2) if 2**n <= s.largest]
_, compile_s = compile_together(
    {size: (sweep, jax.ShapeDtypeStruct((size // 4,), jnp.float32), turns(size))
     for size in sizes})
print(f"{len(sizes)} programs compiled in {compile_s:.1f} s")
rates = {size: bytes_per_second(size) for size in sizes}

def bandwidth(size):
    """Bytes/s of the best array of at least `size` bytes."""
    return max(rate for at, rate in rates.items() if at >= min(size, max(rates)))

memory, cache = bandwidth(max(rates)), bandwidth(0)
s.fact("memory", memory, unit="bytes/s", meaning="reading and writing the largest array")
fig, ax = plt.subplots()
names = [f"{n >> 20} MiB" if n >> 20 else f"{n >> 10} KiB" for n in rates]
ax.plot(names, [rate / 1e9 for rate in rates.values()], "o-")
ax.set(xlabel="array", ylabel="GB/s", ylim=(0, None))
s.figure(fig, "The bandwidth ladder: each cache that the array outgrows is a step down.")
print(f"ridge point: {peak / memory:.1f} FLOP per byte, from cache {peak / cache:.1f}")

# %% [markdown]
# The *ridge point* $\pi / \beta$ is the number of FLOPs that the machine can do while it
# moves one byte. A program's *arithmetic intensity* is its number of FLOPs per byte. If
# this is below the ridge point, the program waits for memory, and otherwise for
# arithmetic. On one H200 (JAX 0.11.2, 2026-11-26), an empty program takes 55 µs (up to 76
# µs in other runs). A product of 8192 x 8192 reaches 371 TFLOP/s in TF32 (float32 rounded
# to 10 bits, see [Using a GPU](use_gpu)), and 739 in bfloat16. `x + 1` over 1 GB reaches
# 4.1 TB/s. The ridge points are 90 and 179 FLOP per byte. A GPU needs more arithmetic per
# byte, and more work per call, than a CPU.
#
# ### Overhead: a small network, op by op
# The MLP of section 8.1 does 0.33 MFLOP for one example. Without `jit`, Python launches
# each operation on its own.
#
# <details><summary>Predict: op by op, how much longer do 8 examples take than one?</summary>
#
# Hardly longer: the arithmetic takes less time than launching it. To test for overhead,
# give the program more work: if the time does not grow, the work was not the limit.
# </details>

# %%
def init_mlp(key, widths):
    keys = jax.random.split(key, len(widths) - 1)
    return [(jax.random.normal(key, (m, n)) * (2 / m) ** 0.5, jnp.zeros(n))
            for key, m, n in zip(keys, widths, widths[1:])]

def mlp(params, X):
    for W, b in params[:-1]:
        X = jax.nn.relu(X @ W + b)
    W, b = params[-1]
    return X @ W + b

draw_mlp = jax.jit(init_mlp, static_argnums=1)  # one program draws all weights
small_mlp, compiled_mlp = draw_mlp(jax.random.key(0), (512, 256, 128, 2)), jax.jit(mlp)
one, eight = jnp.ones((1, 512)), jnp.ones((8, 512))

# %% tags=["slow"]
times = interleaved({
    "empty program": empty,
    "op by op, 1 example": partial(mlp, small_mlp, one),
    "op by op, 8 examples": partial(mlp, small_mlp, eight),
    "compiled, 1 example": partial(compiled_mlp, small_mlp, one),
    "compiled, 8 examples": partial(compiled_mlp, small_mlp, eight),
}, count=s.rounds)
s.table(times, title="The MLP of section 8.1", base="empty program")
growth = ratio(times["op by op, 8 examples"], times["op by op, 1 example"])
s.claim("Op by op, eight examples take about as long as one", holds=growth.below(1.5),
        expected="less than 1.5 times as long", observed=f"{growth}", since="2026-11-26")

# %% [markdown]
# When compiled, the network is a single call. How close its time comes to an empty
# program's depends on the machine. On one H200 the compiled MLP took 76 µs, and an empty
# program in the same run took 69 µs (JAX 0.11.2, 2026-11-27).
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
    """FLOPs and bytes of the jitted `f`, by the compiler's estimate."""
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), args)
    with jax.default_device(jax.devices("cpu")[0]):  # a GPU cannot count before it compiles
        before = f.lower(*shapes).cost_analysis()
    after = f.lower(*args).compile().cost_analysis() or {}
    moved = after.get("bytes accessed", 0)  # a GPU's library of products gives none
    return before["flops"], moved if moved > 0 else before["bytes accessed"]

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
# Compiled, they take about as long as one line, because they move the same bytes. Op by op,
# each of 20 operations reads and writes the whole array, and a CPU takes 20 times as long
# or more: it also writes to new memory, which the operating system may have to provide
# first. On one H200, they took 11.7 times as long (JAX 0.11.2, 2026-11-27).
# </details>

# %% tags=["slow"]
one_line, ten_lines = jax.jit(partial(chain, length=1)), jax.jit(chain)
times = interleaved({"one line, compiled": partial(one_line, x),
                     "ten lines, compiled": partial(ten_lines, x),
                     "ten lines, op by op": partial(chain, x)}, count=s.rounds)
s.table(times, title=f"x * 0.5 + 1, {side} x {side}", base="one line, compiled")
fused = ratio(times["ten lines, compiled"], times["one line, compiled"])
s.claim("Ten fused lines take about as long as one", holds=fused.below(2),
        expected="less than 2 times as long", observed=f"{fused}", since="2026-11-26")

# %% [markdown]
# ### Arithmetic: matrix products
# The product `x @ x` of an $n \times n$ matrix does $2n^3$ FLOPs. It reads at least one
# matrix and writes one, $8 n^2$ bytes. Its intensity is $n / 4$ FLOP per byte. Small
# products are limited by the call. Large ones come close to the peak.

# %% tags=["slow"]
curve = {}
squares = {n: np.ones((n, n), np.float32) for n in (16, 64, 256, 1024) if n <= side}
compile_together({n: (dot, square) for n, square in squares.items()})
for n, square in squares.items():
    square = jax.device_put(square)
    curve[n] = 2 * n**3 / measure(dot, square, budget_s=0.1, least_s=0.05).median
    print(f"n = {n:4}: {n / 4:5.1f} FLOP/byte, {curve[n] / peak:4.0%} of the peak")

# %% [markdown]
# ## 8.0.4 The programs of this chapter on one roofline
# The next sections use the MLP, `x + 1`, products, and training steps of LeNet and
# ResNet-18. A step computes the gradient of the loss and updates the parameters, in the
# same way for every network:

# %%
def cross_entropy(logits, y):
    return -(jax.nn.log_softmax(logits) * jax.nn.one_hot(y, 10)).sum(-1).mean()

def sgd(params, grads):
    return jax.tree.map(lambda p, g: p - s.lr * g, params, grads)

def training_step(net, params, X, y):
    def loss(params):
        return cross_entropy(net(params, X / 255), y)
    value, grads = jax.value_and_grad(loss)(params)
    return sgd(params, grads), value

# %%
def init_lenet(key, scale=0.01):
    shapes = [(3, 3, 1, 20), (20,), (5, 5, 20, 50), (50,),
              (800, 128), (128,), (128, 10), (10,)]
    return [scale * jax.random.normal(k, shape) if len(shape) > 1 else jnp.zeros(shape)
            for k, shape in zip(jax.random.split(key, len(shapes)), shapes)]

def conv_and_pool(X, W, b):
    layout = ("NHWC", "HWIO", "NHWC")
    Y = lax.conv_general_dilated(X, W, (1, 1), "VALID", dimension_numbers=layout)
    Y = jax.nn.relu(Y + b)
    return lax.reduce_window(Y, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4

def lenet(params, X):
    W1, b1, W2, b2, W3, b3, W4, b4 = params
    h = conv_and_pool(conv_and_pool(X, W1, b1), W2, b2)
    return jax.nn.relu(h.reshape(len(h), -1) @ W3 + b3) @ W4 + b4

# %%
data = fashion_mnist(source="mini")  # 6,000 images, as bytes; they come with jaxperf
images, labels = data.train_images, data.train_labels
s.data_source(data.source)
batch = 16 * s.batch_size
smalls = [jax.device_put(np.ones((20, 20), np.float32))] * 10
programs = {
    "ten 20 x 20 products (8.3)": (lambda xs: [x @ x for x in xs], smalls),
    "MLP, one example (8.1)": (mlp, small_mlp, one),
    f"x + 1, {side} x {side} (8.2)": (lambda x: x + 1, x),
    f"product, {side} x {side} (8.2)": (lambda x: x @ x, x),
    f"LeNet step, batch {batch} (8.4)": (partial(training_step, lenet),
        jax.jit(init_lenet)(jax.random.key(0)), images[:batch], labels[:batch]),
}
if s.resnet:  # only with --full: it takes long to compile
    graphdef, weights, stats = nnx.split(resnet18(rngs=nnx.Rngs(0)), nnx.Param, ...)
    programs[f"ResNet-18 step, batch {s.resnet} (8.5)"] = (
        partial(training_step, lambda w, X: nnx.merge(graphdef, w, stats, copy=True)(X)),
        weights, images[: s.resnet], labels[: s.resnet])
programs = {name: (jax.jit(f), *args) for name, (f, *args) in programs.items()}
_, compile_s = compile_together(programs)
print(f"{len(programs)} programs compiled in {compile_s:.1f} s")
work = {name: cost(*program) for name, program in programs.items()}

# %% [markdown]
# `cost_analysis` is the compiler's own estimate. It adds up the bytes that each fused
# operation reads and writes. It does not know which of them are in a cache, and it counts
# the body of a loop once, however often the loop runs:

# %%
def products(x, length):
    return lax.scan(lambda c, _: (c @ x, None), x, length=length)[0]

once, often = (cost(jax.jit(partial(products, length=n)), smalls[0])[0] for n in (1, 100))
s.claim("The compiler's estimate counts a loop's body once", holds=often < 2 * once,
        expected="100 turns count less than twice as much as one",
        observed=f"{once:,.0f} FLOP for one turn, {often:,.0f} for a hundred")

# %% [markdown]
# <details><summary>Predict: which program is limited by the call, which by memory, which by
# arithmetic?</summary>
#
# The call limits the ten 20 x 20 products, which do only 0.16 MFLOP. Memory limits `x + 1`,
# with 1 FLOP for 8 bytes. Arithmetic limits the large product, with 500 FLOP per byte. The
# MLP uses each weight for one example only, 0.5 FLOP per byte, so memory or the call limits
# it. LeNet's step has about 10 FLOP per byte, close to the ridge point of many CPUs.
# </details>

# %% tags=["slow"]
limits, rows, points = [], [], {}
for name, (f, *args) in programs.items():
    flops, moved = work[name]
    took = measure(f, *args, budget_s=0.5).median
    least = {"overhead": call_s, "memory": moved / bandwidth(moved),
             "arithmetic": flops / peak}
    limit = max(least, key=least.get)
    limits.append(limit)
    points[name] = flops / moved, flops / took
    rows.append((name, f"{flops / 1e6:,.2f}", f"{moved / 1e6:,.2f}", f"{flops / moved:.3g}",
                 f"{1e6 * took:,.0f}", limit, f"{least[limit] / took:.0%}"))
heads = "program", "MFLOP", "MB", "FLOP/byte", "time (µs)", "closest limit", "limit / time"
s.grid(heads, rows, title="The chapter's programs and their limits")
three = [limits[0], limits[2], limits[3]]
s.claim("Overhead limits 20 x 20 products, memory limits x + 1, arithmetic a large product",
        holds=three == ["overhead", "memory", "arithmetic"], expected="one in each regime",
        observed=", ".join(three), since="2026-11-26")

# %% tags=["slow"]
fig, ax = plt.subplots(figsize=(7, 4.2))
at = np.logspace(-1.5, 3, 200)
ink = "#1f2328"
ax.plot(at, np.minimum(peak, at * memory) / 1e9, color=ink, label="roof")
ax.plot(at, np.minimum(peak, at * cache) / 1e9, ":", color=ink, label="roof, data in cache")
ax.plot([n / 4 for n in curve], [rate / 1e9 for rate in curve.values()], ".-", color="C5",
        lw=1, label="products, 16 x 16 and larger")
for i, (name, (intensity, rate)) in enumerate(points.items()):
    ax.plot(intensity, rate / 1e9, "oDs^vP"[i], ms=8, color=f"C{i % 5}", label=name)
ax.set(xscale="log", yscale="log", xlabel="FLOP per byte", ylabel="GFLOP/s")
ax.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
s.figure(fig, "Left of the ridge point memory sets the roof, right of it arithmetic. A point "
              "far below the roof loses time to overhead, or uses the machine badly.")

# %% [markdown]
# The last column of the table is a point's distance from the roof:
# - *Near 100%*: the program is as fast as its bytes and FLOPs allow. Reduce them: fuse, use
#   fewer bits, or use more devices.
# - *Far below, and the time is short*: the limit is overhead, from the call or from many
#   small operations. Make fewer calls or operations.
# - *Far below, but the time is long*: the operations use the machine badly. The model says
#   how much you can gain, but not how. XLA's convolutions on a CPU are often such a case
#   ([Beside MXNet and PyTorch](peers)). On a CPU `x + 1` may be another, because it writes
#   to new memory at each call.
# - *Above 100%*: the estimate counts bytes that never left a cache, or a busy moment made
#   the measured limit too low. Trust the time.
#
# ## 8.0.5 Change: a ladder of ten rungs
# We now make one training step faster, one change (a *rung*) at a time. Our example is an
# MLP on Fashion-MNIST with batches of 16. The first eight rungs compute the same
# parameters. Only the last two change the arithmetic.
#
# ![The path of a training step: a batch is prepared on the host and copied to the device,
# Python launches a program, the device computes and updates the parameters, and Python
# reads the loss. Each part is marked with the rungs that shorten it.](images/step_path.svg)
#
# **1. Op by op.** The first version prepares the batch with NumPy, logs the loss, and
# updates the parameters.

# %%
params = draw_mlp(jax.random.key(0), (784, 256, 128, 10))
n_images = s.steps * s.batch_size
images, labels = images.reshape(-1, 784)[:n_images], labels[:n_images]
batches = [(images[i : i + s.batch_size], labels[i : i + s.batch_size])
           for i in range(0, n_images, s.batch_size)]

def loss(params, X, y):
    return cross_entropy(mlp(params, X), y)

def train(params, loss, gradient, sgd):
    losses = []
    for X, y in batches:
        X = X.astype(np.float32) / 255
        losses.append(float(loss(params, X, y)))
        params = sgd(params, gradient(params, X, y))
    return params, losses

rungs = {"op by op": partial(train, loss=loss, gradient=jax.grad(loss), sgd=sgd)}

# %% [markdown]
# Every rung takes the parameters, makes the same steps, and returns the new parameters.
# When we compare two rungs, they take turns, each with its own copy of the parameters.

# %%
copy = jax.jit(partial(jax.tree.map, jnp.copy))

def fresh():
    return jax.block_until_ready(copy(params))

rounds = s.rounds if on_cpu else min(s.rounds, 8)  # op by op, each call costs a GPU more

def take_turns(*names):
    return interleaved({name: rungs[name] for name in names}, count=rounds,
                       items=n_images, before=dict.fromkeys(names, fresh))

def climb(old, new):
    times = take_turns(old, new)
    print(f"{old}: {n_images / times[old].median:,.0f} images/s")
    print(f"{new}: {n_images / times[new].median:,.0f} images/s,",
          ratio(times[old], times[new]), "times as fast")

# %% [markdown]
# **2. `jit`.** We compile the three functions. Each is now one call instead of dozens.

# %%
rungs["jit"] = partial(
    train, loss=jax.jit(loss), gradient=jax.jit(jax.grad(loss)), sgd=jax.jit(sgd))
climb("op by op", "jit")

# %% [markdown]
# **3. One program.** The three programs compute the forward pass twice, and write the
# gradients to memory only to read them again. One program for the whole step avoids both.
#
# <details><summary>Predict: is it three times as fast?</summary>
#
# No. It saves two of three calls, but only the second forward pass of the arithmetic. This
# is about a third here, because a gradient costs two to three forward passes.
# </details>

# %%
def update(params, X, y):
    value, grads = jax.value_and_grad(loss)(params, X, y)
    return sgd(params, grads), value

def to_float(X):
    return X.astype(np.float32) / 255

def loop(params, update, prepare=lambda X: X, read=lambda value: value):
    losses = []
    for X, y in batches:
        params, value = update(params, prepare(X), y)
        losses.append(read(value))
    return params, losses

rungs["one program"] = partial(loop, update=jax.jit(update), prepare=to_float, read=float)
climb("jit", "one program")

# %% [markdown]
# **4. Bytes.** The images are stored as bytes. As floats they are four times as large to
# copy. Inside the program, the compiler can fuse the conversion into what follows.

# %%
def step(params, X, y):
    return update(params, X / 255, y)

rungs["bytes"] = partial(loop, update=jax.jit(step), read=float)
climb("one program", "bytes")

# %% [markdown]
# **5. Do not wait.** `float(value)` waits for the step. While Python then prepares the next
# call, the device is idle. Keep the losses on the device, and read them later ([section
# 8.2](async_computation)).

# %%
rungs["no wait"] = partial(loop, update=jax.jit(step))
climb("bytes", "no wait")

# %% [markdown]
# **6. Donate.** The step does not need the old parameters afterwards, so the new ones may
# take their place ([buffer donation](https://docs.jax.dev/en/latest/buffer_donation.html)).
# This saves memory. It saves time only where memory allocation takes a visible part of the
# step.

# %%
donated = jax.jit(step, donate_argnums=0)
rungs["donate"] = partial(loop, update=donated)
reused = donated.lower(params, *batches[0]).compile().memory_analysis().alias_size_in_bytes
size = sum(p.nbytes for p in jax.tree.leaves(params))
s.claim("The donated step needs no second copy of the parameters", holds=reused >= size,
        expected=f"{size:,} bytes of outputs in the memory of inputs",
        observed=f"{reused:,} bytes")
climb("no wait", "donate")

# %% [markdown]
# **7. Data on the device.** So far JAX copies a NumPy array in each step. As bytes, this
# data set fits on the device. A step then takes only its batch number. If your data do not
# fit, copy the next batch with `jax.device_put` while the device computes.

# %%
device_images, device_labels = jax.device_put((images, labels))

@partial(jax.jit, donate_argnums=0)
def step_number(params, i, images, labels):
    start = i * s.batch_size
    X, y = (lax.dynamic_slice_in_dim(a, start, s.batch_size) for a in (images, labels))
    return step(params, X, y)

def on_device(params):
    losses = []
    for i in range(s.steps):
        params, value = step_number(params, i, device_images, device_labels)
        losses.append(value)
    return params, losses

rungs["on device"] = on_device
climb("donate", "on device")

# %% [markdown]
# **8. `scan`.** With the loop inside the program, one call makes many steps. This pays
# where a step is short compared with a call.

# %%
@partial(jax.jit, donate_argnums=0)
def many_steps(params, images, labels):
    batches = images.reshape(-1, s.batch_size, 784), labels.reshape(-1, s.batch_size)
    return lax.scan(lambda params, batch: step(params, *batch), params, batches)

rungs["scan"] = lambda params: many_steps(params, device_images, device_labels)
climb("on device", "scan")

# %% [markdown]
# So far only the speed has changed:

# %%
def difference(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b))
    return max(abs(np.asarray(p) - np.asarray(q)).max() for p, q in pairs)

trained = {name: rung(fresh())[0] for name, rung in rungs.items()}
worst = max(difference(trained["op by op"], trained[name]) for name in rungs)
tolerance = 1e-5 if on_cpu else 1e-2  # a GPU may use TF32
s.claim("The first eight rungs compute the same parameters", holds=worst < tolerance,
        expected=f"within {tolerance:g} after {s.steps} steps",
        observed=f"{worst:.0e} at most", since="2026-11-27",
        first="within 1e-3 on a GPU; one H200 in TF32 differed by 2e-3")

# %% [markdown]
# **9. A larger batch.** This rung uses all images at once. Each weight that the device
# reads now serves 16 times as many images. But the training changes: it makes one update
# instead of sixteen, and needs another learning rate ([section 8.4](multiple_gpus)).

# %%
rungs["large batch"] = lambda params: donated(params, device_images, device_labels)
climb("scan", "large batch")

# %% [markdown]
# **10. Fewer bits.** The products read bfloat16. The parameters themselves stay float32, so
# that small updates are not lost.
#
# <details><summary>Predict: is this faster on your machine?</summary>
#
# It depends on the processor. A CPU without units for bfloat16 computes in float32 and
# converts. With such units the conversions still take time, so small products may not gain.
# Where the call takes longer than the products, fewer bits change nothing. This may happen
# with this small step on a fast GPU. On one H200, ResNet-18's step at batch 256 takes 5.97
# ms in TF32 and 3.64 ms in bfloat16 (JAX 0.11.2, 2026-11-26).
# </details>

# %%
def half_loss(params, X, y):
    params, X = jax.tree.map(lambda a: a.astype(jnp.bfloat16), (params, X))
    return cross_entropy(mlp(params, X).astype(jnp.float32), y)

@partial(jax.jit, donate_argnums=0)
def half_step(params, X, y):
    value, grads = jax.value_and_grad(half_loss)(params, X / 255, y)
    return sgd(params, grads), value

rungs["bfloat16"] = lambda params: half_step(params, device_images, device_labels)
climb("large batch", "bfloat16")

# %% [markdown]
# Now all rungs take turns, so the gains differ a little from those above.

# %% tags=["slow"]
times = take_turns(*rungs)
gains = {new: ratio(times[old], times[new]) for old, new in pairwise(rungs)}
speeds = {name: f"{n_images / times[name].median:,.0f}" for name in rungs}
s.grid(("rung", "images/s", "gain over the rung before"),
       [(name, speed, gains.get(name, "")) for name, speed in speeds.items()],
       title=f"Training an MLP, {n_images} images per turn")
s.table(times, title="The same in seconds per turn", base="op by op", fold=True)
fig, ax = plt.subplots(figsize=(7, 3.4))
totals = {name: ratio(times["op by op"], times[name]) for name in rungs}
ends = [(r.median - r.low, r.high - r.median) for r in totals.values()]
ax.barh(list(rungs), [r.median for r in totals.values()], xerr=np.transpose(ends))
ax.invert_yaxis()
ax.set(xscale="log", xlabel="times as fast as op by op")
s.figure(fig, "Compiling is the longest step up. The shorter ones multiply.")
total = totals["scan"]
s.claim("The same training becomes at least ten times as fast", holds=total.above(10),
        expected="scan more than 10 times as fast as op by op", observed=f"{total}",
        since="2026-11-26")
s.claim("bfloat16 makes this step faster", holds=gains["bfloat16"].above(1),
        expected="a gain above 1; not on every machine", observed=f"{gains['bfloat16']}",
        since="2026-11-26")

# %% [markdown]
# Some rungs gain little or are undecided. The model predicts this: a change helps only if
# it reduces what limits the program *now*. Another machine has another limit. On one H200:
# - LeNet's step takes 2.1 ms if each batch comes from the host and the step is three
#   programs. It takes 0.36 ms as one program with the images on the card (rungs 3 and 7).
# - `scan` shortens this step from 0.357 to 0.280 ms, but ResNet-18's longer step in
#   bfloat16 only from 3.64 to 3.58 ms (rung 8).
# - ResNet-18 in TF32 makes 42.9 thousand images per second at batch 256 and 55.6 thousand
#   at 1024 (rung 9).
# - This ladder rose from 851 images per second op by op to 340 thousand with `scan` (403,
#   310 to 472, times as fast) and 1.27 million with the large batch (2026-11-27).
#
# **A trap.** On a CPU, do not put convolutions into `scan`. There XLA computes them in a
# slower way, as exercise 3 measures. This is why our example is an MLP.
#
# ::::{tab-set}
# :::{tab-item} Gluon
# ```python
# net.hybridize(static_alloc=True)     # rungs 2 and 6, for the network
# losses.append(l)                     # rung 5; l.asscalar() waits
# X.as_in_context(mx.gpu())            # rung 7
# net.cast("float16")                  # rung 10
# ```
# :::
# :::{tab-item} PyTorch
# ```python
# step = torch.compile(step)           # rungs 2 and 3
# losses.append(l.detach())            # rung 5; l.item() waits
# X = X.to("cuda", non_blocking=True)  # rung 7
# with torch.autocast("cuda", torch.bfloat16):  # rung 10
# ```
# :::
# ::::
#
# ## 8.0.6 The rule: which limit, which change
# | you see | limit | what helps |
# |:--|:--|:--|
# | more work takes no longer | overhead | `jit`, one program, `scan`, larger batches |
# | the device is idle between steps | the host | do not wait, keep data on the device |
# | time follows the bytes | memory | fusion, fewer bits, larger batches |
# | time follows the FLOPs | arithmetic | lower precision with hardware for it, more devices |
# | time is long, and far from every limit | single operations | a profile, then other operations |
#
# ## 8.0.7 See it in your own program
# Without jaxperf, you can ask for the compiler's estimate and record a profile in any JAX
# program:

# %%
plain_step = jax.jit(step)
analyzed = plain_step.lower(params, *batches[0]).compile()
print(f"bytes moved: {analyzed.cost_analysis().get('bytes accessed', 0):,.0f}")
print(f"temporaries: {analyzed.memory_analysis().temp_size_in_bytes:,} bytes")

jax.block_until_ready(plain_step(params, *batches[0]))  # compile outside of the profile
with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
        jax.block_until_ready([plain_step(params, X, y) for X, y in batches])
    print("profile:    ", [path.suffixes for path in Path(folder).rglob("*.pb")])

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
# ## 8.0.8 Summary
# - When you measure, wait for the results, leave out the first call, and compare in turns.
# - A program is limited by its calls, its bytes, or its FLOPs. Three numbers of the machine
#   tell you which.
# - First `jit` the whole step. Then do not wait, keep data on the device, and put the loop
#   inside the program.
# - A change helps only while its limit is the closest one. After each change, classify
#   again.
#
# ## 8.0.9 Exercises
# Think first, then open the code and the answer.
#
# **1.** From which $n$ on should an $n \times n$ product with its data in cache be limited
# by arithmetic? Why is the measured curve below the peak there?

# %% tags=["slow", "answer"]
n = 4 * peak / cache
print(f"n / 4 is the ridge point at n = {n:.0f}: {2e6 * n**3 / peak:.2f} µs of arithmetic")
print(f"an empty program takes {1e6 * call_s:.1f} µs")
print(f"the arithmetic takes ten calls at n = {(10 * call_s * peak / 2) ** (1 / 3):.0f}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# At $n = 4 \pi / \beta$ the arithmetic takes less time than an empty program. So the call
# is the limit, and stays visible until the arithmetic takes as long as many calls. A
# product also costs more to start than an empty program, so the curve is lower still. A
# roofline shows only two of the three limits.
# </details>
#
# **2.** At batch 16 you have seen what `scan` gains. Predict its gain at batch 256.

# %% tags=["slow", "answer"]
X16 = jax.device_put(data.train_images[: 16 * batch].reshape(16, batch, 784))
y16 = jax.device_put(data.train_labels[: 16 * batch].reshape(16, batch))
plain_scan = jax.jit(lambda p: lax.scan(lambda p, b: step(p, *b), p, (X16, y16)))

def plain_loop(p):
    for X, y in zip(X16, y16):
        p, value = plain_step(p, X, y)
    return p, value

times = interleaved({"loop": partial(plain_loop, params),
                     "scan": partial(plain_scan, params)}, count=s.rounds)
print(f"at batch {batch}, scan is {ratio(times['loop'], times['scan'])} times as fast")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `scan` saves a fixed time per step. A step of 256 images has 16 times the FLOPs, so the
# saved part is smaller. (This loop also cuts its batches out of `X16`, which takes a few
# percent of its time.) The order of the rungs matters: after the larger batch, `scan` gains
# less.
# </details>
#
# **3.** Is `scan` also faster for LeNet, whose step has convolutions?

# %% tags=["slow", "answer"]
lenet_step = jax.jit(partial(training_step, lenet))
lenet_params = init_lenet(jax.random.key(0))
X4 = jax.device_put(images[:64].reshape(4, -1, 28, 28, 1))
y4 = jax.device_put(labels[:64].reshape(4, -1))
lenet_scan = jax.jit(lambda p: lax.scan(lambda p, b: lenet_step(p, *b), p, (X4, y4)))

def lenet_loop(p):
    for X, y in zip(X4, y4):
        p, value = lenet_step(p, X, y)
    return p, value

times = interleaved({"loop": partial(lenet_loop, lenet_params),
                     "scan": partial(lenet_scan, lenet_params)}, count=s.rounds)
print(f"LeNet: scan takes {ratio(times['scan'], times['loop'])} times as long as the loop")

# %% [markdown]
# <details><summary>Answer</summary>
#
# If the ratio is above 1, `scan` is slower. This happens on a CPU, because XLA does not use
# its fast convolutions in the body of a loop. On one H200 the same change makes the step
# 1.28 times as fast (0.357 to 0.280 ms, batch 256), and in another program it gained
# nothing ([figures](../docs/peers.md)). Measure on the machine that you will use.
# </details>
#
# **4.** A variance is the mean of $(x - \bar x)^2$, or the mean of $x^2$ minus $\bar x^2$.
# How many passes over memory does each need? Ask the compiler, then measure.

# %% tags=["slow", "answer"]
ways = {"(x - mean)²": lambda x: ((x - x.mean()) ** 2).mean(),
        "x² - mean²": lambda x: (x * x).mean() - x.mean() ** 2}
for name, way in ways.items():
    print(f"{name}: {cost(jax.jit(way), x)[1] / x.nbytes:.1f} passes")
times = interleaved({name: partial(jax.jit(way), x) for name, way in ways.items()},
                    count=s.rounds)
print("the first takes", ratio(*times.values()), "times as long as the second")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The first needs two passes, because the mean must be known before the differences. One
# pass is enough for the second, if the compiler computes both sums in one loop. The printed
# number says whether it does. If it is two and the second formula is still faster, bytes
# are not the reason. The second is also less accurate where the mean is large, because it
# subtracts two nearly equal numbers.
# </details>
#
# **5.** On one H200, LeNet's step at batch 256 takes 0.357 ms and reaches 9.7 TFLOP/s.
# ResNet-18's step in bfloat16 at batch 1024 takes 8.9 ms and reaches 316 TFLOP/s. What
# would you change first?
#
# <details><summary>Answer</summary>
#
# LeNet reaches 2.6% of the TF32 peak. Its 3.5 GFLOP would take 9 µs at the peak, less than
# an empty program (27 µs queued, 55 µs waited for). So reduce the calls: `scan`, or larger
# batches. ResNet-18 reaches 43% of the bfloat16 peak, and its step is far longer than a
# call. Use a profile to find the operations that move bytes, or use more devices.
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
