# %% [markdown]
# # 8.7 Collectives
# Every data-parallel step ends with a sum over all devices. How do devices compute this sum, and
# what does it cost? After this section you can
# - say what an all-reduce, a reduce-scatter, and an all-gather do, and write each in plain JAX;
# - count the messages and bytes of a star, a ring, and two levels;
# - predict the time of a collective from a delay and a bandwidth, and check it;
# - say which collectives your program uses when you write `lax.psum`, `jit`, or FSDP.
#
# You need no GPU. We divide the CPU into eight devices, which compute what eight GPUs compute. They
# share memory and cores, so we count messages and do not compare speeds with GPUs.

# %%
import math
import socket
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import P, lax
from jax.sharding import AxisType

from jaxperf.measure import count_ops, interleaved
from jaxperf.measure.stages import all_equations
from jaxperf.plan.cards import find_card
from jaxperf.plan.links import exchange_s
from jaxperf.section import section

s = section("collectives", devices=8, nodes=2, rounds=9,
            sizes=(4_096, 65_536, 1_048_576, 8_388_608), full={"rounds": 30},
            smoke={"sizes": (4_096, 65_536, 262_144), "rounds": 6})

devices = jax.devices()[: s.devices]
if len(devices) == 1 < s.devices:
    print(f"only one {devices[0].platform}: the section runs on parts of the CPU")
    devices = jax.devices("cpu")[: s.devices]
    jax.config.update("jax_default_device", devices[0])
k = len(devices)
assert k > s.nodes and k % s.nodes == 0, f"{k} devices do not make {s.nodes} nodes of several"
mesh = jax.make_mesh((k,), ("d",), axis_types=(AxisType.Auto,), devices=devices)
print(f"{k} devices: {devices}")

# %% [markdown]
# ## Four collectives
# A *collective* is an operation that all devices take part in, each with its own array. Four
# collectives are enough for most programs.
#
# ![Four devices, before and after each of four collectives. A column is a device, a row a piece of
# its array, a color the device that a number comes from; stripes are
# sums.](images/collective_kinds.svg)
#
# JAX has a function for each. We use three here; the fourth, `lax.all_to_all`, comes with FSDP. The
# function in `shard_map` is one device's program. Here, each device gets one row of `x` and returns
# its result.

# %%
def on_devices(function, mesh=mesh):
    """Run one device's function on all devices; each gets one row, and returns one."""
    rows = P(mesh.axis_names)
    return jax.jit(jax.shard_map(lambda x: function(x[0])[None], mesh=mesh,
                                 in_specs=rows, out_specs=rows))

def all_reduce(x):
    return lax.psum(x, "d")

def reduce_scatter(x):
    return lax.psum_scatter(x, "d", tiled=True)

def all_gather(x):
    return lax.all_gather(x, "d", tiled=True)

x = jnp.arange(2.0 * k * k).reshape(k, 2 * k)
for collective in (all_reduce, reduce_scatter):
    print(f"{collective.__name__}: device 0 gets", on_devices(collective)(x)[0])
print("all_gather: device 0 gets", on_devices(all_gather)(x[:, :2])[0])

# %% [markdown]
# How do the devices do this? The name `psum` does not say. We write an all-reduce by hand in three
# ways, count messages and bytes, and then measure.
#
# ## A star
# [Section 8.4](multiple_gpus) has the book's `allreduce`: it adds everything up on the first device
# and copies the sum back. Here, we also list all copies.
#
# ![Left: a star, three devices send their arrays of N bytes to device 0 and get the sum back. Right: a
# ring, each of four devices sends a quarter at a time to the next.](images/all_reduce.svg)

# %%
copies = []

def copy(array, device):
    copies.append((array.device, device, array.nbytes))
    return jax.device_put(array, device)

def star(arrays):
    total, *others = arrays
    for other in others:
        total = total + copy(other, arrays[0].device)
    return [total] + [copy(total, other.device) for other in others]

arrays = [jax.device_put(row, device) for row, device in zip(x, devices)]
sums = star(arrays)
n = arrays[0].nbytes
received = sum(size for _, to, size in copies if to == devices[0])
print(f"{len(copies)} copies of {n} bytes; device 0 receives {received} and sends as many")

# %% [markdown]
# What does this cost? In the usual model, a message of $n$ bytes takes
#
# $$\alpha + n / \beta$$
#
# seconds. $\alpha$ is the *delay*: the seconds that even the shortest message takes. $\beta$ is the
# *bandwidth* in bytes per second. Device 0 receives $k - 1$ messages through its one link, and then
# sends $k - 1$ messages. So a star takes $2(k-1)(\alpha + n/\beta)$: about twice as long with twice
# as many devices. All others wait for device 0.
#
# The book calls `allreduce` once per parameter array, and LeNet has eight.

# %%
lenet = [(20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,), (800, 128), (128,), (128, 10), (10,)]
copies.clear()
for shape in lenet:
    star([jax.device_put(jnp.ones(shape), device) for device in devices])
one_by_one, moved = len(copies), sum(size for *_, size in copies)
copies.clear()
star([jax.device_put(jnp.ones(sum(map(math.prod, lenet))), device) for device in devices])
s.claim("Added up one by one, LeNet's gradients take eight times as many copies",
        holds=one_by_one == 8 * len(copies) and moved == sum(size for *_, size in copies),
        expected=f"{16 * (k - 1)} copies and {2 * (k - 1)}, of as many bytes together",
        observed=f"{one_by_one} and {len(copies)} copies of {moved:,} bytes",
        source="section 8.4.4", since="2026-11-26")

# %% [markdown]
# ## A ring
# Arrange the devices in a circle, cut each array into $k$ pieces, and let *all* links work at once.
# Each device sends one piece to its right neighbor, adds its own piece to what comes from the left,
# and passes that sum on. After $k - 1$ steps, each device has one finished piece: this is a
# reduce-scatter. In $k - 1$ more steps, the finished pieces go around: this is an all-gather.
#
# ![Seven panels of four devices. In steps 1 to 3, one sum per device grows on its way around the
# ring. In steps 4 to 6, the finished sums go around. An outline marks what just
# arrived.](images/ring_steps.svg)
#
# With `lax.ppermute`, each device sends an array to one other device.

# %%
def to_neighbor(x, axis, by=1):
    k = lax.axis_size(axis)
    return lax.ppermute(x, axis, [(device, (device + by) % k) for device in range(k)])

def ring_reduce_scatter(x, axis="d", by=1):
    k, me = lax.axis_size(axis), lax.axis_index(axis)
    pieces = x.reshape(k, -1)
    total = pieces[(me - by) % k]
    for step in range(2, k + 1):
        total = to_neighbor(total, axis, by) + pieces[(me - by * step) % k]
    return total  # the sum of piece number `me`

def ring_all_gather(piece, axis="d", by=1):
    k, me = lax.axis_size(axis), lax.axis_index(axis)
    pieces = [piece]  # then that of my left neighbor, of its left neighbor, ...
    for _ in range(k - 1):
        pieces.append(to_neighbor(pieces[-1], axis, by))
    return jnp.stack(pieces)[by * (me - jnp.arange(k)) % k].ravel()  # in the devices' order

def ring(x, axis="d", by=1):
    return ring_all_gather(ring_reduce_scatter(x, axis, by), axis, by)

print("device 0 gets", on_devices(ring)(x)[0])

# %% [markdown]
# Each of the $2(k-1)$ steps sends $n/k$ bytes, so a ring takes
#
# $$2(k-1)\,\alpha + 2\,\frac{k-1}{k}\,\frac{n}{\beta}$$
#
# seconds.
#
# <details><summary>Predict: from 8 to 16 devices, how much longer does a ring take for a large
# array? Not at all, 7%, or twice?</summary>
#
# 7%: $2 \cdot 15/16$ instead of $2 \cdot 7/8$ arrays cross each link. However many devices there
# are, it is less than two arrays. That is why data parallelism works on a thousand devices. For a
# *small* array only the first term counts, and it doubles.
#
# </details>
#
# Unless the network itself can add, no algorithm sends less: each device must send what the others
# lack, and receive their sum.
#
# ## Two levels
# Machines with several GPUs are called *nodes*. Within a node the links are fast, for example
# NVLink with 450 GB/s per GPU. Between nodes they are slower, for example 50 GB/s per GPU
# (published figures of an H200 and a network card of 400 Gbit/s). So first do a reduce-scatter
# within each node. Then each device sends only its piece to other nodes.
#
# ![Three steps on two nodes of four devices: a reduce-scatter in each node, an all-reduce between
# devices that have the same piece, and an all-gather in each node.](images/two_levels.svg)

# %%
levels = jax.make_mesh((s.nodes, k // s.nodes), ("node", "device"),
                       axis_types=(AxisType.Auto,) * 2, devices=devices)

def two_levels(x):
    piece = ring_reduce_scatter(x, "device")
    piece = ring(piece, "node")
    return ring_all_gather(piece, "device")

def library_two_levels(x):
    piece = lax.psum_scatter(x, "device", tiled=True)
    return lax.all_gather(lax.psum(piece, "node"), "device", tiled=True)

# %% [markdown]
# With $m$ nodes of $c$ devices, each device sends $2(c-1)/c$ arrays within its node, and only
# $2(m-1)/m \cdot 1/c$ arrays to another node. We count the messages that one device sends.
# `make_jaxpr` lists the operations of a function.

# %%
def messages(function, mesh):
    """The messages that one device sends, as (axis, bytes)."""
    x = jax.ShapeDtypeStruct((k, n // 4), "float32")
    jaxpr = jax.make_jaxpr(on_devices(function, mesh))(x).jaxpr
    sends = [eqn for eqn in all_equations(jaxpr) if eqn.primitive.name == "ppermute"]
    return [(np.ravel(eqn.params["axis_name"])[0], eqn.outvars[0].aval.size * 4)
            for eqn in sends]

def row_of(way, sent):
    inside = [size for axis, size in sent if axis == "device"]
    between = [size for axis, size in sent if axis != "device"]
    return way, len(sent), f"{sum(inside) / n:.3g}", f"{sum(between) / n:.3g}"

flat, split = messages(ring, mesh), messages(two_levels, levels)
m, c = s.nodes, k // s.nodes
s.grid(["way", "messages in a row", "arrays sent within nodes",
        "arrays sent to other nodes (star, ring: to any device)"],
       [("star, device 0", 2 * (k - 1), "0", f"{k - 1}"), row_of("ring", flat),
        row_of("two levels", split)],
       title=f"What one device sends and waits for: {k} devices, {m} nodes")

def sent(messages, axis):
    return sum(size for where, size in messages if where == axis)

s.claim("A ring sends less than two arrays per device, two levels less of them between nodes",
        holds=sent(flat, "d") == 2 * (k - 1) * n // k
        and sent(split, "node") == 2 * (m - 1) * n // (m * c)
        and sent(split, "device") == 2 * (c - 1) * n // c,
        expected=f"{2 * (k - 1) / k:.3g} arrays; {2 * (m - 1) / (m * c):.3g} between nodes "
        f"and {2 * (c - 1) / c:.3g} within",
        observed=f"{sent(flat, 'd') / n:.3g}; {sent(split, 'node') / n:.3g} and "
        f"{sent(split, 'device') / n:.3g}", since="2026-11-26")

# %% [markdown]
# Two levels also wait for fewer messages in a row than the ring. With 128 nodes of 8 devices, one
# ring has 2,046 steps, and two levels have 268.
#
# Do all ways compute the same? Only up to rounding, because each adds in a different order.

# %%
numbers = jax.random.normal(jax.random.key(0), (k, 1024 * k))
exact = np.asarray(numbers, "float64").sum(0)
ways = {"psum": on_devices(all_reduce), "ring": on_devices(ring),
        "two levels": on_devices(two_levels, levels),
        "psum on two levels": on_devices(library_two_levels, levels),
        "reduce-scatter + all-gather": on_devices(lambda x: all_gather(reduce_scatter(x)))}

def by_star(x):
    return star([jax.device_put(row, device) for row, device in zip(x, devices)])

results = {way: np.asarray(function(numbers)) for way, function in ways.items()}
results["star"] = np.stack(jax.device_get(by_star(numbers)))
errors = {way: float(abs(rows - exact).max()) for way, rows in results.items()}
s.claim("All ways give every device the same sum", holds=max(errors.values()) < 1e-5,
        expected="within 1e-5 of the sum in double precision, on every device",
        observed=f"{max(errors.values()):.0e} at most", since="2026-11-26")

# %% [markdown]
# ## How long does it take?
# We first measure on the eight parts of this CPU. Their "links" are copies in one memory.
#
# <details><summary>Predict: which of star, ring, two levels, and `psum` takes the least time here?
# Does the ring beat the star for large arrays?</summary>
#
# `psum`, which is one operation. The star makes a Python call for each copy and each sum. At each
# step of the ring, all devices wait for one another, and they share the cores. Whether the ring
# beats the star is open: in total, both move the same number of bytes through one memory, and the
# ring has no separate links. In our runs, sometimes the ring and sometimes the star was slowest.
#
# </details>

# %% tags=["slow"]
def timed(size):
    ones = np.ones((k, size // 4 // k * k), "float32")  # k equal pieces
    x = jax.device_put(ones, jax.NamedSharding(mesh, P("d")))
    rows = [jax.device_put(row, device) for row, device in zip(ones, devices)]
    calls = {way: partial(ways[way], x) for way in ("psum", "ring", "two levels")}
    return interleaved(calls | {"star": partial(star, rows)}, count=s.rounds)

times = {size: timed(size) for size in s.sizes}
medians = {way: [times[size][way].median for size in s.sizes] for way in times[s.sizes[0]]}
for size in (min(s.sizes), max(s.sizes)):
    s.table(times[size], title=f"All-reduce of {size:,} bytes, fake devices", base="psum")

# %% [markdown]
# Next, we measure between two *processes*. Each has one device, and the sums go through network
# connections, as between two machines. Only the start of the program differs.

# %% tags=["slow"]
PROGRAM = """
import sys, time
import jax, numpy as np
from jax import NamedSharding, P, lax

address, number, output, *sizes = sys.argv[1:]
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
jax.distributed.initialize(address, num_processes=2, process_id=int(number),
                           cluster_detection_method="deactivate")
mesh = jax.make_mesh((jax.device_count(),), ("d",))
psum = jax.jit(jax.shard_map(lambda x: lax.psum(x, "d"), mesh=mesh, in_specs=P("d"),
                             out_specs=P()))
medians = []
for size in map(int, sizes):
    rows = np.ones((1, size // 4), "float32")
    x = jax.make_array_from_process_local_data(NamedSharding(mesh, P("d")), rows)
    times = []
    for _ in range(30):
        began = time.perf_counter()
        psum(x).block_until_ready()
        times.append(time.perf_counter() - began)
    medians.append(np.median(times[5:]))
if jax.process_index() == 0:
    np.savetxt(output, medians)
"""

def in_two_processes(program, sizes):
    with tempfile.TemporaryDirectory() as folder:
        script, output = Path(folder, "program.py"), Path(folder, "medians.txt")
        script.write_text(program)
        with socket.create_server(("127.0.0.1", 0)) as free:  # a port that nobody uses
            address = f"127.0.0.1:{free.getsockname()[1]}"
        pair = [subprocess.Popen([sys.executable, script, address, str(number), output,
                                  *map(str, sizes)], stderr=subprocess.PIPE, text=True)
                for number in range(2)]
        errors = [process.communicate(timeout=300)[1] for process in pair]
        assert not any(process.returncode for process in pair), errors
        return np.loadtxt(output)

medians["psum, two processes"] = in_two_processes(PROGRAM, s.sizes)

# %% [markdown]
# Does the model hold? We compute $\alpha$ and $\beta$ from two sizes and test them on the others.
# An all-reduce of two devices is a ring of two steps, each with half of the array:
# $2\alpha + n/\beta$.

# %% tags=["slow"]
def fit(sizes, times):
    """The delay and bandwidth of two devices, from the smallest and the largest size."""
    beta = (sizes[-1] - sizes[0]) / (times[-1] - times[0])
    return (times[0] - sizes[0] / beta) / 2, beta

sizes, measured = np.array(s.sizes), np.array(medians["psum, two processes"])
alpha, beta = fit(sizes, measured)
predicted = 2 * alpha + sizes / beta
print(f"delay {1e6 * alpha:.0f} µs, bandwidth {beta / 1e9:.2f} GB/s")
off = max(max(ratio, 1 / ratio) for ratio in predicted[1:-1] / measured[1:-1])
s.claim("A delay and a bandwidth predict the sizes between",
        holds=alpha > 0 and beta > 0 and off < 3,
        expected="within a factor of 3 of the medians, between two processes",
        observed=f"within a factor of {off:.1f}", since="2026-11-26",
        cannot="toy size" if s.smoke else "")
fig, ax = plt.subplots()
for way, values in medians.items():
    ax.plot(sizes, 1e3 * np.array(values), "o-", label=way)
ax.plot(sizes, 1e3 * predicted, "k:", label="delay + bytes / bandwidth")
ax.set(xscale="log", yscale="log", xlabel="bytes per device", ylabel="ms")
ax.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
s.figure(fig, f"Short arrays cost a delay, long ones their bytes. {k} parts of one CPU, and "
         "two processes on it; no line says how fast GPUs are.")

# %% [markdown]
# ## How long on GPUs?
# The package `jaxperf.plan` uses a similar model: published bandwidths of NVLink and InfiniBand,
# one delay per collective instead of $2(k-1)\alpha$, and a term for filling a pipeline of small
# chunks ([how it predicts](../docs/plan.md)). We compare it with a published measurement on one
# node of eight H100 ([NVIDIA](https://github.com/NVIDIA/dgxc-benchmarking/tree/main/nccl)), which
# set none of its constants.

# %%
card = find_card("h100")
published_us = [19.33, 19.54, 19.89, 20.43, 20.66, 27.37, 42.21, 54.19, 83.04,
                123.8, 199.3, 324.7, 586.4, 1112.5, 2151.0, 4029.4]
kibibytes = [32 * 2**i for i in range(len(published_us))]

def gpu_seconds(size, count, kind="all-reduce"):
    return exchange_s(card, kind, size, count, max(1, count // card.per_node))

ratios = [1e6 * gpu_seconds(1024 * n, 8) / us for n, us in zip(kibibytes, published_us)]
worst = max(max(ratio, 1 / ratio) for ratio in ratios)
s.claim("The model predicts the published all-reduces of eight H100",
        holds=worst < 2, expected="every size from 32 KiB to 1 GiB within a factor of 2",
        observed=f"within a factor of {worst:.2f}", source="NVIDIA", since="2026-11-28")

size = np.geomspace(2**12, 2**32, 60)
fig, ax = plt.subplots()
for count in (8, 64, 1024):
    ax.plot(size, [1e3 * gpu_seconds(n, count) for n in size], label=f"{count:,} H100")
ax.plot(1024 * np.array(kibibytes), [us / 1e3 for us in published_us], "ok",
        markersize=3, label="8 H100, published")
ax.set(xscale="log", yscale="log", xlabel="bytes", ylabel="ms")
ax.legend(fontsize="small")
s.figure(fig, "Predicted all-reduces: below a megabyte the delay decides, above it the bytes. "
         "Between nodes, nine of ten predictions are within a factor of 1.4, not better.")
arrays = {"LeNet": 516_272, "ResNet-18": 44.7e6, "7 billion parameters, bfloat16": 14e9}
counts = (2, 8, 64, 1024)
s.grid(["gradients of", "MB", *(f"ms on {count:,}" for count in counts)],
       [(name, f"{size / 1e6:,.1f}",
         *(f"{1e3 * gpu_seconds(size, count):,.3g}" for count in counts))
        for name, size in arrays.items()],
       title="Predicted all-reduces on H100, nodes of eight, InfiniBand")

# %% [markdown]
# The time for LeNet's half megabyte is almost only the delay. From 8 to 1,024 GPUs, ResNet-18's sum
# takes 2.3 times as long in this prediction; a star would take 146 times as long.
# [NCCL](https://docs.nvidia.com/deeplearning/nccl/), the library that JAX calls on NVIDIA GPUs,
# chooses by array size among rings, trees, and sums inside NVIDIA's switches.
#
# ## The halves of an all-reduce: FSDP
# After the first half of an all-reduce, each device holds one piece of the sum. A program that
# stops there needs memory for that piece only. *Fully sharded data parallelism* (FSDP) does so
# ([the section on splitting the model](model_parallelism)): each device stores a piece of the
# weights, gathers all pieces before use, and keeps only its piece of the summed gradient. You write
# the all-gather, and `jax.grad` derives the rest.
#
# <details><summary>Predict: is the derivative of an all-gather an all-gather, a reduce-scatter, or
# an all-reduce?</summary>
#
# A reduce-scatter. Each piece went to all devices, so its gradient is the sum of what all devices
# return, and only the piece's own device needs it. The step contains both halves of an all-reduce
# in reverse order.
#
# </details>

# %%
def loss(piece, X):
    w = lax.all_gather(piece, "d", tiled=True)
    return ((X @ w) ** 2).sum()

w, X = jnp.arange(2.0 * k), jnp.ones((4 * k, 2 * k))
fsdp = jax.jit(jax.shard_map(jax.grad(loss), mesh=mesh, in_specs=(P("d"), P("d")),
                             out_specs=P("d")))
program = fsdp.lower(w, X).compile().as_text() or ""
halves = {op: count for op, count in count_ops(program).items()
          if op.startswith(("all-", "reduce-scatter"))}
whole = jax.grad(lambda w: ((X @ w) ** 2).sum())(w)
s.claim("The gradient of an all-gather is a reduce-scatter; both replace an all-reduce",
        holds=halves == {"all-gather": 1, "reduce-scatter": 1}
        and bool(jnp.allclose(fsdp(w, X), whole)),
        expected="one of each in the compiled program, and the gradient of one device",
        observed=", ".join(f"{count} {op}" for op, count in halves.items()),
        since="2026-11-26")

# %% [markdown]
# If FSDP drops the weights after the forward pass, it gathers them again for the backward pass. It
# then sends $3(k-1)/k$ arrays. Data parallelism sends $2(k-1)/k$. In return, each device stores
# only $1/k$ of the weights.
#
# In an *all-to-all*, each device sends a different piece to each other device, like a
# transposition. Networks with *experts* on different devices use it to send each word to its
# expert, and `jit` uses it to change the dimension along which an array is split.
#
# ## What became of the parameter server
# The English edition of the book has one more section here, [Parameter
# Servers](https://d2l.ai/chapter_computational-performance/parameterserver.html). A *parameter
# server* is a machine that holds the parameters: workers *push* gradients to it and *pull* sums.
# This is the star, except that device 0 is not a worker. The book also shows a solution: several
# servers, each for a part of the parameters. If every worker is also the server of one piece, then
# a push is a reduce-scatter, and a pull is an all-gather. So this section replaces the book's. A
# server is still useful where workers should not wait for one another, or where each step uses few
# of many parameters. JAX has no parameter server.
#
# ## Summary
# - An all-reduce is a reduce-scatter followed by an all-gather. JAX's names are `psum`,
#   `psum_scatter`, `all_gather`, and `ppermute`.
# - A star of $k$ devices takes $2(k-1)$ whole arrays through one link; a ring sends less than two
#   arrays through each link, however many devices there are.
# - A collective takes a delay per message, plus its bytes divided by the bandwidth. A ring's total
#   delay grows with $k$.
# - Two levels send only a fraction of the bytes between nodes and wait for fewer messages.
# - Count messages and bytes in your program first. Times on parts of a CPU say nothing about GPUs.
#
# ## Exercises
# Think first, then open the code and the answer. The code runs with `--answers`.
#
# **1 (the book's).** Links carry data in both directions at once. Can a ring use that? Send half
# the array each way around. How many bytes does each direction carry?
#
# Check it with `jaxperf check 8.7.1 mine.py`: `mine.py` defines `two_rings(x, axis)`, for
# `shard_map`, with `ppermute`.

# %% tags=["answer"]
def both_ways(x, axis="d"):
    half = len(x) // 2
    return jnp.concatenate([ring(x[:half], axis), ring(x[half:], axis, by=-1)])

wide = jnp.ones((k, 2 * k)) * jnp.arange(1.0, k + 1)[:, None]
right, one = sent(messages(both_ways, mesh), "d") / 2 / n, sent(flat, "d") / n
print("equal:", bool((on_devices(both_ways)(wide) == on_devices(ring)(wide)).all()))
print(f"{right:.3g} arrays in each direction; one ring: {one:.3g} in one direction")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Each carries half of what one ring carries, so the bytes take half of the time if both directions
# have the full bandwidth. The delay stays: $2(k - 1)$ steps each way, at the same time. Two rings
# over different links gain the same: the book splits the links of eight V100 into two rings.
#
# </details>
#
# **2.** Exchange the whole array with the device that is 1 away, then 2, then 4 (the two device
# numbers differ in one binary digit). How many messages does a device wait for, and from which size
# on is the ring better? Take $\alpha$ = 10 µs and $\beta$ = 50 GB/s.

# %% tags=["answer"]
def doubling(x, axis="d"):
    step = 1
    while step < lax.axis_size(axis):
        x = x + lax.ppermute(x, axis, [(i, i ^ step) for i in range(lax.axis_size(axis))])
        step *= 2
    return x

if k & (k - 1) == 0:  # a power of two
    steps = messages(doubling, mesh)
    print("equal:", bool((on_devices(doubling)(wide) == on_devices(ring)(wide)).all()))
    saved_s, more_arrays = (len(flat) - len(steps)) * 10e-6, len(steps) - one
    print(f"{len(steps)} messages instead of {len(flat)}; the ring is better from "
          f"{saved_s * 50e9 / more_arrays / 1e6:.1f} MB on")

# %% [markdown]
# <details><summary>Answer</summary>
#
# A device waits for $\log_2 k$ messages, each with the whole array: $\log_2 k\,(\alpha + n/\beta)$.
# On 8 devices that is 3 messages instead of 14, and 3 arrays instead of 1.75. Both ways take the
# same time where $11\,\alpha = 1.25\,n/\beta$, at 4.4 MB. So a library needs both, and chooses by
# size.
#
# </details>
#
# **3.** LeNet's eight gradients took eight `allreduce`s in the book. Write eight `psum`s. How many
# all-reduces does the compiled program have?

# %% tags=["answer"]
def sum_all(gradients):
    return [lax.psum(gradient, "d") for gradient in gradients]

summed = jax.jit(jax.shard_map(sum_all, mesh=mesh, in_specs=P("d"), out_specs=P()))
shapes = [jax.ShapeDtypeStruct((k * shape[0], *shape[1:]), "float32") for shape in lenet]
print(count_ops(summed.lower(shapes).compile().as_text() or "")["all-reduce"], "all-reduce")

# %% [markdown]
# <details><summary>Answer</summary>
#
# One. XLA merges collectives that don't depend on one another. The book's loop pays for the delay
# and for calls from Python eight times. A framework that runs op by op has to merge by itself;
# PyTorch's `DistributedDataParallel` fills *buckets* of 25 MB.
#
# </details>
#
# **4.** Send bfloat16, which halves the bytes. How does this change the sum? Compare the ring,
# `psum`, and the exact sum.

# %% tags=["answer"]
half = numbers.astype(jnp.bfloat16)
exact_half = np.asarray(half, "float64").sum(0)
for way in ("ring", "two levels", "psum"):
    error = np.asarray(ways[way](half), "float64") - exact_half
    print(f"{way}: {np.sqrt((error**2).mean() / (exact_half**2).mean()):.2%} typical error")

# %% [markdown]
# <details><summary>Answer</summary>
#
# bfloat16 has 8 significant bits, so each rounding errs by up to 0.4%. The ring rounds at each of
# its $k - 1$ additions, so its error grows with the number of devices. Two levels have fewer
# additions in a row, $m - 1 + c - 1$. If `psum` is better, it adds in float32 and rounds once at
# the end. Whether a GPU does so depends on the library and the algorithm that it chooses (not
# measured here).
#
# </details>
#
# **5 (the book's).** Four GPUs add 160 MB over PCIe with 16 GB/s each. The book computes 60 ms if
# all send to the first GPU, and 15 ms if each GPU adds up a quarter. For eight V100s with three
# pairs of links of 18 GB/s it computes 6 ms. Which of our formulas are these? What do you predict
# for eight H100?

# %% tags=["answer"]
MB, GB = 1e6, 1e9
print(f"star of 4: {1e3 * 2 * 3 * 160 * MB / (16 * GB):.0f} ms")
print(f"each a quarter, or ring: {1e3 * 2 * 3 / 4 * 160 * MB / (16 * GB):.0f} ms")
print(f"ring of 8 V100: {1e3 * 2 * 7 / 8 * 160 * MB / (3 * 18 * GB):.1f} ms")
for count in (8, 1024):
    print(f"{count:,} H100: {1e3 * gpu_seconds(160 * MB, count):.2f} ms")

# %% [markdown]
# <details><summary>Answer</summary>
#
# They are the star, $2(k-1)n/\beta$, and the ring, $2\frac{k-1}{k}n/\beta$, without the delays,
# which are small beside the time for 160 MB. For the V100s the book rounds $2 \cdot 7/8$ up to 2,
# so 5.2 ms become 6. The bytes of one all-reduce take less time on 1,024 H100 than on four GPUs of
# one PCIe switch.
#
# </details>
