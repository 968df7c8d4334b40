"""Beside MXNet and PyTorch: how fast are JAX, MXNet 1.9.1 and PyTorch at the same work on this machine?

The book's figures were taken years ago on hardware that it does not name. Here its own code runs in MXNet,
here and now, and the same work in PyTorch and JAX. Every system is a live process with the same cores,
threads and allocator settings; all read the same weights and inputs, and only what agrees with JAX's
answers is timed. They take turns, one at a time, round by round: the ratio of two systems is formed within
each round, and its median and interval are shown. Every configuration is measured; each system's quickest
counts, by name.

Prediction: on the 8.1 MLP dispatch is nearly all there is, and JAX's compiled call costs less than MXNet's
hybridized one; on large products and ResNet-18 arithmetic is all there is, and the systems are within a
factor of 2 of each other.

    jaxperf peers install                                          # once: an environment for each
    jaxperf run peers
    python experiments/peers.py --only MLP "8.4 LeNet" --rounds 20 --json results/peers.json
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

from jaxperf import script
from jaxperf.errors import JaxperfError
from jaxperf.peers import SMOKE, Sizes


@dataclass(frozen=True)
class Config:
    """Flags of this section."""

    peers: tuple[str, ...] = ("mxnet", "torch")
    """Systems beside JAX; `jaxperf peers` tells which are there."""
    only: tuple[str, ...] = ()
    """Only the workloads whose names hold one of these words."""
    cores: int = 0
    """Processors that each system may use, the first ones there are; 0 for all."""
    sizes: Sizes = field(default_factory=Sizes)
    """How much work."""
    budget_s: float = 20
    """Seconds after which no further round of a workload begins, once there were six."""
    omp_wait: Literal["auto", "default", "passive"] = "auto"
    """How OpenMP's threads wait, in all systems: as by default, spinning, or asleep; auto sends them to sleep
    where other programs keep the machine busy, since a spinning thread then waits for one that cannot run."""
    data_source: str = "auto"
    """Where the images come from, as in the other sections: auto, folder, tfds, download, mini."""
    seed: int = 0
    """Seed of weights and inputs."""

    def __post_init__(self) -> None:
        if self.cores < 0 or not self.budget_s > 0:
            raise JaxperfError(
                f"--cores {self.cores} is negative, or --budget-s {self.budget_s:g} not positive"
            )

    @staticmethod
    def smoke() -> Config:
        """Every part, in seconds."""
        return Config(sizes=SMOKE, data_source="mini")


FLAGS = (
    script.parse(Config, devices=2) if __name__ == "__main__" else None
)  # flags are read before JAX starts
if FLAGS:
    os.environ["JAX_PLATFORMS"] = "cpu"  # MXNet 1.9.1's package computes on the CPU, so all do

import dataclasses
import sys
import tempfile
from pathlib import Path

import psutil

from jaxperf import launch, peers
from jaxperf.data import fashion_mnist
from jaxperf.measure import Measurement, Reference, Series
from jaxperf.measure.memory import GIVE_BACK
from jaxperf.peers import Limits, Pool, Study, System, Workload

BUSY_PERCENT = 10
IMAGES = 2048
BOOK = {  # section 8.1.2 and 8.2, on hardware that is not named
    "mxnet/8.1 MLP/imperative": ("before hybridizing", 0.4943e-3, "s", "section 8.1.2"),
    "mxnet/8.1 MLP/hybridized": ("after hybridizing", 0.2053e-3, "s", "section 8.1.2"),
    "mxnet/8.2 dot queued/imperative": ("queued", 0.0014, "s", "section 8.2.1"),
    "mxnet/8.2 dot finished/imperative": ("finished", 0.3517, "s", "section 8.2.1"),
    "mxnet/8.2 loop synchronous/imperative": ("synchronous", 7.3877e-3, "s", "section 8.2.3"),
    "mxnet/8.2 loop asynchronous/imperative": ("asynchronous", 3.5370e-3, "s", "section 8.2.3"),
    "mxnet/8.2 memory synchronous/imperative": ("synchronous", 4.648e6, "bytes", "section 8.2.4"),
    "mxnet/8.2 memory asynchronous/imperative": ("asynchronous", 0.016e6, "bytes", "section 8.2.4"),
}


def systems(config: Config, story: script.Story) -> list[System]:
    """JAX, and every peer that is there; a line for each that is not."""
    found = [System("jax", Path(sys.executable))]
    for peer in peers.chosen(config.peers):
        there = peers.look(peer)
        if there.state == "ready":
            found.append(System(peer.name, there.python))
        else:
            story.note(f"{peer.name} is not measured: {peers.status(peer)}")
    return found


def choose(config: Config, there: tuple[Workload, ...]) -> list[Workload]:
    """The workloads that `--only` names, or all."""
    words = [word.lower() for word in config.only]
    found = [w for w in there if not words or any(word in w.name.lower() for word in words)]
    if not found:
        raise JaxperfError(
            f"no workload holds {' or '.join(config.only)}; there are {', '.join(w.name for w in there)}"
        )
    return found


def environment(config: Config, story: script.Story, seen: list[float]) -> dict[str, str]:
    """The environment variables of all workers: the allocator's, and how OpenMP waits.

    On 2 cores that others kept busy, a PyTorch sum of 40,000 numbers took 16 ms with spinning threads,
    which is a turn of the scheduler, and 12 us with sleeping ones; on an idle machine spinning is the
    quicker.
    """
    busy(story, seen, seconds=1)
    crowded = seen[0] > BUSY_PERCENT
    asleep = config.omp_wait == "passive" or (config.omp_wait == "auto" and crowded)
    if asleep and config.omp_wait == "auto":
        story.note(f"others use {seen[0]:.0f} % of the machine: OpenMP's threads sleep while they wait")
    shared = launch.child_environment()
    return {**shared, "OMP_WAIT_POLICY": "passive"} if asleep else shared


def fairness(story: script.Story, pool: Pool, devices: int) -> None:
    """What all systems were given alike."""
    cores = list(pool.cores or peers.available_cores())
    story.say(
        f"cores {cores} for every system, {pool.threads(1)} threads; "
        f"on {devices} devices, {pool.threads(devices)} each"
    )
    story.fact("cores", len(cores), show=False)
    story.fact("threads_per_device/1", pool.threads(1), show=False)
    story.fact(f"threads_per_device/{devices}", pool.threads(devices), show=False)
    settings = {k: v for k, v in pool.environment.items() if k.startswith(("MALLOC_", "OMP_"))}
    story.say(f"and the same settings: {' '.join(f'{k}={v}' for k, v in settings.items()) or 'none'}")
    for name, value in settings.items():
        story.fact(f"environment/{name}", value, show=False)
    story.say("systems take turns, one at a time; ratios are of the same round, intervals by the sign test")


def busy(story: script.Story, seen: list[float], *, seconds: float = 0.3) -> None:
    """How much of the machine others use while our workers rest."""
    seen.append(psutil.cpu_percent(interval=seconds))
    story.fact("busy_by_others_percent", max(seen), show=False)


def tell(story: script.Story, study: Study) -> None:
    """Tables, ratios, curves and facts of one workload."""
    for quantity in study.workload.quantities:
        rows, ours = peers.measurements(study, quantity), study.best("jax", quantity)
        base = f"jax/{study.workload.measured(quantity)}/{ours.configuration}" if ours else None
        if rows:
            story.measured(*rows, references=references(rows), base=base, title=quantity)
    for comparison in peers.comparisons(study):
        story.say(peers.line(comparison))
    for name, value in peers.facts(study).items():
        story.fact(name, value, show=False)
    for curve in peers.curves(study):
        story.curve(curve)


def references(rows: list[Measurement]) -> list[Reference]:
    """The book's figures beside the book's own code."""
    found = [(BOOK[row.name], row.name) for row in rows if row.name in BOOK]
    return [
        Reference(n, v, unit, "MXNet, the book", where, beside=name) for (n, v, unit, where), name in found
    ]


def in_fresh_processes(story: script.Story, study: Study, pool: Pool, limits: Limits) -> None:
    """What the export and the memory run need further processes for."""
    if study.workload.settings["task"] == "export":
        for read in peers.reload(study, pool, limits=limits, say=story.note):
            story.fact(f"fresh_reload_s/{read.name}", read.seconds, unit="s")
            story.claim(
                f"{read.name}: the export runs in a process that has never seen the network",
                predicted="the same output",
                observed=read.verdict.trouble or f"the same within {read.verdict.error:.2g}",
                held=read.verdict.agrees,
            )
    if study.workload.settings["task"] == "memory":
        for run in peers.memory(study, pool, limits=limits, say=story.note, environment=GIVE_BACK):
            story.curve(run.curve)
            story.say(
                f"{run.entry.name}, {run.mode}: all handed out after {run.handed_out_s:.2f} s, "
                f"done after {run.finished_s:.2f} s"
            )
            story.fact(f"handed_out_s/{run.entry.name}/{run.mode}", run.handed_out_s, show=False)
            story.fact(f"finished_s/{run.entry.name}/{run.mode}", run.finished_s, show=False)


def sentences(story: script.Story, studies: dict[str, Study]) -> None:
    """The chapter's sentences, asked of every system that is there."""
    story.heading("The chapter's sentences")
    for system in dict.fromkeys(e.system for study in studies.values() for e in study.entries):
        claim = peers.agreement(list(studies.values()), system)
        story.claim(claim.statement, predicted=claim.predicted, observed=claim.observed, held=claim.held)
    if "8.1 MLP" in studies:
        hybridizing(story, studies["8.1 MLP"])
    for name, less, more, bound, sentence in (
        ("8.2 dot", "queued", "finished", 0.1, "the call returns long before the product is there"),
        ("8.2 loop", "asynchronous", "synchronous", 1, "waiting once is faster than waiting each time"),
        ("8.3 products", "together", "apart", 1, "independent products on several devices run together"),
    ):
        for entry in studies[name].timed if name in studies else []:
            found = peers.ratio(entry.values[less], entry.values[more])
            story.claim(
                f"{entry.name}: {sentence}",
                predicted=f"{less} over {more} below {bound}",
                observed=peers.shown(found),
                held=below(bound, found),
            )


def hybridizing(story: script.Story, study: Study) -> None:
    """Section 8.1.2's sentence for MXNet itself, and our prediction about JAX beside it."""
    values = {e.name: e.values[""] for e in study.timed}
    if {"mxnet/imperative", "mxnet/hybridized"} <= values.keys():
        found = peers.ratio(values["mxnet/hybridized"], values["mxnet/imperative"])
        told = "MXNet: hybridizing makes the network faster (the book: 2.4 times)"
        story.claim(told, predicted="0.42 of the time", observed=peers.shown(found), held=below(1, found))
    for c in peers.comparisons(study):
        if c.peer == "mxnet":
            told = f"JAX's call ({c.base}) costs less than MXNet's ({c.best})"
            dearer = below(1, c.ratio)
            story.claim(
                told,
                predicted="MXNet over JAX above 1",
                observed=peers.shown(c.ratio),
                held=None if dearer is None else not dearer,
            )


def below(bound: float, found: peers.Ratio) -> bool | None:
    """Whether a ratio lies below `bound`; None where the rounds cannot say."""
    return found.high < bound if found.decides(bound) else None


def inference_by_batch(story: script.Story, studies: dict[str, Study]) -> None:
    """Images a second of each system's best configuration, over the batch size."""
    points: dict[str, list[tuple[float, float]]] = {}
    for study in studies.values():
        net, _, batch = study.workload.name.partition(" forward, batch ")
        for system in dict.fromkeys(e.system for e in study.timed if batch):
            best = study.best(system, "")
            assert best is not None
            rate = best.measurement(study.workload, "").items_per_s
            points.setdefault(f"{system}/{net} forward", []).append((float(batch), rate or 0.0))
    for name, pairs in points.items():
        x, y = zip(*pairs)
        story.curve(Series(name, x, y, "images at once", "images/s"))


def main(config: Config, story: script.Story) -> None:
    """Every workload on every system that is there."""
    devices, seen = story.flags.devices, list[float]()
    data = fashion_mnist(source=config.data_source)
    story.data_source(data.source)
    limits, studies = Limits(budget_s=config.budget_s), dict[str, Study]()
    with (
        tempfile.TemporaryDirectory(prefix="jaxperf-peers-", ignore_cleanup_errors=True) as folder,
        Pool(
            systems(config, story),
            scratch=Path(folder),
            environment=environment(config, story, seen),
            cores=peers.available_cores()[: config.cores] if config.cores else (),
        ) as pool,
    ):
        images = data.train_images[:IMAGES], data.train_labels[:IMAGES]
        there = peers.workloads(config.sizes, Path(folder), *images, devices=devices, seed=config.seed)
        fairness(story, pool, devices)
        for workload in choose(config, there):
            story.heading(workload.name)
            story.say(workload.title)
            busy(story, seen)
            study = peers.study(workload, pool, limits=limits, say=story.note)
            in_fresh_processes(story, study, pool, limits)
            tell(story, study)
            studies[workload.name] = study
        systems_as_they_were(story, pool)
    inference_by_batch(story, studies)
    sentences(story, studies)
    if max(seen) > BUSY_PERCENT:
        story.note(f"the machine was busy: others used up to {max(seen):.0f} % of it while ours rested")


def systems_as_they_were(story: script.Story, pool: Pool) -> None:
    """Versions and threads as the workers told them."""
    versions = dict(story.environment.versions)
    for name, greeting in pool.greetings.items():
        versions |= {k: v for k, v in greeting["versions"].items() if k == name}
        words = ", ".join(f"{k} {v}" for k, v in greeting["versions"].items())
        story.fact(f"versions/{name}", words)
    story.environment = dataclasses.replace(story.environment, versions=versions)


if __name__ == "__main__":
    script.run(main, FLAGS)
