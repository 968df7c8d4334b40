# %% [markdown]
# # 8.9 From 2 to 1,000 devices
# A step takes a second on one device. How long will it take on 8, 64, or 1,024? After this section
# you can
# - tell strong from weak scaling, and say which one a published figure means;
# - predict the step time from four numbers: compute, bytes, bandwidth, and delay;
# - say what may explain that a second GPU makes LeNet slower and ResNet-18 faster;
# - find the sums that BatchNorm hides in a program, and say what they cost;
# - choose a batch, a learning rate, and a kind of parallelism for many devices.
#
# You need no GPU. This section predicts GPU times and compares them with published ones. It counts
# all-reduces in programs compiled for eight parts of your CPU.

# %%
import functools
import itertools
import math
import re
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import NamedSharding, P, lax

from jaxperf.chapter.section import section
from jaxperf.data import fashion_mnist

s = section("8.9", devices=8, k=64, batch=1024, parameters=11_171_018,
            fixed_ms=1.9, image_us=6.92, bandwidth=50.0, delay=5.0, channels=64,
            batches=(8, 32, 128, 512), data="mini", data_folder=None,
            smoke={"channels": 4, "batches": (8, 32)})
devices = jax.devices()[: s.devices]
mesh = jax.make_mesh((len(devices),), ("data",), devices=devices)
data = fashion_mnist(source="folder" if s.data_folder else s.data,
                     folder=s.data_folder)

# %% tags=["hide-input"]
assert len(devices) > 1, "this section needs several devices; --devices 8"
s.data_source(data.source)

# %% [markdown]
# ## 8.9.1 Two ways to grow
# - *Strong scaling*: the whole batch keeps its size, and each of $k$ devices gets a $k$-th of it.
#   The training is the same, but ends sooner.
# - *Weak scaling*: each device keeps its batch, so the whole batch is $k$ times as large.
#   Throughput grows, but the training changes: an epoch has fewer steps.
#
# ![Bars of the time of a step on 1, 2, 4, and 8 devices. Strong scaling: the time of the images
# halves each time, a fixed part and the exchange stay. Weak scaling: the images' time stays, and
# the exchange is added.](images/scaling.svg "The time of a step in strong and in weak scaling.")
#
# *Efficiency* is one device's throughput among $k$ devices, in images per second, divided by its
# throughput alone. Efficiency 1 means that $k$ devices are $k$ times as fast.
#
# ## 8.9.2 Four numbers make a model
# A step computes, and then exchanges gradients. To process $n$ images, a device takes a fixed time
# and a time per image. To exchange $N$ bytes, a ring takes ([Collectives](collectives))
#
# $$2(k-1)\,\alpha + 2\,\frac{k-1}{k}\,\frac{N}{\beta}$$
#
# with the delay $\alpha$ of a message and the bandwidth $\beta$ of a link.

# %%
def compute(images, fixed=s.fixed_ms * 1e-3, image=s.image_us * 1e-6):
    return fixed + images * image

# %%
def ring(k, size, bandwidth=s.bandwidth * 1e9, delay=s.delay * 1e-6):
    return 2 * (k - 1) * delay + 2 * (k - 1) / k * size / bandwidth

def predict(k, batch, size, weak, exchange=ring):
    """Seconds of a step, and efficiency; `batch` is one device's alone."""
    alone, images = compute(batch), batch if weak else batch / k
    seconds = compute(images) + exchange(k, size)
    return seconds, images / seconds / (batch / alone)

# %% [markdown]
# To try other numbers, change the call of `section` or give a flag, such as `--k 512 --bandwidth
# 12.5`. `batch` counts the images of one device alone, `parameters` counts float32 numbers,
# `bandwidth` is in GB/s, and `delay` is in µs. The defaults describe ResNet-18 in bfloat16. On one
# H200, it takes 3.66 ms for 256 images and 8.98 ms for 1,024 ([section 8.0](performance_model)).
# The fixed 1.9 ms and the 6.92 µs per image are fitted to these two figures, so below 256 images
# they are extrapolated. The links are those of a 400 Gb/s network card, also where a node has
# faster ones.
#
# <details><summary>Predict: 64 devices share a batch of 1,024. How many times as fast as one device
# are they? About 60, 10, or 2?</summary>
#
# About twice, in one ring: 9.0 ms become 4.4. Each device's 16 images take 0.1 ms, but the fixed
# 1.9 ms stay, and the exchange takes 1.8 ms for its bytes and 0.6 ms for 126 delays. In weak
# scaling, the same 64 devices are 50 times as fast. A real cluster does not make one ring of 64
# GPUs, but works on two levels; below, this changes the answer to between three and four times. So
# the network matters as much as the number of devices.
#
# </details>

# %%
size, rows = 4 * s.parameters, []
for count in (2**i for i in range(int(math.log2(s.k)) + 1)):
    strong, weak = (predict(count, s.batch, size, weak) for weak in (0, 1))
    rows.append((f"{count:,}", f"{1e3 * strong[0]:.2f}", f"{strong[1]:.0%}",
                 f"{1e3 * weak[0]:.2f}", f"{weak[1]:.0%}"))
s.grid(["devices", f"strong, {s.batch} in all: ms", "strong: efficiency",
        f"weak, {s.batch} each: ms", "weak: efficiency"], rows,
       title=f"Predicted steps, {size / 1e6:.1f} MB of gradients, one ring of "
             f"{s.bandwidth:g} GB/s")

# %% [markdown]
# ## 8.9.3 Why LeNet loses and ResNet-18 wins
# The book measured one epoch of 60,000 images on one GPU and on two. ResNet-18 went from 13.0 s
# (batch 256) to 6.7 s (batch 512). LeNet went from 1.4 s to 2.5 s, both with batch 256. Do the
# bytes explain that? We assume 10 GB/s, which a PCIe slot can reach.

# %%
def epoch(step_s, batch):
    return 60_000 // batch * step_s

# %%
resnet_step, lenet_step = 13.0 / (60_000 // 256), 1.4 / (60_000 // 256)
resnet_sum = ring(2, 44.7e6, bandwidth=10e9, delay=0)
lenet_sum = ring(2, 516e3, bandwidth=10e9, delay=0)
resnet, resnet_alone = (epoch(resnet_step + exchange, 512)
                        for exchange in (resnet_sum, 0))
lenet_bytes = epoch(lenet_step / 2 + lenet_sum, 256)
print(f"ResNet-18: a step of {1e3 * resnet_step:.1f} ms, and "
      f"{1e3 * resnet_sum:.1f} ms for its bytes: {resnet:.1f} s an epoch; "
      f"without bytes {resnet_alone:.1f} s")
print(f"LeNet: half a step of {1e3 * lenet_step:.1f} ms, and "
      f"{1e3 * lenet_sum:.2f} ms for its bytes: {lenet_bytes:.1f} s an epoch")

# %% tags=["hide-input"]
s.claim("The book's ResNet-18 on two GPUs fits a model with its bytes, and one "
        "without",
        holds=max(abs(resnet / 6.7 - 1), abs(resnet_alone / 6.7 - 1)) < 0.1,
        expected="both within 10% of 6.7 s",
        observed=f"{resnet:.1f} s with, {resnet_alone:.1f} s without",
        source="section 8.5.2", basis="predicted",
        if_holds="Its steps are long compared with the time of its bytes. So "
                 "this epoch does not test the bytes: it shows that they are "
                 "no obstacle.",
        if_not="At least one of the two models fails, so this epoch says "
               "something about the bytes.")

# %% [markdown]
# For LeNet, the book printed 2.5 s, and its 516 kB take almost no time. What else does a second GPU
# add? In the book's program, one Python thread makes the calls of all devices, one after the other.
# If a step on one GPU is mostly calls, a step on two GPUs makes twice as many. The slower of calls
# and computation sets the step time.

# %%
def calls_of(devices, calls_s, compute_s, exchange_s):
    """A step for which one thread makes the calls of all devices."""
    return max(devices * calls_s, compute_s + exchange_s)

# %%
all_calls = calls_of(2, lenet_step, lenet_step / 2, lenet_sum)
lenet = epoch(all_calls, 256)
print(f"LeNet, if its step is all calls: {lenet:.1f} s an epoch")

# %% tags=["hide-input"]
s.claim("Calls are consistent with the book's LeNet on two GPUs, bytes are not",
        holds=abs(lenet / 2.5 - 1) < 0.2 and lenet_bytes < 2.5 / 2,
        expected="2.5 s within 20% by calls, less than half of it by bytes",
        observed=f"{lenet:.1f} s by calls, {lenet_bytes:.1f} s by bytes",
        source="section 8.4.6",
        if_holds="The assumption that a step is all calls doubles the 1.4 s, "
                 "which is close. It was chosen with the book's 2.5 s known, "
                 "so it is an explanation that fits, not a prediction.",
        if_not="Calls do not give the book's 2.5 s, or bytes come as close.")

# %% [markdown]
# Is it plausible that calls took the whole step? One H200 runs this step as one program in 0.32 ms
# (table below). The book's GPU took 6 ms for dozens of operations. We did not measure the book's
# machine, so the explanation is not proven. In JAX, one call runs the whole step on all devices, or
# each process makes the calls for its own devices. Either way, Python's part of the factor $k$ is
# gone.
#
# ## 8.9.4 BatchNorm's hidden sums
# How many exchanges does a step make? You may expect one, for the gradients. But BatchNorm takes
# means over the batch. Under `jit`, this is the whole batch on all devices ([section
# 8.5](multiple_gpus_concise)). Here is ResNet-18 in plain JAX, without running averages.

# %%
# a network
def resnet18_shapes(c):
    kernels, inputs = [(3, 3, 1, c)], c
    for outputs in (c, 2 * c, 4 * c, 8 * c):
        kernels += [(3, 3, inputs, outputs), *[(3, 3, outputs, outputs)] * 3]
        if inputs != outputs:  # the first shortcut needs a convolution
            kernels += [(1, 1, inputs, outputs)]
        inputs = outputs
    norms = [(shape[3:], shape[3:]) for shape in kernels if shape[0] == 3]
    return kernels, norms, ((8 * c, 10), (10,))

def conv(X, W, stride=1):
    return lax.conv_general_dilated(
        X, W, (stride, stride), "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"))

# %%
def batch_norm(X, scale, shift):
    mean = X.mean((0, 1, 2))
    variance = (X * X).mean((0, 1, 2)) - mean * mean  # as in Flax
    return (X - mean) * lax.rsqrt(variance + 1e-5) * scale + shift

# %%
# a network
def resnet18(params, X, norm):
    kernels, norms, (W, b) = params
    convs = iter([W for W in kernels if W.shape[0] == 3])
    shortcuts = iter([W for W in kernels if W.shape[0] == 1])
    norms = iter(norms)
    h = jax.nn.relu(norm(conv(X, next(convs)), *next(norms)))
    for block in range(8):
        stride = 2 if block in (2, 4, 6) else 1
        y = jax.nn.relu(norm(conv(h, next(convs), stride), *next(norms)))
        y = norm(conv(y, next(convs)), *next(norms))
        h = conv(h, next(shortcuts), stride) if stride == 2 else h
        h = jax.nn.relu(y + h)
    return h.mean((1, 2)) @ W + b

# %%
def loss(params, X, y, norm=batch_norm):  # 8 images on each device
    scores = jax.nn.log_softmax(resnet18(params, X, norm))
    return -(scores * jax.nn.one_hot(y, 10)).sum() / (mesh.size * 8)

def step_by_jit(params, X, y, norm=batch_norm):
    grads = jax.grad(loss)(params, X, y, norm)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

# %%
@jax.shard_map(mesh=mesh, in_specs=(P(), P("data"), P("data")), out_specs=P())
def step_by_shard_map(params, X, y):
    varying = lax.pcast(params, "data", to="varying")
    grads = lax.psum(jax.grad(loss)(varying, X, y), "data")
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

# %% [markdown]
# JAX can compile a program from shapes and shardings alone. We count the program's all-reduces, and
# the bytes that each adds up.
#
# <details><summary>Predict: ResNet-18 has 17 BatchNorm layers. How many all-reduces does a step
# have under <code>jit</code>, and how many under <code>shard_map</code>?</summary>
#
# Under `jit`, there are 35 on a CPU (JAX 0.10 to 0.12). Each layer has one in the forward pass (for
# the mean and the mean of squares together) and one in the backward pass. That makes 34, and one
# more sums all gradients. Under `shard_map`, only that one remains.
#
# </details>

# %%
def shape(dims, spec, dtype="float32"):
    sharding = NamedSharding(mesh, spec)
    return jax.ShapeDtypeStruct(dims, dtype, sharding=sharding)

# %%
def all_reduce_bytes(step, *args):
    """The bytes that each all-reduce of a compiled step adds up."""
    with jax.set_mesh(mesh):
        program = jax.jit(step).lower(*args).compile().as_text() or ""
    found = []
    for result in re.findall(r"= (.*?) all-reduce(?:-start)?\(", program):
        shapes = re.findall(r"f32\[([\d,]*)\]", result)
        sizes = [math.prod(map(int, filter(None, dims.split(","))))
                 for dims in shapes]
        found.append(4 * sum(sizes))
    return found

# %%
def is_shape(dims):
    return type(dims) is tuple and type(dims[0]) is int

params = jax.tree.map(lambda dims: shape(dims, P()),
                      resnet18_shapes(s.channels), is_leaf=is_shape)
X = shape((8 * mesh.size, 28, 28, 1), P("data"))
y = shape((8 * mesh.size,), P("data"), "int32")
by_jit = all_reduce_bytes(step_by_jit, params, X, y)
by_shard_map = all_reduce_bytes(step_by_shard_map, params, X, y)
gradients = sum(4 * math.prod(p.shape) for p in jax.tree.leaves(params))
small = [size for size in by_jit if size < gradients]
print(f"jit: {len(by_jit)} all-reduces, {len(small)} of them small")
print(f"shard_map: {len(by_shard_map)}")

# %% tags=["hide-input"]
s.claim("Under jit, 34 of ResNet-18's 35 all-reduces are BatchNorm's",
        holds=(len(by_jit), len(small), by_shard_map) == (35, 34, [gradients]),
        expected="35 under jit, 34 of them small; one of all gradients under "
                 "shard_map",
        observed=f"{len(by_jit)}, of which {len(small)} of at most "
                 f"{max(small, default=0):,} bytes; {len(by_shard_map)} of "
                 f"{sum(by_shard_map):,} bytes",
        if_holds="Each BatchNorm layer adds one in the forward pass and one "
                 "in the backward pass. They carry few bytes, but each costs "
                 "a delay in the middle of the network, where nothing else "
                 "can be computed.",
        if_not="This compiler merges or splits other sums than we expect; the "
               "numbers above are what it does.")

# %% [markdown]
# What do they cost on a cluster? [Collectives](collectives) has a model of all-reduces on H200, in
# nodes of eight: one delay for the whole collective, and the bytes over the links in a node and
# between nodes. It is fitted to one table of eight; all else is extrapolated. The delay is 40 µs,
# in the tables of eight other GPUs there 19 to 48 µs.

# %%
def all_reduce(size, count, network=50e9):
    """Seconds on `count` H200 in nodes of eight, as in Collectives."""
    if count < 2:
        return 0.0
    c, nodes = min(count, 8), max(1, count // 8)
    inside = 468e9 if c == 8 else 450e9
    delay = 40e-6 if nodes == 1 else 46e-6 + 10e-6 * (math.log2(nodes) - 1)
    return (delay + 2 * (c - 1) / c * size / inside
            + 2 * (nodes - 1) / nodes * size / c / network)

# %%
rows = []
for count in (8, 64, 1024):
    hidden = sum(all_reduce(size, count) for size in small)
    one = all_reduce(gradients, count)
    rows.append((f"{count:,}", f"{1e3 * hidden:.2f}", f"{1e3 * one:.2f}",
                 f"{hidden / one:.1f}"))
s.grid(["H200", "BatchNorm's sums, ms", "the gradients, ms", "times as long"],
       rows, title="Predicted all-reduces of a step of ResNet-18; from 64 on "
                   "extrapolated")

# %%
def two_levels(k, size):
    return all_reduce(size, k)

for name, exchange in (("one ring", ring), ("two levels", two_levels)):
    seconds, _ = predict(64, 1024, 44.7e6, weak=False, exchange=exchange)
    print(f"strong scaling to 64 devices, {name}: "
          f"{compute(1024) / seconds:.1f} times as fast")

# %% [markdown]
# On one H200, the computation takes 3.66 ms (table below): compare the hidden sums with it. They
# make the result independent of the number of devices. If you don't need this, use `shard_map`, or
# another normalization. `jaxperf plan` finds such sums in your own program, for any number of
# devices.
#
# ## 8.9.5 Batch size and learning rate
# Weak scaling makes the batch $k$ times as large. Then an epoch has fewer steps, so each must go
# further. The *linear rule* of [Goyal et al. (2017)](https://arxiv.org/abs/1706.02677) is to
# multiply the learning rate by $k$, too. Up to which batch does it work? We train a very small
# network, a single matrix, from zero to a fixed loss.

# %%
images = jnp.asarray(data.train_images[:6000].reshape(-1, 784) / 255.0)
labels = jnp.asarray(data.train_labels[:6000])

# %%
def softmax_loss(w, X, y):
    scores = jax.nn.log_softmax(X @ w)
    return -(scores * jax.nn.one_hot(y, 10)).sum(1).mean()

# %%
@partial(jax.jit, static_argnames="batch")
def steps_to_goal(batch, rate, seed=0, goal=0.6, limit=3000):
    """Count the steps until the loss of 1,000 images falls to the goal."""
    def unfinished(state):
        w, i = state
        reached = softmax_loss(w, images[:1000], labels[:1000]) <= goal
        return ~reached & (i < limit)
    def step(state):
        w, i = state
        key = jax.random.fold_in(jax.random.key(seed), i)
        rows = jax.random.randint(key, (batch,), 0, len(images))
        slope = jax.grad(softmax_loss)(w, images[rows], labels[rows])
        return w - rate * slope, i + 1
    return lax.while_loop(unfinished, step, (jnp.zeros((784, 10)), 0))[1]

# %%
@functools.cache  # the rules agree about small batches
def steps_needed(batch, rate, seed):
    return int(steps_to_goal(batch, rate, seed))

base = s.batches[0]
rules = {"rate 0.02": lambda n: 0.02,
         "rate by the linear rule": lambda n: 0.02 * n / base,
         "linear rule, at most 0.16": lambda n: min(0.16, 0.02 * n / base)}
steps = {rule: [sorted(steps_needed(n, rate_of(n), seed) for seed in range(3))
                for n in s.batches]
         for rule, rate_of in rules.items()}
cells = [[f"{low} to {high}" for low, _, high in row] for row in steps.values()]
s.grid(["batch", *rules], zip(s.batches, *cells),
       title="Steps until the loss is 0.6, at most 3,000, three seeds")

# %% tags=["hide-input"]
medians = [middle for _, middle, _ in steps["rate by the linear rule"]]
gains = [a / b for a, b in itertools.pairwise(medians)]
s.claim("The linear rule saves as many steps as the batch grows, but only up "
        "to some batch",
        holds=gains[0] > 3 and gains[-1] < 2, source="Goyal et al.",
        needs=["size"],
        expected="for four times the batch, first more than 3 times fewer "
                 "steps, last less than 2",
        observed=", ".join(f"{gain:.1f}" for gain in gains),
        if_holds="With the linear rule, four times the batch first needs "
                 "about a quarter of the steps. Then it saves less, or even "
                 "costs steps: the rate may be too large for the curvature of "
                 "the loss. In the last column the rate stops growing before "
                 "that.",
        if_not="In this run, the rule has no such border between these "
               "batches, or fails from the first on.",
        if_open="Two batches of toy size show no border.")

# %% [markdown]
# Compare the columns from top to bottom. At the old rate, a larger batch can save little: its
# gradient is less noisy, but each step is as short as before.
#
# For larger networks, such borders are published. Goyal et al. train ResNet-50 with batches of 256
# to 8,192 at equal accuracy, with a rate that grows in the first five epochs; beyond 8,192 the
# accuracy drops. [Shallue et al. (2019)](https://arxiv.org/abs/1811.03600) tuned the rate for each
# batch, and found three regions in all of their networks: as the batch grows, the number of steps
# falls in proportion, then less, then not at all. The borders differ by orders of magnitude.
# [McCandlish et al. (2018)](https://arxiv.org/abs/1812.06162) predict the border from the gradient
# noise: batches far above it are wasted. So look for the border of *your* network before you rent
# 1,000 GPUs.
#
# ## 8.9.6 Where each parallelism pays
# Data parallelism sends bytes in proportion to the parameters, whatever the batch is. The other
# kinds ([splitting the model](model_parallelism)) send other arrays. For $P$ parameters, $L$ layers
# of width $d$, and a batch of $T$ tokens (words), a device sends in a step:

# %%
def bytes_sent(k, P, L, d, T, number=2):
    """Bytes that each device sends in a step; bfloat16 has two bytes."""
    around = (k - 1) / k  # of a ring, each way
    return {"data": 2 * around * P * number,  # all-reduce of the gradients
            "FSDP": 3 * around * P * number,  # gather twice, reduce-scatter
            "tensor": 4 * L * 2 * around * T * d * number,  # 4 sums per layer
            "pipeline": 2 * T * d * number}  # activations, their gradients

# %%
model = {"P": 6.7e9, "L": 32, "d": 4096}  # a language model
few, many = (bytes_sent(8, **model, T=tokens) for tokens in (16_384, 2**20))
waits = {"data": "once", "FSDP": "3 per layer", "tensor": "4 per layer",
         "pipeline": "2 per micro-batch"}
held = {way: 2 * 6.7 / (1 if way == "data" else 8) for way in few}  # GB
s.grid(["8 devices", "GB sent, 16,384 tokens", "GB sent, a million", "waits",
        "GB of weights between steps"],
       [(way, f"{few[way] / 1e9:.1f}", f"{many[way] / 1e9:,.1f}", waits[way],
         f"{held[way]:.1f}") for way in few],
       title="6.7 billion parameters: what a device sends and holds")

# %% [markdown]
# If weights, gradients, and optimizer state fit on a device, use *data* parallelism. If they don't,
# use *FSDP*, which sends one and a half times as much, in pieces that can overlap with computation.
# *Tensor* parallelism waits most often and, with large batches, sends the most, so keep it within a
# node. Use it when batches are too small to divide. A *pipeline* sends the least, so it may cross
# slow networks, but its devices idle. Large trainings combine them: tensor parallelism within a
# node, a pipeline or FSDP between nodes.
#
# ## 8.9.7 Does the model predict published scaling?
# TensorFlow's
# [benchmarks](https://github.com/tensorflow/docs/blob/master/site/en/r1/guide/performance/benchmarks.md)
# publish images per second on one P100 and on eight. We predict weak scaling from one GPU's figure
# and the bytes of the gradients, at 64 GB/s: we assume that a ring reaches 80% of four NVLinks. No
# constant is fitted to the figures for eight.

# %%
PUBLISHED = {  # images per GPU, images/s on one and on eight, MB of gradients
    "Inception v3": (64, 142, 1131, 95.2), "ResNet-50": (64, 219, 1734, 102.4),
    "ResNet-152": (64, 91.8, 716, 240.8), "VGG-16": (64, 154, 1081, 553.6),
    "AlexNet": (512, 2987, 17822, 244.4),
    "VGG-16, batch 32": (32, 144, 820, 553.6)}
predicted = {}
for name, (batch, alone, _, megabytes) in PUBLISHED.items():
    exchange_s = 2 * 7 / 8 * megabytes * 1e6 / 64e9  # a ring of eight
    predicted[name] = 8 * batch / (batch / alone + exchange_s)
s.grid(["network", "published, images/s", "predicted", "predicted / published",
        "without any exchange"],
       [(name, f"{row[2]:,}", f"{predicted[name]:,.0f}",
         f"{predicted[name] / row[2]:.2f}", f"{8 * row[1] / row[2]:.2f}")
        for name, row in PUBLISHED.items()],
       title="Eight P100, predicted from one")

# %% tags=["hide-input"]
off = {name: predicted[name] / row[2] - 1 for name, row in PUBLISHED.items()}
worst = max(off, key=lambda name: abs(off[name]))
s.claim("Bytes and bandwidth predict the published throughput of eight P100",
        holds=abs(off[worst]) < 0.15, basis="predicted",
        source="TensorFlow's benchmarks",
        expected="six rows within 15%",
        observed=f"{off[worst]:+.0%} for {worst}, the worst",
        if_holds="One GPU's figure and the bytes suffice here. A row that is "
                 "as close without any exchange does not test the bytes.",
        if_not="Where a network has few bytes for its computation, the "
               "prediction is close, with an exchange or without. With many "
               "bytes for little computation, eight GPUs lose more time than "
               "their bytes take.")

# %% [markdown]
# ## 8.9.8 Three networks from 1 to 1,024 GPUs
# We predict weak scaling for three networks, from their step on one H200 ([measured beside
# PyTorch](../docs/peers.md)), or from one published figure:
#
# | | a step on one GPU | gradients |
# |:--|--:|--:|
# | LeNet in TF32, 256 images | 0.32 ms | 0.5 MB |
# | ResNet-18 in bfloat16, 256 images | 3.66 ms | 44.7 MB |
# | MPT-1b, a language model, 40,960 tokens, H100 | 0.89 s | 3.95 GB |
#
# The figures of MPT-1b are
# [MosaicML's](https://github.com/mosaicml/llm-foundry/tree/main/scripts/train/benchmarking). It
# exchanges gradients while it computes. We assume that an exchange adds no time if it is shorter
# than two thirds of the computation.

# %%
networks = {"LeNet": (0.324e-3, 516e3, 0.0),
            "ResNet-18": (3.66e-3, 44.7e6, 0.0),
            "MPT-1b": (0.89, 3.95e9, 2 / 3)}

# %%
def efficiency(network, count, stretch=1.0, sums=()):
    """Of a network; an exchange takes `stretch` times the predicted time."""
    compute_s, size, hidden = networks[network]
    exchange = sum(all_reduce(n, count) for n in (size, *sums)) * stretch
    waits = max(0.0, exchange - hidden * compute_s)
    return compute_s / (compute_s + waits)

# %% tags=["hide-input"]
fig, ax = plt.subplots()
counts = [2**i for i in range(11)]
for color, network in enumerate(networks):
    line, slow, fast = ([efficiency(network, count, stretch)
                         for count in counts] for stretch in (1, 3.2, 1 / 3.2))
    ax.plot(counts, line, label=network)
    ax.fill_between(counts, slow, fast, color=f"C{color}", alpha=0.2,
                    linewidth=0)
by_jit_too = [efficiency("ResNet-18", count, sums=small) for count in counts]
ax.plot(counts, by_jit_too, "C1--", label="ResNet-18, BatchNorm by jit")
ax.set(xscale="log", xlabel="GPUs", ylabel="efficiency",
       ylim=(0, 1.05), xticks=counts[::2],
       xticklabels=[f"{count:,}" for count in counts[::2]])
ax.legend(fontsize="small", loc="lower left", ncols=2)
s.figure(fig, "Predicted weak scaling. A band is a factor of 3.2 in the time "
              "of the exchange, the worst error in Collectives.",
         alt="Efficiency over GPUs, from 1 to 1,024, for LeNet, ResNet-18, "
             "and MPT-1b, with bands.")

# %% [markdown]
# In this model, a network scales better the more it computes per byte and per delay. LeNet's half
# megabyte is not the problem: with 0.32 ms of computation, the *delay* is. The dashed line shows
# what 34 small sums one after another cost ResNet-18. The delay is fitted to eight GPUs. Elsewhere
# the lines are extrapolated.
#
# For MPT-1b the model predicts no loss at all, because its exchange is shorter than what the
# computation can hide. Its authors publish 3.6% less throughput per GPU on 64 GPUs than on 16. The
# model does not explain this loss: a model without any communication would do as well.
#
# ## 8.9.9 Summary
# - Strong scaling divides a batch, until only a fixed time and the exchange remain. Weak scaling
#   lets the batch grow, until larger batches stop saving steps.
# - Compute, bytes, bandwidth, and delay give a first estimate of the step time, too optimistic for
#   networks with many bytes for little computation. Calls fit the book's LeNet on two GPUs.
# - Under `jit`, BatchNorm sums over all devices, twice per layer. Each such sum has few bytes, but
#   costs a delay.
# - With a batch $k$ times as large, multiply the learning rate by $k$, up to a border that you must
#   measure.
# - Use data parallelism first, FSDP if memory is short, tensor parallelism within a node, and
#   pipelines between nodes.
#
# ## 8.9.10 Exercises
# Think first, then open the code and the answer. The code runs with `--answers`.
#
# **1.** Compute the variance in two passes, as the mean of $(x - \mu)^2$. How many all-reduces does
# the step have now?

# %% tags=["answer"]
def two_passes(X, scale, shift):
    centered = X - X.mean((0, 1, 2))
    variance = (centered * centered).mean((0, 1, 2))
    return centered * lax.rsqrt(variance + 1e-5) * scale + shift

in_two = partial(step_by_jit, norm=two_passes)
print(len(all_reduce_bytes(in_two, params, X, y)), "all-reduces")

# %% [markdown]
# <details><summary>Answer</summary>
#
# 69 on a CPU (JAX 0.10 to 0.12), because BatchNorm now has twice as many. The variance needs the
# mean, so the second sum must wait for the first, and the compiler cannot merge them. The same
# holds in the backward pass. This formula avoids the difference of two large numbers, but needs
# more sums on many devices.
#
# </details>
#
# **2.** *Gradient accumulation*: each device computes the gradients of four small batches, adds
# them up, and only then exchanges the sum. How does this change the bytes per image? Write it with
# `lax.scan`. Where must `psum` stand?
#
# Check it with `jaxperf check 8.9.2 mine.py`: `mine.py` defines `accumulated(grad, params,
# batches, axis)`, for `shard_map`. It returns the mean of the gradients `grad(params,
# batch)` over all batches and devices.

# %% tags=["answer"]
def accumulate(params, X, y, sum_each):
    """The mean of the gradients of four batches on each device."""
    varying = lax.pcast(params, "data", to="varying")
    def add(total, batch):
        gradient = jax.grad(softmax_loss)(varying, *batch)
        if sum_each:
            gradient = lax.psum(gradient, "data")
        return total + gradient, None
    start = jnp.zeros_like(params) if sum_each else jnp.zeros_like(varying)
    total, _ = lax.scan(add, start, (X.reshape(4, -1, 784), y.reshape(4, -1)))
    total = total if sum_each else lax.psum(total, "data")
    return total / (4 * mesh.size)

# %% tags=["answer"]
def all_reduces(text):
    return text.count(" all-reduce(") + text.count(" all-reduce-start(")

n = mesh.size * 4 * 8
with jax.set_mesh(mesh):
    arguments = jax.device_put((jnp.zeros((784, 10)), images[:n], labels[:n]),
                               (P(), P("data"), P("data")))
for sum_each in (True, False):
    on_all = jax.jit(jax.shard_map(
        partial(accumulate, sum_each=sum_each), mesh=mesh, out_specs=P(),
        in_specs=(P(), P("data"), P("data"))))
    program = on_all.lower(*arguments).compile().as_text() or ""
    main = program[program.index("\nENTRY"):]  # without the loop's body
    print(f"psum {'in' if sum_each else 'after'} the loop: "
          f"{all_reduces(main)} all-reduces outside of it, "
          f"{all_reduces(program)} in the program, largest entry "
          f"{float(abs(on_all(*arguments)).max()):.3f}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# After the loop. Then four times as many images share one exchange: each image costs a quarter of
# the bytes and delays. Inside the loop, `psum` gives the same gradient but sends four times as
# much. XLA does not move it out. Accumulation also makes the whole batch four times as large, so
# the border above applies.
#
# </details>
#
# **3.** In MLPerf 3.0, ResNet-50 trains on H100s with 3,200 images in all: on 8 GPUs a step takes
# 57.1 ms, on 64 it takes 10.86 ms. Which scaling is that, what is its efficiency, and how much of
# the loss do the links explain? The gradients have 51 MB in half precision.

# %% tags=["answer"]
loss_ms = 10.86 - 57.1 / 8
links_ms = 1e3 * (all_reduce(51e6, 64) - all_reduce(51e6, 8) / 8)
print(f"efficiency {57.1 / 8 / 10.86:.0%}; lost {loss_ms:.1f} ms, "
      f"of which the links explain {links_ms:.1f} ms, if nothing overlaps")

# %% [markdown]
# <details><summary>Answer</summary>
#
# This is strong scaling at 66% efficiency. The links explain a small part, even if none of their
# time is hidden. We did not measure the rest. Possible reasons are that 50 images do not fill a
# GPU, and that the fixed time of a step stays. Published "scaling" figures of 90% and more usually
# mean weak scaling.
#
# </details>
#
# **4.** What counts is the time to a goal. MLPerf 3.0's times to train ResNet-50 to 75.9% are
# 13.466, 2.664, 0.509, 0.369, and 0.183 minutes on 8, 64, 512, 768, and 3,584 H100s. What are the
# efficiencies?

# %% tags=["answer"]
gpus = np.array([8, 64, 512, 768, 3584])
minutes = np.array([13.466, 2.664, 0.509, 0.369, 0.183])
for count, time in zip(gpus, minutes):
    share, hours = minutes[0] * gpus[0] / (count * time), count * time / 60
    print(f"{count:5,} GPUs: {60 * time:6.1f} s, efficiency {share:.0%}, "
          f"{hours:.1f} GPU hours")

# %% [markdown]
# <details><summary>Answer</summary>
#
# 100, 63, 41, 38, and 16%. From 8 to 3,584 GPUs the training becomes 74 times as fast, with six
# times as many GPU hours. Two losses multiply: each step loses efficiency, and larger batches need
# more epochs.
#
# </details>
#
# **5.** The table of eight P100 is too optimistic about VGG-16: 553.6 MB of gradients; one trains
# 154 images per second in batches of 64 and 144 in batches of 32, eight train 1,081 and 820. How
# much longer is a step on eight than on one, and how much of that do the bytes explain at 64 GB/s?

# %% tags=["answer"]
bytes_s = ring(8, 553.6e6, 64e9, 0)
for batch, alone, published in ((64, 154, 1081), (32, 144, 820)):
    longer_s = 8 * batch / published - batch / alone
    print(f"batch {batch}: {1e3 * longer_s:.0f} ms longer, of which the bytes "
          f"explain {1e3 * bytes_s:.0f} ms")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Steps are 58 and 90 ms longer, and the bytes explain 15 ms of either. The smaller batch loses more
# time per step, which no bandwidth can explain. A model of four numbers tells you where to look; it
# does not replace a measurement. `jaxperf plan` is tested on published steps in the same way: its
# page says [how wrong it is](../docs/plan.md).
#
# </details>
