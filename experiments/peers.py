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
# code runs in MXNet on your machine. At the first run, `uv` makes an environment for each
# framework (300 MB for MXNet, 1 GB for PyTorch). A framework that cannot be had is left
# out. On two cores the whole comparison takes six to nine minutes, and about ten with
# `--rounds 28`; `--only "8.1 MLP" "8.4 LeNet"` runs a part of it.

# %%
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import jaxperf
from jaxperf.chapter.section import section
from jaxperf.errors import JaxperfError
from jaxperf.process import mistakes_end
from jaxperf.result import Measurement, ratio

s = section("peers", frameworks=("mxnet", "torch"), python=(), only=(),
            seconds=0.0, rounds=0, onednn=True, devices=2)
runner = Path(jaxperf.__file__).parents[1] / "benchmarks/frameworks/run.py"
with mistakes_end():
    if not runner.is_file():
        raise JaxperfError("the comparison runs in a clone of jaxperf only")

# %% [markdown]
# ## 8.10.1 What is alike
# - **The work.** All systems read the same weights and inputs from files. A configuration
#   is timed only if it computes the same as JAX within a tolerance: the same outputs, or
#   the same losses of several training steps. On two devices, ResNet-18 runs with
#   `shard_map` only: like MXNet and PyTorch, it normalizes each device's share.
# - **The cores.** Every system runs in its own process with the same cores and the same
#   number of threads. Each process reports its CPU time. A configuration that used more
#   cores than it was given is shown, but not judged. One that left cores unused is called
#   slower only if its CPU time, divided by the number of cores, is longer than the other's
#   time.
# - **JAX as installed.** No row that is judged uses flags of XLA, and no system gets
#   allocator settings, except that on a GPU JAX does not reserve memory at its start,
#   because several processes share the card. `jax+oneDNN` is a separate row: JAX with
#   [XLA's flags for oneDNN](../docs/onednn.md), where this JAX has them.
# - **The moment.** The systems take turns, round by round, in random order, so a busy
#   moment slows all equally.
# - **Only what a system has.** PyTorch has no queue on a CPU: a call computes, and returns
#   the result. So it has no time "queued", and no loop that waits once.
#
# Each framework runs in several *configurations*, and its fastest one counts:
#
# | | configuration | what it is |
# |:--|:--|:--|
# | JAX | eager | operation by operation |
# | | nnx.jit | `nnx.jit`, which takes the module apart at each call |
# | | jit | `jax.jit` of a function of the module's arrays |
# | | aot | the same, compiled ahead of time for one shape: no cache lookup |
# | | shard_map | sums gradients by hand, as in [section 8.4](multiple_gpus) |
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
# On a GPU (`--platform gpu`) JAX and PyTorch train on images that are on the card as
# bytes, and on images that each step copies from the host. They also repeat small
# operations. There PyTorch runs with CUDA graphs, too, which replay a recorded step, and JAX with `lax.scan`,
# which makes many steps one program. The most important rows come first, and after
# `--seconds` no workload begins.
#
# ## 8.10.2 The run

# %% tags=["slow", "hide-input"]
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "run.json")
    lists = {
        "--frameworks": s.frameworks,
        "--python": s.python,
        "--only": s.only,
    }
    flags = [
        word
        for flag, words in lists.items()
        if words
        for word in (flag, *words)
    ]
    if s.onednn:
        flags.append("--onednn")
    if s.options.smoke:
        flags.append("--smoke")
    command = [
        sys.executable,
        str(runner),
        *flags,
        f"--seconds={s.seconds}",
        f"--rounds={s.rounds}",
        f"--devices={s.devices}",
        f"--json={file}",
        f"--platform={'gpu' if s.options.platform == 'gpu' else 'cpu'}",
    ]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    with mistakes_end():
        if done.returncode:
            raise JaxperfError(done.stderr.strip().removeprefix("error: "))
    run = json.loads(file.read_text())

for note in run["notes"]:
    s.note(note)
for system, versions in run["versions"].items():
    s.fact(
        f"versions_{system}",
        ", ".join(f"{k} {v}" for k, v in versions.items()),
        meaning=f"versions in {system}'s process",
    )

# %% [markdown]
# ## 8.10.3 In one picture
# In each round, we divide a peer's time by JAX's, both for the fastest configuration. A
# dot is the median of these ratios, and its line the 95% confidence interval. Right of 1,
# JAX's time was shorter. If a line crosses 1, or ends
# [close to it](../docs/trust.md#how-a-verdict-is-made), the rounds do not decide. A hollow
# dot is not judged: the slower system left cores unused, and might not be slower with all
# of them. The loop of 8.2 is compared further down: its time depends on how a process gets
# memory.

# %% tags=["slow", "hide-input"]
compared = [
    (", ".join(filter(None, (study["name"], c["quantity"]))), c)
    for study in run["workloads"]
    for c in study["comparisons"]
    if study["name"] != "8.2 loop"
]
compared.sort(key=lambda pair: pair[1]["ratio"])
fig, ax = plt.subplots(figsize=(7, 1 + 0.22 * len(compared)))
ax.axvline(1, color="C5", lw=1)
for system, label, color in (
    ("mxnet", "MXNet", "C1"),
    ("torch", "PyTorch", "C0"),
):
    rows = [
        (i, c) for i, (_, c) in enumerate(compared) if c["system"] == system
    ]
    for i, c in rows:
        ax.plot(c["interval"] or [c["ratio"]] * 2, (i, i), "-", color=color)
        hollow = c["verdict"].startswith("not judged")
        fill = "w" if hollow else color
        ax.plot(c["ratio"], i, "o", ms=4, color=color, mfc=fill)
    ax.plot([], [], "o", color=color, ms=4, label=label)
ax.set(
    xscale="log",
    xlabel="the peer's time over JAX's",
    yticks=range(len(compared)),
    yticklabels=[work for work, _ in compared],
)
ax.set_xticks(
    [
        t
        for t in (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8, 16, 32)
        if ax.get_xlim()[0] <= t <= ax.get_xlim()[1]
    ]
)
ax.xaxis.set_major_formatter("{x:.3g}")
ax.minorticks_off()
ax.legend(loc="lower right")
s.figure(
    fig,
    "Right of the line, JAX's time was shorter; left of it, the peer's.",
    alt="For each workload and peer a dot with a line: the peer's time over "
    "JAX's. Dots that are not judged are hollow.",
)
s.grid(
    ["workload", "JAX", "peer", "peer over JAX", "verdict"],
    [
        (
            work,
            c["jax"],
            f"{c['system']} {c['configuration']}",
            c["text"],
            c["verdict"],
        )
        for work, c in reversed(compared)
    ],
    title="All comparisons",
    fold=True,
)

# %% [markdown]
# ## 8.10.4 Where JAX is faster, and where slower
# The table in words. In parentheses is the longer time over the shorter one.

# %% tags=["slow", "hide-input"]
for system, label in (("mxnet", "MXNet"), ("torch", "PyTorch")):
    work_of = {}
    for work, c in reversed(compared):
        if c["system"] == system:
            verdict = c["verdict"].partition(":")[0]
            factor = max(c["ratio"], 1 / c["ratio"])
            judged = f"{work} ({factor:.3g} times)"
            work_of.setdefault(verdict, []).append(
                judged if verdict.startswith("JAX") else work
            )
    parts = {
        "JAX is faster": f"JAX as installed is faster than {label} at",
        "JAX is slower": f"JAX is slower than {label} at",
        "undecided": f"JAX and {label}: these rounds do not decide about",
        "not judged": f"JAX and {label}, not judged, because the slower one "
        "left cores unused:",
    }
    for verdict, part in parts.items():
        if verdict in work_of:
            s.text(f"{part} {'; '.join(work_of[verdict])}.")

# %% [markdown]
# ## 8.10.5 All measurements
# There is one table per workload, with the book's figures where it prints some.

# %% tags=["slow", "hide-input"]
BOOK = {
    "8.1 MLP: mxnet imperative": 0.4943e-3,
    "8.1 MLP: mxnet hybridized": 0.2053e-3,
    "8.2 dot, queued: mxnet imperative": 0.0014,
    "8.2 dot, finished: mxnet imperative": 0.3517,
    "8.2 loop, synchronous: mxnet imperative": 7.3877e-3,
    "8.2 loop, asynchronous: mxnet imperative": 3.5370e-3,
}
for study in run["workloads"]:
    rows = [Measurement(**m) for m in study["measurements"]]
    if rows:
        book = {
            m.name: BOOK[m.name]
            for m in rows
            if m.name in BOOK and not run["smoke"]
        }
        s.table(rows, title=study["name"], book=book, fold=True)

# %% [markdown]
# ## 8.10.6 Did they do the same work?
# We compare each configuration's outputs, or its losses of several training steps, with
# those of JAX's first configuration. "Cores" is the CPU time per second, beside the number
# of cores given.

# %% tags=["slow", "hide-input"]
rows = [(study, row) for study in run["workloads"] for row in study["rows"]]
agree = {"mxnet": [], "torch": []}
for study in run["workloads"]:
    for row in study["rows"]:
        if row["system"] in agree and row["difference"] is not None:
            agree[row["system"]].append(row["difference"] <= study["rtol"])
for system, outcomes in agree.items():
    if outcomes:
        s.claim(
            f"Every configuration of {system} computes what JAX computes",
            holds=all(outcomes),
            expected="all within the tolerance of their workload",
            observed=f"{sum(outcomes)} of {len(outcomes)} configurations agree",
            if_holds=f"All rows of {system} did the same work, so their times "
            "compare.",
            if_not=f"A row of {system} computed something else. It was not "
            "timed.",
            if_open=f"No row of {system} gave an answer.",
        )
s.grid(
    [
        "workload",
        "configuration",
        "first call",
        "difference from JAX",
        "tolerance",
        "cores used",
    ],
    [
        (
            study["name"],
            f"{row['system']} {row['configuration']}",
            f"{row['first_s']:.2g} s",
            "no answer"
            if row["difference"] is None
            else f"{row['difference']:.1g}",
            f"{study['rtol']:g}",
            row["lost"]
            or "; ".join(
                f"{what} {used:.2f} of {given}".strip()
                for what, (used, given) in row["cores"].items()
            ),
        )
        for study, row in rows
    ],
    title="First calls, agreement, and cores used by CPU time",
    fold=True,
)

# %% [markdown]
# ## 8.10.7 The book's claims, on every system
# Each claim names its bound.


# %% tags=["slow", "hide-input"]
def both_of(study, system, over, under):
    """Both quantities of each judged configuration, the fastest one first."""
    known = {
        (m["configuration"], m["quantity"]): Measurement(**m)
        for m in study["measurements"]
        if m["system"] == system
    }
    pairs = [
        (known[name, over], known[name, under])
        for name in dict.fromkeys(name for name, _ in known)
        if {(name, over), (name, under)} <= known.keys()
    ]
    fair = {
        row["configuration"]
        for row in study["rows"]
        if row["system"] == system
        and row["fair"].get(over)
        and row["fair"].get(under)
    }
    pairs = [pair for pair in pairs if pair[0].configuration in fair]
    return sorted(pairs, key=lambda pair: pair[1].median)


CLAIMS = (
    (
        "8.2 dot",
        "queued",
        "finished",
        0.1,
        "section 8.2.1",
        "the call returns long before the product is ready",
        "The book's statement is true of {} on this machine.",
        "The book's statement is not true of {} on this machine.",
    ),
    (
        "8.3 products",
        "together",
        "apart",
        0.75,
        "jaxperf",
        "two devices of one CPU, each with a part of the cores, work at once",
        "The calls of {} on the two devices overlap for a good part. The "
        "book's statement is about devices of their own, which a CPU does not "
        "have.",
        "The calls of {} on the two devices overlap little or not at all here.",
    ),
)
studies = {study["name"]: study for study in run["workloads"]}
for name, over, under, bound, source, statement, if_holds, if_not in CLAIMS:
    for system in ("jax", *agree):
        study = studies.get(name)
        for pair in both_of(study, system, over, under)[:1] if study else ():
            times = ratio(*pair)
            s.claim(
                f"{system}: {statement}",
                holds=times.below(bound),
                observed=str(times),
                expected=f"{over} over {under} below {bound}",
                source=source,
                needs=["size"],
                if_holds=if_holds.format(system),
                if_not=if_not.format(system),
                if_open="These rounds do not decide the statement for "
                f"{system}.",
            )
mlp = {
    m["name"]: Measurement(**m)
    for m in studies.get("8.1 MLP", {"measurements": ()})["measurements"]
}
if {"8.1 MLP: mxnet imperative", "8.1 MLP: mxnet hybridized"} <= mlp.keys():
    gain = ratio(
        mlp["8.1 MLP: mxnet imperative"], mlp["8.1 MLP: mxnet hybridized"]
    )
    s.claim(
        "MXNet: hybridizing makes the network faster (the book: 2.4 times)",
        holds=gain.above(1),
        expected="above 1",
        observed=f"{gain} times as fast",
        source="section 8.1.2",
        needs=["size"],
        if_holds="As in the book, MXNet's `hybridize` pays for this network.",
        if_not="Here, MXNet's `hybridize` does not pay for this network.",
        if_open="These rounds do not decide whether `hybridize` pays in MXNet.",
    )

# %% [markdown]
# The loop of 8.2 has no verdict here, neither the book's, that it is faster if it waits
# once, nor one on the systems. How long a loop takes that makes arrays depends on how its
# process gets memory, and this differs from process to process. In this run there is one
# process for each system. [Section 8.2](async_computation) judges three of JAX's. Below
# are the ratios of the processes of this run.

# %% tags=["slow", "hide-input"]
loop = studies.get("8.2 loop")
if loop:
    s.grid(
        ["system", "configuration", "waiting once over waiting each time"],
        [
            (system, once.configuration, str(ratio(once, each)))
            for system in ("jax", *agree)
            for once, each in both_of(
                loop, system, "asynchronous", "synchronous"
            )
        ],
        title="The loop of 8.2 in one process of each system",
    )

# %% [markdown]
# ## 8.10.8 How to read this
# - **Small programs measure the call.** The MLP of 8.1 computes only for microseconds.
#   You see the time that a framework needs to start a program.
# - **"Queued" says who returns first**, not who computes faster, so it is not in the
#   picture.
# - **Compare within a table.** The same program may take another time in another section:
#   it then has other arguments and other neighbors in its process, and here each turn
#   begins after the other systems have used the caches.
# - **A wide interval** means that a process was fast in some rounds and slow in others.
# - **The fastest of several configurations counts.** This favors a system that has more.
# - **Large products measure a library.** Each framework calls a different library for
#   matrix products. A ratio far from 1 says that one library uses this processor worse.
# - **Convolutions on a CPU depend on their kernels.** On x86 CPUs, JAX as installed gives
#   them to XLA's YNNPACK, MXNet and PyTorch to oneDNN. Compare the row `jax+oneDNN`: what
#   is left beside a peer has other reasons.
# - **A CPU says nothing about a GPU.** Figures from one H200 are on [the page of the
#   comparison](../docs/peers.md).
# - **Two CPU devices are not two GPUs.** They are parts of one CPU, which share its cores;
#   the tables call them *fake*. Even where two take less time than one, their rows compare
#   how frameworks divide work, not what a second GPU gains.
