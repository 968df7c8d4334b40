"""Beside MXNet and PyTorch: how fast are JAX, MXNet 1.9.1 and PyTorch at the same work on this machine?

Prediction: on the MLP of section 8.1 dispatch is nearly all there is, and JAX's compiled call costs less than
MXNet's hybridized one; on large products and ResNet-18 the systems are within a factor of 2 of each other.

    jaxperf peers install                                          # once: an environment for each
    jaxperf run peers
    jaxperf run all --peer-python torch=/usr/bin/python3           # PyTorch as another Python has it
    jaxperf run peers --platform gpu -- --precision tf32           # JAX and PyTorch on one GPU
    python experiments/peers.py --only MLP "8.4 LeNet" --sizes.rounds 20 --json results/peers.json
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.exits import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import os
from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

from jaxperf import script
from jaxperf.errors import JaxperfError
from jaxperf.flags import at_least, more_than
from jaxperf.peers import GPU, SMOKE, Sizes


@dataclass(frozen=True)
class Config:
    """Flags of this section."""

    peers: tuple[str, ...] = ("mxnet", "torch")  # systems beside JAX; `jaxperf peers` tells which are there
    peer_python: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """NAME=PATH of a Python that has a peer, which then runs there and not in its own environment."""
    only: tuple[str, ...] = ()  # only the workloads whose names hold one of these words
    cores: Annotated[int, at_least(0)] = 0  # processors that each system may use; 0 for all
    sizes: Sizes = field(default_factory=Sizes)  # how much work; on a GPU, more than these defaults
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"  # what networks compute in, on a GPU
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
PLATFORM = "cpu"  # where the package of MXNet's last release computes
if FLAGS:
    PLATFORM = "gpu" if FLAGS.platform == "gpu" else "cpu"
    os.environ["JAX_PLATFORMS"] = "cpu"  # this process only asks; its memory of a GPU would be the workers'

import dataclasses
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from jaxperf import launch, peers
from jaxperf.chapter.beside_peers import (
    all_in_one_table,
    inference_by_batch,
    one_workload,
    sentences,
    versions,
)
from jaxperf.chapter.tolerance import BFLOAT16, tolerance
from jaxperf.data import FashionMNIST, fashion_mnist
from jaxperf.models.lenet import PARAM_SHAPES
from jaxperf.peers import Found, GivenUpError, Pool, Study, System, Workload

BUSY_PERCENT = 10
IMAGES = 2048


def main(config: Config, story: script.Story) -> None:
    """Every workload on every system that is there."""
    named = peers.named(config.peer_python)
    data = fashion_mnist(source=config.data.data_source, folder=config.data.data_folder)
    story.data_source(data.source)
    studies: dict[str, Study] = {}
    with tempfile.TemporaryDirectory(prefix="jaxperf-peers-", ignore_cleanup_errors=True) as folder:
        chosen = choose(config, define(config, data, Path(folder), devices=devices(story)))
        with make_pool(story, config, named, Path(folder)) as pool:
            if PLATFORM == "gpu":
                on_a_gpu(story, config, pool)
            story.part(what_is_alike, pool)
            for workload in chosen:
                study = story.part(one_workload, workload, pool, budget_s=config.budget_s)
                studies |= {workload.name: study} if study else {}
            story.part(versions, pool)
    story.part(inference_by_batch, list(studies.values()))
    story.part(all_in_one_table, list(studies.values()))
    story.part(sentences, studies)


def devices(story: script.Story) -> int:
    """On how many devices the parallel workloads run; on GPUs there are none."""
    return story.devices if PLATFORM == "cpu" else 1


def define(config: Config, data: FashionMNIST, folder: Path, *, devices: int) -> list[Workload]:
    """All workloads, for the platform that was asked for.

    Raises:
      JaxperfError: a precision that only a GPU has, or sizes that do not fit.
    """
    if PLATFORM == "cpu" and config.precision != "float32":
        raise JaxperfError(f"--precision {config.precision} is a GPU's; add --platform gpu, or leave it out")
    there = peers.workloads(
        GPU if PLATFORM == "gpu" and config.sizes == Sizes() else config.sizes,
        folder,
        data.train_images[:IMAGES],
        data.train_labels[:IMAGES],
        lenet=PARAM_SHAPES,
        devices=devices,
        platform=PLATFORM,
        precision=config.precision,
        seed=config.seed,
    )
    if config.precision == "bfloat16":
        return [dataclasses.replace(w, rtol=BFLOAT16) for w in there]
    return [
        dataclasses.replace(w, rtol=tolerance(PLATFORM, w.rtol, precision=config.precision)) for w in there
    ]


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
        if peer.name == "mxnet" and PLATFORM == "gpu":
            continue
        there = named.get(peer.name) or peers.look(peer)
        if there.state == "ready":
            systems.append(System(peer.name, there.python))
            if peer.name in named:
                story.note(f"{peer.name} is the one of {there.python}: {there.detail}")
        else:
            story.note(f"{peer.name} is not measured: {peers.status(peer)}")
    cores = peers.available_cores()[: config.cores] if config.cores else ()
    shared = environment(story, config)
    return Pool(systems, scratch=folder, environment=shared, cores=cores, platform=PLATFORM)


def on_a_gpu(story: script.Story, config: Config, pool: Pool) -> None:
    """Tell on which GPU; without one nothing can be compared.

    Raises:
      JaxperfError: JAX's worker finds none.
    """
    try:
        device = pool.worker("jax").greeting["device"]
    except GivenUpError as e:
        raise JaxperfError(f"{e}; without --platform gpu the systems are compared on the CPU") from None
    if device["platform"] != "gpu":
        raise JaxperfError("JAX finds no GPU; without --platform gpu the systems are compared on the CPU")
    story.fact("gpu", device["kind"], words="the GPU that every system computes on")
    story.fact("precision", config.precision, words="precision of products and convolutions")
    if "mxnet" in config.peers:
        story.note("MXNet is left out: the package of its last release computes on CPUs only")


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
    together = devices(story)
    cores = list(pool.cores or peers.available_cores())
    settings = {k: v for k, v in pool.environment.items() if k.startswith(("MALLOC_", "OMP_"))}
    with story.output():
        print(f"cores {cores} and {pool.threads(1)} threads for every system")
        if together > 1:
            print(f"on {together} devices, {pool.threads(together)} threads each")
    story.say(f"settings: {' '.join(f'{k}={v}' for k, v in settings.items()) or 'none'}", detail=True)
    story.fact("cores", len(cores), words="cores of every system")
    story.fact("threads_on_one_device", pool.threads(1), words="threads on 1 device")
    if together > 1:
        words = f"threads per device on {together} devices"
        story.fact("threads_per_device", pool.threads(together), words=words)


if __name__ == "__main__":
    script.run(main, FLAGS)
