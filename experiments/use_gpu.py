# %% [markdown]
# # 8.6 Using a GPU
# Does JAX use your GPU, where are your arrays, and what does JAX copy without being asked?
#
# After this section you can
# - check in two lines that JAX sees the GPU, and make a program stop if it does not;
# - say on which device an operation runs, and when JAX copies or refuses;
# - move a Flax network to a device;
# - measure what a copy costs;
# - work through a checklist when the GPU is not faster.
#
# You need no GPU: JAX can divide a CPU into two devices, which follow the same rules. With
# one GPU, run `python experiments/use_gpu.py --platform gpu`: the CPU is then the second
# device.

# %%
import time

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from jaxperf.chapter.section import section
from jaxperf.measure import interleaved, measure
from jaxperf.measure.compile_log import watch_compilation
from jaxperf.result import ratio
from jaxperf.result.gpus import ask_driver

s = section("8.6", programs=60, cpu_devices=2, megabytes=64, rounds=12,
            size=512, side=1024, gpu={"side": 8192, "megabytes": 256},
            smoke={"megabytes": 1, "rounds": 6, "size": 64, "side": 128},
            full={"megabytes": 256, "rounds": 30, "size": 1024, "side": 2048})
first, second = list(dict.fromkeys([*jax.devices(), *jax.devices("cpu")]))[:2]
X = jnp.ones((2, 3))
Z = jax.device_put(X, second)
print("devices:", jax.devices(), "backend:", jax.default_backend())

# %% [markdown]
# ## 8.6.1 Looking at the GPUs
# ![A host with a CPU and its memory, and two GPUs with a memory each. Arrows show that
# device_put copies from the host to a GPU and between GPUs, and np.asarray copies
# back.](images/devices_and_copies.svg "Memories, and what copies between them.")
#
# A GPU has its own memory. An operation on a GPU reads and writes that memory, so data must
# be copied there first. Before you train, check the GPU. The command `nvidia-smi` comes
# with NVIDIA's driver. With a query, it prints one line per GPU:
# ```text
# $ nvidia-smi --format=csv --query-gpu=\
#   name,driver_version,memory.used,memory.total,utilization.gpu,temperature.gpu
# name, driver_version, memory.used [MiB], memory.total [MiB], utilization.gpu [%], ...
# NVIDIA H200, 580.159.04, 3843 MiB, 143771 MiB, 9 %, 41
# ```
# (These values of one H200 come from the driver's library; we wrote them in this format,
# 2026-11-26.)
#
# - The driver's version decides which CUDA version you can use (see below).
# - Two columns show used and total memory. A PyTorch retelling of the book shows a GPU with
#   3446 of 16130 MiB in use.
# - The utilization is the share of time in which [at least one kernel
#   ran](https://docs.nvidia.com/deploy/nvml-api/structnvmlUtilization__t.html). It does not
#   say how much of the GPU that kernel used. The retelling says: if the utilization stays
#   below half, the model has a problem or the batch is too small. Often the GPU waits for
#   its input.
#
# Without `--query-gpu`, the output also shows a CUDA version. It is the newest version that
# the *driver* supports, not the installed one.

# %%
driver = ask_driver()
if driver.missing:
    print("no NVIDIA driver on this machine")
for i, gpu in enumerate(driver.gpus):
    print(
        f"{i}: {gpu.name}, driver {driver.version}, {gpu.busy_percent}% busy, "
        f"{gpu.used_bytes >> 20} of {gpu.total_bytes >> 20} MiB in use"
    )

# %% [markdown]
# This cell asks the driver's library (NVML) directly, without JAX. This is a good first
# test: if the driver does not show the GPU, JAX cannot use it.
#
# ## 8.6.2 Counting and naming devices
# JAX counts the devices of its default backend. `device_count` includes all processes,
# `local_device_count` only this one. They differ when [several
# processes](https://docs.jax.dev/en/latest/multi_process.html) train together.

# %%
print("jax.device_count():", jax.device_count())
print("jax.local_device_count():", jax.local_device_count())
for d in jax.devices():
    print(f"{d}: platform {d.platform}, kind {d.device_kind}, id {d.id}")

# %% [markdown]
# The book's programs choose devices with `try_gpu` and `try_all_gpus`, so that they also run on a
# laptop:

# %%
def gpus():
    try:
        return jax.devices("gpu")
    except RuntimeError:  # JAX has no GPU backend
        return []

def try_gpu(i=0):
    """Return GPU i if it exists, otherwise the CPU."""
    return gpus()[i] if i < len(gpus()) else jax.devices("cpu")[0]

def try_all_gpus():
    """Return all GPUs, or the CPU if there is none."""
    return gpus() or [jax.devices("cpu")[0]]

print(try_gpu(), try_gpu(10), try_all_gpus())

# %% [markdown]
# ::::{tab-set}
# :::{tab-item} Gluon
# ```python
# mx.context.num_gpus()                    # len(gpus())
# x = nd.ones((2, 3), ctx=mx.gpu(0))       # jnp.ones((2, 3), device=try_gpu(0))
# ```
# MXNet calls a device a context.
# :::
# :::{tab-item} PyTorch
# ```python
# torch.cuda.device_count()                # len(gpus())
# X = torch.ones(2, 3, device="cuda:0")    # jnp.ones((2, 3), device=try_gpu(0))
# ```
# :::
# ::::
#
# New arrays go to the process's first device, `jax.local_devices()[0]`. If JAX finds a GPU,
# this is the first GPU, so many programs never name a device.
#
# ## 8.6.3 The fall-back to the CPU
# "Why is my GPU not faster?" One common reason is that JAX does not use it. If JAX
# cannot start the GPU backend, the program continues on the CPU. JAX prints one warning,
# *"An NVIDIA GPU may be present on this machine, but a CUDA-enabled jaxlib is not
# installed. Falling back to cpu"* ([one of many
# reports](https://github.com/jax-ml/jax/issues/29068)), which is easy to miss in a log
# file. `try_gpu` falls back without any message. Let the program stop instead:

# %%
def require_gpu():
    if jax.default_backend() != "gpu":
        raise RuntimeError(f"no GPU: JAX runs on {jax.devices()}")

try:
    require_gpu()
    print("JAX uses a GPU")
except RuntimeError as error:
    print("RuntimeError:", error)

# %% [markdown]
# You can also set `JAX_PLATFORMS=cuda` in the environment. Then JAX raises an error instead
# of falling back. If you see the error, check three things:
#
# - The **driver**: `nvidia-smi` shows its version. CUDA 12 needs 525 or newer, CUDA 13
#   needs 580 or newer.
# - The **wheel**: `pip list` must show `jax-cuda12-plugin` or `jax-cuda13-plugin`, in the
#   same version as `jax` and `jaxlib`. The driver must be new enough for it.
# - The **libraries**: `LD_LIBRARY_PATH` should be empty; otherwise JAX may load an older
#   CUDA.
#
# `pip install "jax[cuda13]"` also installs CUDA and cuDNN; only the driver must be
# installed before. Plain `pip install jax` installs the CPU version ([JAX's installation
# page](https://docs.jax.dev/en/latest/installation.html)).
#
# ## 8.6.4 Where is an array?
# `first` and `second` are two different devices. The first cell made `X = jnp.ones((2,
# 3))`, and `Z = jax.device_put(X, second)`, which copies an array to a device. An
# operation runs where its operands are, and its result stays there. JAX does not move
# data to the GPU and back for each operation. If the data is on the GPU, the whole
# training can run there.

# %%
print("X is on", X.device, "and X + 1 on", (X + 1).device)
print("Z is on", Z.device, "and Z + 1 on", (Z + 1).device)

# %% [markdown]
# A retelling of the book says that an array that was copied to a GPU "is still reached by
# its variable". In JAX there are now two arrays. `X` still names the old one, and `Z` names
# the copy. Neither can change, so they stay equal. If you need only the copy, write
# `X = jax.device_put(X, second)`: JAX frees the old array when no variable names it.
#
# If the array is already on the device, `device_put` copies nothing:

# %%
again = jax.device_put(Z, second)
print(
    "same memory:", again.unsafe_buffer_pointer() == Z.unsafe_buffer_pointer()
)

# %% [markdown]
# ## 8.6.5 Committed and uncommitted arrays
# You *put* Z on a device. You chose none for X. JAX knows the difference: Z is
# **committed** to its device, X is **uncommitted**. This decides what happens when operands
# are on different devices.
#
# ![Three cases. An uncommitted or NumPy operand is copied to the device of the committed
# one. Two uncommitted operands run on the default device. Two operands that are committed
# to different devices are an error.](images/committed.svg "Where a computation runs.")
#
# (A thick border means committed, a dashed border uncommitted.)
#
# <details><summary>Predict: X is on the first device, Z on the second. Does X + Z run, and
# where?</summary>
#
# It runs on the second device, to which Z is committed. JAX silently copies X, which is
# uncommitted. If X were committed too, JAX would raise an error.
#
# </details>

# %%
def attempt(operands):
    try:
        result = operands[0] + operands[1]
        return f"runs on {result.device}, result committed: {result.committed}"
    except ValueError as error:
        return f"ValueError: {str(error).split('. ')[0]}"

put_first = jax.device_put(X, first)
mixtures = {
    "uncommitted + uncommitted": (X, X),
    "uncommitted + committed": (X, Z),
    "NumPy + committed": (np.ones((2, 3), np.float32), Z),
    "committed + committed elsewhere": (put_first, Z),
}
outcomes = {name: attempt(operands) for name, operands in mixtures.items()}
for name, outcome in outcomes.items():
    print(f"{name}: {outcome}")

# %% tags=["hide-input"]
here = f"runs on {second}, result committed: True"
s.claim("Operands must be on the same device", source="retelling in PyTorch",
        holds=all("Error" in outcomes[name] for name in list(mixtures)[1:]),
        expected="an error whenever the operands are on different devices",
        observed="; ".join(f"{name}: {out}" for name, out in outcomes.items()),
        if_holds="JAX refused every mixture of devices.",
        if_not="In JAX this is true of two *committed* arrays only.")
s.claim("An uncommitted array and a NumPy array follow a committed one",
        holds=[*outcomes.values()][1:3] == [here, here],
        expected="both sums run on the second device",
        observed=outcomes["NumPy + committed"],
        if_holds="Both sums ran on the device of the committed operand.",
        if_not="A sum did not run on the device of the committed operand.")

# %% [markdown]
# These are the rules ([JAX's page on
# placement](https://docs.jax.dev/en/latest/201/placement.html)):
# - `jnp.ones(...)`, `jax.random.normal(...)` and `jax.device_put(x)` without a device give
#   uncommitted arrays. `jax.device_put(x, device)` and `jnp.ones(..., device=device)` give
#   committed arrays.
# - The result of an operation with a committed operand is committed.
# - NumPy arrays are copied to the device *in every call*. Convert them to JAX arrays once.
#
# To find hidden copies, forbid them. A [transfer
# guard](https://docs.jax.dev/en/latest/transfer_guard.html) allows `device_put`, which you
# wrote on purpose, and stops all copies that you did not ask for:

# %%
add = jax.jit(lambda x, y: x + y)  # not called before
operands = {"uncommitted + committed": (X, Z),
            "NumPy + committed": (np.ones((2, 3), np.float32), Z)}
with jax.transfer_guard("disallow"):
    for name, pair in operands.items():
        try:
            add(*pair)
            print(f"{name}: no copy")
        except RuntimeError as error:
            print(f"{name}: {str(error).split(': aval')[0]}")

# %% [markdown]
# Put the guard around the very first step. Once JAX has cached a call without the guard,
# the guard overlooks that call's copies between devices (JAX 0.10.2 and 0.12.0). If you
# repeat the cell with `X + Z`, JAX reports nothing. Outside of `jit`, a Python number in an
# operation, as in `Z + 1`, also counts as a copy, and so do the numbers in `Z[0, 0]` and
# `jnp.ones((2, 3))`. With `"log"` instead of `"disallow"`, the program continues and JAX
# logs each copy.
#
# ## 8.6.6 A network on a device
# A network has no device of its own. It computes where its parameters are. To move a
# network, move all its parameters:

# %%
net = nnx.Linear(3, 1, rngs=nnx.Rngs(0))

def to(net, device):
    """Move a Flax network to a device, like PyTorch's net.to(device)."""
    nnx.update(net, jax.device_put(nnx.state(net), device))
    return net

def where(net):
    return {leaf.device for leaf in jax.tree.leaves(nnx.state(net))}

print("before: parameters on", where(net), "output on", net(X).device)
before = np.asarray(net(X))
net = to(net, second)
print("after:  parameters on", where(net), "output on", net(X).device)
chex.assert_trees_all_close(np.asarray(net(X)), before, rtol=1e-2)

# %% [markdown]
# ::::{tab-set}
# :::{tab-item} Gluon
# ```python
# net.initialize(ctx=mx.gpu(0))
# ```
# :::
# :::{tab-item} PyTorch
# ```python
# net = net.to(device=try_gpu(2))
# net[0].weight.data.device
# X.cuda(1)                      # jax.device_put(X, jax.devices()[1])
# ```
# :::
# ::::
#
# `X` is uncommitted, so it follows the parameters. If an input is committed to another
# device, JAX raises an error, as above. Two networks may be on two devices: call `to` for
# each. To split *one* network over devices, see [splitting the model](model_parallelism).

# %% tags=["hide-input"]
s.claim("A network computes where its parameters are",
        source="retelling in PyTorch",
        holds=where(net) == {second} == {net(X).device},
        expected="parameters and output on one device, the second",
        observed=f"parameters on {where(net)}, output on {net(X).device}",
        if_holds="The output is where the parameters are.",
        if_not="Parameters and output are on different devices.")

# %% [markdown]
# ## 8.6.7 What a copy costs
# A copy takes a fixed time, plus the bytes divided by the bandwidth, if the memory that it
# fills is there already. Three kinds of copies matter: from the host (NumPy) to a device,
# between devices, and back to the host. We compare them with a sum on the device, which
# copies nothing.

# %% tags=["slow"]
# [1:]: on a CPU, JAX may share memory that begins at a multiple of 64 bytes
host = np.ones(250_000 * s.megabytes + 1, np.float32)[1:]
on_first = jax.device_put(host, first, may_alias=False)
total = jax.jit(jnp.sum)
times = interleaved({
    "host to device": lambda: jax.device_put(host, first, may_alias=False),
    "device to device":
        lambda: jax.device_put(on_first, second, may_alias=False),
    "device to host": lambda fresh: np.array(fresh),
    "sum on the device": lambda: total(on_first),
}, before={"device to host": lambda: on_first + 0}, count=s.rounds)
s.table(times, title=f"{s.megabytes} MB of float32", base="sum on the device")
for name, measured in times.items():
    s.fact(f"{name} bytes/s", host.nbytes / measured.median, unit="bytes/s",
           meaning=name)

# %% tags=["slow", "hide-input"]
slower = ratio(times["host to device"], times["sum on the device"])
s.claim("Do not move data between devices more often than you must",
        source="retelling in PyTorch", holds=slower.above(1), needs=["gpu"],
        expected="a copy to the device takes longer than a sum over the array "
        "there", observed=f"{slower} times as long",
        if_holds=f"A copy to the device takes {slower} times as long as using "
        "it there.",
        if_not=f"A copy to the device takes {slower} times as long as a sum "
        "over it.",
        if_open="Between CPU devices, copies stay within one memory, so the "
        "figures above say nothing about a GPU.")

# %% [markdown]
# A GPU has separate engines for copies (DMA, direct memory access). It can copy while it
# computes, if the host does not wait for each copy ([section 8.3](auto_parallelism)).
#
# (JAX keeps the NumPy copy of an array, so each timed copy to the host uses a new array.)
# Each large copy goes to new memory, which the operating system may have to provide page
# by page ([section 8.2](async_computation)). On a CPU that can take longer than the copy
# itself: compare the rates with those of exercise 5. NumPy provides the memory of the
# copy to the host, and XLA that of the others; this is one possible reason if their rates
# differ. A GPU's own memory is far faster than the path from the host. Everything from
# the host passes through a bus, usually PCIe, whose fifth generation carries less than 64
# GB/s in one direction (16 lanes of 32 Gbit/s). Copies from and to NumPy's ordinary
# memory may be much slower, because the driver first moves them through memory of its
# own: see the [table below](#8611-one-gpu-beside-this-machine), whose rates we did not
# explain by measurements. Three rules follow:
# - put the data on the GPU once, if it fits (Fashion-MNIST's training images are 47 MB);
# - otherwise copy whole batches, as bytes rather than floats, while the GPU computes
#   ([section 8.3](auto_parallelism));
# - if steps are short, print the loss every hundred steps: `float(loss)` waits and copies
#   ([section 8.2](async_computation)).
#
# ## 8.6.8 Memory
# JAX takes 75% of a GPU's memory at its first operation, and manages it itself ([GPU memory
# allocation](https://docs.jax.dev/en/latest/201/gpu-memory.html)). `nvidia-smi` therefore
# shows what JAX has reserved, not what your arrays need. To see what they need, ask the
# device:

# %%
stats = first.memory_stats()
if stats:
    for name in ("bytes_in_use", "peak_bytes_in_use", "bytes_limit"):
        print(f"{name}: {stats[name] / 2**20:.0f} MiB")
else:
    print(f"{first} has no memory of its own: memory_stats() is {stats}")

# %% [markdown]
# Set these environment variables before Python starts:
#
# - `XLA_PYTHON_CLIENT_PREALLOCATE=false`: JAX takes memory when it is needed. The memory
#   becomes more fragmented, so a program that needs nearly all of it may fail.
# - `XLA_CLIENT_MEM_FRACTION=.40`: JAX takes 40%, for example for two processes on one GPU.
#   The older name is `XLA_PYTHON_CLIENT_MEM_FRACTION`.
# - `XLA_PYTHON_CLIENT_ALLOCATOR=platform`: JAX gives memory back after each use. This is
#   very slow, so use it only for debugging.
#
# If the memory is too small, the retelling advises a smaller network with fewer layers, and
# preprocessing on the CPU before the data is copied. Try a smaller batch first, since it
# does not change the model.
#
# ## 8.6.9 float32 is not quite float32
# A matrix product of float32 arrays on a recent NVIDIA GPU uses TF32 by default ([matmul
# precision](https://docs.jax.dev/en/latest/201/precision.html)): its inputs are rounded
# from 23 bits after the point to 10, and its sums stay in float32. A CPU has no TF32, but
# we can round in the same way.
#
# <details><summary>Predict: how large is TF32's relative error, compared with
# float32's?</summary>
#
# Rounding to 10 bits changes a number by up to $2^{-11}$, or 0.05%. So expect an error of a
# few parts in ten thousand. float32 has 13 bits more, so its error is hundreds to thousands
# of times smaller.
#
# </details>

# %%
def rounded_dot(A, B, bits):
    """A product whose inputs are rounded to so many bits after the point."""
    A, B = (
        lax.reduce_precision(x, exponent_bits=8, mantissa_bits=bits)
        for x in (A, B)
    )
    return jnp.dot(A, B, precision="highest")

A, B = jax.random.normal(jax.random.key(0), (2, s.size, s.size))
exact = np.asarray(A, np.float64) @ np.asarray(B, np.float64)

def relative_error(product):
    return float(np.linalg.norm(product - exact) / np.linalg.norm(exact))

with jax.default_matmul_precision("float32"):
    float32 = relative_error(jnp.dot(A, B))
tf32, bf16 = (relative_error(rounded_dot(A, B, bits)) for bits in (10, 7))
print(
    f"float32 {float32:.0e}, rounded to TF32 {tf32:.0e}, to bfloat16 {bf16:.0e}"
)
print(
    f"the default on {first.device_kind}: {relative_error(jnp.dot(A, B)):.0e}"
)

# %% tags=["hide-input"]
s.claim("TF32 is accurate to about three digits",
        holds=1e-4 < tf32 < 1e-3 and tf32 > 100 * float32,
        expected="a relative error of 1e-4 to 1e-3, over 100 times float32's",
        observed=f"{tf32:.0e}, {tf32 / float32:.0f} times float32's",
        if_holds=f"Three digits are right: the error is {tf32:.0e}.",
        if_not=f"The error is {tf32:.0e}, {tf32 / float32:.0f} times "
        "float32's: this is another rounding than TF32's.")

# %% [markdown]
# Training usually tolerates this error. A test that compares with NumPy to six digits fails.
# In such a test, write `with jax.default_matmul_precision("float32"):`, or set
# `JAX_DEFAULT_MATMUL_PRECISION=float32`. What lower precision gains depends on the
# processor: compare the two products that a cell below measures. A CPU without units for
# bfloat16 converts to float32, and may be slower.
#
# ## 8.6.10 Compiling and autotuning
# There are many GPU kernels for a product or a convolution. While XLA compiles for a GPU,
# it runs several of them and keeps the fastest; this is called autotuning. Therefore
# compiling takes longer than on a CPU, seconds for a training step. JAX compiles anew for
# each shape and type. Three rules follow:
# - compile few programs. In the first cell of most sections, `programs` is how many
#   programs it compiles at most. A script's last line says how long compiling took;
# - avoid changing shapes: drop the last, smaller batch;
# - keep compiled programs on disk with the [persistent compilation
#   cache](https://docs.jax.dev/en/latest/persistent_compilation_cache.html).
#
# Messages such as "Delay kernel timed out" come from autotuning and are harmless. A script
# writes them to a file, which its last line names.
# `XLA_FLAGS=--xla_gpu_autotune_level=0` turns autotuning off: compiling is faster and the
# program may be slower.
#
# ## 8.6.11 One GPU beside this machine
# The next cells measure what this page has told, on the machine that runs it. For a rate,
# we take the shortest of several times, for a call the median.
#
# <details><summary>Predict: in which rows is a CPU better than the GPU?</summary>
#
# Calls are faster on a CPU, because there is no driver between Python and the program.
# Compiling is faster, because XLA tries no kernels there. A copy to the host stays within
# one memory. Large computations are faster on the GPU. So a GPU needs large programs, few
# calls, and few copies.
#
# </details>

# %% tags=["slow"]
def tera_flops(dtype):
    C = jnp.full((s.side, s.side), 0.01, dtype)
    product = jax.jit(jnp.matmul)
    return 2e-12 * s.side**3 / min(measure(product, C, C, budget_s=0.5).values)

products = {dtype: tera_flops(dtype) for dtype in ("float32", "bfloat16")}
for dtype, rate in products.items():
    print(f"{dtype} product, {s.side} x {s.side}: {rate:.3g} TFLOP/s")

# %% tags=["slow"]
@jax.jit(donate_argnums=0)
def add_in_place(x):
    return x + 1

big = jax.device_put(np.ones((s.megabytes, 250_000), np.float32), first)
new, took = jax.jit(lambda x: x + 1), {"new memory": [], "in place": []}
jax.block_until_ready(new(big)), add_in_place(new(big))  # compiles
for _ in range(s.rounds):
    y = jax.block_until_ready(new(big))
    for name, add in {"new memory": new, "in place": add_in_place}.items():
        out = None  # gives its memory back before the clock starts
        start = time.perf_counter()
        out = jax.block_until_ready(add(y))
        took[name].append(time.perf_counter() - start)
rates = {name: 2 * big.nbytes / min(values) for name, values in took.items()}
for name, rate in rates.items():
    print(f"x + 1, {big.nbytes / 1e6:.0f} MB, {name}: {rate / 1e9:.0f} GB/s")

# %% [markdown]
# A result in new memory may have to wait for that memory: [section 8.2](async_computation)
# shows how much. So the two rows may be far apart.

# %% tags=["slow"]
empty, A = jax.jit(lambda: jnp.zeros(())), jnp.full((s.size, s.size), 0.01)
queued_s, waited_s = (measure(empty, wait=wait, budget_s=0.5).median
                      for wait in ("end", "each"))
start = time.perf_counter()
jax.jit(lambda x: jnp.tanh(x @ x)).lower(A).compile()
compile_s = time.perf_counter() - start
print(f"an empty program: {1e6 * queued_s:.3g} µs queued,",
      f"{1e6 * waited_s:.3g} µs waited for; compiling: {compile_s:.2g} s")

# %% tags=["slow", "hide-input"]
A, B = jax.random.normal(jax.random.key(0), (2, s.size, s.size))
highest = jnp.dot(A, B, precision="highest")
default = float(
    jnp.linalg.norm(jnp.dot(A, B) - highest) / jnp.linalg.norm(highest)
)
promised, low, high = "no difference from the highest precision", -1, 1e-6
if s.environment.backend == "gpu":
    promised, low, high = "TF32: 1e-4 to 2e-3 from the highest", 1e-4, 2e-3
s.claim("A product of float32 arrays has the precision that JAX promises here",
        source="JAX", holds=low < default < high, expected=promised,
        observed=f"relative difference {default:.0e} on {first.device_kind}",
        if_holds=f"By default, a product is {default:.0e} from the highest "
        "precision here.",
        if_not=f"By default, a product is {default:.0e} from the highest "
        "precision here: set the precision yourself.")

# %% tags=["slow", "hide-input"]
float32_rate, bfloat16_rate = (1e12 * rate for rate in products.values())
for name, value, unit in (
        ("empty program, queued", queued_s, "s"),
        ("empty program, waited for", waited_s, "s"),
        ("float32 product", float32_rate, "FLOP/s"),
        ("bfloat16 product", bfloat16_rate, "FLOP/s"),
        ("default precision from the highest", default, ""),
        ("compiling a product with tanh", compile_s, "s")):
    s.fact(name, value, unit=unit, meaning=name, in_table=True)
copies = ("host to device", "device to host", "sum on the device")
s.on_one_gpu({f"{name} (here {s.megabytes} MB)": f"{name} bytes/s"
              for name in copies} | {
    "empty program, queued": "empty program, queued",
    "empty program, waited for": "empty program, waited for",
    f"product of float32 arrays (here side {s.side:,}; GPU: TF32)":
        "float32 product",
    f"product of bfloat16 arrays (here side {s.side:,})": "bfloat16 product",
    "relative difference of the default from the highest precision":
        "default precision from the highest",
    "compiling a product with tanh": "compiling a product with tanh"})

# %% [markdown]
# ## 8.6.12 If the GPU is not faster
# The retelling names three reasons: the GPU is not set up, data moves between CPU and GPU
# too often, or the batch size is wrong. Check in this order:
#
# 1. **Does JAX use it?** Look at `jax.devices()`, or call `require_gpu()`.
# 2. **Do you time compiling?** Leave out the first call.
# 3. **Is the whole step one program?** Put one `jit` around it. On the H200 of the table,
#    even an empty program takes tens of microseconds, so many small programs add up.
# 4. **Does data come from the host in each step?** Use a transfer guard, or
#    `jaxperf watch`.
# 5. **Is the batch too small?** Double it, and see whether the images/s rise.
# 6. **Is the precision higher than you need?**
# 7. **Is the model small?** Then Python's calls and many small kernels take the time, and
#    faster arithmetic cannot shorten them. [Section 8.0](performance_model) shows how to
#    tell. `lax.scan` saves the calls, and a larger batch makes the kernels larger.
#
# What some of these steps gained on one H200 ([trainings](../docs/performance.md), and
# [the comparison with PyTorch](../docs/peers.md)):
#
# | | before | after |
# |:--|--:|--:|
# | 2. compiling LeNet's training, and a step | 6.6 s | 0.32 ms |
# | 4. LeNet's step, 256 images from the host; on the GPU | 0.76 ms | 0.32 ms |
# | 5. ResNet-18 in bfloat16, 256 images a batch; 1024 (images/s) | 69,900 | 114,000 |
# | 6. ResNet-18's step, 256 images, in TF32; in bfloat16 | 5.98 ms | 3.66 ms |
# | 7. LeNet's step in bfloat16, called in a loop; in one `lax.scan` | 0.345 ms | 0.311 ms |
#
# ## 8.6.13 Summary
# - `jax.devices()` shows what JAX uses. Make a program that needs a GPU stop without one.
# - An operation runs where its operands are. If an operand is committed, the operation runs
#   on its device, and JAX copies uncommitted and NumPy operands there. Two arrays committed
#   to different devices are an error.
# - A network is where its parameters are: move its state with `jax.device_put`.
# - A copy takes a fixed time, plus the bytes divided by the bandwidth, plus the time for new
#   memory. Copy once, copy batches, and find hidden copies with a transfer guard.
# - On a GPU, float32 products use TF32, JAX reserves 75% of the memory, and compiling takes
#   seconds.
#
# ## 8.6.14 Exercises
# **1.** Change `try_gpu` so that it never falls back silently, but still works on a laptop.
#
# Check it with `jaxperf check 8.6.1 mine.py`: `mine.py` defines `try_gpu(i=0)`.

# %% tags=["answer"]
def gpu_or_warn(i=0):
    device = try_gpu(i)
    if device.platform == "cpu":
        print(f"warning: no GPU {i}, using {device}")
    return device

print(gpu_or_warn(10))

# %% [markdown]
# <details><summary>Answer</summary>
#
# A printed warning is enough if a person watches the output. For a job in a queue,
# `require_gpu` is better: a job that stops at once costs less than one that trains on the
# CPU for a day.
#
# </details>
#
# **2.** `X` is uncommitted, `Z` is committed to the second device. Is `X * 2 + Z` an error?
# And `jax.device_put(X) + Z`?

# %% tags=["answer"]
print("X * 2 + Z runs on", (X * 2 + Z).device)
print("device_put(X) + Z runs on", (jax.device_put(X) + Z).device)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Both run. A result is committed only if an operand was, so `X * 2` is uncommitted.
# `device_put` without a device leaves X uncommitted, too: you did not say where it should
# be.
#
# </details>
#
# **3.** You load parameters with `jax.device_put(params, jax.devices()[0])`. Later you call
# the same jitted function with fresh parameters, on the same device and of the same shape.
# Is it compiled again?

# %% tags=["answer"]
double = jax.jit(lambda x: x * 2)
fresh, loaded = jnp.ones(1234), jax.device_put(jnp.ones(1234), jax.devices()[0])
with watch_compilation() as log:
    for name, x in {"fresh": fresh, "loaded": loaded, "again": loaded}.items():
        double(x)
        print(f"{name}: {log.programs} programs compiled so far")
compiled = log.programs

# %% [markdown]
# <details><summary>Answer</summary>
#
# Yes, once more. Committed and uncommitted arguments are different keys in `jit`'s cache,
# since the result must be committed in one case and not in the other. For a large network
# this costs seconds. Commit all parameters, or none.
#
# </details>
#
# **4.** Two processes share the retelling's GPU of 16130 MiB. Each needs 5000 MiB. What
# happens without any setting, and which setting helps?
#
# <details><summary>Answer</summary>
#
# The first process reserves 75%, which is 12,098 MiB. The remaining 4,032 MiB are too few
# for the second process, which runs out of memory and stops. With
# `XLA_CLIENT_MEM_FRACTION=.40`, each takes 6,452 MiB. `XLA_PYTHON_CLIENT_PREALLOCATE=false`
# helps, too.
#
# </details>
#
# **5.** A batch of 256 images of 28 × 28 bytes goes to the GPU in each step. Say that the
# bus carries 25 GB/s. Can that explain LeNet's step of 0.76 ms instead of 0.32? First
# compute, then measure copies of several sizes.

# %% tags=["answer", "slow"]
for kilobytes in (1, 10, 100, 1000, 10_000):
    part = np.ones(250 * kilobytes + 1, np.float32)[1:]  # is copied, as above
    copy = {
        "copy": lambda part=part: jax.device_put(part, first, may_alias=False)
    }
    took = interleaved(copy, count=s.rounds)["copy"].median
    rate = part.nbytes / took / 1e9
    print(f"{kilobytes} kB: {took * 1e6:.0f} µs, {rate:.2f} GB/s")

# %% [markdown]
# <details><summary>Answer</summary>
#
# No. The batch has 200,704 bytes. At 25 GB/s they take 8 µs, and at the 4 GB/s of the
# table above 50. The fixed time of a copy adds to that: it is what the smallest copy
# above takes. The host also fetches a batch and copies its labels; we did not measure
# these shares. Put the data on the GPU before the loop starts, or load the next batch
# while the GPU computes ([section 8.3](auto_parallelism)).
#
# </details>
