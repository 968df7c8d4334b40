"""Beside MXNet and PyTorch: how fast are JAX, MXNet 1.9.1 and PyTorch at the same work on this machine?

Prediction: on the MLP of section 8.1 dispatch is nearly all there is, and JAX's compiled call costs less than
MXNet's hybridized one; on large products and ResNet-18 the systems are within a factor of 2 of each other.

    jaxperf peers install                                          # once: an environment for each
    jaxperf run peers
    jaxperf run all --peer-python torch=/usr/bin/python3           # PyTorch as another Python has it
    python experiments/peers.py --only MLP "8.4 LeNet" --sizes.rounds 20 --json results/peers.json
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

from jaxperf import script
from jaxperf.errors import JaxperfError
from jaxperf.flags import at_least, more_than
from jaxperf.peers import SMOKE, Sizes


@dataclass(frozen=True)
class Config:
    """Flags of this section."""

    peers: tuple[str, ...] = ("mxnet", "torch")  # systems beside JAX; `jaxperf peers` tells which are there
    peer_python: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """NAME=PATH of a Python that has a peer, which then runs there and not in its own environment."""
    only: tuple[str, ...] = ()  # only the workloads whose names hold one of these words
    cores: Annotated[int, at_least(0)] = 0  # processors that each system may use; 0 for all
    sizes: Sizes = field(default_factory=Sizes)  # how much work
    budget_s: Annotated[float, more_than(0)] = 20  # seconds after which no round begins, once there were six
    omp_wait: Literal["auto", "default", "passive"] = "auto"
    """How OpenMP's threads wait, in all systems: spinning, as by default, or asleep; auto sends them to sleep
    where other programs keep the machine busy."""
    data: Annotated[script.Data, tyro.conf.OmitArgPrefixes] = script.Data()
    seed: int = 0  # seed of weights and inputs

    @staticmethod
    def smoke() -> Config:
        """Every part, in seconds."""
        return Config(sizes=SMOKE, data=script.Data(data_source="mini"))


FLAGS = script.parse(Config, devices=2) if __name__ == "__main__" else None  # before JAX starts
if FLAGS:
    os.environ["JAX_PLATFORMS"] = "cpu"  # MXNet 1.9.1's package computes on the CPU, so all do

import dataclasses
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from jaxperf import launch, peers
from jaxperf.chapter.book import book
from jaxperf.data import fashion_mnist
from jaxperf.measure.memory import GIVE_BACK
from jaxperf.models.lenet import PARAM_SHAPES
from jaxperf.peers import Found, Limits, Pool, Study, System, Workload
from jaxperf.report.words import quantity
from jaxperf.result import Axis, Curve, Reference, negated, ratio

BUSY_PERCENT = 10
IMAGES = 2048
BOOK: dict[tuple[str, str, str], Reference] = {  # by workload, quantity and configuration of MXNet
    ("8.1 MLP", "", "imperative"): book("before hybridizing", 0.4943e-3, "8.1.2"),
    ("8.1 MLP", "", "hybridized"): book("after hybridizing", 0.2053e-3, "8.1.2"),
    ("8.2 dot", "queued", "imperative"): book("queued", 0.0014, "8.2.1"),
    ("8.2 dot", "finished", "imperative"): book("finished", 0.3517, "8.2.1"),
    ("8.2 loop", "synchronous", "imperative"): book("synchronous", 7.3877e-3, "8.2.3"),
    ("8.2 loop", "asynchronous", "imperative"): book("asynchronous", 3.5370e-3, "8.2.3"),
}


def main(config: Config, story: script.Story) -> None:
    """Every workload on every system that is there."""
    named = peers.named(config.peer_python)
    data = fashion_mnist(source=config.data.data_source, folder=config.data.data_folder)
    story.data_source(data.source)
    studies: dict[str, Study] = {}
    with tempfile.TemporaryDirectory(prefix="jaxperf-peers-", ignore_cleanup_errors=True) as folder:
        images = data.train_images[:IMAGES], data.train_labels[:IMAGES]
        there = peers.workloads(
            config.sizes,
            Path(folder),
            *images,
            lenet=PARAM_SHAPES,
            devices=story.devices,
            seed=config.seed,
        )
        chosen = choose(config, there)
        with make_pool(story, config, named, Path(folder)) as pool:
            story.part(what_is_alike, pool)
            for workload in chosen:
                study = story.part(one_workload, config, workload, pool)
                studies |= {workload.name: study} if study else {}
            story.part(versions, pool)
    story.part(inference_by_batch, list(studies.values()))
    story.part(all_in_one_table, list(studies.values()))
    story.part(sentences, studies)


def choose(config: Config, there: Iterable[Workload]) -> list[Workload]:
    """The workloads that `--only` names, or all.

    Raises:
      JaxperfError: no workload holds one of the words.
    """
    there = list(there)
    words = [word.lower() for word in config.only]
    found = [w for w in there if not words or any(word in w.name.lower() for word in words)]
    if not found:
        names = ", ".join(w.name for w in there)
        raise JaxperfError(f"no workload holds {' or '.join(config.only)}; there are {names}")
    return found


def make_pool(story: script.Story, config: Config, named: Mapping[str, Found], folder: Path) -> Pool:
    """Live workers of JAX and of every peer that is there, with the same cores and settings."""
    systems = [System("jax", Path(sys.executable))]
    for peer in peers.chosen(config.peers):
        there = named.get(peer.name) or peers.look(peer)
        if there.state == "ready":
            systems.append(System(peer.name, there.python))
            if peer.name in named:
                story.note(f"{peer.name} is the one of {there.python}: {there.detail}")
        else:
            story.note(f"{peer.name} is not measured: {peers.status(peer)}")
    cores = peers.available_cores()[: config.cores] if config.cores else ()
    return Pool(systems, scratch=folder, environment=environment(story, config), cores=cores)


def environment(story: script.Story, config: Config) -> dict[str, str]:
    """The environment variables of all workers: the allocator's, and how OpenMP waits.

    On 2 cores that other programs kept busy, a PyTorch sum of 40,000 numbers took 16 ms with spinning
    threads, which is one time slice of the scheduler, and 12 us with sleeping ones; on an idle machine
    spinning is faster.
    """
    busy = psutil.cpu_percent(interval=1)
    story.fact("busy_by_others_percent", busy, unit="%", words="share of the machine that others used before")
    asleep = config.omp_wait == "passive" or (config.omp_wait == "auto" and busy > BUSY_PERCENT)
    if asleep and config.omp_wait == "auto":
        story.note(f"others use {busy:.0f} % of the machine: OpenMP's threads sleep while they wait")
    shared = launch.child_environment()
    return {**shared, "OMP_WAIT_POLICY": "passive"} if asleep else shared


def what_is_alike(story: script.Story, pool: Pool) -> None:
    """Tell what makes the comparison fair."""
    story.heading("What is alike")
    story.text(
        """The book's figures were taken years ago on hardware that it does not name. Here its own code runs
        in MXNet, here and now, and the same work in PyTorch and JAX. Every system is a live process with the
        same cores, threads and allocator settings. All read the same weights and inputs, and only what
        computes the same as JAX is timed.""",
        """The systems take turns, one at a time, round by round, so a busy moment of the machine slows all of
        them. A ratio is formed within each round; the tables give its median and an interval that holds the
        true median at 95 %. Every configuration is measured, and the fastest of each system counts.""",
    )
    devices = story.devices
    cores = list(pool.cores or peers.available_cores())
    settings = {k: v for k, v in pool.environment.items() if k.startswith(("MALLOC_", "OMP_"))}
    with story.output():
        print(f"cores {cores} and {pool.threads(1)} threads for every system")
        print(f"on {devices} devices, {pool.threads(devices)} threads each")
    story.say(f"settings: {' '.join(f'{k}={v}' for k, v in settings.items()) or 'none'}", detail=True)
    story.fact("cores", len(cores), words="cores of every system")
    story.fact("threads_on_one_device", pool.threads(1), words="threads on 1 device")
    story.fact("threads_per_device", pool.threads(devices), words=f"threads per device on {devices} devices")


def one_workload(story: script.Story, config: Config, workload: Workload, pool: Pool) -> Study:
    """One workload on all systems: tables, curves, and what needs fresh processes."""
    story.heading(workload.name)
    story.text(f"{workload.title}.")
    limits = Limits(budget_s=config.budget_s)
    study = peers.study(workload, pool, limits=limits, say=story.note)
    if workload.settings["task"] == "export":
        reloaded(story, study, pool, limits)
    if workload.settings["task"] == "memory":
        memory(story, study, pool, limits)
    for what in workload.quantities:
        if rows := peers.measurements(study, what):
            ours = study.best("jax", what)
            references = [
                dataclasses.replace(BOOK[key], beside=m.name)
                for m in rows
                if m.system == "mxnet" and (key := (m.workload, m.quantity, m.configuration)) in BOOK
            ]
            base = f"{ours.system} {ours.configuration}" if ours and workload.rounds else ""
            title = f"{workload.name}, {what}" if what else workload.name
            story.table(rows, title=title, base=base, references=references, bars="bars")
    story.grid(
        ("configuration", "first call", "largest difference from JAX"),
        [
            (e.name, quantity(e.first_s, "s"), f"{e.verdict.error:.2g}" if e.verdict else "no answer")
            for e in study.entries
        ],
        right=(1, 2),
        detail=True,
    )
    if curves := peers.curves(study):
        story.lines(f"{workload.name}: training loss", curves, x=Axis("step"), y=Axis("loss"))
    return study


def reloaded(story: script.Story, study: Study, pool: Pool, limits: Limits) -> None:
    """Have fresh processes read what the live ones exported."""
    for read in peers.reload(study, pool, limits=limits, say=story.note):
        name = f"fresh_reload_s_{read.name.replace('/', '_').replace('.', '_')}"
        story.fact(name, read.seconds, unit="s", words=f"{read.name}: from file to output, fresh process")
        story.claim(
            book=f"{read.name}: the export runs in a process that has never seen the network",
            holds=read.verdict.agrees,
            predicted="the same output",
            right=read.verdict.agrees,
            observed=read.verdict.trouble or f"the same within {read.verdict.error:.2g}",
        )


def memory(story: script.Story, study: Study, pool: Pool, limits: Limits) -> None:
    """Watch each system's process while it trains, synchronously and asynchronously."""
    runs = peers.memory(study, pool, limits=limits, say=story.note, environment=GIVE_BACK)
    story.grid(
        ("system", "mode", "all batches handed out", "all done"),
        [(r.entry.name, r.mode, quantity(r.handed_out_s, "s"), quantity(r.finished_s, "s")) for r in runs],
        right=(2, 3),
    )
    if runs:
        caption = "Resident memory above the level at the start of the run."
        curves = [r.curve for r in runs]
        x, y = Axis("time", "s"), Axis("memory", "bytes")
        story.lines("8.2 memory over time", curves, x=x, y=y, caption=caption, panels=True)


def versions(story: script.Story, pool: Pool) -> None:
    """Record versions as the workers told them."""
    found = dict(story.environment.versions)
    for name, greeting in pool.greetings.items():
        found |= {k: v for k, v in greeting["versions"].items() if k == name}
        words = ", ".join(f"{k} {v}" for k, v in greeting["versions"].items())
        story.fact(f"versions_{name}", words, words=f"versions in {name}'s environment")
    story.environment = dataclasses.replace(story.environment, versions=found)


def inference_by_batch(story: script.Story, studies: list[Study]) -> None:
    """Images per second of each system's best configuration, over the batch size."""
    points: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for study in studies:
        net, _, batch = study.workload.name.partition(" forward, batch ")
        for system in dict.fromkeys(e.system for e in study.timed if batch):
            best = study.best(system, "")
            assert best is not None
            rate = best.measurement(study.workload, "").items_per_s
            points.setdefault(net, {}).setdefault(system, []).append((float(batch), rate or 0.0))
    for net, systems in points.items():
        curves = [
            Curve(
                system,
                tuple(x for x, _ in pairs),
                tuple(y for _, y in pairs),
                system=system,
                workload=f"{net} forward",
            )
            for system, pairs in systems.items()
        ]
        x, y = Axis("images at once"), Axis("images per second")
        story.lines(f"{net} forward: images per second over the batch size", curves, x=x, y=y)


def all_in_one_table(story: script.Story, studies: list[Study]) -> None:
    """Every comparison in one table."""
    rows = [c.cells for study in studies for c in peers.comparisons(study)]
    if rows:
        story.heading("All workloads")
        story.text("A peer's time over JAX's: above 1 JAX is faster. The best configurations are compared.")
        story.grid(("workload", "JAX", "peer", "peer over JAX", "verdict"), rows, right=(3,))


def sentences(story: script.Story, studies: dict[str, Study]) -> None:
    """Ask the chapter's sentences of every system that is there."""
    story.heading("The chapter's sentences, for every system")
    for system in dict.fromkeys(e.system for study in studies.values() for e in study.entries):
        found = peers.agreement(list(studies.values()), system)
        story.claim(
            ours=f"Every configuration of {system} computes what JAX does, outputs and losses",
            holds=found.agrees,
            predicted=found.tolerance,
            right=found.agrees,
            observed=found.seen,
        )
    if "8.1 MLP" in studies:
        hybridizing(story, studies["8.1 MLP"])
    for name, less, more, bound, sentence in (
        ("8.2 dot", "queued", "finished", 0.1, "the call returns long before the product is ready"),
        ("8.2 loop", "asynchronous", "synchronous", 1, "waiting once is faster than waiting each time"),
        ("8.3 products", "together", "apart", 1, "independent products on several devices run together"),
    ):
        for entry in studies[name].timed if name in studies else []:
            pair = (entry.measurement(studies[name].workload, q) for q in (less, more))
            found_ratio = ratio(*pair)
            story.claim(
                book=f"{entry.name}: {sentence}",
                holds=found_ratio.below(bound),
                predicted=f"{less} over {more} below {bound}",
                right=found_ratio.below(bound),
                observed=str(found_ratio),
            )


def hybridizing(story: script.Story, study: Study) -> None:
    """Ask section 8.1.2's sentence of MXNet itself, and our prediction about JAX next to it."""
    rows = {e.configuration: e.measurement(study.workload, "") for e in study.timed if e.system == "mxnet"}
    if {"imperative", "hybridized"} <= rows.keys():
        found = ratio(rows["imperative"], rows["hybridized"])
        story.claim(
            book="MXNet: hybridizing makes the network faster (the book: 2.4 times)",
            holds=found.above(1),
            predicted="at least twice as fast",
            right=found.at_least(2),
            observed=f"{found} times as fast",
        )
    for c in peers.comparisons(study):
        if c.theirs.system == "mxnet":
            story.claim(
                ours=f"JAX's {c.ours.configuration} call costs less than MXNet's {c.theirs.configuration}",
                holds=negated(c.ratio.at_most(1)),
                predicted="MXNet over JAX above 1",
                right=c.ratio.above(1),
                observed=str(c.ratio),
            )


if __name__ == "__main__":
    script.run(main, FLAGS)
