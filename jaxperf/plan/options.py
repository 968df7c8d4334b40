"""The flags of `jaxperf plan`, apart from the work, which needs JAX."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from jaxperf.flags import between, more_than

MOST_EXAMPLES = 10**12


@dataclass(frozen=True)
class Plan:
    """Plan a step of yours for GPUs or TPUs that you don't have: collectives, memory, time, what to change.

    The step is compiled for each number of devices and never runs. It needs JAX's CUDA plugin, and no GPU;
    for TPUs, it needs libtpu. Arguments are those of one device;
    shardings that they have are kept, on a larger mesh.
    """

    step: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODULE:FUNCTION")] = ""
    """What jax.jit returned, e.g. train:step; or a function of `devices` or `mesh` that makes the step."""
    for_: Annotated[str, tyro.conf.arg(name="for", metavar="CARD")] = "h100"
    """A card: a100, h100, h200, b200; a TPU: v5e, v5p, v6e; "this" is the GPU that is here."""
    devices: Annotated[str, tyro.conf.arg(metavar="N,N,...")] = "1,8,64"
    """How many devices; one plan for each number."""
    args: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SPEC...")] = ()
    """Arrays ("f32[256,28,28,1]"), random keys ("key"), Python values ("3"); with a name as "n=3"."""
    setup: Annotated[str, tyro.conf.arg(metavar="MODULE:FUNCTION")] = ""
    """Called once, without arguments; returns the arguments as a tuple, or the only one."""
    npz: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Arrays arr_0, arr_1, ... become arguments by position, others by name."""
    per_device: Annotated[int | None, between(1, MOST_EXAMPLES), tyro.conf.arg(metavar="N")] = None
    """Examples on each device; by default as many as the arguments have."""
    total: Annotated[int | None, between(1, MOST_EXAMPLES), tyro.conf.arg(metavar="N")] = None
    """Examples of the whole batch, whatever the number of devices."""
    batch: Annotated[str, tyro.conf.arg(metavar="I,I,...")] = ""
    """Positions of the arguments that are the batch, from 0 on; by default the last of equal first axis."""
    mesh: Annotated[str, tyro.conf.arg(metavar="NAME=N,...")] = ""
    """Axes for one of --devices, e.g. data=8,model=8 for 64; for others, the first takes what is left."""
    network: str = "infiniband"
    """What connects the nodes: infiniband, efa, tcpxo."""
    step_ms: Annotated[float | None, more_than(0), tyro.conf.arg(metavar="MS")] = None
    """The step's time on one such card, if it was measured; replaces the predicted one."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """Write the plan here."""
    validate: bool = False
    """Print the model beside every published figure that it was held against; no step is needed."""
