# %% [markdown]
# # 8.4 Training on several devices
# How do several devices train one model together, and what does their communication cost?
# After this section you can
# - write data-parallel training by hand, in plain JAX;
# - write the same step with `pmap`, `shard_map`, and `jit`, and say which one to use today;
# - find the communication in a compiled program, and say how many bytes it moves;
# - recognize a bug that silently multiplies gradients by the number of devices.
#
# The book's program needs two GPUs. You need none: JAX can divide a CPU into several devices. They
# compute the same results as real devices. They share the same cores, so their speed says little
# about real devices.

# %%
import math
import re
import time
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
from jax import NamedSharding, P, lax
from jax.sharding import AxisType

from jaxperf.data import epoch_batches, fashion_mnist
from jaxperf.measure import interleaved, timeline
from jaxperf.result import both, ratio
from jaxperf.section import section

s = section("8.4", devices=2, epochs=2, batch_size=256, lr=0.2, updates=0, rounds=9,
            seeds=(0,), data="mini", data_folder=None,
            smoke={"epochs": 1, "batch_size": 16, "updates": 2, "rounds": 6},
            full={"data": "auto", "epochs": 4, "rounds": 15})

data = fashion_mnist(source="folder" if s.data_folder else s.data, folder=s.data_folder)
s.data_source(data.source)
card = jax.devices()[0]  # the first GPU, if there is one
devices = jax.devices()[: s.devices]
if len(devices) == 1 < s.devices:
    print(f"only one {card.platform}: everything but the scan uses parts of the CPU")
    devices = jax.devices("cpu")[: s.devices]
    jax.config.update("jax_default_device", devices[0])
k = len(devices)
print(f"{k} devices: {devices}; {len(data.train_labels):,} images")

# %% [markdown]
# Machines with several GPUs are common, because most mainboards have several PCIe slots. With
# NVIDIA's driver, `nvidia-smi` lists the GPUs; the [section on GPUs](use_gpu) explains its output.
# [Section 8.3](auto_parallelism) showed that most operations use all cores of a CPU or all of one
# GPU by themselves. To use *several* GPUs for one model, you need an algorithm.
#
# ## 8.4.1 Data parallelism
# *Data parallelism* is the most widely used way to divide the training of a model among GPUs.
#
# ![A batch is split between two devices. Each computes a gradient from its half. The gradients
# are added, and the sum goes back to both devices.](images/data_parallelism.svg)
#
# Every device holds all parameters. In each step
# 1. the batch is split into $k$ equal shares, one per device;
# 2. each device computes the gradient of the loss on its share, the *local* gradient;
# 3. the local gradients are added, and every device gets the sum. This is an *all-reduce*;
# 4. every device makes the same update, so the copies of the parameters stay equal.
#
# Splitting changes only the order of the additions. If the loss is a sum over examples, its
# gradient over the batch $B$ is the sum of its gradients over the shares $B_1, \ldots, B_k$:
#
# $$\nabla \sum_{i \in B} \ell_i(w) = \sum_{d=1}^{k} \nabla \sum_{i \in B_d} \ell_i(w)$$
#
# ## 8.4.2 Defining the model
# LeNet is a function that takes a list of parameters. Their shapes and scale are the book's.

# %%
def init_params(key, scale=0.01):
    shapes = [(20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,),  # W1, b1, W2, b2: convolutions
              (800, 128), (128,), (128, 10), (10,)]         # W3, b3, W4, b4: dense layers
    keys = jax.random.split(key, len(shapes))
    return [scale * jax.random.normal(key, shape) if len(shape) > 1 else jnp.zeros(shape)
            for key, shape in zip(keys, shapes)]

def conv(X, W):  # images: batch, height, width, channel; kernels: out, in, height, width
    return lax.conv_general_dilated(X, W, (1, 1), "VALID",
                                    dimension_numbers=("NHWC", "OIHW", "NHWC"))

def avg_pool(X):
    return lax.reduce_window(X, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4

def lenet(params, X):
    W1, b1, W2, b2, W3, b3, W4, b4 = params
    h1 = avg_pool(jax.nn.relu(conv(X, W1) + b1))
    h2 = avg_pool(jax.nn.relu(conv(h1, W2) + b2))
    h2 = h2.transpose(0, 3, 1, 2).reshape(len(X), -1)  # flattened as in the book
    h3 = jax.nn.relu(h2 @ W3 + b3)
    return h3 @ W4 + b4

params = init_params(jax.random.key(0))
parameter_bytes = sum(p.nbytes for p in params)
print(f"{sum(p.size for p in params):,} parameters occupy {parameter_bytes:,} bytes")

# %% [markdown]
# The loss is the cross entropy. It must be the **sum** over the examples, not the mean, so that
# the losses of the shares add up to the loss of the batch. Gluon's loss returns one value per
# example, and `backward` adds them up. In PyTorch you write `CrossEntropyLoss(reduction='none')`
# and `.sum()`. The update then divides by the size of the *full* batch.

# %%
def loss(params, X, y):
    return -(jax.nn.log_softmax(lenet(params, X / 255)) * jax.nn.one_hot(y, 10)).sum()

gradient = jax.jit(jax.grad(loss))

@jax.jit
def sgd(params, grads, lr, batch_size):
    return jax.tree.map(lambda p, g: p - lr * g / batch_size, params, grads)

# %% [markdown]
# ## 8.4.3 Synchronizing data among devices
# We need three helpers. The first copies the parameters to a device.

# %%
def get_params(params, device):
    return jax.device_put(params, device)

new_params = get_params(params, devices[-1])
print("b1 weight:", new_params[1], "on", new_params[1].device)
print("params still has its own:", params[1].device)
grads = gradient(new_params, data.train_images[:1], data.train_labels[:1])
print("b1 grad:", grads[1].shape, "on", grads[1].device)

# %% [markdown]
# `device_put` returns a new array, and the old one stays where it was. Gradients differ, too. In
# Gluon a parameter *has* a gradient: the book prints zeros after `attach_grad`. PyTorch prints
# `None` until the first `backward`. In JAX the gradient is the result of a function, computed where
# the parameters are.
#
# The second helper adds up the arrays of all devices and copies the sum to each device. The book's
# version changes its arrays in place. JAX arrays never change, so ours returns new ones.

# %%
def allreduce(trees):
    """Add up the trees on the first device, and copy the sum to every device."""
    places = [jax.tree.leaves(tree)[0].device for tree in trees]
    total, *others = jax.device_put(trees, places[0])
    for tree in others:
        total = jax.tree.map(jnp.add, total, tree)
    return [jax.device_put(total, place) for place in places]

ones = [jax.device_put(jnp.ones((1, 2)) * (i + 1), d) for i, d in enumerate(devices)]
print("before allreduce:", *ones)
print("after allreduce: ", *allreduce(ones))

# %% [markdown]
# This is the *star* on the left below: everything passes through device 0. With $k$ devices and $N$
# bytes of gradients, device 0 receives $(k-1)N$ bytes and sends as many. In a *ring*, each device
# sends $N/k$ bytes to its neighbor $2(k-1)$ times. This makes $2N(k-1)/k$ bytes, which is less than
# $2N$ for any number of devices. For $k = 2$, a device sends $N$ bytes in both cases. For $k = 8$,
# device 0 of the star sends $7N$, and each device of the ring sends $1.75N$.
#
# ![Left: in a star, three devices send their gradients to device 0 and get the sum back. Right:
# in a ring, each of four devices sends a quarter of the gradients to the
# next.](images/all_reduce.svg)
#
# The third helper splits an array into equal shares and copies each one to its device.
# `split_batch` does so for images and labels.

# %%
def split_and_load(array, devices):
    assert len(array) % len(devices) == 0, f"{len(array)} rows, {len(devices)} devices"
    m = len(array) // len(devices)
    return [jax.device_put(array[i * m : (i + 1) * m], d) for i, d in enumerate(devices)]

def split_batch(X, y, devices):
    assert len(X) == len(y), f"{len(X)} images, {len(y)} labels"
    return split_and_load(X, devices), split_and_load(y, devices)

batch = jnp.arange(12 * k).reshape(3 * k, 4)
print("input:\n", batch)
for share in split_and_load(batch, devices):
    print(f"on {share.device}:\n", share)
try:
    split_and_load(batch[: 3 * k - 1], devices)  # does not divide
except AssertionError as error:
    print("AssertionError:", error)

# %% [markdown]
# The last batch of an epoch often cannot be split into equal shares. In training, drop it, as
# `batches` below does. In evaluation, pad it.
#
# ## 8.4.4 Training on one batch
# `train_batch` performs the four steps of data parallelism. JAX computes each gradient on the
# device that holds the share and the copy of the parameters.

# %%
def train_batch(X, y, device_params, devices, lr):
    Xs, ys = split_batch(X, y, devices)
    grads = [gradient(params, X, y) for params, X, y in zip(device_params, Xs, ys)]
    grads = allreduce(grads)
    return [sgd(params, g, lr, len(y)) for params, g in zip(device_params, grads)]

# %% [markdown]
# ::::{tab-set}
# :::{tab-item} In Gluon
# ```python
# with autograd.record():
#     ls = [loss(lenet(X, W), y) for X, y, W in zip(gpu_Xs, gpu_ys, gpu_params)]
# for l in ls:
#     l.backward()
# for i in range(len(gpu_params[0])):
#     allreduce([gpu_params[c][i].grad for c in range(len(ctx))])
# for param in gpu_params:
#     d2l.sgd(param, lr, X.shape[0])
# ```
# :::
# :::{tab-item} In PyTorch
# ```python
# ls = [loss(lenet(X, W), y).sum() for X, y, W in zip(Xs, ys, device_params)]
# for l in ls:
#     l.backward()
# with torch.no_grad():
#     for i in range(len(device_params[0])):
#         allreduce([device_params[c][i].grad for c in range(len(devices))])
# for param in device_params:
#     d2l.sgd(param, lr, X.shape[0])
# ```
# :::
# ::::
#
# <details><summary>Predict: the list comprehension computes one gradient after the other. Does
# device 1 wait for device 0?</summary>
#
# No. A JAX call queues its work on a device and returns ([section 8.2](async_computation)), so
# Python has queued all gradients long before the first one is finished. No device waits for another
# until `allreduce` needs all gradients.
#
# </details>

# %%
X, y = data.train_images[: s.batch_size], data.train_labels[: s.batch_size]
device_params = [get_params(params, d) for d in devices]
run = timeline.record(train_batch, X, y, device_params, devices, s.lr)
s.timeline(run, "Python queues a whole step and then waits. The devices work side by side.")

overlap = timeline.overlap(run, *map(timeline.lane_of, devices[:2]))
s.claim("A loop over devices looks serial, but the devices compute at the same time",
        holds=overlap > 0.5, expected="more than half of their work overlaps",
        observed=f"{overlap:.0%} overlaps", source="section 8.4.4", since="2026-11-26")

# %% [markdown]
# ## 8.4.5 Defining the training function
# `train` copies the parameters to all devices, and then trains on one batch at a time.

# %%
def batches(batch_size, epoch=0, updates=s.updates or None):
    return epoch_batches(data.train_images, data.train_labels, batch_size=batch_size,
                         seed=0, epoch=epoch, updates=updates)

@jax.jit
def correct(params, X, y):
    return (lenet(params, X / 255).argmax(-1) == y).sum()

def report(epoch, start, params, n=500):
    """Print the epoch's line, and return the test accuracy."""
    seconds = time.perf_counter() - start
    X, y = data.test_images, data.test_labels
    counts = [correct(params, X[i : i + n], y[i : i + n]) for i in range(0, len(y), n)]
    accuracy = sum(map(int, counts)) / len(y)
    print(f"epoch {epoch + 1}, time {seconds:.1f} sec, test acc {accuracy:.2f}")
    return accuracy

def train(num_gpus, batch_size, lr):
    running_on, accuracies = devices[:num_gpus], []
    print("running on:", running_on)
    device_params = [get_params(params, d) for d in running_on]
    for epoch in range(s.epochs):
        start = time.perf_counter()
        for X, y in batches(batch_size, epoch):
            device_params = train_batch(X, y, device_params, running_on, lr)
            jax.block_until_ready(device_params)  # the book's nd.waitall()
        accuracies.append(report(epoch, start, device_params[0]))
    return accuracies

# %% [markdown]
# ## 8.4.6 Training on one device, then on several
# By default, this section trains on a subset of 6,000 images. With `--full` it trains as the book
# does: on all 60,000 images, for four epochs of 234 batches.

# %% tags=["slow"]
one = train(num_gpus=1, batch_size=s.batch_size, lr=s.lr)

# %% tags=["slow"]
several = train(num_gpus=k, batch_size=s.batch_size, lr=s.lr)

# %% [markdown]
# Do not worry about an accuracy of 0.10. The initial weights are so small that LeNet starts on a
# plateau, where it predicts one class for all images. In the book, it stays there for a whole epoch
# of 234 batches. The plots show the figures of the book and of a retelling in PyTorch.

# %% tags=["slow"]
fig, (ax, bars) = plt.subplots(1, 2, width_ratios=(3, 2))
ax.plot(range(1, 5), [0.10, 0.60, 0.75, 0.68], "o-", label="MXNet, one GPU")
ax.plot(range(1, 5), [0.10, 0.69, 0.74, 0.74], "o-", label="MXNet, two GPUs")
ax.plot([10, 10], [0.82, 0.81], "o", label="PyTorch, one and two")
if data.is_full and not s.updates:  # the same work as the book's
    ax.plot(range(1, s.epochs + 1), one, "s--", label="here, one device")
    ax.plot(range(1, s.epochs + 1), several, "s--", label=f"here, {k} devices")
ax.set(xlabel="epoch", ylabel="test accuracy", ylim=(0, 1))
ax.legend()
labels = ["MXNet, 1 GPU", "MXNet, 2 GPUs", "PyTorch, 1", "PyTorch, 2"]
bars.barh(labels, [1.4, 2.5, 2.7, 2.8], color=["C0", "C1", "C2", "C2"])
bars.invert_yaxis()
bars.set(xlabel="seconds per epoch")
s.figure(fig, "In the book, a second GPU changes the accuracy little, and makes no epoch shorter.")

# %% [markdown]
# In the book, an epoch takes 1.4 s on one GPU and 2.5 s on two. The book explains this by the cost
# of communication. A teacher in the PyTorch retelling adds two reasons: sums written by hand are
# not optimized, and LeNet is too small. Arithmetic helps to choose:
# - A step of the book takes $1.4\,\mathrm{s} / 234 = 6\,\mathrm{ms}$ on one GPU, and
#   $10.7\,\mathrm{ms}$ on two.
# - The gradients occupy 516 kB. At 10 GB/s, which a PCIe slot can reach, a copy takes
#   $0.05\,\mathrm{ms}$, and the copy back takes as long.
#
# So the *bytes* do not explain the extra milliseconds. What remains is the number of operations:
# separate calls copy, add, and copy back each of the eight gradients, in a step that is short
# without them. One compiled all-reduce replaces all of these calls (section 8.4.7). The larger
# network of [section 8.5](multiple_gpus_concise) gives the devices more to do.
#
# A step also waits for the slowest device. A reader of the book gave half of the batch to a GPU and
# half to the CPU. The GPU waited for the CPU, and an epoch took 44 s.
#
# Several GPUs are not always better than one. Batch size, learning rate, and network must suit them
# (exercises 1 and 5).
#
# ### What the step by hand costs on a GPU
# `train_batch` copies each batch from the host, and calls several programs. These are times on one
# H200 for batches of 256 (JAX 0.11.2, 2026-11-26):
#
# | a step of LeNet | milliseconds | epoch of 60,000 |
# |:--|--:|--:|
# | by hand, batches from the host | 2.1 | 0.5 s |
# | one program, images on the GPU | 0.36 | 0.084 s |
# | the same program in a `scan` over an epoch | 0.28 | 0.066 s |
#
# The images fit into the GPU's memory: stored as bytes, they occupy 47 MB. So we copy them once,
# and the program selects each batch by its indices. With `lax.scan`, shuffling and all steps of an
# epoch are *one* program, and Python calls it once.

# %%
@partial(jax.jit, static_argnames="steps", donate_argnums=0)
def train_epoch(params, images, labels, key, steps):
    def update(params, rows):
        grads = jax.grad(loss)(params, images[rows], labels[rows])
        return sgd(params, grads, s.lr, len(rows)), None
    order = jax.random.permutation(key, len(labels))[: steps * s.batch_size]
    return lax.scan(update, params, order.reshape(steps, -1))[0]

on_gpu = card.platform != "cpu"
steps = s.updates or len(data.train_labels) // s.batch_size if on_gpu else 2
args = jax.device_put((params, data.train_images, data.train_labels), card, may_alias=False)
program = train_epoch.lower(*args, jax.random.key(0), steps=steps).compile()
start = time.perf_counter()
scanned = jax.block_until_ready(program(*args, jax.random.key(0)))
seconds = time.perf_counter() - start
print(f"{steps} steps in one program on {card}: {seconds:.3f} s after compiling")

# %% [markdown]
# On a CPU we make only two steps. There, XLA does not use its fast kernels for a convolution inside
# a loop, which takes more than ten times the processor time (JAX 0.10 and 0.12). One program per
# step is faster. `experiments/train.py` chooses between the two.
#
# Even in a `scan`, LeNet cannot keep such a GPU busy. The H200 multiplies large matrices at 371
# TFLOP/s. LeNet's step in one program reaches 9.7 TFLOP/s. At 371 TFLOP/s, its 3.5 GFLOP would take
# 0.01 ms. This is less than the 0.027 ms that Python and JAX take to queue an *empty* program. The
# rest is overhead: a step is a chain of small kernels (`jaxperf plan` counts 35 for an H100). Each
# kernel must start, read its input, and end before the next one. A larger batch or network makes
# the kernels larger. A second GPU makes them smaller, because it takes half of the batch.

# %% [markdown]
# ## 8.4.7 The same step, five ways
# ### 1. By hand
# This is `train_batch` above. You see every copy.
#
# ### 2. pmap and psum
# You write what *one* device does with its share. `jax.pmap` compiles it and runs it on all
# devices. `lax.psum` is the all-reduce. Together they replace `get_params`, `allreduce`, and the
# loop over devices. `shares` divides the batch, as `split_and_load` does.

# %%
def make_pmap_step(devices, lr):
    @partial(jax.pmap, axis_name="data", in_axes=(None, 0, 0), out_axes=None,
             devices=devices)
    def step(params, X, y):
        grads = lax.psum(jax.grad(loss)(params, X, y), "data")
        return sgd(params, grads, lr, len(devices) * len(y))
    return step

def shares(X, y, count):
    """The arrays with one more dimension in front, over which pmap maps."""
    return X.reshape(count, -1, *X.shape[1:]), y.reshape(count, -1)

def train_with_pmap(num_gpus, batch_size, lr, new=params):
    step, accuracies = make_pmap_step(devices[:num_gpus], lr), []
    print("running on:", devices[:num_gpus])
    for epoch in range(s.epochs):
        start = time.perf_counter()
        for X, y in batches(batch_size, epoch):
            new = jax.block_until_ready(step(new, *shares(X, y, num_gpus)))
        first_copy = jax.tree.map(lambda p: p.addressable_data(0), new)
        accuracies.append(report(epoch, start, first_copy))
    return accuracies

# %% tags=["slow"]
by_pmap = train_with_pmap(num_gpus=k, batch_size=s.batch_size, lr=s.lr)
apart = max(abs(a - b) for a, b in zip(by_pmap, several))
s.claim("Trained by hand or by pmap, LeNet is equally accurate",
        holds=apart < 0.1,
        expected="test accuracies within 0.1 (rounding errors grow from step to step)",
        observed=f"{apart:.3f} apart at most", since="2026-11-26")

# %% [markdown]
# This is short, and many programs use `pmap`. But since JAX 0.8 [pmap is in maintenance
# mode](https://docs.jax.dev/en/latest/migrate_pmap.html): it keeps working, and its documentation
# recommends `jax.shard_map` for new code.
#
# ### 3. shard_map and psum
# Again you write one device's program, but you do not reshape the arrays. A *mesh* gives a name to
# an axis of devices. `P("data")` splits an array's first dimension along that axis, and `P()` means
# the same value on every device.
#
# ![An array of four rows; a mesh of two devices along an axis named data; with P data, each
# device holds two rows, with P of nothing, each holds all four.](images/sharding.svg)

# %%
mesh = jax.make_mesh((k,), ("data",), axis_types=(AxisType.Auto,), devices=devices)

@jax.jit
@jax.shard_map(mesh=mesh, in_specs=(P(), P("data"), P("data")), out_specs=P())
def shard_map_step(params, X, y):
    local = lax.pcast(params, "data", to="varying")  # without this line: see below
    grads = lax.psum(jax.grad(loss)(local, X, y), "data")
    return sgd(params, grads, s.lr, k * len(y))

# %% [markdown]
# <details><summary>Predict: what would happen without the line with <code>pcast</code>?</summary>
#
# The gradient would be $k$ times too large, without an error or a warning. `shard_map` knows that
# `params` has the same value on every device. Therefore `jax.grad` with respect to `params`
# *already returns the sum over all devices*. If you copy the `psum` line from a `pmap` program, you
# sum twice. `pcast` tells JAX that the value may differ between devices. Then `jax.grad` returns
# the local gradient, and `psum` is right. Or differentiate with respect to `params` and leave out
# `psum`.
#
# </details>

# %%
slope = jax.grad(lambda w, x: (x @ w).sum())
w, x = jnp.ones(3), jnp.arange(6.0 * k).reshape(2 * k, 3)
on_mesh = jax.shard_map(mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
varying = partial(lax.pcast, axis_name="data", to="varying")
print("one device:          ", slope(w, x))
print("grad(w):             ", on_mesh(slope)(w, x))
print("psum(grad(w)):       ", on_mesh(lambda w, x: lax.psum(slope(w, x), "data"))(w, x))
print("psum(grad(pcast(w))):",
      on_mesh(lambda w, x: lax.psum(slope(varying(w), x), "data"))(w, x))

# %% [markdown]
# ### 4. jit and NamedSharding
# You write the step for the whole batch. The shardings of the arrays tell the compiler how to
# divide the work. Nothing in the step mentions devices.

# %%
@jax.jit
def step(params, X, y):
    return sgd(params, jax.grad(loss)(params, X, y), s.lr, len(y))

def place(params, X, y, mesh=mesh):
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    return jax.device_put((params, X, y), (everywhere, split, split))

placed = place(params, X, y)
for shard in placed[1].addressable_shards:
    print(f"{shard.device} holds {shard.data.shape} of {X.shape}")

# %% [markdown]
# The compiler inserted the sum. Look at the compiled program: one *all-reduce* adds up all eight
# gradients.

# %%
def all_reduces(step, *args):
    """Return the all-reduces of a compiled step, and the bytes that they add up."""
    program = step.lower(*args).compile().as_text() or ""
    lines = [line for line in map(str.strip, program.splitlines())
             if re.search(r" all-reduce(-start)?\(", line)]
    results = [line.split(" all-reduce")[0] for line in lines]  # (f32[20,1,3,3], ...)
    shapes = [dims.split(",") for dims in re.findall(r"f32\[([\d,]+)\]", " ".join(results))]
    return lines, sum(4 * math.prod(map(int, shape)) for shape in shapes)

lines, summed_bytes = all_reduces(step, *placed)
print(lines[0][:88])
s.claim("A step sums as many bytes as the parameters occupy",
        holds=summed_bytes == parameter_bytes, expected=f"{parameter_bytes:,} bytes",
        observed=f"{summed_bytes:,} bytes in {len(lines)} all-reduce", since="2026-11-26")

# %% [markdown]
# ### 5. Explicit sharding
# We place the arrays on a mesh whose axis is `Explicit`. Now [the sharding is part of an array's
# type](https://docs.jax.dev/en/latest/201/sharding.html). Where `jit` would choose the
# communication, JAX raises an error, and you must choose.

# %%
explicit = jax.make_mesh((k,), ("data",), axis_types=(AxisType.Explicit,), devices=devices)
_, X5, y5 = place(params, X, y, explicit)
print("the type of X:", jax.typeof(X5))
try:
    jnp.dot(y5, y5)  # sums over the dimension that is split
except Exception as error:
    print(f"{type(error).__name__}: {error}"[:168])

# %% [markdown]
# ### What would BatchNorm see?
# The ways differ for a layer that averages over the batch. As an example, we subtract the mean.

# %%
def center(x):
    return x - x.mean()

x = jnp.arange(2.0 * k)
print("pmap:     ", jax.pmap(center, devices=devices)(x.reshape(k, 2)).ravel())
print("shard_map:", jax.shard_map(center, mesh=mesh, in_specs=P("data"),
                                  out_specs=P("data"))(x))
print("jit:      ", jax.jit(center)(jax.device_put(x, NamedSharding(mesh, P("data")))))

# %% [markdown]
# Under `pmap` and `shard_map`, each device uses the mean of its share. Under `jit`, the mean is
# over the whole batch, and needs one more all-reduce. LeNet has no such layer, but ResNet-18 in
# [section 8.5](multiple_gpus_concise) does.
#
# ### Which one?
# $N$ is the size of the gradients in bytes.
#
# | | you write | who sums | moved bytes | BatchNorm sees | use it |
# |:--|:--|:--|:--|:--|:--|
# | by hand | a loop over devices | you: copies | $2(k-1)N$ | a share | to understand |
# | `pmap` | one device's step | you: `psum` | all-reduce of $N$ | a share | in older code |
# | `shard_map` | one device's step | you: `psum` | all-reduce of $N$ | a share | for control |
# | `jit` | the batch's step | compiler | all-reduce of $N$ | the batch | **first choice** |
# | explicit | the batch's step | compiler | all-reduce of $N$ | the batch | to check types |
#
# Do all ways compute the same result? Each makes ten updates from the same parameters.

# %%
pmap_step = make_pmap_step(devices, s.lr)
ways = {
    "one device": lambda w, X, y: step(w, X, y),
    "by hand": lambda w, X, y: train_batch(X, y, w, devices, s.lr),
    "pmap": lambda w, X, y: pmap_step(w, *shares(X, y, k)),
    "shard_map": lambda w, X, y: shard_map_step(*place(w, X, y)),
    "jit": lambda w, X, y: step(*place(w, X, y)),
    "explicit": lambda w, X, y: step(*place(w, X, y, explicit)),
}
start = {way: device_params if way == "by hand" else params for way in ways}
after = dict(start)
for X, y in batches(s.batch_size, updates=10):
    for way in ways:
        after[way] = jax.block_until_ready(ways[way](after[way], X, y))
after["by hand"] = after["by hand"][-1]  # the last device's copy

def difference(a, b):
    return max(float(abs(x - y).max()) for x, y in zip(*jax.device_get((a, b))))

worst = max(difference(after["one device"], after[way]) for way in ways)
s.claim("All five ways compute what one device computes", holds=worst < 1e-6,
        expected="parameters within 1e-6 of one device's", observed=f"{worst:.0e} at most",
        source="section 8.4.1", since="2026-11-26")

# %% [markdown]
# Do they take the same time? We time them in turns, so that a busy moment slows all of them alike.
# A ratio is the median over the rounds, followed by its 95% confidence interval.
#
# <details><summary>Predict: which way is the slowest, and which of the compiled ways the
# fastest?</summary>
#
# `pmap`, `shard_map`, `jit`, and explicit sharding become nearly the same XLA program, so they
# should be equally fast. The step by hand should be slowest: Python calls several programs and
# copies eight arrays per device. This matters less if the devices compute for longer. On a CPU, a
# step takes a tenth of a second, and you may see no difference.
#
# </details>

# %% tags=["slow"]
calls = {way: partial(ways[way], start[way], X, y) for way in ways}
times = interleaved(calls, count=s.rounds)
s.table(times, title=f"One step, batch {s.batch_size}", base="jit")
others = {way: ratio(times[way], times["jit"]) for way in ("pmap", "shard_map", "explicit")}
s.claim("The compiled ways are equally fast",
        holds=both(*(other.within(0.25) for other in others.values())),
        expected="within 25% of jit", since="2026-11-26",
        observed=", ".join(f"{way} {other}" for way, other in others.items()))
by_hand = ratio(times["by hand"], times["jit"])
s.claim("Sums written by hand make a step slower", holds=by_hand.above(1),
        expected="more than 1 times the time of jit", observed=str(by_hand),
        source="the PyTorch retelling", since="2026-11-26")
second = ratio(times["by hand"], times["one device"])
s.claim("A second GPU does not shorten a step of LeNet", holds=second.at_least(1),
        expected="by hand on several, at least 1 times the time of one",
        observed=str(second), source="section 8.4.6", since="2026-11-26",
        cannot="all devices are parts of one CPU" if devices[0].platform == "cpu" else "")

# %% [markdown]
# On a CPU, sums by hand need not make a step slower: the step is long, and the copies stay
# within one memory.
#
# The row "one device" does not show the gain from a second device. The CPU devices share the same
# cores, and one device uses all of them. If several CPU devices still take less time, we do not
# know why, and it says nothing about several GPUs.
#
# ## 8.4.8 Summary
# - Each device holds all parameters and a share of the batch. The gradients are summed, and every
#   device makes the same update.
# - The result does not depend on the number of devices, except for rounding, and except for layers
#   that average over a device's batch, as BatchNorm does.
# - JAX queues work and returns, so even a plain Python loop makes devices work at the same time.
# - On a GPU, keep the images on the device, and make an epoch one program with `lax.scan`.
# - First choice: write the step for the whole batch, and let `jit` and the arrays' sharding divide
#   it. Use `shard_map` to place the communication yourself. You meet `pmap` in older code.
# - Under `shard_map`, `jax.grad` with respect to replicated parameters already returns the sum.
#   Another `psum` makes the gradient $k$ times too large.
#
# Checkpoints, several processes, and several machines are not part of this lesson. The training
# program `experiments/train.py` supports them.
#
# ## 8.4.9 Exercises
# Think first, then open the code and the answer. The code runs with `--answers`.
#
# **1 (the book's).** On two devices, double the batch to 512. How does the training time change?
# Which learning rate reaches the test accuracy of batch 256 on one device?

# %% tags=["slow", "answer"]
n = 2 * s.batch_size
double = {n: partial(step, *place(params, data.train_images[:n], data.train_labels[:n])),
          s.batch_size: partial(step, *place(params, X, y))}
step_times = interleaved({f"batch {n}": call for n, call in double.items()}, count=s.rounds)
longer = ratio(step_times[f"batch {n}"], step_times[f"batch {s.batch_size}"])
print(f"a step of {n} takes {longer} times as long, an epoch {longer.median / 2:.2f} times")
rows = []
for lr in (s.lr, 1.5 * s.lr, 2 * s.lr):
    starts = [init_params(jax.random.key(seed)) for seed in s.seeds]
    last = [train_with_pmap(k, n, lr, start)[-1] for start in starts]
    rows.append([f"{n}, rate {lr:g}", " ".join(f"{accuracy:.2f}" for accuracy in last)])
s.grid(["batch", f"accuracy after {s.epochs} epochs, seeds {s.seeds}"], rows,
       title="Exercise 1")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Time: look at the ratio of the step times. An epoch has half as many steps, so a ratio of 2 means
# the same time per epoch, and a ratio below 2 means a shorter epoch. On a CPU expect about 2. If a
# batch of 256 does not keep a GPU busy, the epoch becomes shorter. For example, on one H200,
# ResNet-18 trains 42,900 images per second in batches of 256 and 55,600 in batches of 1024 (JAX
# 0.11.2, 2026-11-26).
#
# Rate: compare the accuracies with those for batch 256 above. If all are 0.10, LeNet is still on
# its plateau, and you cannot compare the rates: only `--full` trains long enough to leave it. At
# the old rate there are half as many steps of the same size, so LeNet should learn less per epoch.
# Twice the rate follows the *linear scaling rule* (section 8.5), which assumes that the gradient
# changes little from one step to the next. This is not true where LeNet leaves its plateau. If the
# accuracies differ more between seeds than between rates, you cannot tell which rate is better. One
# reader of the book used a GPU together with the CPU. The time stayed the same, and the best rate
# was 0.2; on the GPU alone it was 0.17. In a retelling, twice the batch with 1.5 times the rate is
# slightly better.
#
# </details>
#
# **2 (the book's).** Predict on all devices. What changes in the code?

# %% tags=["answer"]
test = data.test_images[: 500 * k], data.test_labels[: 500 * k]
print("correct on one device:", correct(after["jit"], *test))
print("correct on all:       ", correct(*place(after["jit"], *test)))

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only the arrays change. `place` splits the images and labels, and the compiler adds up one number
# per device. Both calls count the same images.
#
# </details>
#
# **3.** In a retelling of this section, `allreduce` ends with a copy that nothing uses:
# `data[0].copyto(data[i].device)`. The first device has the sum, but the others still have their
# own gradients. What happens to the training?

# %% tags=["answer"]
copies = device_params
for X, y in batches(s.batch_size, updates=10):
    grads = [gradient(*share) for share in zip(copies, *split_batch(X, y, devices))]
    grads = [allreduce(grads)[0], *grads[1:]]
    copies = [sgd(params, g, s.lr, len(y)) for params, g in zip(copies, grads)]
apart = difference(copies[0], copies[-1])
print(f"the copies differ by {apart:.1e}; fresh weights have a standard deviation of 0.01")

# %% [markdown]
# <details><summary>Answer</summary>
#
# There is no error or warning. Device 0 makes full steps, and each other device makes shorter steps
# from its own share. After a few updates the copies differ as much as fresh weights do. `allreduce`
# then adds gradients of different models. The accuracy of device 0 may still look good. If you sum
# by hand, compare the copies from time to time.
#
# </details>
#
# **4.** Forget `psum` in `shard_map_step`. What does JAX say? What happens with `check_vma=False`?

# %% tags=["answer"]
def no_psum(params, X, y):
    return sgd(params, jax.grad(loss)(varying(params), X, y), s.lr, k * len(y))

for check in (True, False):
    try:
        new = jax.shard_map(no_psum, mesh=mesh, in_specs=(P(), P("data"), P("data")),
                            out_specs=P(), check_vma=check)(params, X, y)
        first, *_, last = [shard.data for shard in new[2].addressable_shards]
        print(f"check_vma={check}: the copies differ by {difference([first], [last]):.1e}")
    except ValueError as error:
        print(f"check_vma={check}: {type(error).__name__}: {error}"[:300])

# %% [markdown]
# <details><summary>Answer</summary>
#
# JAX raises an error: `out_specs=P()` promises the same value on every device, but values computed
# from different shares differ. With `check_vma=False`, JAX does not check this. Each device trains
# on its own share, and the copies drift apart step by step. `check_vma` catches a *missing* `psum`;
# it does not catch a second one.
#
# </details>
#
# **5.** The PyTorch retelling explains its figures like this: each of two GPUs gets half of the
# batch, so it is less busy. Test this: how many images per second does *one* device train with
# half, the same, and twice the batch?

# %% tags=["slow", "answer"]
sizes = (s.batch_size // 2, s.batch_size, 2 * s.batch_size)
args = {n: (params, data.train_images[:n], data.train_labels[:n]) for n in sizes}
step_times = interleaved({f"batch {n}": partial(step, *args[n]) for n in sizes}, count=s.rounds)
for n in sizes:
    print(f"batch {n}: {n / step_times[f'batch {n}'].median:,.0f} images per second")

# %% [markdown]
# <details><summary>Answer</summary>
#
# On a CPU, a few images already keep the cores busy, so a smaller batch costs little, or is even
# faster. On a GPU the explanation is right: on one H200, ResNet-18 in bfloat16 trains 70,400 images
# per second in batches of 256 and 115,000 in batches of 1024 (JAX 0.11.2, 2026-11-26). If a second
# GPU halves the batch per GPU, a part of the gain is lost. Keep each device's share constant, and
# let the batch grow with the number of devices.
#
# </details>
