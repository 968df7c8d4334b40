"""The plan for one number of devices, and for all of them, as text and as JSON."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxperf.plan.collectives import Collective
from jaxperf.plan.memory import USABLE, Live
from jaxperf.plan.timeline import Elapsed
from jaxperf.result import Block, Grid, Heading, Note, Text, terminal
from jaxperf.result.formatting import format_list, format_on_page

NUMBERS = {
    "devices", "batch", "collectives", "step", "waits", "arguments", "temporaries", "peak", "arithmetic",
    "traffic", "kernels", "times", "bytes", "each", "examples each",
}  # fmt: skip


@dataclass
class SizePlan:
    """A step on one number of devices. Bytes, FLOPs and kernels are those of one device in one step."""

    devices: int
    per_node: int
    mesh: Mapping[str, int]
    batch: int  # examples of the whole batch; 0 if there is none
    batch_arguments: tuple[int, ...]  # positions
    batch_axes: tuple[str, ...]  # the mesh's axes that divide the batch
    exchanges: tuple[Collective, ...]  # equal ones are one
    argument_bytes: int
    temp_bytes: int
    peak_bytes: int
    memory_bytes: int  # of the card
    state_bytes: int  # of the arguments that are not the batch, in total
    state_share_bytes: int  # and on one device
    live: tuple[Live, ...]
    notes: tuple[str, ...]  # on what the times leave out
    useful: float  # share of the turns of a pipeline's loop in which a device has work; 1 for no pipeline
    time: Elapsed | None  # None for a TPU
    between_s: tuple[float, float] = (0.0, 0.0)  # the step's range, from the errors on the test tables
    # useful work per second and device over that of the first size; None for the first, and for equal work
    efficiency: float | None = None
    efficiency_range: tuple[float, float] = (0.0, 0.0)
    repeated: float = 1.0  # arithmetic for each example, relative to the first size
    advice: Mapping[str, str] = field(default_factory=dict)  # sentences by kind

    @property
    def step_s(self) -> float | None:
        return self.time.step_s if self.time else None

    @property
    def collectives(self) -> dict[str, int]:
        kinds = dict.fromkeys(each.kind for each in self.exchanges)
        return {kind: round(sum(e.times for e in self.exchanges if e.kind == kind)) for kind in kinds}

    @property
    def examples(self) -> int:  # on each device
        return self.batch // math.prod(self.mesh[name] for name in self.batch_axes)

    def over_batch(self, each: Collective) -> bool:  # whether its devices have different examples
        return not self.batch_axes or not set(self.batch_axes).isdisjoint(each.axes)

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= USABLE * self.memory_bytes

    def to_json(self) -> dict[str, Any]:
        derived = {name: getattr(self, name) for name in ("step_s", "fits", "examples", "collectives")}
        return dataclasses.asdict(self) | derived


@dataclass(frozen=True)
class Fit:
    """What was tried on the most devices, in order."""

    tries: tuple[tuple[str, SizePlan], ...]  # the change of the step, "" for none, and its plan
    seconds: float  # that the tries took

    @property
    def largest(self) -> int:
        """Return the most examples on each device with which the unchanged step fits; 0 if it never does."""
        return max((size.examples for change, size in self.tries if size.fits and not change), default=0)

    def __str__(self) -> str:
        most = f"{self.largest} examples on each device fit" if self.largest else "no number of examples fits"
        return f"{len(self.tries)} compilations in {self.seconds:.0f} s; as it is, {most}."


@dataclass(frozen=True)
class StepPlan:
    """A step on several numbers of devices; `print` shows it as text."""

    name: str  # the step's
    card: str  # such as "h100"
    network: str  # between nodes
    versions: Mapping[str, str]  # of JAX and jaxlib
    sizes: tuple[SizePlan, ...]
    notes: tuple[str, ...] = ()
    fit: Fit | None = None

    def __str__(self) -> str:
        return terminal.render_text(self.blocks(), width=110).rstrip("\n")

    def blocks(self) -> list[Block]:
        last = self.sizes[-1]
        predicted = " and predicted" if last.time else ""
        blocks: list[Block] = [
            Heading(f"{self.name} on {self.card}, not run: compiled{predicted}"),
            grid("Predicted step" if last.time else "Compiled step", map(_overview, self.sizes)),
            grid("Each device", map(_memory, self.sizes)),
        ]
        if last.live:
            title = f"Largest temporary arrays at the peak, on {last.devices} devices"
            blocks.append(grid(title, map(_live, last.live)))
        if last.exchanges:
            rows = sorted(last.exchanges, key=lambda e: (-e.seconds, -e.times * e.bytes))
            blocks.append(grid(f"Collectives on {last.devices} devices", map(_exchange, rows), first=12))
        for kind in dict.fromkeys(kind for size in self.sizes for kind in size.advice):
            having = {size.devices: size.advice[kind] for size in self.sizes if kind in size.advice}
            *others, most = having
            also = f"; also on {format_list([str(n) for n in others])}" if others else ""
            blocks.append(Text(f"Change, on {most} devices{also}: {having[most]}"))
        if self.fit:
            tries = (_tried(*each) for each in self.fit.tries)
            blocks += [grid(f"What fits, on {last.devices} devices", tries), Text(str(self.fit))]
        return blocks + [Note(note) for note in self.notes]

    def to_json(self) -> dict[str, Any]:
        body = {"format": "jaxperf-plan", "schema_version": 4, **vars(self)}
        tries = self.fit.tries if self.fit else ()
        tried = [{"change": change} | size.to_json() for change, size in tries]
        return body | {"sizes": [size.to_json() for size in self.sizes], "fit": tried}


def grid(title: str, rows: Iterable[dict[str, str]], *, first: int = 0) -> Grid:
    """Return a table of rows, whose cells are given by head; columns in `NUMBERS` are right-aligned."""
    cells = list(rows)
    heads = tuple(cells[0])
    right = tuple(i for i, head in enumerate(heads) if head in NUMBERS)
    return Grid(title, heads, tuple(tuple(row.values()) for row in cells), right, first=first)


seconds = functools.partial(format_on_page, unit="s")
nbytes = functools.partial(format_on_page, unit="bytes")


def _overview(size: SizePlan) -> dict[str, str]:
    row = {"devices": str(size.devices)}
    if len(size.mesh) > 1:
        row[" x ".join(size.mesh)] = " x ".join(map(str, size.mesh.values()))
    row["batch"] = str(size.batch or "-")
    if not size.time:
        return row
    low, high = map(seconds, size.between_s)
    if low.split()[1:] == high.split()[1:]:
        low = low.split()[0]
    efficiency = "-"
    if size.efficiency is not None:
        least, most = (100 * end for end in size.efficiency_range)
        efficiency = f"{size.efficiency:.0%} ({least:.0f} to {most:.0f}%)"
    parts = size.time.parts | {"links": size.time.waits_s}
    bound = max(parts, key=lambda name: parts[name])
    return row | {
        "step": seconds(size.time.step_s),
        "between": f"{low} to {high}".replace(" ", "\u00a0"),
        "waits": seconds(size.time.waits_s),
        "efficiency": efficiency,
        "most of it": f"{parts[bound] / size.time.step_s:.0%} {bound}",
    }


def _memory(size: SizePlan) -> dict[str, str]:
    share = f"{size.peak_bytes / size.memory_bytes:.0%}"
    row = {
        "devices": str(size.devices),
        "arguments": nbytes(size.argument_bytes),
        "temporaries": nbytes(size.temp_bytes),
        "peak": nbytes(size.peak_bytes),
        "of the card": share if size.fits else f"{share} (does not fit)",
    }
    if size.time:
        row["arithmetic"] = format_on_page(size.time.flops, "FLOP")
        row |= {"traffic": nbytes(size.time.bytes), "kernels": f"{size.time.kernels:.0f}"}
    return row | {"collectives": str(sum(size.collectives.values()))}


def _live(array: Live) -> dict[str, str]:
    return {
        "bytes": nbytes(array.bytes),
        "arrays": array.shown,
        "line": array.source or "-",
        "operation": array.operation,
        "goes with": array.remedy or "-",
    }


def _exchange(each: Collective) -> dict[str, str]:
    groups = f"{len(each.groups)} x {each.group_size} ({', '.join(each.axes)})"
    if each.kind == "collective-permute":
        groups = f"{len(each.groups)} pairs"
    elif len(each.groups) == 1:
        groups = f"all {each.group_size}"
    row = {
        "collective": each.kind,
        "times": f"{each.times:g}",
        "bytes": nbytes(each.bytes),
        "of": each.carries or "-",
        "groups": groups,
    }
    if each.each_s:
        row |= {"each": seconds(each.each_s), "waits": seconds(each.waits_s)}
    return row | {"line": each.source or "-"}


def _tried(change: str, size: SizePlan) -> dict[str, str]:
    return {
        "change": change or "as it is",
        "examples each": str(size.examples),
        "peak": nbytes(size.peak_bytes),
        "fits": "yes" if size.fits else "no",
        "step": seconds(size.step_s) if size.step_s else "-",
    }
