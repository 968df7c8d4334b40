# %% [markdown]
# # 8.5 Concise training on several devices
# How little code does data parallelism need, and which network gains from it?
# After this section you can
# - initialize a Flax network on several devices, and read its parameters there;
# - train it on all devices with `jit` and a sharded batch, and with `pmap` and `psum`;
# - say over which images BatchNorm averages, and choose them;
# - scale the learning rate with the batch, and say when this fails;
# - estimate from FLOPs and bytes whether a second device will pay off.
#
# The book's program needs two GPUs. You need none: JAX divides a CPU into devices, and a narrow
# ResNet-18 learns in seconds. With GPUs, the section follows the book's recipe.

# %%
import functools
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx
from jax import NamedSharding, P, lax
from jax.sharding import AxisType

from jaxperf.data import epoch_batches, fashion_mnist
from jaxperf.measure import interleaved
from jaxperf.section import section

s = section("8.5", devices=2, channels=8, images=1536, epochs=2, batch_size=32, lr=0.1,
            rounds=7, data="mini", data_folder=None,
            smoke={"channels": 2, "images": 32, "epochs": 1, "batch_size": 8, "rounds": 6},
            full={"images": 3072, "epochs": 3, "rounds": 15})

gpus = jax.devices()[: s.devices]  # what trains: GPUs, or parts of the CPU
on_gpus = gpus[0].platform == "gpu" and not s.smoke
devices = gpus
if len(gpus) < s.devices:
    print(f"only one {gpus[0].platform}: it trains, and the rest runs on parts of the CPU")
    devices = jax.devices("cpu")[: s.devices]
k, n_gpus = len(devices), len(gpus)
channels, epochs, batch_size = s.channels, s.epochs, s.batch_size
if on_gpus:  # the book's recipe
    channels, epochs, batch_size = 64, 4, 256
LARGE_PROGRAMS = 13  # that a run compiles, at most; with a single GPU, four of them are for it
source = "folder" if s.data_folder else "auto" if on_gpus else s.data
data = fashion_mnist(source=source, folder=s.data_folder)
s.data_source(data.source)
n = None if on_gpus else s.images  # None: all
train_images, train_labels = data.train_images[:n], data.train_labels[:n]
n = None if on_gpus else min(s.images, 500)
test_images, test_labels = data.test_images[:n], data.test_labels[:n]
print(f"{k} devices: {devices}; {len(train_labels):,} images, {channels} channels")

# %% [markdown]
# [Section 8.4](multiple_gpus) defined `get_params`, `allreduce`, and `split_and_load` by hand.
# Gluon and JAX have them built in.
#
# ## 8.5.1 Initializing parameters on several devices
# The network is ResNet-18. The images are small, so the book uses a 3 × 3 kernel with stride 1 in
# the first convolution, and leaves out the max pooling that follows.
#
# ![A residual block: two convolutions with BatchNorm, and the input added before the last
# relu.](images/residual_block.svg)

# %%
normal = nnx.initializers.normal(0.01)
conv = partial(nnx.Conv, kernel_init=normal)
batch_norm = partial(nnx.BatchNorm, momentum=0.9)

class Residual(nnx.Module):
    def __init__(self, inputs, outputs, use_1x1conv=False, strides=1, *, rngs):
        self.conv1 = conv(inputs, outputs, (3, 3), strides=strides, padding=1, rngs=rngs)
        self.conv2 = conv(outputs, outputs, (3, 3), padding=1, rngs=rngs)
        self.conv3 = (conv(inputs, outputs, (1, 1), strides=strides, rngs=rngs)
                      if use_1x1conv else None)
        self.bn1 = batch_norm(outputs, rngs=rngs)
        self.bn2 = batch_norm(outputs, rngs=rngs)

    def __call__(self, X):
        Y = nnx.relu(self.bn1(self.conv1(X)))
        Y = self.bn2(self.conv2(Y))
        return nnx.relu(Y + (self.conv3(X) if self.conv3 else X))

def global_avg_pool(X):
    return X.mean((1, 2))

def resnet18(num_classes, channels=64, *, rngs):
    def resnet_block(inputs, outputs, first_block=False):
        if first_block:
            first = Residual(inputs, outputs, rngs=rngs)
        else:
            first = Residual(inputs, outputs, use_1x1conv=True, strides=2, rngs=rngs)
        return [first, Residual(outputs, outputs, rngs=rngs)]

    c = channels
    return nnx.Sequential(
        conv(1, c, (3, 3), padding=1, rngs=rngs), batch_norm(c, rngs=rngs), nnx.relu,
        *resnet_block(c, c, first_block=True), *resnet_block(c, 2 * c),
        *resnet_block(2 * c, 4 * c), *resnet_block(4 * c, 8 * c),
        global_avg_pool, nnx.Linear(8 * c, num_classes, kernel_init=normal, rngs=rngs))

# %% [markdown]
# A Flax module is a tree of arrays, so one call puts the whole network on all devices. As in
# [section 8.4](multiple_gpus), `P()` makes a copy on each device, and `P("data")` splits the first
# dimension.

# %%
@partial(jax.jit, static_argnames="channels")  # one program draws all weights
def draw(key, channels):
    return resnet18(10, channels, rngs=nnx.Rngs(key))

def fresh_net(seed=0, channels=channels):
    with jax.default_device(jax.devices("cpu")[0]):  # the same weights on every machine
        key = jax.random.key(seed, impl="rbg")  # the default kind compiles longer, per shape
        return draw(key, channels)

def mesh_of(devices):
    shape, types = (len(devices),), (AxisType.Auto,)
    return jax.make_mesh(shape, ("data",), axis_types=types, devices=devices)

mesh = mesh_of(devices)
everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
net = jax.device_put(fresh_net(), everywhere)
print(f"{sum(p.size for p in jax.tree.leaves(nnx.state(net, nnx.Param))):,} parameters")

# %% [markdown]
# ::::{tab-set}
# :::{tab-item} In Gluon
# ```python
# ctx = [mx.gpu(0), mx.gpu(1)]
# net.initialize(init=init.Normal(sigma=0.01), ctx=ctx)
# gpu_x = gutils.split_and_load(x, ctx)
# net(gpu_x[0]), net(gpu_x[1])
# ```
# :::
# :::{tab-item} In PyTorch
# ```python
# net = nn.DataParallel(net, device_ids=devices)
# net(x)
# ```
# :::
# ::::
#
# In Gluon, `split_and_load` makes a list of arrays, and you call the network once per array. In
# JAX, there is one array with a *shard* on each device, and you call the network once. The shards
# of its output correspond to Gluon's `net(gpu_x[0])` and `net(gpu_x[1])`.

# %%
@jax.jit
def predict(net, X):
    return nnx.view(net, use_running_average=True)(X)

x = jax.device_put(jax.random.uniform(jax.random.key(1), (2 * k, 28, 28, 1)), split)
y = predict(net, x)
for shard in y.addressable_shards:
    print(f"on {shard.device}:", *(f"{value:.2e}" for value in shard.data[0, :4]), "...")

largest = float(abs(y).max())
s.claim("The outputs of the fresh network are of the order of 1e-6",
        holds=1e-7 < largest < 1e-4, expected="between 1e-7 and 1e-4",
        observed=f"at most {largest:.1e}", source="section 8.5.1", since="2026-11-26",
        cannot="" if channels == 64 else "another width; --channels 64 has the book's")

# %% [markdown]
# The outputs are tiny because the weights are small. In prediction, BatchNorm uses its running
# statistics. In a fresh network these are mean 0 and variance 1, so the outputs stay tiny. In
# training, BatchNorm uses the statistics of the batch, and the network learns.
#
# Now read a weight. The book calls `weight.data()`, gets the error "not initialized on cpu(0)", and
# has to name a device.

# %%
weight = net.layers[0].kernel[...]
print("no device named:\n", np.asarray(weight)[:, :, 0, 0])
for shard in weight.addressable_shards:
    print(f"on {shard.device}:\n", np.asarray(shard.data)[:, :, 0, 0])

copies = [np.asarray(shard.data) for shard in weight.addressable_shards]
same = all(np.array_equal(copies[0], copy) for copy in copies)
s.claim("The same parameter has the same values on every device", holds=same,
        expected="equal to the last bit", observed="equal" if same else "not equal",
        source="section 8.5.1", since="2026-11-26")
s.claim("To read a parameter that is on several devices, you have to name a device",
        holds=np.asarray(weight).shape != weight.shape,
        expected="an error without a device", observed="JAX reads it without one",
        source="section 8.5.1", since="2026-11-26",
        first="a helper of jaxperf raised Gluon's error, and the claim judged the helper")

# %% [markdown]
# `weight` is a *global* array: a single value, wherever its parts are. `addressable_shards` are the
# parts that this process can reach.
#
# ## 8.5.2 Training on several devices
# The book says that Gluon's `Trainer` does data parallelism by itself. In its code,
# `split_and_load` splits the batch, and `trainer.step` sums the gradients and updates every copy.
# In JAX, you write the step for the whole batch. The shardings of the arrays tell the compiler
# where to insert the sums.

# %%
def cross_entropy(net, X, y):
    return optax.softmax_cross_entropy_with_integer_labels(net(X / 255), y).mean()

@jax.jit
def train_step(net, optimizer, X, y):
    loss, grads = nnx.value_and_grad(cross_entropy)(net, X, y)
    optimizer.update(net, grads)
    return net, optimizer, loss

def make_jit_step(devices):
    split = NamedSharding(mesh_of(devices), P("data"))
    def step(net, optimizer, X, y):
        return train_step(net, optimizer, *jax.device_put((X, y), split))
    return step

# %% [markdown]
# ::::{tab-set}
# :::{tab-item} Gluon
# ```python
# trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': lr})
# gpu_Xs, gpu_ys = gutils.split_and_load(X, ctx), gutils.split_and_load(y, ctx)
# with autograd.record():
#     ls = [loss(net(gpu_X), gpu_y) for gpu_X, gpu_y in zip(gpu_Xs, gpu_ys)]
# for l in ls:
#     l.backward()
# trainer.step(batch_size)
# ```
# :::
# :::{tab-item} PyTorch
# ```python
# net = nn.DataParallel(net, device_ids=devices)   # one process, one thread per GPU
# trainer.zero_grad()
# loss(net(X), y).backward()
# trainer.step()
#
# net = DistributedDataParallel(net)               # recommended: one process per GPU
# ```
# :::
# :::{tab-item} Flax, in place
# ```python
# @nnx.jit                                         # updates net and optimizer in place
# def train_step(net, optimizer, X, y):
#     loss, grads = nnx.value_and_grad(cross_entropy)(net, X, y)
#     optimizer.update(net, grads)
#     return loss
# ```
# :::
# ::::
#
# Like [Flax's guide](https://flax.readthedocs.io/en/latest/guides/flax_gspmd.html), we use
# `jax.jit` with modules as arguments and results. `nnx.jit` hides the results, but each call takes
# more time in Python. PyTorch recommends `DistributedDataParallel` [even on a single
# machine](https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html). Its
# counterpart in JAX is the same step in several processes, as in `experiments/train.py`.
#
# With `pmap` and `psum`, you write the step for one device. You meet `pmap` in older code;
# `jax.shard_map` takes the same step ([section 8.4](multiple_gpus)). Our loss is a mean, so we
# divide the sum of the gradients by the number of devices. `lax.pmean` does both.

# %%
@functools.cache  # one compiled step per tuple of devices
def pmapped(devices):
    @partial(jax.pmap, axis_name="data", in_axes=(None, None, 0, 0), out_axes=None,
             devices=devices)
    def step(net, optimizer, X, y):
        loss, grads = nnx.value_and_grad(cross_entropy)(net, X, y)
        grads = jax.tree.map(lambda g: lax.psum(g, "data") / len(devices), grads)
        optimizer.update(net, grads)
        nnx.update(net, lax.pmean(nnx.state(net, nnx.BatchStat), "data"))
        return net, optimizer, lax.pmean(loss, "data")
    return step

def make_pmap_step(devices):
    def shares(array):
        return array.reshape(len(devices), -1, *array.shape[1:])
    step = pmapped(tuple(devices))
    return lambda net, optimizer, X, y: step(net, optimizer, shares(X), shares(y))

# %% [markdown]
# `step` also averages BatchNorm's running statistics. In Gluon each device keeps its own
# statistics, and saving averages them. PyTorch's `DataParallel` keeps the first device's.
# Parameters and statistics must be equal on all devices, because `out_axes=None` takes one copy and
# drops the others.
#
# `train` works with both steps. It waits for each step, because programs with collectives that run
# at once on CPU devices can block each other.

# %%
sgd = functools.cache(optax.sgd)  # one object per rate: jit compiles anew for another one

@jax.jit
def correct(net, X, y):
    return (predict(net, X / 255).argmax(-1) == y).sum()

def accuracy(net, n=250):
    X, y = test_images, test_labels
    counts = [correct(net, X[i : i + n], y[i : i + n]) for i in range(0, len(y), n)]
    return sum(map(int, counts)) / len(y)

def start_of(devices, lr, seed=0, channels=channels):
    """A fresh network and its optimizer, copied to each device."""
    net = fresh_net(seed, channels)
    optimizer = nnx.Optimizer(net, sgd(lr), wrt=nnx.Param)
    return jax.device_put((net, optimizer), NamedSharding(mesh_of(devices), P()))

def train(num_gpus, batch_size, lr, make_step=make_jit_step, seed=0, epochs=epochs):
    """Return the mean training loss and the test accuracy of each epoch."""
    running_on, history = gpus[:num_gpus], []
    print("running on:", running_on)
    net, optimizer = start_of(running_on, lr, seed)
    step = make_step(running_on)
    for epoch in range(epochs):
        start, losses = time.perf_counter(), []
        for X, y in epoch_batches(train_images, train_labels, batch_size=batch_size,
                                  seed=seed, epoch=epoch):
            net, optimizer, loss = jax.block_until_ready(step(net, optimizer, X, y))
            losses.append(float(loss))
        seconds = time.perf_counter() - start
        first_copy = jax.tree.map(lambda a: a.addressable_data(0), net)
        history.append((float(np.mean(losses)), accuracy(first_copy)))
        print(f"epoch {epoch + 1}, time {seconds:.1f} sec, "
              f"train loss {history[-1][0]:.2f}, test acc {history[-1][1]:.2f}")
    return history

# %% [markdown]
# The book trains with `train(num_gpus=1, batch_size=256, lr=0.1)`, and then with
# `train(num_gpus=2, batch_size=512, lr=0.2)`. The second call doubles the batch, so that each GPU
# has as many images as before. It also doubles the rate (see below).
#
# We compile first, so that the epochs' times exclude compiling. XLA compiles without holding
# Python's lock, so on a CPU we compile all programs at the same time, each in a thread. For a GPU,
# XLA tries several kernels for each convolution and keeps the fastest. Two threads would disturb
# each other's timing, so we compile one program after another. On one H200, compiling two of these
# steps took 45 s at the same time, and 12 s one after the other (JAX 0.11.2, 2026-11-27). `train`
# then finds the programs compiled.

# %%
def compile_all(*lowered):
    start = time.perf_counter()
    pool = ThreadPoolExecutor(1 if on_gpus else len(lowered))
    try:
        list(pool.map(lambda program: program.compile(), lowered))
    finally:  # Ctrl-C does not wait for the compiler
        pool.shutdown(wait=False, cancel_futures=True)
    print(f"{len(lowered)} programs compiled in {time.perf_counter() - start:.1f} s")

def lowered_step(make_step, num_gpus):
    n, running_on = num_gpus * batch_size, gpus[:num_gpus]
    start = start_of(running_on, num_gpus * s.lr)
    if make_step is make_pmap_step:
        X, y = train_images[:n], train_labels[:n]
        X, y = (a.reshape(num_gpus, -1, *a.shape[1:]) for a in (X, y))
        return pmapped(tuple(running_on)).lower(*start, X, y)
    split = NamedSharding(mesh_of(running_on), P("data"))
    return train_step.lower(*start, *jax.device_put((train_images[:n], train_labels[:n]), split))

# %% tags=["slow"]
compile_all(*(lowered_step(make_jit_step, m) for m in {1, n_gpus}),
            lowered_step(make_pmap_step, n_gpus))

# %% [markdown]
# After so few updates, look at the training loss. The test accuracy lags behind: after $i$ updates,
# the fresh network still has a share of $0.9^i$ in BatchNorm's running statistics.

# %% tags=["slow"]
one = train(num_gpus=1, batch_size=batch_size, lr=s.lr)

# %% tags=["slow"]
several = one  # on a single GPU, the same run
if n_gpus > 1:
    several = train(num_gpus=n_gpus, batch_size=n_gpus * batch_size, lr=n_gpus * s.lr)

# %% tags=["slow"]
by_pmap = train(num_gpus=n_gpus, batch_size=n_gpus * batch_size, lr=n_gpus * s.lr,
                make_step=make_pmap_step, epochs=epochs if n_gpus > 1 else 1)

# %% [markdown]
# The book printed two runs. These are its figures for epochs of 60,000 images:
#
# | | seconds per epoch | test accuracy after epochs 1 to 4 | again |
# |:--|:--|:--|:--|
# | one GPU, batch 256, rate 0.1 | 14.0, 12.9, 13.0, 13.0 | .89 .91 .91 .92 | .87 .90 .92 .93 |
# | two GPUs, batch 512, rate 0.2 | 7.3, 6.7, 6.7, 6.7 | .69 .86 .89 .90 | .75 .86 .85 .76 |
#
# The two runs on two GPUs differ by 0.14 after four epochs. So judge an accuracy by several seeds,
# not by one run. One H200 (JAX 0.11.2, 2026-11-27) takes 2.3 s per epoch with the program above,
# and reaches .85 .87 .90 .91. With the images on the GPU and each epoch as one program
# (`experiments/train.py`), it takes 1.37 s, and reaches .86 .90 .91 .91.

# %% tags=["slow"]
book = {"one GPU": [.89, .91, .91, .92], "one GPU, again": [.87, .90, .92, .93],
        "two GPUs": [.69, .86, .89, .90], "two GPUs, again": [.75, .86, .85, .76]}
fig, axes = plt.subplots(1, 2, sharey=True)
for style, color, (label, values) in zip(("o-", "o:", "s-", "s:"), "0011", book.items()):
    axes[0].plot(range(1, 5), values, style, color=f"C{color}", label=label)
for label, history in (("one", one), (f"{n_gpus}, jit", several), (f"{n_gpus}, pmap", by_pmap)):
    axes[1].plot(range(1, len(history) + 1), [acc for _, acc in history], "o-", label=label)
axes[0].set(title="the book", xlabel="epoch", ylabel="test accuracy", ylim=(0, 1))
axes[1].set(title=f"{channels} channels, {len(train_labels):,} images", xlabel="epoch")
for ax in axes:
    ax.legend(fontsize="small")
s.figure(fig, "Left: with twice the batch and rate, ResNet-18 starts slower. Right: here.")

worst = max(history[-1][0] for history in (one, several, by_pmap))
s.claim("ResNet-18 learns on one device and on several", holds=worst < 2.2,
        expected="a training loss below 2.2 in the last epoch; guessing gives log 10 = 2.3",
        observed=f"{worst:.2f} in the worst training", source="section 8.5.2",
        since="2026-11-26", first="a test accuracy above 0.2; short trainings miss it",
        cannot="toy size" if s.smoke else "")

# %% [markdown]
# ### The learning rate and the batch
# Why does the book double the rate? This is the *linear scaling rule* of [Goyal et al.
# (2017)](https://arxiv.org/abs/1706.02677): if the batch is $k$ times as large, multiply the
# learning rate by $k$. One step with a batch of $kn$ and the rate $k\eta$ then replaces $k$ steps
# with batches of $n$ and the rate $\eta$. The rule assumes that the gradient changes little during
# these $k$ steps. At the beginning it changes fast, so the authors add a *warm-up*: the rate grows
# from $\eta$ to $k\eta$ in the first epochs. In optax:
#
# ```python
# warmup = 5 * updates_per_epoch
# sgd = optax.sgd(optax.linear_schedule(lr, k * lr, transition_steps=warmup), momentum=0.9)
# ```
#
# The book has no warm-up, and its curves show the cost: the first epoch on two GPUs ends at .69
# instead of .89. For LeNet in section 8.4 the rule helps less. LeNet's weights are so small that it
# starts on a plateau. LeNet needs many steps in a row to leave it, and then the gradient changes
# fast. The rule is about the batch, not about the number of devices.
#
# ### Over which images does BatchNorm average?
# Gluon's `BatchNorm` and PyTorch's `DataParallel` normalize each device's share separately. In JAX
# this depends on how you write the step.
#
# <details><summary>Predict: a batch of 0, 1, 2, 3, ... is split among the devices. What does
# BatchNorm return under <code>pmap</code>, and what under <code>jit</code>?</summary>
#
# Under `pmap` (and `shard_map`), you write the code for one device, so each share has its own mean
# and is normalized to -1, 1. Under `jit`, you write the code for the whole batch. The compiler
# inserts an all-reduce to get the mean of *all* images.
#
# </details>

# %%
values = jnp.arange(2.0 * k).reshape(2 * k, 1)
norm = nnx.BatchNorm(1, rngs=nnx.Rngs(0))
whole = nnx.BatchNorm(1, axis_name="data", rngs=nnx.Rngs(0))
call = jax.jit(lambda norm, x: norm(x))
over_devices = partial(jax.pmap, axis_name="data", in_axes=(None, 0), devices=devices)
shares = values.reshape(k, 2, 1)
rows = [("jit, one device", call(norm, values)),
        ("jit, split batch", call(norm, jax.device_put(values, split))),
        ("pmap", over_devices(lambda norm, x: norm(x))(norm, shares)),
        ("pmap, axis_name", over_devices(lambda norm, x: norm(x))(whole, shares))]
for way, normalized in rows:
    print(f"{way:17}", *(f"{v:5.2f}" for v in normalized.ravel()))

# %% [markdown]
# `nnx.BatchNorm(..., axis_name="data")` makes a device's program average over all devices. PyTorch
# calls this `SyncBatchNorm`. Which one is better? Averages over the whole batch make the result
# independent of the number of devices, but every BatchNorm layer needs small all-reduces. Averages
# over the shares need no communication, but are noisier if the shares are small.
#
# Now compare a step of the network. Each way makes one update from the same parameters. We compare
# numbers, not speed, so the network is narrow. On a machine with GPUs it runs on parts of the CPU,
# where it compiles faster and float32 is not rounded to TF32.

# %%
parts_of_cpu = jax.devices("cpu")[: s.devices] if on_gpus else devices
batch = train_images[: k * s.batch_size], train_labels[: k * s.batch_size]

def update_by(make_step, devices, axis_name=None, one_pass=True):
    net, optimizer = start_of(devices, k * s.lr, channels=s.channels)
    for _, module in nnx.iter_graph(net):
        if isinstance(module, nnx.BatchNorm):
            module.axis_name, module.use_fast_variance = axis_name, one_pass
    new, _, _ = make_step(devices)(net, optimizer, *batch)
    before, after = jax.device_get([nnx.state(net, nnx.Param), nnx.state(new, nnx.Param)])
    return jax.tree.map(np.subtract, after, before)

def apart(a, b):
    """The largest difference of two updates, as a part of the largest change."""
    largest = max(np.abs(u).max() for u in jax.tree.leaves(b))
    return max(np.abs(u - v).max() for u, v in zip(*map(jax.tree.leaves, (a, b)))) / largest

alone = update_by(make_jit_step, parts_of_cpu[:1])
parts = {"jit, split batch": apart(update_by(make_jit_step, parts_of_cpu), alone),
         "pmap": apart(update_by(make_pmap_step, parts_of_cpu), alone)}

# %% tags=["slow"]
parts["pmap, axis_name"] = apart(update_by(make_pmap_step, parts_of_cpu, "data"), alone)
two_pass = update_by(make_pmap_step, parts_of_cpu, "data", one_pass=False)
parts["the same, two passes"] = apart(two_pass, alone)
for way, part in parts.items():
    print(f"{way:20} differs from one device by {part:.0e} of the largest change")
by_jit, by_axis = parts["jit, split batch"], parts["the same, two passes"]
s.claim("With BatchNorm over the whole batch, several devices compute what one computes",
        holds=max(by_jit, by_axis) < 1e-3, since="2026-11-26",
        expected="updates within 0.1% of the largest change",
        observed=f"jit {by_jit:.0e}, pmap with axis_name and two passes {by_axis:.0e}",
        first="pmap with axis_name was judged with the variance in one pass; it differed by 0.2%")

# %% [markdown]
# Why is there a row with two passes? By default, Flax computes a variance in one pass over the
# images, as $E[x^2] - E[x]^2$. This can be a small difference between two large numbers, so
# rounding matters, and several devices round in another order than one device.
# `use_fast_variance=False` makes a second pass, over $(x - E[x])^2$. The difference is then as
# small as under `jit`. With other seeds, we saw differences of up to 1%, also under `jit`: where
# the input of a relu is almost 0, rounding decides whether its gradient passes.
#
# ### Why ResNet-18 gains more than LeNet
# On two GPUs, the book's LeNet became slower and its ResNet-18 almost twice as fast. A step sums as
# many bytes as the parameters occupy, whatever the batch, but its computation grows with the batch.
# We count both without running anything: `eval_shape` makes a network without values, and a lowered
# program, which is not compiled yet, knows its FLOPs.

# %%
def lenet(rngs):
    pool = partial(nnx.avg_pool, window_shape=(2, 2), strides=(2, 2))
    return nnx.Sequential(
        nnx.Conv(1, 20, (3, 3), padding="VALID", rngs=rngs), nnx.relu, pool,
        nnx.Conv(20, 50, (5, 5), padding="VALID", rngs=rngs), nnx.relu, pool,
        lambda X: X.reshape(len(X), -1), nnx.Linear(800, 128, rngs=rngs), nnx.relu,
        nnx.Linear(128, 10, rngs=rngs))

def counts(make_net, n):
    net = nnx.eval_shape(lambda: make_net(rngs=nnx.Rngs(0)))
    X = jax.ShapeDtypeStruct((n, 28, 28, 1), "uint8")
    y = jax.ShapeDtypeStruct((n,), "int32")
    with jax.default_device(jax.devices("cpu")[0]):  # XLA counts no FLOPs for a GPU
        cost = jax.jit(nnx.grad(cross_entropy)).lower(net, X, y).cost_analysis() or {}
    flops = cost.get("flops", float("nan"))
    return flops, sum(4 * p.size for p in jax.tree.leaves(nnx.state(net, nnx.Param)))

full_resnet18 = partial(resnet18, 10)  # 64 channels
rows, per_byte = [], {}
for name, make_net, sizes in (("LeNet", lenet, (128, 256)),
                              ("ResNet-18", full_resnet18, (64, 256))):
    for n in sizes:
        flops, summed = counts(make_net, n)
        per_byte[name, n] = flops / summed
        cells = f"{flops / 1e9:.2f}", f"{summed / 1e6:.2f}", f"{flops / summed:,.0f}"
        rows.append((name, n, *cells))
s.grid(["network", "images per device", "GFLOP", "MB summed", "FLOP per byte"], rows,
       title="What a device computes in a step, and what it sums")
gain = per_byte["ResNet-18", 256] / per_byte["LeNet", 256]
s.claim("For the same batch, ResNet-18 computes more per byte that it sums than LeNet",
        holds=gain > 1, expected="more FLOPs per byte",
        observed=f"{gain:.1f} times as many", source="section 8.5.2", since="2026-11-26",
        cannot="" if gain == gain else "XLA does not count FLOPs here",
        first="the claim named no batch; ResNet-18 with 64 images is below LeNet with 256")

# %% [markdown]
# Read the last column at the book's sizes: LeNet with 128 images per device, ResNet-18 with 256.
# Then compare ResNet-18 with 64 images to LeNet with 256. **The batch per device matters as much as
# the network**: a large network with few images per device communicates most of the time.
#
# Bytes are not the only cost. Each operation also has a fixed overhead, which is large compared
# with LeNet's short steps (section 8.4.6). Many small networks do not gain from a second GPU.
#
# How long do the two ways take? We time them in turns. Parts of a CPU share the same cores, so
# there the times show no gain.

# %% tags=["slow"]
def calls_of(make_step):
    n = n_gpus * batch_size
    start = start_of(gpus, n_gpus * s.lr)
    return partial(make_step(gpus), *start, train_images[:n], train_labels[:n])

times = interleaved({"jit": calls_of(make_jit_step), "pmap": calls_of(make_pmap_step)},
                    count=s.rounds)
s.table(times, title=f"One step of {n_gpus * batch_size} images on {n_gpus} devices", base="jit")

# %% [markdown]
# ### Mixed precision
# One H200 multiplies matrices in bfloat16 1.9 times as fast as in float32, which it rounds to TF32
# ([figures](../docs/performance.md)). In Flax, a layer computes in its `dtype`, and the parameters
# stay float32.

# %%
half = nnx.clone(net)
for _, module in nnx.iter_graph(half):
    if isinstance(module, nnx.Conv | nnx.Linear | nnx.BatchNorm):
        module.dtype = jnp.bfloat16
logits, exact = predict(half, x), predict(net, x)
relative = float(abs(logits - exact).max() / abs(exact).max())
print(f"parameters {half.layers[0].kernel.dtype}, logits {logits.dtype}")
print(f"largest difference of the logits: {relative:.1%}")

# %% [markdown]
# On one H200, training reached these images per second (JAX 0.11.2, 2026-11-26):
#
# | ResNet-18 | batch 256 | batch 1024 |
# |:--|--:|--:|
# | float32 in TF32, JAX's default on this GPU | 42,900 | 55,600 |
# | bfloat16 | 70,400 | 115,000 |
#
# JAX compiles a separate program for each batch size and precision.
#
# Checkpoints, training in several processes, and a recipe that reaches a test accuracy of 0.93 in
# few epochs (`--recipe fast`) are in the training program `experiments/train.py`.
#
# ## 8.5.3 Summary
# - In Gluon, in PyTorch, and in JAX, training on several GPUs takes a few lines: put the parameters
#   on all devices, and split the batch.
# - A JAX array on several devices is one value. `addressable_shards` shows its parts.
# - `jit` with a split batch is the first choice. BatchNorm then averages over the whole batch.
#   Under `pmap` and `shard_map` it averages over a share, unless you give it `axis_name`.
# - If the batch becomes $k$ times as large, multiply the learning rate by $k$, too, with a warm-up.
# - A second device pays off if each device computes much per byte that it sums. So use a large
#   network and many images per device.
#
# ## 8.5.4 Exercises
# Think first, then open the code and the answer. The code runs with `--answers`.
#
# **1 (the book's).** Try other numbers of epochs, batch sizes, and learning rates. If you can, use
# more GPUs. A retelling warns that a batch of 512 is too large for little data. Is this true?

# %% tags=["slow", "answer"]
rows = []
for n, lr, passes in ((batch_size, s.lr, epochs), (batch_size, 4 * s.lr, epochs),
                      (4 * batch_size, s.lr, epochs), (4 * batch_size, 4 * s.lr, epochs),
                      (4 * batch_size, 4 * s.lr, 4 * epochs)):
    n = min(n, len(train_labels))
    updates = len(train_labels) // n * passes
    loss, acc = train(1, n, lr, epochs=passes)[-1]
    rows.append((n, f"{lr:g}", passes, updates, f"{loss:.2f}", f"{acc:.2f}"))
s.grid(["batch", "rate", "epochs", "updates", "train loss", "test accuracy"], rows,
       title="Exercise 1")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Compare the rows by their number of updates. With four times the batch, an epoch has a quarter of
# the updates. With little data, these are too few to learn as much, whatever the rate. Four times
# as many epochs restore the number of updates, each with four times the images. The retelling is
# right about little data, and the reason is the number of updates. A curve that jumps up and down
# comes from a large rate and from BatchNorm's running statistics, which need some tens of updates
# to follow. For more devices, use `--devices 8`.
#
# </details>
#
# **2 (the book's).** Devices may differ in speed, for example a CPU and a GPU. How should the batch
# be divided? Give one device three quarters of the batch. Is the gradient still right?
#
# Check it with `jaxperf check 8.5.2 mine.py`: `mine.py` defines `gradient(loss, params,
# shares)`. `loss(params, X, y)` is a mean over examples, and the shares `(X, y)` have
# different sizes.

# %% tags=["answer"]
@jax.jit
def summed_gradient(net, X, y):
    steady = nnx.view(net, use_running_average=True)
    return nnx.grad(lambda net: len(y) * cross_entropy(net, X, y))(steady)

X, y = batch
cut = 3 * len(y) // 4
gradients = []
for device, rows in ((devices[0], slice(0, cut)), (devices[-1], slice(cut, None))):
    share = jax.device_put((fresh_net(), X[rows], y[rows]), device)
    gradients.append(summed_gradient(*share))
total = jax.tree.map(np.add, *jax.device_get(gradients))
print(f"apart by {apart(total, jax.device_get(summed_gradient(fresh_net(), X, y))):.0e}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# A step waits for the slowest device, so give each device a share in proportion to its speed. The
# gradient stays right if you sum over examples and divide by the size of the whole batch. A mean of
# the devices' means would weight the examples wrongly. `P("data")` makes equal shares, so you must
# write unequal ones by hand. A reader of the book gave a GPU and the CPU equal shares: the GPU then
# waits for most of the step. A slow device may get no image at all. One H200 trains 42,900 images
# per second; a CPU that trains 40 would get $256 \cdot 40 / 42{,}940 = 0.2$ images of a
# batch of 256. BatchNorm per share then averages over different numbers of images, too.
#
# </details>
#
# **3.** How many all-reduces does the step have under `jit`, and how many under `pmap`? Why?

# %% tags=["answer"]
fresh = fresh_net()
optimizer = nnx.Optimizer(fresh, sgd(k * s.lr), wrt=nnx.Param)
state = jax.device_put((fresh, optimizer), everywhere)
stacked = [array.reshape(k, -1, *array.shape[1:]) for array in batch]
programs = {"jit": train_step.lower(*state, *jax.device_put(batch, split)),
            "pmap": pmapped(tuple(devices)).lower(*state, *stacked)}
for way, program in programs.items():
    text = program.compile().as_text() or ""
    print(way, text.count(" all-reduce(") + text.count(" all-reduce-start("))

# %% [markdown]
# <details><summary>Answer</summary>
#
# Under `pmap` there is one: the compiler combines the sums of gradients, statistics, and loss.
# Under `jit` there are 35. The 17 BatchNorm layers need their own all-reduces, for mean and
# variance in the forward pass and for their gradients in the backward pass. Each all-reduce moves
# only a few numbers per channel. On real devices it also adds a delay, and cannot be combined with
# the next, which depends on it.
#
# </details>
#
# **4.** Predict the book's epoch on two GPUs, batch 512, from its epoch on one (13.0 s, batch 256).
# Assume that the GPUs sum the gradients of 44.7 MB at 10 GB/s in each direction.

# %% tags=["answer"]
steps = 60_000 // 256
step_time = 13.0 / steps
all_reduce_time = 44.7e6 / 10e9
print(f"one GPU: {steps} steps of {1e3 * step_time:.1f} ms")
print(f"two GPUs: {60_000 // 512} steps of {1e3 * (step_time + all_reduce_time):.1f} ms, "
      f"{60_000 // 512 * (step_time + all_reduce_time):.1f} s; the book: 6.7 s")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Each GPU computes 256 images in 56 ms, as before. It then needs about 4.5 ms to exchange gradients
# with the other GPU. So 117 steps of 60 ms take 7.0 s, and the book printed 6.7 s. The book's sum
# was faster, or overlapped with the backward pass, or both. Do the same for LeNet: 0.05 ms on top
# of a step of 6 ms cannot explain the book's 10.7 ms.
#
# </details>
#
# **5.** In the table above, bfloat16 is 1.64 times as fast as TF32 at batch 256 and 2.07 times at
# batch 1024. Why do these factors differ? What do you expect with 128 images per GPU?

# %% [markdown]
# <details><summary>Answer</summary>
#
# A step does more than multiply. It starts a few hundred kernels. It also reads and writes
# activations (BatchNorm, relu, additions), and bfloat16 at best halves this time. At batch 256 the
# step takes 3.64 ms, and many kernels may be too small to fill the GPU (we did not check). With 128
# images we expect a factor below 1.64 (not measured here). That is the cost of dividing a batch
# among more GPUs instead of letting it grow.
#
# </details>
