# %% [markdown]
# # 8.10 Beside MXNet and PyTorch
# How fast are JAX, MXNet 1.9.1, and PyTorch at the same work on this machine?
#
# After this section you can
# - read a comparison of frameworks: what is alike, and what a ratio and its interval
#   mean;
# - say where JAX as installed is faster than the others here, and where it is slower;
# - check the chapter's claims on MXNet itself.
#
# The book's figures are years old, from hardware that it does not name. Here, the book's
# code runs in MXNet on your machine. `jaxperf peers install` makes the environments (1.3
# GB). The section leaves out missing frameworks. The whole comparison takes about ten
# minutes; `--only "8.1 MLP" "8.4 LeNet"` runs a part of it.

# %%
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # unless --platform says otherwise
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # a GPU's memory is for the workers

import dataclasses
import time
from contextlib import ExitStack

import matplotlib.pyplot as plt

from jaxperf import frameworks
from jaxperf.chapter.comparison import Choice, prepared
from jaxperf.data import fashion_mnist
from jaxperf.models.lenet import PARAM_SHAPES
from jaxperf.result import ratio
from jaxperf.result.store import save_so_far
from jaxperf.section import section

s = section("peers", devices=2, peers=("mxnet", "torch"), peer_python=(), only=(),
            cores=0, rounds=0, budget_s=0.0, on_device=False, onednn=False, omp_wait="auto",
            seed=0, data="auto", data_folder=None, smoke={"data": "mini"})

data = fashion_mnist(source=s.data, folder=s.data_folder)
s.data_source(data.source)
platform = "gpu" if s.options.platform == "gpu" else "cpu"
on_device = s.on_device or platform == "gpu"

# %% [markdown]
# ## What is alike
# - **The work.** All systems read the same weights and inputs from files. A configuration
#   is timed only if it computes the same as JAX within a tolerance: the same outputs, or
#   the same losses of several training steps.
# - **The cores.** Every system runs in its own process with the same cores and the same
#   number of threads. Workers report their CPU time. A configuration that used more cores
#   than it was given is shown, but not judged.
# - **JAX as installed.** No row that is judged uses flags of XLA, and no system gets
#   allocator settings, except that on a GPU JAX does not reserve memory at its start,
#   because several processes share the card. `--onednn` adds JAX with XLA's flags for
#   oneDNN as a separate row.
# - **The moment.** The systems take turns, round by round, in random order, so a busy
#   moment slows all equally.
#
# Each framework runs in several *configurations*, and its fastest one counts:
#
# | | configuration | what it is |
# |:--|:--|:--|
# | JAX | eager | operation by operation |
# | | nnx.jit | `nnx.jit`, which takes the module apart at each call |
# | | jit | `jax.jit` of a function of the module's arrays |
# | | aot | the same, compiled ahead of time for one shape: no cache lookup |
# | | pmap, shard_map, manual | the other ways of [section 8.4](multiple_gpus) |
# | MXNet | imperative | operation by operation |
# | | hybridized | `net.hybridize()` |
# | | static | `hybridize(static_alloc=True, static_shape=True)`: memory is allocated once |
# | | scratch | section 8.4's training by hand |
# | | contexts | one CPU context per device |
# | PyTorch | eager | operation by operation |
# | | channels-last | eager, with the image layout that convolutions prefer |
# | | traced | `torch.jit.trace`: a recorded graph |
# | | frozen | traced, with the weights as constants (`optimize_for_inference`) |
# | | compiled | `torch.compile` |
# | | threads, ddp | one thread, or one process, per device |
#
# On a GPU (`--platform gpu`) JAX and PyTorch keep the training images on the card as
# bytes, and repeat small operations. There PyTorch also runs with CUDA graphs, which
# replay a recorded step, and JAX with `lax.scan`, which makes many steps one program. The
# run ends within four minutes, so the most important rows come first.
#
# ## The run

# %% tags=["slow"]
choice = Choice(
    peers=s.peers, peer_python=s.peer_python, only=s.only, cores=s.cores, devices=s.devices,
    platform=platform, on_device=on_device, with_onednn=s.onednn, omp_wait=s.omp_wait,
    rounds=s.rounds, smoke=s.options.smoke, seed=s.seed)
limits = frameworks.Limits(budget_s=s.budget_s or 20)
studies = {}
with ExitStack() as stack:
    began = time.monotonic()
    work, pool = stack.enter_context(prepared(
        choice, data.train_images, data.train_labels, lenet=PARAM_SHAPES, say=s.note))
    left = (s.budget_s or 200) - (time.monotonic() - began)
    expected = frameworks.STARTS if platform == "gpu" else {}
    budget = frameworks.Budget(left, work, expected) if on_device else None
    print(f"cores {list(pool.cores or frameworks.available_cores())} for every system:")
    for devices in dict.fromkeys(w.devices for w in work):
        print(f"  {pool.threads(devices)} threads per device on {devices} device(s)")
    for workload in work:
        print(f"{workload.name}: {workload.title}")
        study = frameworks.study(workload, pool, limits=limits, budget=budget, say=s.note)
        studies[workload.name] = study
        if on_device and study.timed:
            starts = ", ".join(f"{e.name} {e.first_s:.2g} s" for e in study.timed)
            print(f"first calls, which compile: {starts}")
            best = study.best("jax", "")
            s.table(frameworks.measurements(study, ""), title=workload.name,
                    base=f"jax {best.configuration}" if best else "")
            if s.options.json:
                save_so_far(s.result(), s.options.json)
    for name, greeting in pool.greetings.items():
        versions = ", ".join(f"{k} {v}" for k, v in greeting["versions"].items())
        s.fact(f"versions_{name}", versions, meaning=f"versions in {name}'s worker")

# %% [markdown]
# ## All measurements
# There is one table per section of the book, with the book's figures where it prints
# some.

# %% tags=["slow"]
BOOK = {
    "8.1 MLP: mxnet imperative": 0.4943e-3,
    "8.1 MLP: mxnet hybridized": 0.2053e-3,
    "8.2 dot, queued: mxnet imperative": 0.0014,
    "8.2 dot, finished: mxnet imperative": 0.3517,
    "8.2 loop, synchronous: mxnet imperative": 7.3877e-3,
    "8.2 loop, asynchronous: mxnet imperative": 3.5370e-3,
}
tables = {}
for study in [] if on_device else studies.values():  # those have a table each
    group = f"Section {study.workload.name.split(' ')[0]}"
    for quantity in study.workload.quantities:
        what = f"{study.workload.name}, {quantity}" if quantity else study.workload.name
        tables.setdefault(group, []).extend(
            dataclasses.replace(m, name=f"{what}: {m.name}")
            for m in frameworks.measurements(study, quantity))
for group, rows in tables.items():
    book = {m.name: BOOK[m.name] for m in rows if m.name in BOOK and not s.options.smoke}
    s.table(rows, title=f"{group}: all configurations", book=book, fold=True)

# %% tags=["slow"]
rows = []
for study in studies.values():
    for entry in study.entries:
        error = f"{entry.verdict.error:.1g}" if entry.verdict else "no answer"
        cores = [f"{quantity} {study.used(entry, quantity):.2f} of {study.allotted(quantity)}"
                 + ("" if study.fair(entry, quantity) else " (not judged)")
                 for quantity in entry.cores]
        rows.append((study.workload.name, entry.name, f"{entry.first_s:.2g} s", error,
                     "; ".join(cores)))
s.grid(["workload", "configuration", "first call", "difference from JAX", "cores used"],
       rows, title="First calls, agreement, and cores used by CPU time", fold=True)

# %% [markdown]
# ## In one picture
# In each round, we divide a peer's time by JAX's, both for the fastest configuration. A
# dot is the median of these ratios, and its line the 95% confidence interval. Right of 1,
# JAX is faster. If a line crosses 1, the rounds do not decide.

# %% tags=["slow"]
comparisons = [c for study in studies.values() for c in frameworks.comparisons(study)]
comparisons.sort(key=lambda c: c.ratio.median)
colors = {"mxnet": "C1", "torch": "C0"}
fig, ax = plt.subplots(figsize=(7, 1 + 0.22 * len(comparisons)))
ax.axvline(1, color="C5", lw=1)
for i, c in enumerate(comparisons):
    ax.plot((c.ratio.low, c.ratio.high), (i, i), "-", color=colors[c.framework.system])
    ax.plot(c.ratio.median, i, "o", color=colors[c.framework.system], ms=4)
ax.set(xscale="log", xlabel="the peer's time over JAX's", ylim=(-1, max(1, len(comparisons))),
       yticks=range(len(comparisons)), yticklabels=[c.work for c in comparisons])
low, high = ax.get_xlim()
ticks = [t for t in (1/16, 1/8, 1/4, 1/2, 1, 2, 4, 8, 16, 32) if low <= t <= high]
ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
ax.minorticks_off()
labels = {"mxnet": "MXNet", "torch": "PyTorch"}
for system in dict.fromkeys(c.framework.system for c in comparisons):
    ax.plot([], [], "o-", color=colors[system], label=labels[system])
if comparisons:
    ax.legend(loc="lower right")
s.figure(fig, "Right of the line, JAX as installed is faster; left of it, the peer.")
s.grid(["workload", "JAX", "peer", "peer over JAX", "verdict"],
       [c.cells for c in reversed(comparisons)], title="All comparisons", fold=True)

# %% [markdown]
# ## The claims, on every system
# First: did the systems do the same work?

# %% tags=["slow"]
for system in dict.fromkeys(e.system for study in studies.values() for e in study.entries):
    seen = frameworks.agreement(list(studies.values()), system)
    s.claim(f"Every configuration of {system} computes what JAX computes",
            holds=seen.agrees, expected=seen.tolerance, observed=seen.seen)

# %% [markdown]
# Next, we check the book's claims on each system that has the configuration. The bounds
# are those of the sections on JAX.

# %% tags=["slow"]
def compared(workload, over, under, source, statement, expected, decide):
    """Judge a claim about two quantities of every fair entry of a workload."""
    for study in [studies[workload]] if workload in studies else []:
        fair = [e for e in study.timed if study.fair(e, over) and study.fair(e, under)]
        for entry in fair:
            times = ratio(*(entry.measurement(study.workload, q) for q in (over, under)))
            s.claim(f"{entry.name}: {statement}", holds=decide(times), expected=expected,
                    observed=str(times), source=source)

compared("8.2 dot", "queued", "finished", "section 8.2.1",
         "the call returns long before the product is ready",
         "queued over finished below 0.1", lambda r: r.below(0.1))
compared("8.2 loop", "asynchronous", "synchronous", "section 8.2.3",
         "waiting once is faster than waiting each time",
         "asynchronous over synchronous below 1", lambda r: r.below(1))
compared("8.3 products", "together", "apart", "section 8.3.1",
         "independent products on several devices run together",
         "together over apart below 1", lambda r: r.below(1))

# %% tags=["slow"]
if "8.1 MLP" in studies:
    mlp = studies["8.1 MLP"]
    times = {e.name: e.measurement(mlp.workload, "") for e in mlp.timed}
    if {"mxnet/imperative", "mxnet/hybridized"} <= times.keys():
        gain = ratio(times["mxnet/imperative"], times["mxnet/hybridized"])
        s.claim("MXNet: hybridizing makes the network faster (the book: 2.4 times)",
                holds=gain.above(1), expected="above 1", observed=f"{gain} times as fast",
                source="section 8.1.2")
    for c in frameworks.comparisons(mlp):
        peer = labels[c.framework.system]
        s.claim(f"A call of JAX's {c.jax.configuration} costs less than {peer}'s "
                f"{c.framework.configuration}", holds=c.ratio.above(1),
                expected=f"{peer} over JAX above 1", observed=str(c.ratio))

# %% [markdown]
# ## How to read this
# - **Small programs measure the call.** The MLP of 8.1 computes only for microseconds.
#   You see the time that a framework needs to start a program.
# - **"Queued" says who returns first**, not who computes faster: PyTorch on a CPU
#   computes during the call.
# - **Large products measure a library.** Each framework calls a different library for
#   matrix products. A ratio far from 1 says that one library uses this processor worse.
# - **Convolutions on a CPU measure the kernels.** JAX as installed gives them to XLA,
#   MXNet and PyTorch to oneDNN. XLA can call oneDNN, too: see [XLA's
#   flags](../docs/onednn.md), and try `--onednn`.
# - **A CPU says nothing about a GPU.** On one H200 (JAX 0.11.2, PyTorch 2.11,
#   2026-11-27), with images on the card, a ResNet-18 step took 6.02 ms in JAX and 7.14 ms
#   in PyTorch with CUDA graphs (TF32, batch 256). In bfloat16 with batch 1024, it took
#   8.98 and 14.9 ms. These are three and five rounds, too few for an interval, and
#   `torch.compile` was not measured for ResNet-18. For LeNet, `torch.compile` with CUDA
#   graphs was as fast as JAX, and PyTorch's other ways took 1.5 to 9 times as long ([all
#   figures](../docs/peers.md)).
# - **Two CPU devices are not two GPUs.** They share the cores. In 8.3's products, each
#   device has its own half of the cores, so the claim that they run together says only
#   that the calls overlap. Even where two take less time than one, their rows compare how
#   frameworks divide work, not what a second GPU gains.
