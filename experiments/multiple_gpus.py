# %% [markdown]
# # 8.4 Training on several devices
# How do several devices train one model together, and what does their communication cost?
# After this section you can
# - write data-parallel training by hand, in plain JAX;
# - write the same step with `pmap`, `shard_map`, explicit sharding, and automatic sharding, and say
#   which one to use today;
# - find the communication in a compiled program, and say how many bytes it moves;
# - recognize a bug that silently multiplies gradients by the number of devices.
#
# The book's program needs two GPUs. You need none: JAX can divide a CPU into several devices. They
# compute the same results as real devices. They share the same cores, so their speed says little
# about real devices.

# %%
import functools
import math
import re
import time
from functools import partial

import chex
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
from jax import P, lax
from jax.sharding import AxisType

from jaxperf.chapter.section import section
from jaxperf.data import epoch_batches, fashion_mnist
from jaxperf.measure import interleaved, timeline
from jaxperf.result import both, ratio

s = section("8.4", devices=2, images=6000, epochs=3, batch_size=16, lr=0.2,
            seeds=(0, 1, 2), rounds=9, data="mini", data_folder=None,
            smoke={"images": 64, "epochs": 1, "rounds": 6}, full={"epochs": 4,
            "rounds": 40, "data": "auto", "images": 60_000, "batch_size": 256})
devices = jax.devices()[: s.devices]
mesh = jax.make_mesh((len(devices),), ("data",), devices=devices)
data = fashion_mnist(source="folder" if s.data_folder else s.data,
                     folder=s.data_folder)

# %% tags=["hide-input"]
s.data_source(data.source)
print(f"{len(devices)} devices: {devices}")
print(f"{len(data.train_labels):,} images to train on, from {data.source}")

# %% [markdown]
# Machines with several GPUs are common, because most mainboards have several PCIe slots. With
# NVIDIA's driver, `nvidia-smi` lists the GPUs; the [section on GPUs](use_gpu) explains its output.
# [Section 8.3](auto_parallelism) showed that most operations use all cores of a CPU or all of one
# GPU by themselves. To use *several* GPUs for one model, you need an algorithm.
#
# ## 8.4.1 Data parallelism
# *Data parallelism* is the most widely used way to divide the training of a model among GPUs.
#
# ![A batch is split between two devices. Each computes a gradient from its half. The gradients are
# added, and the sum goes back to both devices.](images/data_parallelism.svg "One step of data
# parallelism on two devices.")
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
# So the number of devices changes neither the training nor its accuracy, as long as the batch stays
# the same. A PyTorch retelling of the book warns that on two GPUs "accuracy and speed may fall,
# because each GPU is less busy". The formula refutes the first half of this sentence; exercise 5 is
# about the second half.
#
# ## 8.4.2 Defining the model
# LeNet is a function that takes a list of parameters. Their shapes and scale are the book's.

# %%
# a network
def init_params(key, scale=0.01):
    shapes = [(20, 1, 3, 3), (20,),   # W1, b1: convolution
              (50, 20, 5, 5), (50,),  # W2, b2: convolution
              (800, 128), (128,),     # W3, b3: dense
              (128, 10), (10,)]       # W4, b4: dense
    keys = jax.random.split(key, len(shapes))
    return [scale * jax.random.normal(key, shape) if len(shape) > 1
            else jnp.zeros(shape) for key, shape in zip(keys, shapes)]

def conv(X, W):  # images: batch, height, width, channel; W: out, in, ...
    return lax.conv_general_dilated(
        X, W, (1, 1), "VALID", dimension_numbers=("NHWC", "OIHW", "NHWC"))

def avg_pool(X):
    window = (1, 2, 2, 1)
    return lax.reduce_window(X, 0.0, lax.add, window, window, "VALID") / 4

def lenet(params, X):
    W1, b1, W2, b2, W3, b3, W4, b4 = params
    h1 = avg_pool(jax.nn.relu(conv(X, W1) + b1))
    h2 = avg_pool(jax.nn.relu(conv(h1, W2) + b2))
    h2 = h2.transpose(0, 3, 1, 2).reshape(len(X), -1)  # as in the book
    h3 = jax.nn.relu(h2 @ W3 + b3)
    return h3 @ W4 + b4

params = init_params(jax.random.key(0))
parameter_bytes = sum(p.nbytes for p in params)
print(f"{sum(p.size for p in params):,} parameters, {parameter_bytes:,} bytes")

# %% [markdown]
# The loss is the cross entropy. It must be the **sum** over the examples, not the mean, so that
# the losses of the shares add up to the loss of the batch. Gluon's loss returns one value per
# example, and `backward` adds them up. In PyTorch you write `CrossEntropyLoss(reduction='none')`
# and `.sum()`. The update then divides by the size of the *full* batch.

# %%
def loss(params, X, y):
    scores = jax.nn.log_softmax(lenet(params, X / 255))
    return -(scores * jax.nn.one_hot(y, 10)).sum()

gradient = jax.jit(jax.grad(loss))

@jax.jit
def sgd(params, grads, lr, batch_size):
    return jax.tree.map(lambda p, g: p - lr * g / batch_size, params, grads)

# %% [markdown]
# Check the formula on one device: the gradients of three pairs of images, added up, are the
# gradient of all six. [chex](https://chex.readthedocs.io) compares two trees of arrays, and names
# the first array that differs.

# %%
X, y = data.train_images[:6], data.train_labels[:6]
parts = [gradient(params, X[i : i + 2], y[i : i + 2]) for i in (0, 2, 4)]
total = jax.tree.map(lambda *grads: sum(grads), *parts)
chex.assert_trees_all_close(total, gradient(params, X, y),
                            rtol=1e-3, atol=1e-5)
print("the sum of the shares' gradients is the batch's gradient")

# %% [markdown]
# ## 8.4.3 Synchronizing data among devices
# We need three helpers. The first copies the parameters to a device.

# %%
def get_params(params, device):
    return jax.device_put(params, device)

# %%
new_params = get_params(params, devices[-1])
print("b1 weight:", new_params[1], "on", new_params[1].device)
print("params still has its own:", params[1].device)
grads = gradient(new_params, X, y)
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
    """Add up the trees on the first device, and copy the sum to all."""
    places = [jax.tree.leaves(tree)[0].device for tree in trees]
    total, *others = jax.device_put(trees, places[0])
    for tree in others:
        total = jax.tree.map(jnp.add, total, tree)
    return [jax.device_put(total, place) for place in places]

ones = [jax.device_put(jnp.ones((1, 2)) * (i + 1), device)
        for i, device in enumerate(devices)]
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
# next.](images/all_reduce.svg "Two ways to compute an all-reduce: a star and a ring.")
#
# The third helper splits an array into equal shares and copies each one to its device.

# %%
def split_and_load(array, devices):
    rows, k = len(array), len(devices)
    assert rows % k == 0, f"{rows} rows, {k} devices"
    shares = [array[i * rows // k : (i + 1) * rows // k] for i in range(k)]
    return [jax.device_put(share, d) for share, d in zip(shares, devices)]

k = len(devices)
batch = jnp.arange(12 * k).reshape(3 * k, 4)
print("input:\n", batch)
for share in split_and_load(batch, devices):
    print(f"on {share.device}:\n", share)
try:
    split_and_load(batch[: 3 * k - 1], devices)  # does not divide
except AssertionError as error:
    print("AssertionError:", error)

# %% [markdown]
# `split_batch` does so for images and labels. The last batch of an epoch often cannot be split into
# equal shares. In training, drop it, as `batches` below does. In evaluation, pad it.

# %%
def split_batch(X, y, devices):
    assert len(X) == len(y), f"{len(X)} images, {len(y)} labels"
    return split_and_load(X, devices), split_and_load(y, devices)

# %% [markdown]
# ## 8.4.4 Training on one batch
# `train_batch` performs the four steps of data parallelism. JAX computes each gradient on the
# device that holds the share and the copy of the parameters.

# %%
def train_batch(X, y, device_params, devices, lr):
    Xs, ys = split_batch(X, y, devices)
    grads = [gradient(params, X, y)
             for params, X, y in zip(device_params, Xs, ys)]
    grads = allreduce(grads)
    return [sgd(params, g, lr, len(y))
            for params, g in zip(device_params, grads)]

# %% [markdown]
# ::::{tab-set}
# :::{tab-item} In Gluon
# ```python
# with autograd.record():
#     ls = [loss(lenet(X, W), y)
#           for X, y, W in zip(gpu_Xs, gpu_ys, gpu_params)]
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
# ls = [loss(lenet(X, W), y).sum()
#       for X, y, W in zip(Xs, ys, device_params)]
# for l in ls:
#     l.backward()
# with torch.no_grad():
#     for i in range(len(device_params[0])):
#         allreduce([device_params[c][i].grad
#                    for c in range(len(devices))])
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
#
# We record one step with a batch of 256, as in the book.

# %%
X, y = data.train_images[:256], data.train_labels[:256]
device_params = [get_params(params, d) for d in devices]
run = timeline.record(train_batch, X, y, device_params, devices, s.lr)
overlap = timeline.overlap(run, *map(timeline.lane_of, devices[:2]))

# %% tags=["hide-input"]
at_once = overlap > 0.5
s.timeline(run, s.sentence(
    at_once,
    if_holds="One step by hand. Bars of different devices lie above one "
             "another: they work at the same time.",
    if_not="One step by hand. In this run, the bars of the devices lie one "
           "after the other."),
    words={"ynn_fusion": "gradient"},  # XLA's convolutions and products
    alt="A lane for Python and one for each device, with bars where they are "
        "busy, over milliseconds.")
s.claim("A loop over devices looks serial, but the devices compute at the "
        "same time",
        holds=at_once, expected="more than half of their work overlaps",
        observed=f"{overlap:.0%} overlaps", source="section 8.4.4",
        needs=["cores"],
        if_holds="Python queues the whole step and then waits. The devices "
                 "work side by side.",
        if_not="Something made the devices wait for one another in this run: "
               "look at the lane of Python.",
        if_open="One core computes for one device at a time.")

# %% [markdown]
# ## 8.4.5 Defining the training function
# `train` copies the parameters to all devices, and then trains on one batch at a time. `seed`
# chooses the first parameters and the order of the images.

# %%
train_images = data.train_images[: s.images]
train_labels = data.train_labels[: s.images]

def batches(batch_size, seed, epoch):
    return epoch_batches(train_images, train_labels, batch_size=batch_size,
                         seed=seed, epoch=epoch)

@jax.jit
def correct(params, X, y):
    return (lenet(params, X / 255).argmax(-1) == y).sum()

def report(epoch, start, params, n=500):
    """Print the epoch's line, and return the test accuracy."""
    seconds = time.perf_counter() - start
    X, y = data.test_images, data.test_labels
    counts = [correct(params, X[i : i + n], y[i : i + n])
              for i in range(0, len(y), n)]
    accuracy = sum(map(int, counts)) / len(y)
    print(f"epoch {epoch + 1}, time {seconds:.1f} sec, test acc {accuracy:.2f}")
    return accuracy

# %%
def train(num_gpus, batch_size, lr, seed=0, epochs=4):
    """Return the test accuracy after each epoch."""
    running_on, accuracies = devices[:num_gpus], []
    print(f"running on: {running_on}, seed {seed}")
    params = init_params(jax.random.key(seed))
    device_params = [get_params(params, d) for d in running_on]
    for epoch in range(epochs):
        start = time.perf_counter()
        for X, y in batches(batch_size, seed, epoch):
            device_params = train_batch(X, y, device_params, running_on, lr)
            jax.block_until_ready(device_params)  # the book's nd.waitall()
        accuracies.append(report(epoch, start, device_params[0]))
    return accuracies

# %% [markdown]
# ## 8.4.6 Training on one device, then on several
# The book trains on 60,000 images with batches of 256, four epochs of 234 updates. With `--full`,
# this section does the same. By default it trains on the 6,000 images that come with jaxperf. In
# batches of 16, these are three epochs of 375 updates, so LeNet makes about as many updates as in
# the book.
#
# <details><summary>Predict: LeNet's first weights have a standard deviation of only 0.01. Which
# test accuracy do you expect after the first epoch?</summary>
#
# Between 0.10 and about 0.35; it depends on the seed. The initial weights are so small that LeNet
# starts on a plateau, where it predicts one class for all images. The book's LeNet stays there for
# a whole epoch. Then it learns fast.
#
# </details>

# %% tags=["slow"]
one = [train(1, s.batch_size, s.lr, seed, s.epochs) for seed in s.seeds]
several = [train(len(devices), s.batch_size, s.lr, seed, s.epochs)
           for seed in s.seeds]

# %% tags=["hide-input"]
GUESSING = 0.2  # an accuracy below it is close to 0.1, that of guessing

def lasts(histories):
    """The accuracies after the last epoch, one per seed."""
    return [history[-1] for history in histories]

# %% tags=["slow", "hide-input"]
pairs = list(zip(lasts(one), lasts(several)))
apart = max(abs(a - b) for a, b in pairs)
between = max(lasts(one)) - min(lasts(one))
means = [sum(way) / len(way) for way in zip(*pairs)]
figures = (f"With the same seed, the trainings on one device and on several "
           f"end up to {apart:.3f} apart; trainings on one device with "
           f"different seeds end up to {between:.3f} apart.")
s.claim("LeNet becomes as accurate on several devices as on one",
        holds=abs(means[0] - means[1]) < 0.05, source="section 8.4.6",
        expected="means over the seeds within 0.05",
        observed=", ".join(f"{a:.3f} and {b:.3f}" for a, b in pairs),
        cannot="LeNet guesses" if min(map(min, pairs)) < GUESSING else "",
        if_holds=f"{figures} Both compute the same updates, but round them "
                 "differently, and a difference grows from step to step. So "
                 "never judge such a difference by one run.",
        if_not=f"{figures} That is more than rounding explains: compare the "
               "copies of the parameters.",
        if_open="An accuracy near 0.10 is that of guessing, so there is "
                "nothing to compare: train for longer.")

# %% tags=["slow", "hide-input"]
fig, (left, right) = plt.subplots(1, 2, sharey=True)
epochs = range(1, 5)
left.plot(epochs, [0.10, 0.60, 0.75, 0.68], "o-C0", label="MXNet, one GPU")
left.plot(epochs, [0.10, 0.69, 0.74, 0.74], "s-C1", label="MXNet, two GPUs")
left.plot([10, 10], [0.82, 0.81], "^C2", label="PyTorch, one and two")
curves = ((one, "o-C0", "one device"),
          (several, "s--C1", f"{len(devices)} devices"))
for histories, style, label in curves:
    for i, history in enumerate(histories):
        right.plot(range(1, len(history) + 1), history, style,
                   label=None if i else label)
left.set(title="60,000 images, batch 256", xlabel="epoch",
         ylabel="test accuracy", ylim=(0, 1))
title = f"here: {len(train_labels):,} images, batch {s.batch_size}"
right.set(title=title, xlabel="epoch", xticks=range(1, s.epochs + 1))
for ax in (left, right):
    ax.legend(fontsize="small")
s.figure(fig, "Left: the book and a retelling. Right: here, a line per seed.",
         alt="Test accuracy over epochs, for one and for several devices, as "
             "published and in this run.")

# %% [markdown]
# In the book, an epoch takes about 1.4 s on one GPU and 2.5 s on two (in the retelling, 2.7 s and
# 2.8 s). The book explains this by the cost of communication. A teacher in the PyTorch retelling
# adds two reasons: sums written by hand are not optimized, and LeNet is too small. Arithmetic helps
# to choose:
# - A step of the book takes $1.4\,\mathrm{s} / 234 = 6\,\mathrm{ms}$ on one GPU, and
#   $10.7\,\mathrm{ms}$ on two.
# - The gradients occupy 516 kB. At 10 GB/s, which a PCIe slot can reach, a copy takes
#   $0.05\,\mathrm{ms}$, and the copy back takes as long.
#
# So the *bytes* do not explain the extra milliseconds. The number of *calls* might: one Python
# thread starts every operation on every GPU, and copies, adds, and copies back each of eight
# gradients. [From 2 to 1,000 devices](scaling) shows that calls are consistent with the book's
# figure. We cannot test this explanation, because the book's machine is not at hand. One compiled
# program replaces all of these calls (section 8.4.7). The larger network of [section
# 8.5](multiple_gpus_concise) gives the devices more to do.
#
# A step also waits for the slowest device. A reader of the book gave half of the batch to a GPU and
# half to the CPU. The GPU waited for the CPU, and an epoch took 44 s.
#
# Several GPUs are not always better than one. Batch size, learning rate, and network must suit them
# (exercises 1 and 5).
#
# ### What the step by hand costs on a GPU
# `train_batch` copies each batch from the host, and calls several programs. The images fit into a
# GPU's memory: stored as bytes, they occupy 47 MB. So copy them once, and let the program select
# each batch by its indices. With `lax.scan`, shuffling and all steps of an epoch are *one* program,
# and Python calls it once. `donate_argnums=0` lets the program write the new parameters where the
# old ones were.

# %%
@jax.jit(static_argnames=("batch_size", "steps"), donate_argnums=0)
def train_epoch(params, images, labels, key, lr, batch_size, steps):
    def update(params, rows):
        grads = jax.grad(loss)(params, images[rows], labels[rows])
        return sgd(params, grads, lr, batch_size), None

    order = jax.random.permutation(key, len(labels))[: steps * batch_size]
    return lax.scan(update, params, order.reshape(steps, batch_size))[0]

# %%
mine = jax.tree.map(jnp.copy, params)  # train_epoch takes their memory
images, labels = jax.device_put((train_images, train_labels), devices[0])
new = train_epoch(mine, images, labels, jax.random.key(0), s.lr, 16, steps=2)
print("two steps in one program; the old parameters are gone:",
      mine[0].is_deleted())

# %% [markdown]
# Here this makes only two steps. On the CPUs that we tried, XLA does not use its fast kernels for a
# convolution inside a loop, which takes more than ten times the processor time (JAX 0.10 to 0.12).
# One program per step is faster there. `experiments/train.py` chooses between the two.
#
# On one H200 (JAX 0.11.2), with batches of 256, from [the comparison with
# PyTorch](../docs/peers.md), [kept trainings](../docs/performance.md) and [section 8.6](use_gpu):
#
# | LeNet | a step |
# |:--|--:|
# | one program per step, batches from the host | 0.76 ms |
# | one program per step, images on the GPU | 0.32 ms |
# | one program per epoch, with `scan` and the shuffling (0.080 s an epoch) | 0.34 ms |
# | to queue an *empty* program | 0.041 ms |
# | the step's 3.4 GFLOP at the GPU's 366 TFLOP/s | 0.01 ms |
#
# Even in one program, LeNet cannot keep such a GPU busy: it reaches 3% of the arithmetic. A step is
# a chain of small kernels, which `jaxperf plan` counts. Each kernel must start, read its input, and
# end before the next one. A larger batch or network makes the kernels larger. A second GPU makes
# them smaller, because it takes half of the batch.

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
@functools.cache  # one compiled program per number of devices
def make_pmap_step(num_gpus):
    @partial(jax.pmap, axis_name="data", in_axes=(None, 0, 0, None),
             out_axes=None, devices=devices[:num_gpus])
    def step(params, X, y, lr):
        grads = lax.psum(jax.grad(loss)(params, X, y), "data")
        return sgd(params, grads, lr, num_gpus * len(y))
    return step

def shares(X, y, count):
    """The arrays with one more dimension in front, over which pmap maps."""
    return X.reshape(count, -1, *X.shape[1:]), y.reshape(count, -1)

# %%
def train_with_pmap(num_gpus, batch_size, lr, seed=0, epochs=4):
    """Return the test accuracy after each epoch."""
    print(f"running on: {devices[:num_gpus]}, seed {seed}")
    step, accuracies = make_pmap_step(num_gpus), []
    new = init_params(jax.random.key(seed))
    for epoch in range(epochs):
        start = time.perf_counter()
        for X, y in batches(batch_size, seed, epoch):
            new = step(new, *shares(X, y, num_gpus), lr)
            jax.block_until_ready(new)
        first_copy = jax.tree.map(lambda p: p.addressable_data(0), new)
        accuracies.append(report(epoch, start, first_copy))
    return accuracies

# %% tags=["slow"]
by_pmap = train_with_pmap(len(devices), s.batch_size, s.lr, s.seeds[0],
                          s.epochs)

# %% [markdown]
# Compare these lines with those of the same seed above: both ways make the same updates.
#
# `pmap` is short, and many programs use it. But since JAX 0.8 [pmap is in maintenance
# mode](https://docs.jax.dev/en/latest/migrate_pmap.html): it keeps working, and its documentation
# recommends `jax.shard_map` for new code.
#
# ### 3. shard_map and psum
# Again you write one device's program, but you do not reshape the arrays. A *mesh* gives a name to
# an axis of devices; `make_mesh` in the first cell made one. `P("data")` splits an array's first
# dimension along that axis, and `P()` means the same value on every device. `with
# jax.set_mesh(mesh)` makes a mesh the current one, so that you can write `P` alone, here and in
# `device_put`.
#
# ![An array of four rows; a mesh of two devices along an axis named data; with P data, each device
# holds two rows, with empty P, each holds all four.](images/sharding.svg "What P says about an
# array of four rows on a mesh of two devices.")

# %%
def place(params, X, y):
    """Put copies of the parameters and shares of the batch on the mesh."""
    return jax.device_put((params, X, y), (P(), P("data"), P("data")))

# %%
with jax.set_mesh(mesh):
    pairs = jnp.arange(4 * mesh.size).reshape(-1, 2)
    jax.debug.visualize_array_sharding(jax.device_put(pairs, P("data")))
    jax.debug.visualize_array_sharding(jax.device_put(pairs, P()))

# %%
@jax.jit
@jax.shard_map(mesh=mesh, in_specs=(P(), P("data"), P("data"), P()),
               out_specs=P())
def shard_map_step(params, X, y, lr):
    local = lax.pcast(params, "data", to="varying")  # see below
    grads = lax.psum(jax.grad(loss)(local, X, y), "data")
    return sgd(params, grads, lr, mesh.size * len(y))

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
def slope(w, x):
    return jax.grad(lambda w: (x @ w).sum())(w)

varying = partial(lax.pcast, axis_name="data", to="varying")
on_mesh = jax.shard_map(mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
w, x = jnp.ones(3), jnp.arange(6.0 * mesh.size).reshape(-1, 3)
with jax.set_mesh(mesh):
    split = jax.device_put((w, x), (P(), P("data")))
once = on_mesh(lambda w, x: lax.psum(slope(varying(w), x), "data"))
twice = on_mesh(lambda w, x: lax.psum(slope(w, x), "data"))
print("one device:          ", slope(w, x))
print("grad(w):             ", on_mesh(slope)(*split))
print("psum(grad(w)):       ", twice(*split))
print("psum(grad(pcast(w))):", once(*split))

# %% [markdown]
# ### 4. Explicit sharding
# You write the step for the whole batch, as for one device. Nothing in it mentions devices: the
# arrays say where they are. On a mesh as `make_mesh` makes it, [the sharding is part of an array's
# type](https://docs.jax.dev/en/latest/201/sharding.html), and JAX derives the sharding of each
# result while it traces the program.

# %%
@jax.jit
def step(params, X, y, lr):
    return sgd(params, jax.grad(loss)(params, X, y), lr, len(y))

# %%
with jax.set_mesh(mesh):
    X4 = jax.device_put(data.train_images[:256], P("data"))
print("the type of the images:", jax.typeof(X4))
for shard in X4.addressable_shards:
    print(f"{shard.device} holds {shard.data.shape} of {X4.shape}")

# %% [markdown]
# Where a result could be sharded in several ways, JAX raises an error, and you choose with
# `out_sharding`. Here the sum runs over the dimension that is split: `P()` asks for the sum on
# every device. `jax.reshard` changes the sharding of an array; from `P("data")` to `P()` it
# collects all parts on each device.

# %%
with jax.set_mesh(mesh):
    v = jax.device_put(jnp.arange(2.0 * mesh.size), P("data"))
    try:
        jnp.dot(v, v)
    except Exception as error:
        print(f"{type(error).__name__}: {error}"[:105])
    print("out_sharding:", jax.typeof(jnp.dot(v, v, out_sharding=P())))
    print("reshard:", jax.typeof(v), "to", jax.typeof(jax.reshard(v, P())))

# %% [markdown]
# The compiler inserts the communication. Look at the compiled step: one *all-reduce* adds up all
# eight gradients.

# %%
def all_reduces(step, *args):
    """Return the all-reduces of a compiled step, and the bytes they sum."""
    program = step.lower(*args).compile().as_text() or ""
    lines = re.findall(r"= (.*) all-reduce(?:-start)?\(", program)
    shapes = re.findall(r"f32\[([\d,]+)\]", " ".join(lines))
    sizes = [math.prod(map(int, shape.split(","))) for shape in shapes]
    return lines, 4 * sum(sizes)

# %%
with jax.set_mesh(mesh):
    lines, summed_bytes = all_reduces(step, *place(params, X, y), s.lr)
print(len(lines), "all-reduce of", re.sub(r"\{[\d,]*\}", "", lines[0]))

# %% tags=["hide-input"]
s.claim("A step sums as many bytes as the parameters occupy",
        holds=summed_bytes == parameter_bytes,
        expected=f"{parameter_bytes:,} bytes",
        observed=f"{summed_bytes:,} bytes in {len(lines)} all-reduce",
        if_holds=f"$N$ = {parameter_bytes:,} bytes, whatever the batch is.",
        if_not="The compiled program sums something else than each gradient "
               "once: read its all-reduces.")

# %% [markdown]
# ### 5. Automatic sharding
# On a mesh of type `Auto`, the compiler chooses the shardings of results, also where explicit mode
# raises an error. This was the only mode of `jit` for some years, so you meet it in many programs.
# The type of an array does not tell how it is split.

# %%
auto = jax.make_mesh(mesh.axis_sizes, ("data",), devices=devices,
                     axis_types=(AxisType.Auto,))
with jax.set_mesh(auto):
    v = jax.device_put(jnp.arange(2.0 * mesh.size), P("data"))
    print("the type:", jax.typeof(v), "its sharding:", v.sharding.spec)
    print("no error:", jax.jit(jnp.dot)(v, v))

# %% [markdown]
# ### What would BatchNorm see?
# The ways differ for a layer that averages over the batch. As an example, we subtract the mean.

# %%
def center(x):
    return x - x.mean()

x = jnp.arange(2.0 * len(devices))
by_pmap_mean = jax.pmap(center, devices=devices)(x.reshape(-1, 2)).ravel()
with jax.set_mesh(mesh):
    x = jax.device_put(x, P("data"))
    by_shard_map = jax.shard_map(center, out_specs=P("data"))(x)
    by_jit = jax.jit(center)(x)
print("pmap:     ", by_pmap_mean)
print("shard_map:", by_shard_map)
print("jit:      ", by_jit)

# %% [markdown]
# Under `pmap` and `shard_map`, each device uses the mean of its share. Under `jit`, in both modes,
# the mean is over the whole batch, and needs one more all-reduce. LeNet has no such layer, but
# ResNet-18 in [section 8.5](multiple_gpus_concise) does.
#
# ### Which one?
# A device has $N$ bytes of gradients. The fourth column is what the busiest device sends, in bytes;
# for an all-reduce, it assumes a ring.
#
# | | you write | who sums | the busiest device sends | BatchNorm sees | use it |
# |:--|:--|:--|:--|:--|:--|
# | by hand | a loop over devices | you: copies | $(k-1)N$ | a share | to understand |
# | `pmap` | one device's step | you: `psum` | $2N(k-1)/k$ | a share | in older code |
# | `shard_map` | one device's step | you: `psum` | $2N(k-1)/k$ | a share | for control |
# | explicit | the batch's step | compiler, checked by types | $2N(k-1)/k$ | the batch | **first choice** |
# | automatic | the batch's step | compiler | $2N(k-1)/k$ | the batch | if types get in the way |
#
# Do all ways compute the same result? Each makes ten updates from the same parameters.

# %%
def on(mesh, step):
    def placed(params, X, y, lr):
        with jax.set_mesh(mesh):
            return step(*place(params, X, y), lr)
    return placed

def by_hand(params, X, y, lr):
    return train_batch(X, y, params, devices, lr)

def by_one_pmap(params, X, y, lr):
    k = len(devices)
    return make_pmap_step(k)(params, *shares(X, y, k), lr)

# %%
ways = {"one device": step, "by hand": by_hand, "pmap": by_one_pmap,
        "shard_map": on(mesh, shard_map_step),
        "explicit": on(mesh, step), "automatic": on(auto, step)}
start = dict.fromkeys(ways, params) | {"by hand": device_params}
after = dict(start)
for X, y in epoch_batches(data.train_images, data.train_labels, seed=0,
                          batch_size=256, epoch=0, updates=10):
    for way in ways:
        after[way] = jax.block_until_ready(ways[way](after[way], X, y, s.lr))
after["by hand"] = after["by hand"][-1]  # the last device's copy

def difference(a, b):
    leaves = zip(*map(jax.tree.leaves, jax.device_get((a, b))))
    return max(float(abs(x - y).max()) for x, y in leaves)

# %% tags=["hide-input"]
worst = max(difference(after["one device"], after[way]) for way in ways)
moved = difference(after["one device"], params)
s.claim("All five ways compute what one device computes",
        holds=worst < 1e-4 * moved,
        expected="after ten updates, parameters that differ by less than a "
                 "ten-thousandth of the largest change",
        observed=f"{worst:.0e} at most, the largest change is {moved:.0e}",
        source="section 8.4.1",
        if_holds="So choose the way that you can read best. What is left is "
                 "rounding.",
        if_not="That is more than float32's rounding. On a GPU, products may "
               "be rounded to TF32, which differs with the shape of a share.")

# %% [markdown]
# Do they take the same time? We time them in turns, with a batch of 256, so that a busy moment
# slows all of them alike. A ratio is the median over the rounds, followed by its 95% confidence
# interval.
#
# <details><summary>Predict: which way do you expect to be the slowest, and which of the compiled
# ways the fastest?</summary>
#
# `pmap`, `shard_map`, explicit, and automatic sharding become nearly the same XLA program, so
# expect them to be equally fast. Expect the step by hand to be the slowest: Python calls several
# programs and copies eight arrays per device. This matters less if the devices compute for longer.
# Between parts of one CPU, a copy stays in one memory, and by hand may even be the fastest.
#
# </details>

# %% tags=["slow"]
calls = {way: partial(ways[way], start[way], X, y, s.lr) for way in ways}
times = interleaved(calls, count=s.rounds)
s.table(times, title="One step, batch 256", base="explicit")

# %% tags=["slow", "hide-input"]
others = {way: ratio(times[way], times["explicit"])
          for way in ("pmap", "shard_map", "automatic")}
s.claim("The compiled ways are equally fast",
        holds=both(*(other.within(0.25) for other in others.values())),
        expected="within 25% of explicit sharding",
        observed=", ".join(f"{way} {other}" for way, other in others.items()),
        if_holds="The compiler makes nearly the same program of all of them.",
        if_not="At least one of them is another program, or runs in another "
        "way: compare their compiled texts.",
        if_open="The intervals are too wide to decide; an idle machine makes "
                "them narrower.")

# %% tags=["slow", "hide-input"]
hand_ratio = ratio(times["by hand"], times["explicit"])
s.claim("Sums written by hand make a step slower", holds=hand_ratio.above(1),
        expected="more than 1 times the time of explicit sharding",
        observed=str(hand_ratio),
        source="the PyTorch retelling",
        if_holds="Each call and each copy of the loop costs time, which one "
                 "compiled program saves.",
        if_not="Here its calls and copies do not show beside what it "
        "computes.",
        if_open="If there is a difference, it is smaller than the noise of "
                "this run.")

# %% tags=["slow", "hide-input"]
second = ratio(times["by hand"], times["one device"])
s.claim("A second GPU does not shorten a step of LeNet",
        holds=second.at_least(1),
        expected="by hand on several, at least 1 times the time of one",
        observed=str(second), source="section 8.4.6", needs=["devices"],
        if_holds="As in the book, the second device does not pay off for "
                 "LeNet.",
        if_not="Unlike in the book, a second device pays off here.",
        if_open="Parts of one CPU cannot show what a second GPU gains or "
                "costs.")

# %% [markdown]
# Several parts of a CPU may take less time than "one device". This is not what a second device
# gains, because one device uses all cores, too. The processor time of an image can show the reason.
# We measure it for batches of one device. `time.process_time` adds up the time of all cores.

# %% tags=["slow"]
def cpu_ms_per_image(n, lr=0.2, count=5):
    args = params, data.train_images[:n], data.train_labels[:n], lr
    jax.block_until_ready(step(*args))  # compiles
    start = time.process_time()
    for _ in range(count):
        jax.block_until_ready(step(*args))
    return 1e3 * (time.process_time() - start) / (count * n)

cpu_ms = {n: cpu_ms_per_image(n) for n in (128, 256, 512)}
for n, ms in cpu_ms.items():
    print(f"batch {n}: {ms:.2f} ms of processor time per image")

# %% tags=["slow", "hide-input"]
s.say(cpu_ms[128] < 0.9 * cpu_ms[256],
      if_holds="An image of a share of 128 costs less processor time here "
               "than an image of a batch of 256. So two parts of this CPU may "
               "finish a batch sooner than one, without more cores. It says "
               "nothing about GPUs.",
      if_not="An image of a share of 128 costs no less processor time here, "
             "or little less, than an image of a batch of 256. So dividing the "
             "batch among parts of this CPU saves hardly any work.")

# %% [markdown]
# ## 8.4.8 Summary
# - Each device holds all parameters and a share of the batch. The gradients are summed, and every
#   device makes the same update.
# - The result does not depend on the number of devices, except for rounding, and except for layers
#   that average over a device's batch, as BatchNorm does.
# - JAX queues work and returns, so even a plain Python loop makes devices work at the same time.
# - On a GPU, keep the images on the device, and make an epoch one program with `lax.scan`.
# - First choice: write the step for the whole batch, place the arrays on a mesh, and let `jit`
#   divide the work. Use `shard_map` to place the communication yourself. You meet `pmap` in older
#   code.
# - Under `shard_map`, `jax.grad` with respect to replicated parameters already returns the sum.
#   Another `psum` makes the gradient $k$ times too large.
# - Compare accuracies over several seeds.
#
# Checkpoints, several processes, and several machines are not part of this lesson. The training
# program `experiments/train.py` supports them.
#
# ## 8.4.9 Exercises
# Think first, then open the code and the answer. The code runs with `--answers`.
#
# **1 (the book's).** On two devices, double the batch to 512 (here, double `batch_size`). How does
# the training time change? Which learning rate reaches the test accuracy of the smaller batch on
# one device?

# %% tags=["slow", "answer"]
n, k = 2 * s.batch_size, len(devices)
alone = lasts(one)
rows = [[s.batch_size, f"{s.lr:g}", f"1: {alone}", sum(alone) / len(alone)]]
for lr in (s.lr, 1.5 * s.lr, 2 * s.lr):
    last = lasts(train_with_pmap(k, n, lr, seed, s.epochs) for seed in s.seeds)
    rows.append([n, f"{lr:g}", f"{k}: {last}", sum(last) / len(last)])
s.grid(["batch", "rate", "devices, accuracy by seed", "mean"], rows,
       title=f"Exercise 1: after {s.epochs} epochs")

sizes = (256, 512)
args = {m: (params, data.train_images[:m], data.train_labels[:m])
        for m in sizes}
steps = {f"batch {m}": partial(ways["explicit"], *args[m], s.lr) for m in sizes}
step_times = interleaved(steps, count=s.rounds)
longer = ratio(step_times["batch 512"], step_times["batch 256"])
print(f"a step of 512 takes {longer} times as long as one of 256")

# %% tags=["slow", "answer", "hide-input"]
smaller, old_rate, *larger_rates = [row[-1] for row in rows]
s.claim("At the old rate, twice the batch learns less in as many epochs",
        source="section 8.4, exercise 1",
        holds=old_rate < smaller - 0.02,
        expected="a mean accuracy that is lower by more than 0.02",
        observed=f"{smaller:.3f} with the smaller batch, {old_rate:.3f}",
        cannot="LeNet still guesses" if smaller < GUESSING else "",
        if_holds="Half as many updates of the same size leave LeNet on its "
                 "plateau for longer. With the larger rates, the mean is up "
                 f"to {max(larger_rates):.3f}.",
        if_not="Here the old rate had enough updates for the double batch, "
               "too.",
        if_open="Train for longer: an accuracy near 0.10 is that of guessing.")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Time: an epoch has half as many steps. So if a step of the double batch takes twice as long, the
# epoch takes the same time. If it takes less than twice as long, the epoch is shorter, as on a GPU
# that a batch of 256 does not keep busy (the table of one H200 in [section
# 8.5](multiple_gpus_concise) shows this for ResNet-18). If it takes more than twice as long, the
# epoch is longer.
#
# Rate: compare the means over the seeds, and see in the first row what a larger rate has to make up
# for. Twice the rate follows the *linear scaling rule* (section 8.5), which assumes that the
# gradient changes little from one step to the next. This is not true where LeNet leaves its
# plateau, so the best rate may be smaller; in a retelling, twice the batch with 1.5 times the rate
# is slightly better. If the accuracies differ more between seeds than between rates, you cannot
# tell which rate is better.
#
# That also explains what puzzled a reader of the book, who found a best rate of 0.17 on a GPU and
# 0.2 on the GPU together with the CPU. By the formula of 8.4.1, the number of devices does not
# change the best rate. Rates of 0.17 and 0.2 are so close that one run cannot tell them apart.
#
# </details>
#
# **2 (the book's).** Predict on all devices. What changes in the code?

# %% tags=["answer"]
n = 500 * len(devices)
test = data.test_images[:n], data.test_labels[:n]
print("correct on one device:", correct(after["one device"], *test))
with jax.set_mesh(mesh):
    print("correct on all:       ", correct(*place(after["one device"], *test)))

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
#
# Check it with `jaxperf check 8.4.3 mine.py`: `mine.py` defines `allreduce(trees)` as it
# should be, for any number of devices.

# %% tags=["answer"]
copies = device_params
for X, y in epoch_batches(data.train_images, data.train_labels, seed=0,
                          batch_size=256, epoch=0, updates=10):
    shared = zip(copies, *split_batch(X, y, devices))
    grads = [gradient(*share) for share in shared]
    grads = [allreduce(grads)[0], *grads[1:]]
    copies = [sgd(params, g, s.lr, len(y)) for params, g in zip(copies, grads)]
print(f"the copies differ by {difference(copies[0], copies[-1]):.1e}; "
      "fresh weights have a standard deviation of 0.01")

# %% [markdown]
# <details><summary>Answer</summary>
#
# There is no error or warning. Device 0 makes full steps, and each other device makes shorter steps
# from its own share. With each update the copies differ more, and `allreduce`
# then adds gradients of different models. The accuracy of device 0 may still look good. If you sum
# by hand, compare the copies from time to time: `chex.assert_trees_all_close` does so in one line.
#
# </details>
#
# **4.** Forget `psum` in `shard_map_step`. What does JAX say? What happens with `check_vma=False`?

# %% tags=["answer"]
def no_psum(params, X, y):
    return sgd(params, jax.grad(loss)(varying(params), X, y), 0.2, 256)

for check in (True, False):
    try:
        with jax.set_mesh(mesh):
            new = jax.shard_map(
                no_psum, in_specs=(P(), P("data"), P("data")), out_specs=P(),
                check_vma=check)(*place(params, X, y))
        first, *_, last = [shard.data for shard in new[2].addressable_shards]
        print(f"check_vma={check}: the copies differ by "
              f"{difference([first], [last]):.1e}")
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
sizes = (128, 256, 512)
args = {n: (params, data.train_images[:n], data.train_labels[:n])
        for n in sizes}
step_times = interleaved(
    {f"batch {n}": partial(step, *args[n], s.lr) for n in sizes},
    count=s.rounds)
for n in sizes:
    print(f"batch {n}: {n / step_times[f'batch {n}'].median:,.0f} images per "
          "second")

# %% tags=["slow", "answer", "hide-input"]
busier = ratio(step_times["batch 256"], step_times["batch 128"])
s.claim("A device with half of the batch trains fewer images per second",
        source="the PyTorch retelling",
        holds=busier.below(2),
        expected="a step of 256 takes less than twice as long as one of 128",
        observed=f"{busier} times as long",
        if_holds="Here, too, a device with less work is less busy.",
        if_not="Here half of the batch loses nothing: 128 images are enough "
        "for this device.",
        if_open="The difference is within the noise of this run.")

# %% [markdown]
# <details><summary>Answer</summary>
#
# On a GPU the explanation of the *speed* is right: in the table of one H200 in [section
# 8.5](multiple_gpus_concise), ResNet-18 trains more images per second in batches of 1,024 than in
# batches of 256. If a second GPU halves the batch per GPU, a part of the gain is lost. Keep each
# device's share constant, and let the batch grow with the number of devices. The *accuracy* does
# not suffer from a less busy GPU: the updates are the same (8.4.1).
#
# </details>
