# %% [markdown]
# # 8.5 Concise training on several devices
# How little code does data parallelism need, and which network gains from it?
# After this section you can
# - initialize a Flax network on several devices, and read its parameters there;
# - train it on all devices with `jit` and a sharded batch, and with `pmap` and `psum`;
# - say over which images BatchNorm averages, and choose them;
# - check that several devices compute what one computes, and tell rounding from an error;
# - scale the learning rate with the batch, and say when this fails;
# - estimate from FLOPs and bytes whether a second device will pay off.
#
# The book's program needs two GPUs. You need none: JAX divides a CPU into devices, and by default a
# narrow ResNet-18 learns in seconds. `--full` trains it on all 60,000 images. With a GPU, the
# book's first training is `--platform gpu --devices 1 --channels 64 --data auto --images 60000
# --batch-size 256 --epochs 4`.

# %%
import functools
import itertools
import math
import time
from functools import partial

import chex
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx
from jax import P, lax

from jaxperf.chapter.section import section
from jaxperf.data import epoch_batches, fashion_mnist
from jaxperf.measure import interleaved

s = section("8.5", devices=2, channels=8, images=1024, epochs=2, lr=0.1,
            batch_size=32, seeds=(0, 1, 2), data="mini", data_folder=None,
            smoke={"channels": 2, "images": 32, "epochs": 1, "batch_size": 8},
            full={"data": "auto", "images": 60_000, "epochs": 1})
devices = jax.devices()[: s.devices]
mesh = jax.make_mesh((len(devices),), ("data",), devices=devices)
data = fashion_mnist(source="folder" if s.data_folder else s.data,
                     folder=s.data_folder)

# %% tags=["hide-input"]
s.data_source(data.source)
print(f"{len(devices)} devices: {devices}")
print(f"{s.channels} channels, {s.images:,} images from {data.source}")

# %% [markdown]
# [Section 8.4](multiple_gpus) defined `get_params`, `allreduce`, and `split_and_load` by hand.
# Gluon and JAX have them built in.
#
# ## 8.5.1 Initializing parameters on several devices
# The network is ResNet-18. The images are small, so the book uses a 3 × 3 kernel with stride 1 in
# the first convolution, and leaves out the max pooling that follows.
#
# ![A residual block: two convolutions with BatchNorm, and the input added before the last
# relu.](images/residual_block.svg "A residual block.")

# %%
normal = nnx.initializers.normal(0.01)
conv = partial(nnx.Conv, kernel_init=normal)
batch_norm = partial(nnx.BatchNorm, momentum=0.9)

class Residual(nnx.Module):
    def __init__(self, inputs, outputs, use_1x1conv=False, strides=1, *,
                 relu=nnx.relu, rngs):
        self.conv1 = conv(inputs, outputs, (3, 3), strides=strides, padding=1,
                          rngs=rngs)
        self.conv2 = conv(outputs, outputs, (3, 3), padding=1, rngs=rngs)
        self.conv3 = (conv(inputs, outputs, (1, 1), strides=strides, rngs=rngs)
                      if use_1x1conv else None)
        self.bn1 = batch_norm(outputs, rngs=rngs)
        self.bn2 = batch_norm(outputs, rngs=rngs)
        self.relu = relu

    def __call__(self, X):
        Y = self.relu(self.bn1(self.conv1(X)))
        Y = self.bn2(self.conv2(Y))
        return self.relu(Y + (self.conv3(X) if self.conv3 else X))

# %%
# a network
def global_avg_pool(X):
    return X.mean((1, 2))

def resnet18(num_classes, channels=64, stages=4, relu=nnx.relu, *, rngs):
    def resnet_block(inputs, outputs, first_block=False):
        new = partial(Residual, relu=relu, rngs=rngs)
        shape = {} if first_block else {"use_1x1conv": True, "strides": 2}
        return [new(inputs, outputs, **shape), new(outputs, outputs)]

    widths = [channels * 2**i for i in range(stages)]
    blocks = resnet_block(channels, channels, first_block=True)
    for inputs, outputs in itertools.pairwise(widths):
        blocks += resnet_block(inputs, outputs)
    return nnx.Sequential(
        conv(1, channels, (3, 3), padding=1, rngs=rngs),
        batch_norm(channels, rngs=rngs), relu, *blocks, global_avg_pool,
        nnx.Linear(widths[-1], num_classes, kernel_init=normal, rngs=rngs))

# %% [markdown]
# `stages=2` leaves out the second half; we use it below where the depth does not matter.
#
# A Flax module is a tree of arrays, so one call puts the whole network on all devices. As in
# [section 8.4](multiple_gpus), `P()` makes a copy on each device of the current mesh, and
# `P("data")` splits the first dimension.

# %%
@partial(jax.jit, static_argnames=("channels", "stages", "relu"))
def draw(key, channels, stages=4, relu=nnx.relu):  # all weights in one program
    return resnet18(10, channels, stages, relu, rngs=nnx.Rngs(key))

def fresh_net(seed, channels, stages=4, relu=nnx.relu):
    # "rbg" keys compile faster than the default ones, for so many shapes
    return draw(jax.random.key(seed, impl="rbg"), channels, stages, relu)

# %%
net = fresh_net(0, s.channels)
with jax.set_mesh(mesh):
    net = jax.device_put(net, P())
parameters = jax.tree.leaves(nnx.state(net, nnx.Param))
print(f"{sum(p.size for p in parameters):,} parameters")

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

# %%
images = jax.random.uniform(jax.random.key(1), (2 * len(devices), 28, 28, 1))
with jax.set_mesh(mesh):
    x = jax.device_put(images, P("data"))
    y = predict(net, x)
for shard in y.addressable_shards:
    numbers = (f"{value:.2e}" for value in shard.data[0, :4])
    print(f"on {shard.device}:", *numbers, "...")

# %% tags=["hide-input"]
largest = float(abs(y).max())
s.claim("The outputs of the fresh network are of the order of 1e-6",
        holds=1e-7 < largest < 1e-4, expected="between 1e-7 and 1e-4",
        observed=f"at most {largest:.1e}", source="section 8.5.1",
        cannot="" if s.channels == 64 else "another width; --channels 64 has "
                                           "the book's",
        if_holds="The outputs are tiny, because the weights are small.",
        if_not="The outputs are larger or smaller than the book's: compare "
               "the initial weights.",
        if_open=f"With {s.channels} channels they are at most {largest:.0e}. "
                "A narrower network adds up fewer small products in each "
                "layer, so its outputs are smaller.")

# %% [markdown]
# In prediction, BatchNorm uses its running statistics. In a fresh network these are mean 0 and
# variance 1, so small outputs stay small. In training, BatchNorm uses the statistics of the
# batch, and the network learns.
#
# Now read a weight. The book calls `weight.data()`, gets the error "not initialized on cpu(0)", and
# has to name a device. In JAX you need not name one. Also look at where its copies are.

# %%
weight = net.layers[0].kernel[...]
print("no device named:\n", np.asarray(weight)[:, :, 0, 0])
jax.debug.visualize_array_sharding(weight.reshape(9, -1))
copies = [np.asarray(shard.data) for shard in weight.addressable_shards]

# %% tags=["hide-input"]
same = all(np.array_equal(copies[0], copy) for copy in copies)
s.claim("The same parameter has the same values on every device", holds=same,
        expected="equal to the last bit",
        observed="equal" if same else "not equal",
        source="section 8.5.1",
        if_holds="Each device has a copy of the same bits.",
        if_not="The copies differ, so the devices train different networks.")

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
    losses = optax.softmax_cross_entropy_with_integer_labels(net(X / 255), y)
    return losses.mean()

@jax.jit
def train_step(net, optimizer, X, y):
    loss, grads = nnx.value_and_grad(cross_entropy)(net, X, y)
    optimizer.update(net, grads)
    return net, optimizer, loss

# %%
def make_jit_step(mesh):
    def step(net, optimizer, X, y):
        with jax.set_mesh(mesh):
            X, y = jax.device_put((X, y), P("data"))
            return train_step(net, optimizer, X, y)
    return step

# %% [markdown]
# ::::{tab-set}
# :::{tab-item} Gluon
# ```python
# trainer = gluon.Trainer(net.collect_params(), 'sgd',
#                         {'learning_rate': lr})
# gpu_Xs = gutils.split_and_load(X, ctx)
# gpu_ys = gutils.split_and_load(y, ctx)
# with autograd.record():
#     ls = [loss(net(X), y) for X, y in zip(gpu_Xs, gpu_ys)]
# for l in ls:
#     l.backward()
# trainer.step(batch_size)
# ```
# :::
# :::{tab-item} PyTorch
# ```python
# # one process, one thread per GPU
# net = nn.DataParallel(net, device_ids=devices)
# trainer.zero_grad()
# loss(net(X), y).backward()
# trainer.step()
#
# # recommended: one process per GPU
# net = DistributedDataParallel(net)
# ```
# :::
# :::{tab-item} Flax, in place
# ```python
# @nnx.jit  # updates net and optimizer in place
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
@functools.cache  # one compiled step per mesh
def pmapped(mesh):
    @partial(jax.pmap, axis_name="data", in_axes=(None, None, 0, 0),
             out_axes=None, devices=list(mesh.devices.flat))
    def step(net, optimizer, X, y):
        loss, grads = nnx.value_and_grad(cross_entropy)(net, X, y)
        grads = jax.tree.map(lambda g: lax.psum(g, "data") / mesh.size, grads)
        optimizer.update(net, grads)
        nnx.update(net, lax.pmean(nnx.state(net, nnx.BatchStat), "data"))
        return net, optimizer, lax.pmean(loss, "data")
    return step

# %%
def make_pmap_step(mesh):
    def step(net, optimizer, X, y):
        X, y = (a.reshape(mesh.size, -1, *a.shape[1:]) for a in (X, y))
        return pmapped(mesh)(net, optimizer, X, y)
    return step

# %% [markdown]
# `step` also averages BatchNorm's running statistics. In Gluon each device keeps its own
# statistics, and saving averages them. PyTorch's `DataParallel` keeps the first device's.
# Parameters and statistics must be equal on all devices, because `out_axes=None` takes one copy and
# drops the others.
#
# `train` works with both steps. It makes one step before the clock starts, so that the epochs'
# times exclude compiling. It waits for each step, because programs with collectives that run at
# once on CPU devices can block each other.

# %%
sgd = functools.cache(optax.sgd)  # one object per rate: another one recompiles

def start_of(mesh, lr, seed, channels, rule=sgd, **kwargs):
    """A fresh network and its optimizer, copied to each device."""
    net = fresh_net(seed, channels, **kwargs)
    optimizer = nnx.Optimizer(net, rule(lr), wrt=nnx.Param)
    with jax.set_mesh(mesh):
        return jax.device_put((net, optimizer), P())

# %%
@jax.jit
def correct(net, X, y):
    return (predict(net, X / 255).argmax(-1) == y).sum()

def accuracy(net, X, y, n=250):
    counts = [correct(net, X[i : i + n], y[i : i + n])
              for i in range(0, len(y), n)]
    return sum(map(int, counts)) / len(y)

# %%
def batches(batch_size, seed, epoch, images):
    X, y = data.train_images[:images], data.train_labels[:images]
    return epoch_batches(X, y, batch_size=batch_size, seed=seed, epoch=epoch)

# %%
def one_epoch(step, net, optimizer, batches):
    """Train, and return the network, the optimizer, and the mean loss."""
    losses = []
    for X, y in batches:
        net, optimizer, loss = step(net, optimizer, X, y)
        losses.append(float(loss))  # waits
    return net, optimizer, float(np.mean(losses))

# %%
def train(num_gpus, batch_size, lr, seed=0, epochs=4, images=60_000,
          channels=64, make_step=make_jit_step, rule=sgd):
    """Return the mean training loss and the test accuracy of each epoch."""
    mesh = jax.make_mesh((num_gpus,), ("data",), devices=devices[:num_gpus])
    net, optimizer = start_of(mesh, lr, seed, channels, rule)
    step, history = make_step(mesh), []
    X, y = data.train_images[:batch_size], data.train_labels[:batch_size]
    jax.block_until_ready(step(net, optimizer, X, y))  # compiles
    for epoch in range(epochs):
        start = time.perf_counter()
        rows = batches(batch_size, seed, epoch, images)
        net, optimizer, loss = one_epoch(step, net, optimizer, rows)
        seconds = time.perf_counter() - start
        first_copy = jax.tree.map(lambda a: a.addressable_data(0), net)
        test = accuracy(first_copy, data.test_images, data.test_labels)
        history.append((loss, test))
        print(f"{num_gpus} of {len(devices)} devices, seed {seed}, "
              f"epoch {epoch + 1}, time "
              f"{seconds:.1f} sec, train loss {loss:.2f}, test acc {test:.2f}")
    return history

# %% [markdown]
# The book trains with `train(num_gpus=1, batch_size=256, lr=0.1)`, and then with `train(num_gpus=2,
# batch_size=512, lr=0.2)`. The second call doubles the batch, so that each GPU has as many images
# as before. It also doubles the rate (see below). We do the same with smaller batches, and with
# several seeds.
#
# After few updates, look at the training loss. The test accuracy lags behind: after $i$ updates,
# the fresh network still has a share of $0.9^i$ in BatchNorm's running statistics.

# %% tags=["slow"]
sizes = {"images": s.images, "channels": s.channels, "epochs": s.epochs}
one = [train(1, s.batch_size, s.lr, seed, **sizes) for seed in s.seeds]

k = len(devices)
several = [train(k, k * s.batch_size, k * s.lr, seed, **sizes)
           for seed in s.seeds]

# %% tags=["slow", "hide-input"]
worst = max(history[-1][0] for history in one + several)
s.claim("ResNet-18 learns on one device and on several", holds=worst < 2.2,
        expected="a training loss below 2.2 in the last epoch; guessing gives "
                 "log 10 = 2.3",
        observed=f"{worst:.2f} in the worst training", source="section 8.5.2",
        needs=["size"],
        if_holds="With every seed the loss is below that of guessing, on one "
        "device and on several.",
        if_not="At least one training has not begun to learn: it needs more "
               "updates.",
        if_open="A few images of toy size teach nothing.")

# %% tags=["slow", "hide-input"]
ends = [[history[-1][1] for history in way] for way in (one, several)]
shown = [", ".join(f"{end:.2f}" for end in way) for way in ends]
s.claim("With twice the batch and the rate, ResNet-18 learns as much in an "
        "epoch",
        holds=max(ends[1]) >= min(ends[0]),
        expected="accuracies of the seeds that overlap",
        observed=f"{shown[0]}; and {shown[1]}",
        cannot="one of them guesses" if min(map(max, ends)) < 0.3 else "",
        if_holds="With the larger batch, a seed ends as high as one on one "
                 "device: seeds differ as much as the ways do.",
        if_not="With the larger batch, every seed ends below those on one "
               "device. The larger batch makes fewer updates per epoch, and "
               "the rate is larger: exercise 1 takes the two apart.",
        if_open="After so few updates, accuracies say nothing yet; `--full` "
                "trains on all images.")

# %% [markdown]
# The book printed two runs. These are its figures for epochs of 60,000 images:
#
# | | seconds per epoch | test accuracy after epochs 1 to 4 | again |
# |:--|:--|:--|:--|
# | one GPU, batch 256, rate 0.1 | 14.0, 12.9, 13.0, 13.0 | .89 .91 .91 .92 | .87 .90 .92 .93 |
# | two GPUs, batch 512, rate 0.2 | 7.3, 6.7, 6.7, 6.7 | .69 .86 .89 .90 | .75 .86 .85 .76 |
#
# The two runs on two GPUs differ by 0.14 after four epochs. So judge an accuracy by several seeds,
# not by one run.

# %% tags=["slow", "hide-input"]
book = {"one GPU": [.89, .91, .91, .92], "one, again": [.87, .90, .92, .93],
        "two GPUs": [.69, .86, .89, .90], "two, again": [.75, .86, .85, .76]}
styles = ("o-C0", "o:C0", "s-C1", "s:C1")
fig, (left, right) = plt.subplots(1, 2, sharey=True)
for style, (label, values) in zip(styles, book.items()):
    left.plot(range(1, 5), values, style, label=label)
ways = ((one, "o-C0", "one device"), (several, "s--C1", f"{k} devices"))
for histories, style, label in ways:
    for i, history in enumerate(histories):
        right.plot(range(1, len(history) + 1), [acc for _, acc in history],
                   style, label=None if i else label)
left.set(title="the book", xlabel="epoch", ylabel="test accuracy", ylim=(0, 1))
right.set(title=f"{s.channels} channels, {s.images:,} images", xlabel="epoch")
for ax in (left, right):
    ax.legend(fontsize="small")
s.figure(fig, "Left: the book's two runs. Right: here, with a marker per "
              "seed and epoch.",
         alt="Test accuracy over epochs, on one and on several devices.")

# %% [markdown]
# ### The learning rate and the batch
# Why does the book double the rate? This is the *linear scaling rule* of [Goyal et al.
# (2017)](https://arxiv.org/abs/1706.02677): if the batch is $k$ times as large, multiply the
# learning rate by $k$. One step with a batch of $kn$ and the rate $k\eta$ then replaces $k$ steps
# with batches of $n$ and the rate $\eta$. The rule assumes that the gradient changes little during
# these $k$ steps. At the beginning it changes fast, so the authors add a *warm-up*: the rate grows
# from $\eta$ to $k\eta$ in the first epochs. In optax:

# %%
def warm_up(lr, k, updates):
    """A rate that grows from lr to k times lr."""
    return optax.sgd(optax.linear_schedule(lr, k * lr, updates))

# %% [markdown]
# The book has no warm-up, and its first epoch on two GPUs ends at .69 or .75, instead of .89 or
# .87. Three things may cause this: the larger rate, the missing warm-up, and half as many updates.
# Exercise 1 takes them apart in a smaller training. For LeNet in section 8.4 the rule's assumption
# fails: LeNet's weights are so small that it starts on a plateau. LeNet needs many steps in a row
# to leave it, and then the gradient changes fast. The rule is about the batch, not about the number
# of devices.
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
norm = nnx.BatchNorm(1, rngs=nnx.Rngs(0))
whole = nnx.BatchNorm(1, axis_name="data", rngs=nnx.Rngs(0))
call = jax.jit(lambda norm, x: norm(x))
on_each = partial(jax.pmap, axis_name="data", in_axes=(None, 0),
                  devices=devices)
over_devices = on_each(lambda norm, x: norm(x))
values = jnp.arange(2.0 * len(devices)).reshape(-1, 1)
shares = values.reshape(-1, 2, 1)
with jax.set_mesh(mesh):
    by_jit = call(jax.device_put(norm, P()), jax.device_put(values, P("data")))
outputs = {"jit, one device": call(norm, values), "jit, split batch": by_jit,
           "pmap": over_devices(norm, shares),
           "pmap, axis_name": over_devices(whole, shares)}
for way, output in outputs.items():
    print(f"{way:16}", np.asarray(output).ravel().round(2))

# %% [markdown]
# `nnx.BatchNorm(..., axis_name="data")` makes a device's program average over all devices. PyTorch
# calls this `SyncBatchNorm`. Which one is better? Averages over the whole batch make the result
# independent of the number of devices, but every BatchNorm layer needs small all-reduces. Averages
# over the shares need no communication, but are noisier if the shares are small.
#
# ### Do several devices compute what one computes?
# With BatchNorm over the whole batch, the formulas say so. In practice three things can differ: the
# formulas, rounding, and what a network makes of rounding. So look in three steps:
# 1. in float64, where rounding is $2^{29}$ times smaller;
# 2. in float32, with a smooth function (softplus) in place of relu;
# 3. in float32, with relu.
#
# Each way makes one update from the same parameters. We divide the largest difference by the
# largest change, so 1 means as far apart as the update goes. `jax.enable_x64` allows float64 within
# its block. The network has two of the four stages; we compare numbers, not speed.

# %%
def updates(step, mesh, X, y, seed, dtype, relu=nnx.relu, axis_name=None):
    """The change of each parameter in one step, in float32 or float64."""
    with jax.enable_x64(dtype == "float64"):
        start = start_of(mesh, 0.1, seed, 4, stages=2, relu=relu)
        start = jax.tree.map(
            lambda a: a.astype(dtype) if a.dtype == "float32" else a, start)
        for _, module in nnx.iter_graph(start[0]):
            if isinstance(module, nnx.BatchNorm):
                module.axis_name = axis_name
        new, _, _ = step(mesh)(*start, X, y)
        nets = [nnx.state(net, nnx.Param) for net in (new, start[0])]
        changes = jax.tree.map(np.subtract, *jax.device_get(nets))
    return [np.asarray(change) for change in jax.tree.leaves(changes)]

# %%
def apart(a, b):
    """The largest difference of two updates, over the largest change."""
    chex.assert_trees_all_equal_shapes_and_dtypes(a, b)
    differences = [np.abs(u - v).max() for u, v in zip(a, b)]
    return max(differences) / max(np.abs(v).max() for v in b)

# %% [markdown]
# <details><summary>Predict: in which of the three steps can the devices differ by more than a
# ten-thousandth?</summary>
#
# In the third. Where the input of a relu is almost 0, rounding decides whether its gradient passes,
# so a difference in the last digit becomes a whole gradient. The next cell shows how much. With
# softplus, a small difference should stay small. Whether it happens depends on the seed, the
# machine, and the version of the compiler. Without BatchNorm over the whole batch (`pmap` without
# `axis_name`), the formulas differ, so the devices differ in every step.
#
# </details>

# %%
for function in (nnx.relu, nnx.softplus):
    slopes = [float(jax.grad(function)(x)) for x in (-1e-8, 1e-8)]
    print(f"{function.__name__}: slopes {slopes} at -1e-8 and 1e-8")

# %%
X, y = data.train_images[:64], data.train_labels[:64]
alone = jax.make_mesh((1,), ("data",), devices=devices[:1])

def compare(step, dtype, relu=nnx.relu, axis_name=None, seeds=10):
    """How far several devices are from one, for each seed."""
    return [apart(updates(step, mesh, X, y, seed, dtype, relu, axis_name),
                  updates(make_jit_step, alone, X, y, seed, dtype, relu))
            for seed in range(seeds)]

parts = {"jit": compare(make_jit_step, "float64", seeds=3),
         "axis": compare(make_pmap_step, "float64", axis_name="data", seeds=3),
         "pmap": compare(make_pmap_step, "float64", seeds=3),
         "softplus": compare(make_jit_step, "float32", nnx.softplus),
         "relu": compare(make_jit_step, "float32")}

# %% tags=["hide-input"]
names = {"jit": "1. float64, jit", "axis": "1. float64, pmap with axis_name",
         "pmap": "1. float64, pmap, BatchNorm over shares",
         "softplus": "2. float32, softplus, jit",
         "relu": "3. float32, relu, jit"}
rows = []
for key, name in names.items():
    quantiles = np.quantile(parts[key], (0, 0.5, 1))
    rows.append((name, len(parts[key]), *(f"{q:.0e}" for q in quantiles)))
s.grid(["step", "seeds", "smallest", "median", "largest"], rows,
       title=f"How far {len(devices)} devices are from one device")

# %% tags=["hide-input"]
equal = max(parts["jit"] + parts["axis"])
s.claim("With BatchNorm over the whole batch, several devices compute what "
        "one computes",
        holds=equal < 1e-12,
        expected="in float64, updates within 1e-12 of the largest change",
        observed=f"{equal:.0e} in the worst of three seeds",
        first="in float32 within 0.1%, with the variance in two passes; but "
              "one pass agrees as well",
        if_holds="The formulas agree: in float64, nothing but its rounding is "
                 "left.",
        if_not="Something else than rounding differs, since float64 rounds at "
               "1e-16: compare the gradients layer by layer.")

# %% tags=["hide-input"]
over_shares = min(parts["pmap"])
s.claim("BatchNorm over shares computes something else",
        holds=over_shares > 1e-6,
        expected="in float64, updates more than 1e-6 apart",
        observed=f"{over_shares:.0e} at least",
        if_holds="`pmap` without `axis_name` makes another update, in float64 "
                 "too: its formulas differ.",
        if_not="On one device, or if all shares have the same statistics, "
               "both formulas are the same.")

# %% tags=["hide-input"]
rounded, flipped = max(parts["softplus"]), max(parts["relu"])
many = sum(part > 10 * rounded for part in parts["relu"])
s.claim("In float32, a smooth network differs by rounding only",
        holds=rounded < 1e-4,
        expected="within 1e-4 of the largest change", observed=f"{rounded:.0e}",
        if_holds="For no seed does rounding grow to a ten-thousandth of the "
                 "update.",
        if_not="Rounding may grow on its way through the layers, and a GPU may "
               "round products to TF32.")
s.say(many > 0,
      if_holds=f"With relu, {many} of {len(parts['relu'])} seeds have a "
               "difference of more than ten times the worst with softplus, at "
               f"worst {flipped:.0e}. Rounding can do that where it changes "
               "the sign of a relu's input.",
      if_not=f"With relu, the worst of {len(parts['relu'])} seeds differs by "
             f"{flipped:.0e}, at most ten times the worst with softplus. With "
             "other seeds and on other machines we saw 1e-2.")

# %% [markdown]
# So a difference of a thousandth between one device and several need not be a bug. To find out,
# repeat the step in float64.
#
# ### Why ResNet-18 gains more than LeNet
# On two GPUs, the book's LeNet became slower and its ResNet-18 almost twice as fast. A step sums as
# many bytes as the parameters occupy, whatever the batch, but its computation grows with the batch.
# We count both without running anything: `eval_shape` makes a network without values, and a lowered
# program, which is not compiled yet, knows its FLOPs.

# %%
# a network
def lenet(rngs):
    pool = partial(nnx.avg_pool, window_shape=(2, 2), strides=(2, 2))
    valid = partial(nnx.Conv, padding="VALID", rngs=rngs)
    return nnx.Sequential(
        valid(1, 20, (3, 3)), nnx.relu, pool,
        valid(20, 50, (5, 5)), nnx.relu, pool,
        lambda X: X.reshape(len(X), -1),
        nnx.Linear(800, 128, rngs=rngs), nnx.relu,
        nnx.Linear(128, 10, rngs=rngs))

def counts(make_net, n):
    """FLOPs of a step with n images, and the bytes of the gradients."""
    net = nnx.eval_shape(lambda: make_net(rngs=nnx.Rngs(0)))
    X = jax.ShapeDtypeStruct((n, 28, 28, 1), "uint8")
    y = jax.ShapeDtypeStruct((n,), "int32")
    with jax.default_device(jax.devices("cpu")[0]):  # a GPU counts none
        lowered = jax.jit(nnx.grad(cross_entropy)).lower(net, X, y)
    flops = (lowered.cost_analysis() or {}).get("flops", math.nan)
    parameters = jax.tree.leaves(nnx.state(net, nnx.Param))
    return flops, sum(4 * p.size for p in parameters)

# %%
rows, per_byte = [], {}
for name, make_net, n in (("LeNet", lenet, 128), ("LeNet", lenet, 256),
                          ("ResNet-18", partial(resnet18, 10), 64),
                          ("ResNet-18", partial(resnet18, 10), 256)):
    flops, summed = counts(make_net, n)
    per_byte[name, n] = flops / summed
    rows.append((name, n, f"{flops / 1e9:.2f}", f"{summed / 1e6:.2f}",
                 f"{flops / summed:,.0f}"))
s.grid(["network", "images per device", "GFLOP", "MB summed", "FLOP per byte"],
       rows, title="What a device computes in a step, and what it sums")

# %% tags=["hide-input"]
gain = per_byte["ResNet-18", 256] / per_byte["LeNet", 256]
s.claim("For the same batch, ResNet-18 computes more per byte that it sums "
        "than LeNet",
        holds=gain > 1, expected="more FLOPs per byte",
        observed=f"{gain:.1f} times as many", source="section 8.5.2",
        cannot="XLA does not count FLOPs here" if math.isnan(gain) else "",
        first="the claim named no batch; ResNet-18 with 64 images is below "
              "LeNet with 256",
        if_holds="Read the last column at the book's sizes: LeNet with 128 "
                 "images per device, ResNet-18 with 256. Then compare "
                 "ResNet-18 with 64 images to LeNet with 256. **The batch per "
                 "device matters, too**: with few images per device, a network "
                 "may communicate for most of its time.",
        if_not="By these counts, the book's explanation fails.",
        if_open="Without FLOPs there is nothing to compare.")

# %% [markdown]
# A device of 10 TFLOP/s with a link of 10 GB/s computes 1,000 FLOP in the time of one byte. So a
# step of 13,250 FLOP per byte takes 1,000 / 13,250 = 8% longer for its bytes. Bytes do not explain
# why LeNet became slower: they take 0.05 ms on this link, and a step takes 6 ms (exercise 4). One
# possible reason is the fixed overhead of each operation, which is large compared with such short
# steps (section 8.4.6).
#
# How long do the two ways take? They compute different things: `pmap` normalizes each share, and
# needs fewer all-reduces (exercise 3). We time them in turns. Parts of a CPU share the same cores,
# so there the times say nothing about a gain.

# %% tags=["slow"]
def call_of(make_step, mesh, n, channels):
    X, y = data.train_images[:n], data.train_labels[:n]
    start = start_of(mesh, mesh.size * s.lr, 0, channels)
    return partial(make_step(mesh), *start, X, y)

n = len(devices) * s.batch_size
times = interleaved({"jit": call_of(make_jit_step, mesh, n, s.channels),
                     "pmap": call_of(make_pmap_step, mesh, n, s.channels)},
                    count=20)
s.table(times, title=f"One step of {n} images on {len(devices)} devices",
        base="jit")

# %% [markdown]
# ### Mixed precision
# Many GPUs multiply matrices in bfloat16 faster than in float32. In Flax, a layer computes in its
# `dtype`, and the parameters stay float32.

# %%
half = nnx.clone(net)
for _, module in nnx.iter_graph(half):
    if isinstance(module, nnx.Conv | nnx.Linear | nnx.BatchNorm):
        module.dtype = jnp.bfloat16
with jax.set_mesh(mesh):
    logits, exact = predict(half, x), predict(net, x)
relative = float(abs(logits - exact).max() / abs(exact).max())
print(f"parameters {half.layers[0].kernel.dtype}, logits {logits.dtype}")
print(f"largest difference of the logits: {relative:.1%}")

# %% [markdown]
# Below are steps of ResNet-18 with 64 channels on one H200, from [the comparison with
# PyTorch](../docs/peers.md). In TF32 at batch 256, an epoch of `experiments/train.py` took 1.37 s
# there, with test accuracies of .86 .90 .91 .91 after epochs 1 to 4 ([its
# result](../docs/performance.md)).

# %% tags=["hide-input"]
tf32, bfloat16 = (f"ResNet-18 {name}, batch" for name in ("TF32", "bfloat16"))
s.on_one_gpu({"default precision (TF32), batch 256": (f"{tf32} 256", "jit"),
              "each batch from the host": (f"{tf32} 256",
                                           "jit, fed by the host"),
              "bfloat16, batch 256": (f"{bfloat16} 256", "jit"),
              "bfloat16, batch 1024": (f"{bfloat16} 1024", "jit")})

# %% [markdown]
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
# - To show that two programs compute the same, compare them in float64. In float32, rounding may
#   flip a relu.
# - If the batch becomes $k$ times as large, the linear rule multiplies the learning rate by $k$,
#   too. In a training of few updates this may fail: compare several seeds.
# - A second device pays off if a step is not mostly overhead, and if each device computes much per
#   byte that it sums. So give each device many images. Layers that use each weight often, such as
#   convolutions, help too.
#
# ## 8.5.4 Exercises
# Think first, then open the code and the answer. The code runs with `--answers`.
#
# **1 (the book's).** Try other numbers of epochs, batch sizes, and learning rates. If you can, use
# more GPUs. A retelling warns that a batch of 512 is too large for little data. Is this true? And
# does a warm-up help?

# %% tags=["slow", "answer"]
def after(updates, batch_size, lr, seed, images, rule=sgd):
    """The mean loss of the last six updates."""
    net, optimizer = start_of(alone, lr, seed, s.channels, rule)
    step, losses = make_jit_step(alone), []
    rows = itertools.chain.from_iterable(
        batches(batch_size, seed, epoch, images) for epoch in itertools.count())
    for X, y in itertools.islice(rows, updates):
        net, optimizer, loss = step(net, optimizer, X, y)
        losses.append(float(loss))  # waits
    return float(np.mean(losses[-6:]))

# %% tags=["slow", "answer"]
images, n, lr = min(s.images, 1536), s.batch_size, s.lr
full, large = 2 * images // n, min(4 * n, images)
few = max(full // 4, 1)
warm = functools.cache(lambda lr: warm_up(lr / 4, 4, few // 2 + 1))
ways = {"small batch": (full, n, lr),
        "larger batch": (few, large, lr),
        "and larger rate": (few, large, 4 * lr),
        "and warm-up": (few, large, 4 * lr),
        "no warm-up, more updates": (full, large, 4 * lr)}
losses = {}
for way, (count, size, rate) in ways.items():
    rule = warm if way == "and warm-up" else sgd
    losses[way] = [after(count, size, rate, seed, images, rule)
                   for seed in s.seeds]
s.grid(["", "updates", "batch", "rate", "loss of the last six, by seed"],
       [(way, count, size, f"{rate:g}",
         ", ".join(f"{loss:.2f}" for loss in losses[way]))
        for way, (count, size, rate) in ways.items()], title="Exercise 1")

# %% tags=["slow", "answer", "hide-input"]
def lower(way, than):
    """Whether each seed ends below those of another way; None if some do."""
    if max(losses[way]) < min(losses[than]):
        return True
    return False if min(losses[way]) > max(losses[than]) else None

for way, than, change in (
        ("and larger rate", "larger batch", "the larger rate"),
        ("and warm-up", "and larger rate", "the warm-up"),
        ("no warm-up, more updates", "small batch",
         "the larger batch with its rate")):
    s.say(lower(way, than),
          if_holds=f"With as many updates, {change} gives a lower loss for "
                   "every seed.",
          if_not=f"With as many updates, {change} gives a higher loss for "
                 "every seed.",
          if_open=f"With as many updates, {change} gives losses that overlap: "
                  "the seeds do not decide.")

# %% [markdown]
# <details><summary>Answer</summary>
#
# With four times the batch, an epoch has a quarter of the updates. So compare rows of as many
# updates, as the sentences above do. (The last row sees each image four times as often as the
# first.) If a larger batch needs as many updates as a small one, then the retelling is right about
# little data: too few updates are left. A curve that jumps up and down may come from a large rate,
# or from BatchNorm's running statistics, which need some tens of updates to follow. For more
# devices, use `--devices 8`.
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

fresh, cut, gradients = fresh_net(0, s.channels), 3 * len(y) // 4, []
shares = ((devices[0], slice(0, cut)), (devices[-1], slice(cut, None)))
for device, rows in shares:
    share = jax.device_put((fresh, X[rows], y[rows]), device)
    gradients.append(summed_gradient(*share))
total = jax.tree.map(np.add, *jax.device_get(gradients))
whole = jax.device_get(summed_gradient(fresh, X, y))
off = [abs(a - b).max() / abs(b).max()
       for a, b in zip(jax.tree.leaves(total), jax.tree.leaves(whole))]
print(f"the shares' sum and the gradient of the batch differ by {max(off):.0e} "
      "of the largest entry, in the worst array")

# %% [markdown]
# <details><summary>Answer</summary>
#
# A step waits for the slowest device, so give each device a share in proportion to its speed. The
# gradient stays right if you sum over examples and divide by the size of the whole batch. A mean of
# the devices' means would weight the examples wrongly. `P("data")` makes equal shares, so you must
# write unequal ones by hand. A reader of the book gave a GPU and the CPU equal shares: the GPU then
# waits for most of the step. A slow device may get no image at all. One H200 trains 256 images in 6
# ms; a CPU that trains 40 images per second would get 0.2 images of a batch of 256. BatchNorm per
# share then averages over different numbers of images, too.
#
# </details>
#
# **3.** How many all-reduces does the step have under `jit`, and how many under `pmap`? Why?

# %% tags=["answer"]
state = start_of(mesh, 0.2, 0, s.channels)
stacked = [a.reshape(len(devices), -1, *a.shape[1:]) for a in (X, y)]
with jax.set_mesh(mesh):
    split = jax.device_put((X, y), P("data"))
    programs = {"jit": train_step.lower(*state, *split)}
programs["pmap"] = pmapped(mesh).lower(*state, *stacked)
for way, program in programs.items():
    text = program.compile().as_text() or ""
    print(way, text.count(" all-reduce(") + text.count(" all-reduce-start("))

# %% [markdown]
# <details><summary>Answer</summary>
#
# On several CPU devices, `pmap` has one: the compiler combines the sums of gradients, statistics,
# and loss. (It may combine fewer if they are large.) `jit` has 35 (JAX 0.10 to 0.12). Each of the
# 17 BatchNorm layers needs one in the forward pass, for mean and variance together, and one in the
# backward pass, for their gradients: 34. One more sums all other gradients. Each of the 34 moves
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
epoch_time = 60_000 // 512 * (step_time + all_reduce_time)
print(f"one GPU: {steps} steps of {1e3 * step_time:.1f} ms")
print(f"two GPUs: {60_000 // 512} steps of "
      f"{1e3 * (step_time + all_reduce_time):.1f} ms, {epoch_time:.1f} s; the "
      "book: 6.7 s")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Each GPU computes 256 images in 56 ms, as before. It then needs about 4.5 ms to exchange gradients
# with the other GPU. So 117 steps of 60 ms take 7.0 s. The book printed 6.7 s. Without any exchange
# it would be 6.5 s, so this epoch says little about the exchange. Do the same for LeNet: 0.05 ms on
# top of a step of 6 ms cannot explain the book's 10.7 ms.
#
# </details>
#
# **5.** In the table of the H200 above, bfloat16 is 1.63 times as fast as TF32 at batch 256, not
# twice as fast. In bfloat16, a batch of 1024 trains 1.63 times as many images per second as a batch
# of 256. Why? What do you expect with 128 images per GPU?

# %% [markdown]
# <details><summary>Answer</summary>
#
# By the data sheet, bfloat16 halves the time of the products, and it halves the bytes of the
# activations. So these two explain a factor of 2 at most. A step also starts a few hundred kernels,
# whose fixed time bfloat16 does not shorten. Many kernels of batch 256 may be too small to fill the
# GPU; with a larger batch they do more work each. (We measured neither.) With 128 images we expect
# a factor below 1.63, and fewer images per second. That is the cost of dividing a batch among more
# GPUs instead of letting it grow.
#
# </details>
