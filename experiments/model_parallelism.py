# %% [markdown]
# # 8.8 Splitting the model
# A model does not fit on one device, or one device is too slow for it. How do you divide
# the model itself, and when is that better than dividing the batch?
#
# After this section you can
# - put the layers of a network on different devices, and say why that alone gains nothing;
# - keep those devices busy with micro-batches, and predict how long they still idle;
# - split the weights *within* a layer, by hand and with two `PartitionSpec`s;
# - count what a compiled program sends, and choose between data, tensor, pipeline, and
#   fully sharded data parallelism.
#
# You need no GPU. Two CPU devices compute what two GPUs compute, but they share cores, so
# we count bytes and idle time here, and do not compare speeds.

# %%
from functools import partial

import chex
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import NamedSharding, P, lax
from jax.nn import relu
from jax.sharding import AxisType

from jaxperf.chapter.section import section
from jaxperf.measure import count_ops, interleaved, measure, timeline
from jaxperf.measure.traffic import collective_bytes, device_bytes
from jaxperf.result import Measurement, ratio

s = section("8.8", programs=100, devices=2, width=784, hidden=1536, rounds=6,
            batch_size=256, lr=0.1, micro_batches=(1, 2, 4, 8), smoke={
                "width": 64, "hidden": 128, "batch_size": 16,
                "micro_batches": (1, 4)}, full={"rounds": 40})
devices = jax.devices()[: s.devices]
k = len(devices)
mesh = jax.make_mesh((k,), ("d",), (AxisType.Auto,), devices=devices)

# %% tags=["hide-input"]
assert k > 1, "this section needs two devices"
print(f"{k} devices: {devices}")

# %% [markdown]
# ## 8.8.1 Three ways to split
# ![Three drawings of two layers on two devices. Between layers: the first layer is on device 0, the
# second on device 1, and activations cross once. Within layers: each device holds half of each
# layer, and partial results are added. Data: each device holds both layers and half of the batch,
# and gradients are added.](images/splitting.svg "Three ways to split two layers on two devices.")
#
# - **Between layers.** Device 0 holds the first layers, device 1 the rest. Activations
#   cross in the forward pass, and their gradients in the backward pass.
# - **Within layers.** Each device holds a part of *every* layer. It computes a part of
#   the result, and the parts are joined after each layer or each pair of layers. This is
#   *tensor parallelism*.
# - **Data.** Each device holds all layers and gets a share of the batch. Gradients are
#   added. This is [section 8.4](multiple_gpus).
#
# The network of this section is a stack of blocks, one per device. A block is the
# feed-forward part of a Transformer: two matrices $A$ and $B$ with a ReLU between them,
# added to the input. A last matrix $C$ gives ten scores. Biases are left out for brevity.

# %%
def init_params(key, width=s.width, hidden=s.hidden, blocks=k):
    keys = jax.random.split(key, 2 * blocks + 1)

    def matrix(i, rows, columns):
        return jax.random.normal(keys[i], (rows, columns)) / rows**0.5

    params = [(matrix(2 * i, width, hidden), matrix(2 * i + 1, hidden, width))
              for i in range(blocks)]
    params[-1] += (matrix(2 * blocks, width, 10),)  # C
    return params

# %%
def stage(weights, h):
    A, B, *C = weights
    h = h + relu(h @ A) @ B
    return h @ C[0] if C else h  # only the last stage has C

# %%
def network(params, X):
    for weights in params:
        X = stage(weights, X)
    return X

# %%
def cross_entropy(scores, y):
    return -(jax.nn.log_softmax(scores) * jax.nn.one_hot(y, 10)).sum()

def loss(params, X, y):
    return cross_entropy(network(params, X), y)

# %%
def sgd(params, grads, n, lr=s.lr):
    return jax.tree.map(lambda p, g: p - lr * g / n, params, grads)

@jax.jit
def step(params, X, y):
    return sgd(params, jax.grad(loss)(params, X, y), len(y))

# %%
params = init_params(jax.random.key(0))
X = jax.random.uniform(jax.random.key(1), (s.batch_size, s.width))
y = jnp.arange(s.batch_size) % 10
one_device = step(params, X, y)  # every other way must compute this
N = sum(p.nbytes for p in jax.tree.leaves(params))
print(f"{len(params)} blocks, {N / 1e6:.3g} MB of parameters")

# %% [markdown]
# ## 8.8.2 Splitting between layers
# Copy each stage's weights to its device. A computation runs where its arguments are, and
# `jax.device_put` copies the activations to the next device.

# %%
def forward(stages, X):
    for weights, device in zip(stages, devices):
        X = run_stage(weights, jax.device_put(X, device))
    return X

# %%
run_stage = jax.jit(stage)
stages = [jax.device_put(weights, d) for weights, d in zip(params, devices)]
print("the scores are on", forward(stages, X).device)
try:
    stage(stages[1], jax.device_put(X, devices[0]))  # without device_put
except ValueError as error:
    print("ValueError:", str(error).split(".")[0])

# %% [markdown]
# JAX refuses to mix arrays that were *committed* to different devices. It silently copies
# an array that was never placed, such as `jnp.ones(3)` or a NumPy array, to the others'
# device.
#
# ::::{tab-set}
# :::{tab-item} Gluon
# ```python
# h = net1(x.as_in_context(mx.gpu(0)))
# y = net2(h.as_in_context(mx.gpu(1)))
# ```
# :::
# :::{tab-item} PyTorch
# ```python
# h = net1(x.to("cuda:0"))
# y = net2(h.to("cuda:1"))
# ```
# :::
# ::::
#
# This split has two limits: the stages may have unequal work, and much data may cross
# between them. LeNet from section 8.4 shows both.
#
# <details><summary>Predict: LeNet has two convolutions and two dense layers. Where would
# you cut it for two devices?</summary>
#
# No cut is good. The second convolution does nine tenths of the work, so one device always
# has nearly all of it. And the first cut sends 13,520 bytes for an image of 784 bytes.
# </details>

# %%
lenet = [  # name, multiplications for one image, numbers that it passes on
    ("convolution 1 and pooling", 26 * 26 * 20 * 3 * 3, 13 * 13 * 20),
    ("convolution 2 and pooling", 9 * 9 * 50 * 5 * 5 * 20, 4 * 4 * 50),
    ("dense 1", 800 * 128, 128),
    ("dense 2", 128 * 10, 10),
]
work = np.cumsum([multiplications for _, multiplications, _ in lenet])
before = work[:-1] / work[-1]
rows = [(f"after {name}", f"{share:.1%}", f"{1 - share:.1%}", 4 * numbers)
        for (name, _, numbers), share in zip(lenet, before)]
heads = ["cut", "work before", "work after", "bytes per image and direction"]
s.grid(heads, rows, title="LeNet, cut into two stages")

# %% [markdown]
# Wherever you cut, one device has nearly all of the work. A PyTorch retelling of the book
# therefore does not recommend this split unless the framework or the operating system
# supports linking GPUs: the traffic may exceed the bandwidth of the GPUs' bus. Today's GPU
# servers have such links (NVLink), and JAX copies over them (not measured here).
#
# There is a third limit. Even with equal stages and a fast link, *only one device works at
# a time*: device 1 waits for activations, then device 0 waits for gradients.
#
# ## 8.8.3 A pipeline with micro-batches
# [GPipe](https://arxiv.org/abs/1811.06965) cuts the batch into $m$ micro-batches. While
# device 1 works on the first micro-batch, device 0 works on the second.
#
# ![Two timelines of two devices. With one micro-batch, device 0 runs its forward pass, then device
# 1 its forward and backward pass, then device 0 its backward pass: each device idles half of the
# time. With four micro-batches both devices work at once, and idle only one fifth of the
# time.](images/pipeline.svg "A pipeline with one and with four micro-batches.")
#
# With $p$ equal stages the step takes $m + p - 1$ slots, and each device works in $m$ of
# them. So each device idles for
#
# $$\frac{p - 1}{m + p - 1}$$
#
# of the step: the time in which the pipeline fills and drains. Written by hand, a
# pipeline is two loops. Like GPipe, the backward pass saves memory: it computes its
# stage's activations again instead of keeping them for all micro-batches.

# %%
loss_gradient = jax.jit(jax.grad(cross_entropy))
update = jax.jit(sgd)
add = jax.jit(partial(jax.tree.map, jnp.add))

# %%
@jax.jit
def backward(weights, h, gradient):
    _, pull = jax.vjp(stage, weights, h)  # computes the stage again
    return pull(gradient)

# %%
def pipeline_step(stages, X, y, m):
    inputs, scores, grads = {}, [], [None] * k
    for j, h in enumerate(jnp.split(X, m)):
        for i, weights in enumerate(stages):
            inputs[i, j] = jax.device_put(h, devices[i])
            h = run_stage(weights, inputs[i, j])
        scores.append(h)
    for j, labels in enumerate(jnp.split(jax.device_put(y, devices[-1]), m)):
        g = loss_gradient(scores[j], labels)
        for i in reversed(range(k)):
            g = jax.device_put(g, devices[i])
            grad, g = backward(stages[i], inputs[i, j], g)
            grads[i] = add(grads[i], grad) if j else grad
    return [update(weights, grad, len(y))
            for weights, grad in zip(stages, grads)]

# %% [markdown]
# Nothing in these loops waits. Python queues the work, and each device starts a piece as
# soon as the device is free and the piece's inputs have arrived.
#
# <details><summary>Predict: two stages, four micro-batches. For what share of the step is
# a device idle?</summary>
#
# $(p - 1) / (m + p - 1) = 1 / 5$, instead of $1 / 2$ with one micro-batch. The formula
# assumes that a device starts a piece at the moment at which its inputs are there.
# </details>

# %%
def idle_share(run):
    """The devices' idle share, from the first work to the last."""
    busy = [span for d in devices
            for span in timeline.busy(run, timeline.lane_of(d))]
    whole = max(end for _, end in busy) - min(start for start, _ in busy)
    return 1 - sum(end - start for start, end in busy) / (k * whole)

# %% tags=["slow"]
idle, runs = {m: [] for m in s.micro_batches}, {}
for _ in range(s.rounds):
    for m in s.micro_batches:
        runs[m] = timeline.record(pipeline_step, stages, X, y, m)
        idle[m].append(idle_share(runs[m]))
steps = {f"m = {m}": partial(pipeline_step, stages, X, y, m)
         for m in s.micro_batches}
times = interleaved(steps, count=s.rounds)

# %% tags=["slow", "hide-input"]
for m in s.micro_batches[:1] + s.micro_batches[-1:]:
    s.timeline(runs[m], f"m = {m}: when each device works.",
               words={"ynn_fusion": "products", "dot": "products",
                      "wrapped_add": "adds", "DevicePutWithSharding": "copies"},
               alt="A lane for Python and one per device, with bars where "
                   "they are busy, over milliseconds.")
rows = [(m, f"{np.median(idle[m]):.0%}", f"{(k - 1) / (m + k - 1):.0%}",
         f"{1e3 * times[f'm = {m}'].median:.3g} ms") for m in s.micro_batches]
s.grid(["micro-batches", "idle, measured", "idle, by the formula", "step"],
       rows, title=f"A pipeline of {k} stages, batch {s.batch_size}")
s.table(times, title="Time of a step", base="m = 1", fold=True)

# %% [markdown]
# (The figures show steps under the profiler, which are longer than the timed ones.) Compare
# the two columns of idle time. The formula has no gaps between the pieces of a device; the
# figures show them. Possible reasons are the start of many small programs, copies, and
# devices that share cores. Then look at the step time. On CPU devices, it may even grow
# although the devices idle less:
# - A device that works alone also uses the cores of the device that waits. Only devices
#   with their own processors gain from less idle time.
# - A small micro-batch uses a processor poorly, and each micro-batch adds a gradient as
#   large as the weights.
#
# So do not choose the largest $m$, but the one with the shortest step. GPipe's authors find
# the idle time negligible from $m = 4p$ on; by the formula it is still a ninth for $p = 2$.

# %% tags=["slow", "hide-input"]
few, many = min(s.micro_batches), max(s.micro_batches)
few_idle, many_idle = (
    Measurement(f"m = {m}", "", tuple(idle[m]), rounds="recordings")
    for m in (few, many))
fewer = ratio(many_idle, few_idle)
s.claim("A pipeline idles less with more micro-batches", holds=fewer.below(1),
        expected=f"a smaller idle share for m = {many} than for m = {few}",
        observed=f"{fewer} times the share", source="GPipe",
        if_holds="Micro-batches let the stages work at the same time.",
        if_not="Here the devices idle at least as much with many "
               "micro-batches: look at the timelines for what they wait for.",
        if_open="This run is too noisy to decide.")

# %% tags=["slow", "hide-input"]
few, many = min(s.micro_batches), max(s.micro_batches)
faster = ratio(times[f"m = {many}"], times[f"m = {few}"])
s.claim("A step takes less time with more micro-batches", holds=faster.below(1),
        expected=f"a shorter step for m = {many}",
        observed=f"{faster} times as long",
        source="GPipe", needs=["devices"],
        if_holds="The step is shorter. Compare by how much less the devices "
                 "idle.",
        if_not="The step is not shorter. One possible reason is that small "
               "pieces use a device poorly.",
        if_open="Parts of one CPU share its cores, so they cannot show this.")

# %% [markdown]
# ### When does a pipeline pay?
# When the link is slow and the model large. We compute one case: 6.7 billion parameters in bfloat16
# on two machines with 400 TFLOP/s each and a link of 3 GB/s, 16,384 tokens in a step.

# %%
P_count, tokens, width, flops, link = 6.7e9, 16_384, 4096, 400e12, 3e9
compute_s = 6 * P_count * tokens / (2 * flops)  # 6 FLOP per parameter, token
data_s = compute_s + 2 * P_count / link  # a ring of two sends the gradients
pipeline_s = compute_s * (8 + 2 - 1) / 8 + 2 * tokens * width * 2 / link
print(f"without overlap: data {data_s:.1f} s a step, "
      f"pipeline with m = 8 {pipeline_s:.1f} s")

# %% [markdown]
# Data parallelism waits for 13 GB of gradients, of which it may hide a part behind the backward
# pass. The pipeline idles for a ninth of the step, and a device sends a hundredth of the bytes.
# With a link of 450 GB/s, it is the other way around: try it.

# %% [markdown]
# ## 8.8.4 Splitting within a layer
# A matrix product can be split in two ways. If you cut $A$ by columns, each device
# computes some of the output's columns, and nothing needs to be sent. If you cut $B$ by
# rows, each device computes a *summand* of the whole output. A block combines both:
#
# $$\text{relu}(h A) B = \text{relu}(h A_0) B_0 + \text{relu}(h A_1) B_1$$
#
# Half of $A$'s columns gives half of the hidden units, exactly the input of half of $B$'s
# rows. One sum per block is the only communication
# ([Megatron-LM](https://arxiv.org/abs/1909.08053)). Check this on one device:

# %%
A, B = params[0][:2]
half = s.hidden // 2
summands = [relu(X @ A[:, :half]) @ B[:half], relu(X @ A[:, half:]) @ B[half:]]
chex.assert_trees_all_close(sum(summands), relu(X @ A) @ B, atol=1e-3)

# %% [markdown]
# ### By hand, with shard_map
# `P(None, "d")` cuts a matrix by columns along the mesh axis `"d"`, and `P("d")` by rows.
# The function is one device's program: it gets its parts of `A` and `B`, and the whole
# `h`. The loop runs once per block, so with two blocks there are two sums.

# %%
columns, whole = P(None, "d"), P()
tensor = [(columns, P("d"))] * (k - 1) + [(columns, P("d"), whole)]

@jax.jit
@jax.shard_map(mesh=mesh, in_specs=(tensor, P()), out_specs=P())
def tensor_network(params, h):
    for A, B, *_ in params:
        h = h + lax.psum(relu(h @ A) @ B, "d")
    return h @ params[-1][2]

# %%
@jax.jit
def tensor_step(params, X, y):
    def loss(params):
        return cross_entropy(tensor_network(params, X), y)
    return sgd(params, jax.grad(loss)(params), len(y))

# %% [markdown]
# You write the sums of the forward pass. `shard_map` tracks what is the same on every
# device (`h`) and what differs (`A`, `B`), so `jax.grad` inserts the sums of the backward
# pass: the gradient of `h` is the sum of what all devices contribute.
#
# ### With jit and a second PartitionSpec
# You can also leave one device's step unchanged and only place the arrays:
#
# | | weights $A$, $B$ | batch |
# |:--|:--|:--|
# | data parallelism | `P()`, `P()` | `P("d")` |
# | tensor parallelism | `P(None, "d")`, `P("d")` | `P()` |
# | fully sharded data parallelism (FSDP) | `P("d")`, `P("d")` | `P("d")` |
#
# FSDP is data parallelism in which no device keeps a whole matrix between steps. Each device stores
# a part and collects the whole matrix before using it. In [ZeRO](https://arxiv.org/abs/1910.02054)
# it also drops the matrix after each use. If we only placed the arrays, the compiler could choose
# to exchange activations instead. One line asks it to collect the weights.

# %%
def cut_all(spec):
    """The same spec for each matrix of each block."""
    return [(spec, spec)] * (k - 1) + [(spec, spec, spec)]

# %%
def place(weights, batch, params, X, y):
    sharding = partial(NamedSharding, mesh)
    weights, batch = jax.tree.map(sharding, (weights, batch))
    return jax.device_put((params, X, y), (weights, batch, batch))

# %%
@jax.jit
def fsdp_step(params, X, y):
    def collected(params):
        everywhere = NamedSharding(mesh, P())
        params = lax.with_sharding_constraint(params, everywhere)
        return loss(params, X, y)
    return sgd(params, jax.grad(collected)(params), len(y))

# %%
plans = {"data": (cut_all(P()), P("d")), "tensor": (tensor, P()),
         "FSDP": (cut_all(P("d")), P("d"))}
on_mesh = place(*plans["tensor"], params, X, y)
jax.debug.visualize_array_sharding(on_mesh[0][0][0])  # A, cut by columns
jax.debug.visualize_array_sharding(on_mesh[0][0][1])  # B, cut by rows

# %% [markdown]
# Do all ways, including the pipeline, compute what one device computes?

# %%
ways = {"data": step, "tensor": step, "FSDP": fsdp_step}
new = {way: ways[way](*place(*plans[way], params, X, y)) for way in ways}
new["tensor, by hand"] = tensor_step(*place(*plans["tensor"], params, X, y))
new["pipeline"] = pipeline_step(stages, X, y, max(s.micro_batches))

def difference(a, b):
    pairs = zip(*map(jax.tree.leaves, jax.device_get((a, b))))
    return max(float(abs(x - y).max()) for x, y in pairs)

# %% tags=["hide-input"]
change = difference(one_device, params)  # of the largest entry
worst = {way: difference(one_device, weights) / change
         for way, weights in new.items()}
s.claim("Every way to split computes what one device computes",
        holds=max(worst.values()) < 1e-3,
        expected="parameters within 0.1% of the largest change after a step",
        observed=", ".join(f"{way} {off:.0e}" for way, off in worst.items()),
        if_holds="The ways differ in where the arrays are, not in what is "
                 "computed.",
        if_not="That is more than float32's rounding should be. On a GPU, "
               "products may be rounded to TF32: compare in float64, as in "
               "section 8.5.")

# %% [markdown]
# ## 8.8.5 Side by side
# What does each way send, and what does each device hold? The compiled program shows it: an
# *all-reduce* adds arrays up and gives every device the sum, and an *all-gather* collects the parts
# of an array. We convert both into the bytes that *one device sends*. To produce $b$ bytes, each
# device of a ring sends $2b(k-1)/k$ in an all-reduce, and half of that in an all-gather. The
# pipeline copies outside its programs, so we compute its bytes.

# %%
PART = {"all-reduce": 2 * (k - 1) / k, "all-gather": (k - 1) / k,
        "reduce-scatter": k - 1, "all-to-all": (k - 1) / k}

def sent(plan, step, n):
    """The collectives of a step with n rows, and what a device sends."""
    X, y = jnp.zeros((n, s.width)), jnp.zeros(n, int)
    arrays = place(*plan, params, X, y)
    program = step.lower(*arrays).compile().as_text() or ""
    counts = count_ops(program)
    kinds = {op: count for op, count in counts.items() if op in PART}
    names = " + ".join(f"{count} {op}" for op, count in kinds.items())
    produced = collective_bytes(program)
    return names, round(sum(PART[op] * produced[op] for op in kinds))

# %%
def sent_by_pipeline(n, width=s.width):
    """By a device in the middle, or each of two, in both directions."""
    return (1 if k == 2 else 2) * n * width * 4

# %%
held = {way: max(device_bytes(weights).values())
        for way, weights in new.items()}
sends = {way: sent(plans[way], step, s.batch_size)
         for way, step in ways.items()}
sends["tensor, by hand"] = sent(plans["tensor"], tensor_step, s.batch_size)
sends["pipeline"] = "copies", sent_by_pipeline(s.batch_size)
rows = [(way, kinds, f"{moved / 1e6:.3g}", f"{held[way] / 1e6:.3g}")
        for way, (kinds, moved) in sends.items()]
s.grid(["way", "in the program", "MB a device sends",
        "MB of weights it holds between steps"], rows,
       title=f"One step, batch {s.batch_size}, {N / 1e6:.3g} MB of weights")

# %% [markdown]
# Compare the rows:
# - **Data parallelism** adds up as many bytes as the parameters occupy, whatever the batch
#   is.
# - **Tensor parallelism** and the **pipeline** send activations, so their bytes grow with
#   the batch. `jit` inserts the sums that we wrote by hand: forward, each block needs one;
#   backward, each block but the first needs one. The first needs none, because nothing uses
#   the gradient of `X`.
# - **FSDP** holds only a part of the weights between steps, and therefore also sends them. The table
#   shows how often this program gathers a matrix. If only once, then each device has all weights
#   during the step; to drop them, compute the forward pass again with `jax.checkpoint`. With a
#   *reduce-scatter* for the gradients, FSDP would send $3N(k-1)/k$ if the weights are gathered twice,
#   and $2N(k-1)/k$ if once. On CPUs the compiler adds up whole gradients and then cuts the sum, which
#   sends $N(k-1)/k$ more. XLA uses a reduce-scatter on GPUs and TPUs (not measured here), but on a
#   CPU only if the program asks for it, as in [Collectives](collectives).

# %%
two = (s.batch_size, 2 * s.batch_size)
data_sends, tensor_sends = (
    [sent(plans[way], step, n)[1] for n in two] for way in ("data", "tensor"))
print("data:", data_sends, "bytes; tensor:", tensor_sends, "bytes")

# %% tags=["hide-input"]
s.claim("Data parallelism sends as much for every batch, tensor parallelism "
        "in proportion",
        holds=data_sends[0] == data_sends[1]
        and 2 * tensor_sends[0] == tensor_sends[1],
        expected="the same, and twice as many bytes for twice the batch",
        observed=f"{data_sends} and {tensor_sends} bytes",
        if_holds="Gradients have the size of the weights, activations that of "
                 "the batch.",
        if_not="The compiler sends other arrays than these formulas say: list "
               "its collectives.")
parts = {way: held[way] / held["data"]
         for way in ("tensor", "FSDP", "pipeline")}
s.claim("Between steps, a split model needs less memory for weights on each "
        "device",
        holds=max(parts.values()) < 1,
        expected="less than data parallelism, for all three ways",
        observed=", ".join(f"{way} {part:.0%}" for way, part in parts.items()),
        if_holds="A model whose weights do not fit on one device may fit on "
                 "several, if the step does not gather all of them at once.",
        if_not="At least one of these ways keeps all weights on a device.")

# %% [markdown]
# <details><summary>Predict: from which batch on does data parallelism send less than tensor
# parallelism?</summary>
#
# Data parallelism adds up $N$ bytes. With two blocks, tensor parallelism adds up three arrays of
# $n$ rows with 784 numbers of 4 bytes. They are equal for $n = N / (3 \cdot 784 \cdot 4)$, which is
# 2051 for $N$ = 19.3 MB.
# </details>

# %% tags=["hide-input"]
n = np.geomspace(16, 16384)
fig, ax = plt.subplots()
once = 2 * (k - 1) / k  # of an all-reduced array, a device sends so much
lines = {"data": np.full_like(n, once * N),
         "tensor": once * (2 * k - 1) * n * s.width * 4,
         "pipeline": sent_by_pipeline(n),
         "FSDP, gathers twice, reduce-scatter": np.full_like(n, 1.5 * once * N)}
for way, values in lines.items():
    ax.plot(n, values / 1e6, label=way)
ax.plot(two, np.array(data_sends) / 1e6, "oC0")
ax.plot(two, np.array(tensor_sends) / 1e6, "oC1")
ax.plot(s.batch_size, sends["FSDP"][1] / 1e6, "oC3")
ax.set(xscale="log", yscale="log", xlabel="batch size",
       ylabel="MB that a device sends")
ax.legend(ncols=2, fontsize="small")
s.figure(fig, "What a device sends in a step. Lines are computed, dots are "
              "counted in compiled programs. FSDP's dot is of another program "
              f"than its line: {sends['FSDP'][0]}.",
         alt="Megabytes over the batch size, both logarithmic, for data, "
             "tensor, pipeline, and FSDP.")

# %% [markdown]
# ### Which one?
# - If the model fits on one device, and the link sends its gradients in less time than a
#   step computes, use **data parallelism**. It is the simplest, and its devices wait for
#   one another once per step.
# - If the weights do not fit, try **FSDP** first. The network's code stays unchanged.
# - If links are fast, and single layers are huge or batches are small, use **tensor
#   parallelism**. Its devices wait for one another in every block, so it belongs inside
#   one machine.
# - If links are slow, as between machines, use a **pipeline**, which sends least in large
#   models. It needs equal stages and many micro-batches.
#
# Large models combine them on a mesh with several axes. For sizes and formulas, see [How To
# Scale Your Model](https://jax-ml.github.io/scaling-book/); for the API, [Manual
# parallelism with shard_map](https://docs.jax.dev/en/latest/notebooks/shard_map.html).
#
# ## 8.8.6 Summary
# - You can split a model between or within layers, or split the batch instead.
# - If you split between layers, only one device works at a time. Micro-batches let stages
#   work at once. Equal stages idle for $(p - 1) / (m + p - 1)$ of the step.
# - If you split $A$ by columns and $B$ by rows, a block needs one sum.
# - With `jit`, you choose data, tensor, or fully sharded parallelism by `PartitionSpec`s.
# - Gradients have the size of the weights, activations grow with the batch: compare the two
#   before you choose.
#
# ## 8.8.7 Exercises
# **1.** A pipeline has sixteen devices with one stage each. How many micro-batches make
# it idle less than 10% of the time? How many images must a batch have if a micro-batch
# should have 32?
#
# Check it with `jaxperf check 8.8.1 mine.py`: `mine.py` defines `micro_batches(stages,
# idle)`, which returns the smallest number.

# %% tags=["answer"]
p = 16
m = next(m for m in range(1, 10**6) if (p - 1) / (m + p - 1) < 0.1)
print(f"{m} micro-batches, a batch of {32 * m}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# $15 / (m + 15) < 1 / 10$ for $m > 135$: 136 micro-batches, 4352 images. A long pipeline
# needs large batches, which may need another learning rate ([section
# 8.5](multiple_gpus_concise)).
# </details>
#
# **2.** Cut $A$ by rows and $B$ by columns instead. Does the step compute the same
# result? What does it send?

# %% tags=["answer"]
swapped = [(P("d"), columns)] * (k - 1) + [(P("d"), columns, whole)]
plans["other way"] = (swapped, P())
other = step(*place(*plans["other way"], params, X, y))
print(f"largest difference: {difference(one_device, other):.0e}")
for way in ("tensor", "other way"):
    kinds, moved = sent(plans[way], step, s.batch_size)
    print(f"{way}: {kinds}, {moved / 1e6:.3g} MB")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The result is the same: a `PartitionSpec` says where an array is, not what is computed.
# But each device now has summands of *all* hidden units. They must be added before the
# ReLU, which is not linear, and there are more hidden units than outputs. A bad
# `PartitionSpec` makes a slow program or an error, never another result.
# </details>
#
# **3.** A step may become slower with many micro-batches. Why? Time the forward and
# backward pass of one stage for micro-batches of different sizes, and compare the time per
# image.

# %% tags=["answer", "slow"]
h = jax.device_put(X, devices[0])
for size in [s.batch_size // m for m in s.micro_batches]:
    seconds = measure(backward, stages[0], h[:size], h[:size]).median
    print(f"micro-batch {size:4}: {1e6 * seconds / size:.0f} µs per image")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Compare the smallest micro-batch with the largest. A small product reads all weights, as a large
# one does, but computes less with them. Each micro-batch also makes a gradient as large as the
# weights, whatever its size. [Section 8.0](performance_model) shows how to tell whether bytes or
# FLOPs limit a program.
# </details>
#
# **4.** `shard_map` tracks which arrays are the same on every device. `check_vma=False`
# switches this off. Take the gradient inside `shard_map`, with and without tracking.
# Which gradients are right?

# %% tags=["answer"]
def gradients(check):
    def local(params, h):
        for A, B, *_ in params:
            h = h + lax.psum(relu(h @ A) @ B, "d")
        return cross_entropy(h @ params[-1][2], y)
    on_each = jax.shard_map(jax.grad(local), mesh=mesh, in_specs=(tensor, P()),
                            out_specs=tensor, check_vma=check)
    return on_each(params, X)

right = jax.tree.leaves(jax.grad(loss)(params, X, y))
for check in (True, False):
    sizes = zip(jax.tree.leaves(gradients(check)), right)
    print(f"check_vma={check}: times as large:",
          *(f"{jnp.linalg.norm(a) / jnp.linalg.norm(b):.2f}" for a, b in sizes))

# %% [markdown]
# <details><summary>Answer</summary>
#
# With tracking, all are right. Without it, the gradients of $A$ and $B$ are $k$ times too
# large, and only $C$'s is right. Each device computes the same loss, and without tracking
# JAX treats these as $k$ different losses and adds them up. It does not warn you. Keep
# `check_vma=True`.
# </details>
#
# **5.** How much memory would the pipeline need if it kept all activations instead of
# computing them again? Count the bytes that `jax.vjp` keeps for one batch.

# %% tags=["answer"]
h = jax.device_put(X, devices[0])
_, pull = jax.vjp(stage, stages[0], h)
kept = sum(a.nbytes for a in jax.tree.leaves(pull))
residual_bytes = kept - sum(w.nbytes for w in stages[0])
print(f"beside the weights, vjp keeps {residual_bytes / 1e6:.3g} MB; "
      f"the input: {h.nbytes / 1e6:.3g} MB")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The pullback holds the weights, the input, and arrays of the hidden layer's size. GPipe
# keeps only the input, at the price of one more forward pass. The more layers a stage
# has, the more memory this saves. `jax.checkpoint` does the same inside one program.
# </details>
