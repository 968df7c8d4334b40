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
# share memory and cores (tables call them *fake*), so we count messages and do not compare speeds
# with GPUs.

# %%
import math
import socket
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import P, lax
from jax.sharding import AxisType

from jaxperf.chapter.section import section
from jaxperf.measure import count_ops, interleaved
from jaxperf.measure.stages import all_equations

s = section("8.7", devices=8, nodes=2, rounds=9,
            sizes=(4_096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304),
            full={"rounds": 300},
            smoke={"sizes": (4_096, 16_384, 65_536), "rounds": 6})
devices = jax.devices()[: s.devices]
k = len(devices)
mesh = jax.make_mesh((k,), ("d",), (AxisType.Auto,), devices=devices)

# %% tags=["hide-input"]
assert k > s.nodes and k % s.nodes == 0, (
    f"{k} devices do not make {s.nodes} nodes of several")
print(f"{k} devices: {devices}")

# %% [markdown]
# ## 8.7.1 Four collectives
# A *collective* is an operation that all devices take part in, each with its own array. Four
# collectives are enough for most programs.
#
# ![Four devices, before and after each of four collectives. A column is a device, a row a piece of
# its array, a color the device that a number comes from; stripes are
# sums.](images/collective_kinds.svg "Four collectives, before and after.")
#
# JAX has a function for each. We use three here; the fourth is `lax.all_to_all`. The
# function in `shard_map` is one device's program. Here, each device gets one row of `x` and returns
# its result.

# %%
def on_devices(function, mesh=mesh):
    """Run one device's function on all; each gets and returns one row."""
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
# ## 8.7.2 A star
# [Section 8.4](multiple_gpus) has the book's `allreduce`: it adds everything up on the first device
# and copies the sum back. Here, we also list all copies.
#
# ![Left: a star, three devices send their arrays of N bytes to device 0 and get the sum back.
# Right: a ring, each of four devices sends a quarter at a time to the next.](images/all_reduce.svg
# "A star and a ring.")

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

rows = jnp.arange(2.0 * k * k).reshape(k, 2 * k)
arrays = [jax.device_put(row, device) for row, device in zip(rows, devices)]
sums = star(arrays)
received = sum(size for _, to, size in copies if to == devices[0])
print(f"{len(copies)} copies of {arrays[0].nbytes} bytes; device 0 receives "
      f"{received} and sends as many")

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
lenet = [(20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,),
         (800, 128), (128,), (128, 10), (10,)]
total = sum(map(math.prod, lenet))

def copies_of(shapes):
    """How many copies a star of these arrays makes, and their bytes."""
    copies.clear()
    for shape in shapes:
        star([jax.device_put(jnp.ones(shape), device) for device in devices])
    return len(copies), sum(size for *_, size in copies)

one_by_one, moved = copies_of(lenet)
at_once, moved_at_once = copies_of([(total,)])
print(f"one by one: {one_by_one} copies, {moved:,} bytes")
print(f"at once: {at_once} copies, {moved_at_once:,} bytes")

# %% [markdown]
# The bytes are the same, but the book's loop pays eight times for the delay and for the calls.
#
# ## 8.7.3 A ring
# Arrange the devices in a circle, cut each array into $k$ pieces, and let *all* links work at once.
# Each device sends one piece to its right neighbor, adds its own piece to what comes from the left,
# and passes that sum on. After $k - 1$ steps, each device has one finished piece: this is a
# reduce-scatter. In $k - 1$ more steps, the finished pieces go around: this is an all-gather.
#
# ![Seven panels of four devices. In steps 1 to 3, one sum per device grows on its way around the
# ring. In steps 4 to 6, the finished sums go around. An outline marks what just
# arrived.](images/ring_steps.svg "The steps of a ring of four devices.")
#
# With `lax.ppermute`, each device sends an array to one other device.

# %%
def to_neighbor(x, axis, by=1):
    k = lax.axis_size(axis)
    pairs = [(device, (device + by) % k) for device in range(k)]
    return lax.ppermute(x, axis, pairs)

# %%
def ring_reduce_scatter(x, axis="d", by=1):
    k, me = lax.axis_size(axis), lax.axis_index(axis)
    pieces = x.reshape(k, -1)
    total = pieces[(me - by) % k]
    for step in range(2, k + 1):
        total = to_neighbor(total, axis, by) + pieces[(me - by * step) % k]
    return total  # the sum of piece number `me`

# %%
def ring_all_gather(piece, axis="d", by=1):
    k, me = lax.axis_size(axis), lax.axis_index(axis)
    pieces = [piece]  # then that of my left neighbor, of its left neighbor, ...
    for _ in range(k - 1):
        pieces.append(to_neighbor(pieces[-1], axis, by))
    order = by * (me - jnp.arange(k)) % k  # that of the devices
    return jnp.stack(pieces)[order].ravel()

def ring(x, axis="d", by=1):
    return ring_all_gather(ring_reduce_scatter(x, axis, by), axis, by)

x = jnp.arange(2.0 * k * k).reshape(k, 2 * k)
print("device 0 gets", on_devices(ring)(x)[0])
chex.assert_trees_all_equal(on_devices(ring)(x), jnp.tile(x.sum(0), (k, 1)))

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
# are, it is less than two arrays. So data parallelism can work on a thousand devices. For a
# *small* array only the first term counts, and it doubles.
#
# </details>
#
# Unless the network itself can add, no algorithm sends fewer bytes in total: $2(k-1)\,n$. A star
# sends as many, all through the link of one device. A ring divides them equally.
#
# ## 8.7.4 Two levels
# Machines with several GPUs are called *nodes*. Within a node the links are fast, for example
# NVLink with 450 GB/s per GPU. Between nodes they are slower, for example 50 GB/s per GPU
# (published figures of an H200 and a network card of 400 Gbit/s). So first do a reduce-scatter
# within each node. Then each device sends only its piece to other nodes.
#
# ![Three steps on two nodes of four devices: a reduce-scatter in each node, an all-reduce between
# devices that have the same piece, and an all-gather in each node.](images/two_levels.svg "An
# all-reduce on two levels.")

# %%
levels = jax.make_mesh((s.nodes, k // s.nodes), ("node", "device"),
                       (AxisType.Auto,) * 2, devices=devices)

def two_levels(x):
    piece = ring_reduce_scatter(x, "device")
    piece = ring(piece, "node")
    return ring_all_gather(piece, "device")

# %%
def library_two_levels(x):
    piece = lax.psum_scatter(x, "device", tiled=True)
    return lax.all_gather(lax.psum(piece, "node"), "device", tiled=True)

# %% [markdown]
# With $m$ nodes of $c$ devices, each device sends $2(c-1)/c$ arrays within its node, and
# $2(m-1)/m \cdot 1/c$ arrays to another node. So $2(m-1)/m$ arrays leave a node, and its $c$ devices
# share them. In one ring through all nodes, $2(k-1)/k$ arrays leave a node, all through one device.
# With many nodes this is hardly more. We count the messages that one device sends.
# `make_jaxpr` lists the operations of a function.

# %%
n = 8 * k  # bytes of an array: two numbers for each device

def messages(function, mesh):
    """The messages that one device sends, as (axis, bytes)."""
    x = jax.ShapeDtypeStruct((k, n // 4), "float32")
    jaxpr = jax.make_jaxpr(on_devices(function, mesh))(x).jaxpr
    sends = [eqn for eqn in all_equations(jaxpr)
             if eqn.primitive.name == "ppermute"]
    return [(np.ravel(eqn.params["axis_name"])[0],
             eqn.outvars[0].aval.size * 4) for eqn in sends]

def sent(messages, axis):
    return sum(size for where, size in messages if where == axis)

# %%
flat, split = messages(ring, mesh), messages(two_levels, levels)
m, c = s.nodes, k // s.nodes
# name, messages in a row, arrays that a node and its busiest device send out
ways_out = (("star", 2 * (k - 1), k - c, k - c),
            ("ring", len(flat), sent(flat, "d") / n, sent(flat, "d") / n),
            ("two levels", len(split), c * sent(split, "node") / n,
             sent(split, "node") / n))
s.grid(["way", "messages in a row", "arrays that leave the busiest node",
        "of these, through its busiest device"],
       [(way, row, f"{node:.3g}", f"{device:.3g}")
        for way, row, node, device in ways_out],
       title=f"Messages, and arrays that leave a node: {k} devices, {m} nodes")

# %% tags=["hide-input"]
by_formula = (2 * (k - 1) * n // k, 2 * (m - 1) * n // (m * c),
              2 * (c - 1) * n // c)
counted = (sent(flat, "d"), sent(split, "node"), sent(split, "device"))
s.claim("A ring sends less than two arrays per device, two levels less than "
        "one of them to other nodes",
        holds=counted == by_formula and counted[0] < 2 * n and counted[1] < n,
        expected="the formulas' bytes: {} in the ring; {} between nodes and "
                 "{} within".format(*by_formula),
        observed="{}; {} and {}".format(*counted),
        if_holds="The messages in the program are those of the formulas.",
        if_not="The program sends something else than the formulas say: list "
               "its messages.")

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
        "reduce-scatter + all-gather": on_devices(
            lambda x: all_gather(reduce_scatter(x)))}

def by_star(x):
    return star([jax.device_put(row, d) for row, d in zip(x, devices)])

results = {way: np.asarray(function(numbers)) for way, function in ways.items()}
results["star"] = np.stack(jax.device_get(by_star(numbers)))

# %% tags=["hide-input"]
errors = {way: float(abs(rows - exact).max()) for way, rows in results.items()}
s.claim("All ways give every device the same sum",
        holds=max(errors.values()) < 1e-5,
        expected="within 1e-5 of the sum in double precision, on every device",
        observed=f"{max(errors.values()):.0e} at most",
        if_holds="What is left is float32's rounding.",
        if_not="A device has another sum than rounding explains: compare its "
               "rows with the exact sum.")

# %% [markdown]
# ## 8.7.5 How long does it take?
# We first measure on the eight parts of this CPU. Their "links" are copies in one memory.
#
# <details><summary>Predict: which of star, ring, two levels, and `psum` takes the least time here?
# Does the ring beat the star for large arrays?</summary>
#
# Expect `psum`, which is one operation. The
# star makes a Python call for each copy and each sum. At each step of the ring, all devices wait
# for one another, and they share the cores. Whether the ring beats the star is open: in total, both
# move the same number of bytes through one memory, and the ring has no separate links. The second
# table decides it for this machine.
#
# </details>

# %% tags=["slow"]
def timed(size, count):
    ones = np.ones((k, size // 4 // k * k), "float32")  # k equal pieces
    x = jax.device_put(ones, jax.NamedSharding(mesh, P("d")))
    rows = [jax.device_put(row, device) for row, device in zip(ones, devices)]
    calls = {way: partial(ways[way], x)
             for way in ("psum", "ring", "two levels")}
    return interleaved(calls | {"star": partial(star, rows)}, count=count)

times = {size: timed(size, s.rounds) for size in s.sizes}
for size in (min(s.sizes), max(s.sizes)):
    s.table(times[size], title=f"All-reduce of {size:,} bytes, fake devices",
            base="psum")

# %% [markdown]
# (The last column is the median of the ratios within a round. Where rounds differ, it is not the
# ratio of the medians.)
#
# Next, we measure between two *processes*. Each has one device, and the sums go through network
# connections, as between two machines. Only the start of the program differs. To know what a call
# costs without communication, the program also adds 1 to each device's own array.

# %%
START = """
import sys, time
import jax, numpy as np
from jax import P, lax

address, number, output, *sizes = sys.argv[1:]
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
jax.distributed.initialize(address, num_processes=2, process_id=int(number),
                           cluster_detection_method="deactivate")
"""

# %% [markdown]
# From here on, it is a program for two devices, as in one process.

# %%
MEASURE = """
mesh = jax.make_mesh((2,), ("d",))
rows = jax.NamedSharding(mesh, P("d"))
both = jax.jit(jax.shard_map(lambda x: lax.psum(x, "d"), mesh=mesh,
                             in_specs=P("d"), out_specs=P()))
own = jax.jit(jax.shard_map(lambda x: x + 1, mesh=mesh,
                            in_specs=P("d"), out_specs=P("d")))

def seconds(function, x):
    began = time.perf_counter()
    function(x).block_until_ready()
    return time.perf_counter() - began

arrays = [jax.make_array_from_process_local_data(
    rows, np.ones((1, int(size) // 4), "float32")) for size in sizes]

def turn(function):
    seconds(function, arrays[0])  # not counted: it follows another program
    return [seconds(function, x) for x in arrays]

took = [[turn(both), turn(own)] for _ in range(55)]  # the sizes take turns
if number == "0":
    np.savetxt(output, np.median(took[5:], axis=0))
"""

# %%
def in_two_processes(program, sizes):
    with socket.create_server(("127.0.0.1", 0)) as free:  # an unused port
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as folder:
        script, output = Path(folder, "program.py"), Path(folder, "medians.txt")
        script.write_text(program)
        pair = [subprocess.Popen(
            [sys.executable, script, address, number, output, *map(str, sizes)],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            for number in "01"]
        errors = [process.communicate(timeout=300)[1] for process in pair]
        assert not any(process.returncode for process in pair), errors
        return np.loadtxt(output)

# %% [markdown]
# Does the model hold? We fit $\alpha$ and $\beta$ to the smallest and the largest size, and test
# them on the sizes between. An all-reduce of two devices is a ring of two steps, each with half of
# the array: $2\alpha + n/\beta$.

# %%
def fit(sizes, times):
    """The delay and bandwidth of two devices, from both ends."""
    beta = (sizes[-1] - sizes[0]) / (times[-1] - times[0])
    return (times[0] - sizes[0] / beta) / 2, beta

# %%
def worst_factor(predicted, measured):
    ratios = np.asarray(predicted) / np.asarray(measured)
    return float(np.maximum(ratios, 1 / ratios).max())

# %% tags=["slow"]
both, own = in_two_processes(START + MEASURE, s.sizes)
print("psum:    ", *(f"{1e6 * seconds:.0f}" for seconds in both), "µs")
print("own x + 1:", *(f"{1e6 * seconds:.0f}" for seconds in own), "µs")
sizes = np.array(s.sizes)
alpha, beta = fit(sizes, both)
predicted = 2 * alpha + sizes / beta
print(f"fitted: delay {1e6 * alpha:.0f} µs, bandwidth {beta / 1e9:.2f} GB/s")

# %% tags=["slow", "hide-input"]
off = worst_factor(predicted[1:-1], both[1:-1])
jump = int(np.argmax(both[1:] / both[:-1]))
below, above = (f"{sizes[i]:,}" for i in (jump, jump + 1))
s.claim("A delay and a bandwidth, fitted at both ends, predict the sizes "
        "between",
        holds=alpha > 0 and beta > 0 and off < 2, basis="predicted",
        needs=["size"],
        expected="within a factor of 2 of the medians, between two processes",
        observed=f"within a factor of {off:.1f}",
        if_holds="Two numbers describe these sizes roughly.",
        if_not=f"Two numbers are not enough here. The time grows most from "
               f"{below} to {above} bytes, to "
               f"{both[jump + 1] / both[jump]:.1f} times. So the fitted "
               "bandwidth is a slope between both ends, and not the speed of "
               "a link.",
        if_open="Toy sizes are too few.")
s.say(2 * own[0] < both[0],
      if_holds=f"With the smallest array, a call with the sum takes "
               f"{both[0] / own[0]:.1f} times as long as one without "
               f"communication ({1e6 * own[0]:.0f} µs). So most of it is the "
               "collective, with its messages through sockets and threads of "
               "two processes.",
      if_not=f"A call without communication takes {1e6 * own[0]:.0f} µs, half "
             "of one with the sum of the smallest array or more. So much of "
             "the time may be that of the calls.")

# %% tags=["slow", "hide-input"]
medians = {way: [times[size][way].median for size in s.sizes]
           for way in times[s.sizes[0]]}
fig, ax = plt.subplots()
for way, values in medians.items():
    ax.plot(sizes, 1e3 * np.array(values), "o-",
            label=f"{k} parts of a CPU, {way}")
ax.plot(sizes, 1e3 * both, "ok", label="two processes, psum")
ax.plot(sizes[[0, -1]], 1e3 * both[[0, -1]], "sk",
        label="of these, fitted", markersize=9, fillstyle="none")
ax.plot(sizes, 1e3 * predicted, "k:", label="delay + bytes / bandwidth")
ax.set(xscale="log", yscale="log", xlabel="bytes per device", ylabel="ms")
ax.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.25),
          ncols=2)
s.figure(fig, f"All-reduces on {k} parts of one CPU, and between two processes "
              "on it. No line says how fast GPUs are.",
         alt="Milliseconds over bytes per device, both logarithmic, for star, "
             "ring, two levels, psum, and two processes.")

# %% [markdown]
# ## 8.7.6 How long on GPUs?
# [ML Engineering](https://github.com/stas00/ml-engineering/tree/master/network) publishes
# all-reduces on eight GPUs of one node, as *bus bandwidth*: the bytes $2\frac{k-1}{k}n$ that each
# device must send, divided by the time. We turn it back into seconds. NVIDIA publishes the [times
# on eight H100](https://github.com/NVIDIA/dgxc-benchmarking/tree/main/nccl), in microseconds.

# %%
SIZES = 2 ** np.arange(15, 31)  # 32 KiB to 1 GiB
BUS = {"8 H200": [1.44, 2.93, 5.73, 11.74, 23.94, 39.93, 64.53, 107.16,
                  155.53, 219.89, 275.84, 346.51, 401.93, 436.15, 450.29,
                  463.58],
       "8 A100": [1.31, 2.45, 4.43, 7.47, 11.41, 18, 36.18, 72.33, 109.93,
                  106.16, 138.49, 171.54, 176.92, 194.07, 222.72, 229.04],
       "8 B200": [1.2, 2.17, 4.86, 9.54, 18.71, 36.06, 63.09, 76.48, 126.49,
                  254.96, 325.97, 400.6, 568.38, 646.11, 688.99, 723.34]}
published = {name: 2 * 7 / 8 * SIZES / (1e9 * np.array(bus))
             for name, bus in BUS.items()}  # seconds
published["8 H100"] = 1e-6 * np.array(
    [19.33, 19.54, 19.89, 20.43, 20.66, 27.37, 42.21, 54.19, 83.04, 123.8,
     199.3, 324.7, 586.4, 1112.5, 2151.0, 4029.4])

# %% [markdown]
# NCCL, the library that JAX calls on NVIDIA GPUs, does not run the steps of a ring one by one; its
# delay hardly grows with the devices of a node. So we take one delay for the whole collective,
# $\alpha + 2\frac{k-1}{k}\,n/\beta$. We fit it to the smallest and the largest size of the H200's
# table, and test it on what the fit has not seen: the 14 sizes between, and the tables of three
# other GPUs. For these we change one number only, the published bandwidth of the links (300 GB/s
# for A100, 450 for H100 and H200, 900 for B200).
#
# <details><summary>Predict: will two numbers that fit one GPU predict another?</summary>
#
# The bandwidth on the data sheet is that of the links. What share of it a collective reaches, and
# how long the delay is, depends on the switches, the driver, and the version of NCCL. Where the
# switches add, a device sends less than our formula says, and the fitted bandwidth may even be
# above that of the links, as on eight H200. So do not expect more than the order of magnitude; the
# table shows how far off it is.
#
# </details>

# %%
def fit_node(sizes, seconds, devices=8):
    """The delay of a collective and the bandwidth, from both ends."""
    sent = 2 * (devices - 1) / devices * np.asarray(sizes)
    beta = (sent[-1] - sent[0]) / (seconds[-1] - seconds[0])
    return float(seconds[0] - sent[0] / beta), float(beta)

# %%
def node_seconds(sizes, alpha, beta, devices=8):
    sent = 2 * (devices - 1) / devices * np.asarray(sizes, float)
    return alpha + sent / beta

# %%
delay, bandwidth = fit_node(SIZES, published["8 H200"])
print(f"fitted: {1e6 * delay:.0f} µs and {bandwidth / 1e9:.0f} GB/s")
links = {"8 H200": 450e9, "8 A100": 300e9, "8 B200": 900e9, "8 H100": 450e9}
rows, factors = [], {}
for name, link in links.items():
    times_s = node_seconds(SIZES, delay, bandwidth * link / 450e9)
    tested = slice(1, -1) if name == "8 H200" else slice(None)
    ratios = times_s[tested] / published[name][tested]
    factors[name] = worst_factor(times_s[tested], published[name][tested])
    rows.append((name, len(ratios), f"{np.median(ratios):.2f}",
                 f"{ratios.min():.2f} to {ratios.max():.2f}"))
s.grid(["table", "sizes tested", "predicted / published, median", "all"], rows,
       title="Predictions from the H200's two ends")

# %% tags=["hide-input"]
s.claim("Fitted at both ends, two constants predict the sizes between on "
        "eight H200",
        holds=factors["8 H200"] < 1.5, basis="predicted",
        source="data of ML Engineering",
        expected="14 sizes that the fit has not seen, within a factor of 1.5",
        observed=f"within a factor of {factors['8 H200']:.2f}",
        if_holds="In the middle, where neither the delay nor the bandwidth "
                 "alone decides, the prediction is worst. Perhaps chunks fill "
                 "a pipeline there, which the model leaves out.",
        if_not="Between its ends, this table needs more than two constants.")

# %% tags=["hide-input"]
other = max(factor for name, factor in factors.items()
            if name != "8 H200")
s.claim("The same constants predict other GPUs, if only the published "
        "bandwidth is changed",
        holds=other < 1.5, basis="predicted",
        source="data of ML Engineering and NVIDIA",
        expected="48 sizes on A100, B200, and H100 within a factor of 1.5",
        observed=f"within a factor of {other:.2f}",
        if_holds="Within this factor, the links' bandwidth is all that one has "
                 "to know of these machines.",
        if_not="A data sheet is not enough: other machines have another delay, "
               "and reach another share of their links' bandwidth. Measure "
               "several sizes on your own machine instead.")

# %% [markdown]
# Between nodes, each device sends $1/c$ of the array, as on two levels above: add
# $2\frac{m-1}{m}\frac{n}{c}/\beta'$. There are two published tables, of two networks. We take the
# delay from the smallest size that we use, and everything else from data sheets, and test the
# larger sizes.

# %%
def all_reduce_s(size, nodes, delay, inside, network, per_node=8):
    """Seconds of an all-reduce; bandwidths in bytes per second and GPU."""
    c = per_node
    return (delay + 2 * (c - 1) / c * size / inside
            + 2 * (nodes - 1) / nodes * size / c / network)

# name: nodes, links within and between (bytes/s per GPU), sizes, published
between = {"4 nodes of 8 B200, EFA": (4, 900e9, 50e9, 2**np.arange(19, 31), [
               2.84, 5.37, 10.38, 18.9, 35.12, 64.43, 91.19, 156.74, 197.94,
               229.09, 326.9, 361.99]),
           "2 nodes of 8 H100, TCPXO": (2, 450e9, 25e9, 2**np.arange(15, 31), [
               .4, .77, 1.54, 2.94, 5.64, 9.68, 15.48, 21.57, 27.5, 32.18,
               59.36, 99.74, 152.32, 213.19, 263.69, 297.86])}

# %%
rows, apart = [], {}
for name, (nodes, link, network, sizes_n, bus) in between.items():
    devices_n = 8 * nodes
    seconds = 2 * (devices_n - 1) / devices_n * sizes_n / (1e9 * np.array(bus))
    times_s = all_reduce_s(sizes_n, nodes, seconds[0], link, network)[1:]
    apart[name] = worst_factor(times_s, seconds[1:])
    ratios = times_s / seconds[1:]
    rows.append((name, f"{1e6 * seconds[0]:.0f}", len(ratios),
                 f"{ratios.min():.2f} to {ratios.max():.2f}"))
s.grid(["table", "delay taken from it, µs", "sizes tested",
        "predicted / published"], rows,
       title="Predictions between nodes")

# %% tags=["hide-input"]
worst = max(apart.values())
s.claim("One delay and published bandwidths predict all-reduces between nodes",
        holds=worst < 1.5, basis="predicted",
        source="data of ML Engineering and of "
               "lessizzmore/create-a3mega-ztan-fork",
        expected="larger sizes than the one that gives the delay, within a "
                 "factor of 1.5",
        observed=", ".join(f"{name}: {off:.2f}" for name, off in apart.items()),
        if_holds="Within this factor, a delay and the data sheets describe "
                 "both networks.",
        if_not="It depends on the network: with EFA the model is closer than "
               "with TCPXO, which is slower in the middle than any bandwidth "
               "explains. Perhaps its host process, which handles each chunk, "
               "takes that time. For the largest arrays the model predicts too "
               "much: it adds the times within and between nodes, and NCCL can "
               "do both at once.")

# %% [markdown]
# For InfiniBand, the most common network of GPU clusters, we found no complete table, only the
# delay of two nodes (46 µs, [NCCL's issue 1244](https://github.com/NVIDIA/nccl/issues/1244)). So
# what follows for more than one node is *extrapolated*: that delay, 10 µs more for each doubling of
# the nodes, 50 GB/s per GPU. Two GPUs are extrapolated, too: the delay of eight, and the links'
# bandwidth.

# %%
def gpu_seconds(size, count, delay=40e-6, network=50e9):
    """An all-reduce on `count` H200, in nodes of eight with InfiniBand."""
    c, nodes = min(count, 8), max(1, count // 8)
    inside = 468e9 if c == 8 else 450e9  # fitted to eight; of the links
    if nodes > 1:
        delay = 46e-6 + 10e-6 * (math.log2(nodes) - 1)
    return all_reduce_s(size, nodes, delay, inside, network, per_node=c)

# %%
arrays = {"LeNet": 516_272, "ResNet-18": 44.7e6,
          "7 billion parameters, bfloat16": 14e9}
counts = (2, 8, 64, 1024)
rows = [(name, f"{size / 1e6:,.1f}",  # 1.1e+02 as 110
         *(f"{float(f'{1e3 * gpu_seconds(size, count):.2g}'):,g}"
           for count in counts))
        for name, size in arrays.items()]
s.grid(["gradients of", "MB", *(f"ms on {count:,}" for count in counts)], rows,
       title="Predicted all-reduces on H200; all but 8 are extrapolated")

# %% tags=["hide-input"]
size = np.geomspace(2**12, 2**32, 60)
fig, ax = plt.subplots()
for count, style in ((8, "-"), (64, "--"), (1024, ":")):
    ax.plot(size, [1e3 * gpu_seconds(n, count) for n in size], style,
            label=f"{count:,} H200" + (", extrapolated" if count > 8 else ""))
ax.plot(SIZES[1:-1], 1e3 * published["8 H200"][1:-1], "ok", markersize=3,
        label="8 H200, published")
ax.plot(SIZES[[0, -1]], 1e3 * published["8 H200"][[0, -1]], "sk",
        fillstyle="none", label="8 H200, published, fitted")
ax.set(xscale="log", yscale="log", xlabel="bytes", ylabel="ms")
ax.legend(fontsize="small")
s.figure(fig, "All-reduces on H200: lines are the model, circles test it, "
              "squares are what it was fitted to.",
         alt="Milliseconds over bytes, both logarithmic, for 8, 64, and 1,024 "
             "GPUs, with published points for 8.")

# %% [markdown]
# In this model, the time for LeNet's half megabyte is almost only the delay. From 8 to 1,024 GPUs,
# ResNet-18's sum takes two to three times as long, while a star would take 146 times as long.
# [NCCL](https://docs.nvidia.com/deeplearning/nccl/) chooses by array size among rings, trees, and
# sums inside NVIDIA's switches. `jaxperf plan` uses a finer model, with a term for chunks that fill
# a pipeline ([how it predicts](../docs/plan.md)).
#
# ## 8.7.7 The halves of an all-reduce: FSDP
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
fsdp = jax.jit(jax.shard_map(jax.grad(loss), mesh=mesh, out_specs=P("d"),
                             in_specs=(P("d"), P("d"))))
whole = jax.grad(lambda w: ((X @ w) ** 2).sum())(w)
chex.assert_trees_all_close(fsdp(w, X), whole, rtol=1e-5)
ops = count_ops(fsdp.lower(w, X).compile().as_text() or "")
halves = {op: count for op, count in ops.items()
          if op.startswith(("all-", "reduce-scatter"))}
print(halves)

# %% tags=["hide-input"]
s.claim("The gradient of an all-gather is a reduce-scatter; together they "
        "replace an all-reduce",
        holds=halves == {"all-gather": 1, "reduce-scatter": 1},
        expected="one of each in the compiled program",
        observed=", ".join(f"{count} {op}" for op, count in halves.items()),
        if_holds="`jax.grad` derived the reduce-scatter from the all-gather.",
        if_not="This compiler replaces one of the halves by other collectives.")

# %% [markdown]
# If FSDP drops the weights after the forward pass, it gathers them again for the backward pass. It
# then sends $3(k-1)/k$ arrays. Data parallelism sends $2(k-1)/k$. In return, each device stores
# only $1/k$ of the weights.
#
# In an *all-to-all*, each device sends a different piece to each other device, like a
# transposition. Networks with *experts* on different devices use it to send each word to its
# expert, and `jit` uses it to change the dimension along which an array is split.
#
# ## 8.7.8 What became of the parameter server
# The English edition of the book has one more section here, [Parameter
# Servers](https://d2l.ai/chapter_computational-performance/parameterserver.html). A *parameter
# server* is a machine that holds the parameters: workers *push* gradients to it and *pull* sums.
# This is the star, except that device 0 is not a worker. The book also shows a solution: several
# servers, each for a part of the parameters. If every worker is also the server of one piece, then
# a push is a reduce-scatter, and a pull is an all-gather. So this section replaces the book's. A
# server is still useful where workers should not wait for one another, or where each step uses few
# of many parameters. JAX has no parameter server.
#
# ## 8.7.9 Summary
# - An all-reduce is a reduce-scatter followed by an all-gather. JAX's names are `psum`,
#   `psum_scatter`, and `all_gather`. `ppermute` sends to one other device.
# - A star of $k$ devices takes $2(k-1)$ whole arrays through one link; a ring sends less than two
#   arrays through each link, however many devices there are.
# - A collective takes a delay per message, plus its bytes divided by the bandwidth. A ring's total
#   delay grows with $k$.
# - On two levels, all devices of a node share the bytes that leave it, and they wait for fewer
#   messages.
# - Two constants, fitted to some sizes, describe a collective roughly at best. Test them at other
#   sizes, and on the machine that you will use: a data sheet does not say what a collective reaches.
# - Count messages and bytes in your program first. Times on parts of a CPU say nothing about GPUs.
#
# ## 8.7.10 Exercises
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
jaxpr = jax.make_jaxpr(on_devices(both_ways))(wide).jaxpr
carried = {}  # arrays, by the first pair of a message: from device, to device
for eqn in all_equations(jaxpr):
    if eqn.primitive.name == "ppermute":
        pair = tuple(eqn.params["perm"][0])
        size = eqn.outvars[0].aval.size * 4
        carried[pair] = carried.get(pair, 0) + size / n
one = sent(flat, "d") / n
chex.assert_trees_all_equal(on_devices(both_ways)(wide), on_devices(ring)(wide))
for (source, target), arrays in carried.items():
    print(f"{source} to {target}: {arrays:.3g} arrays; one ring: {one:.3g}")

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
        pairs = [(i, i ^ step) for i in range(lax.axis_size(axis))]
        x = x + lax.ppermute(x, axis, pairs)
        step *= 2
    return x

if k & (k - 1) == 0:  # a power of two
    steps = messages(doubling, mesh)
    chex.assert_trees_all_equal(on_devices(doubling)(wide),
                                on_devices(ring)(wide))
    saved_s, more_arrays = (len(flat) - len(steps)) * 10e-6, len(steps) - one
    print(f"{len(steps)} messages instead of {len(flat)}; the ring is better "
          f"from {saved_s * 50e9 / more_arrays / 1e6:.1f} MB on")

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

summed = jax.jit(jax.shard_map(sum_all, mesh=mesh, in_specs=P("d"),
                               out_specs=P()))
shapes = [jax.ShapeDtypeStruct((k * shape[0], *shape[1:]), "float32")
          for shape in lenet]
program = summed.lower(shapes).compile().as_text() or ""
print(count_ops(program)["all-reduce"], "all-reduce")

# %% [markdown]
# <details><summary>Answer</summary>
#
# One. XLA merges collectives that don't depend on one another. (The library below may still send
# the arrays one after the other, as Gloo does: see [several
# machines](../docs/several-machines.md).) The book's loop pays for the delay and for calls from
# Python eight times. A framework that runs op by op has to merge by itself; PyTorch's
# `DistributedDataParallel` fills *buckets* of 25 MB.
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
    typical = np.sqrt((error**2).mean() / (exact_half**2).mean())
    print(f"{way}: {typical:.2%} typical error")

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
# for eight H200?

# %% tags=["answer"]
MB, GB = 1e6, 1e9
print(f"star of 4: {1e3 * 2 * 3 * 160 * MB / (16 * GB):.0f} ms")
print("each a quarter, or ring: "
      f"{1e3 * 2 * 3 / 4 * 160 * MB / (16 * GB):.0f} ms")
print(f"ring of 8 V100: {1e3 * 2 * 7 / 8 * 160 * MB / (3 * 18 * GB):.1f} ms")
for count in (8, 1024):
    print(f"{count:,} H200: {1e3 * gpu_seconds(160 * MB, count):.2f} ms")

# %% [markdown]
# <details><summary>Answer</summary>
#
# They are the star, $2(k-1)n/\beta$, and the ring, $2\frac{k-1}{k}n/\beta$, without the delays,
# which are small beside the time for 160 MB. For the V100s the book rounds $2 \cdot 7/8$ up to 2,
# so 5.2 ms become 6. By our extrapolation, one all-reduce takes less time on 1,024 H200 than on
# four GPUs of one PCIe switch.
#
# </details>
