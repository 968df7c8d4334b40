"""The plan for one number of devices, and for all of them, as text and as JSON."""

from __future__ import annotations

import dataclasses
import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from jaxperf.plan.collectives import Collective
from jaxperf.plan.memory import USABLE, Live
from jaxperf.result import Block, Grid, Heading, Note, Text, terminal
from jaxperf.result.formatting import format_list, format_on_page

FORMAT = "jaxperf-plan"


@dataclass(frozen=True)
class PlanAdvice:
    kind: str
    text: str


@dataclass(frozen=True)
class Exchange:
    """Equal collectives of a step: the same kind, bytes, groups and line."""

    collective: Collective  # one of them
    count: float  # their runs in a step
    each_s: float  # predicted seconds of one run; 0 for a TPU
    exposed_s: float  # for which the step waits for all of them
    carries: str = ""  # "gradients", "activations", "parameters" or "state" (what a step updates)
    axes: tuple[str, ...] = ()  # the mesh's axes along which the devices exchange
    over_batch: bool = True  # whether these devices have different examples

    @property
    def groups(self) -> str:
        """Return the groups in short: "all 8", "64 pairs", or "16 x 4 (model)", with their axes."""
        number, size = len(self.collective.groups), self.collective.group_size
        if self.collective.kind == "collective-permute":
            return f"{number} pairs"
        return f"all {size}" if number == 1 else f"{number} x {size} ({', '.join(self.axes)})"

    @property
    def bytes(self) -> float:
        return self.count * self.collective.bytes

    @property
    def seconds(self) -> float:
        return self.count * self.each_s


@dataclass(frozen=True)
class StepTime:
    """Predicted seconds of a step on GPUs; the range is that of the errors on tables that test the model."""

    step_s: float
    low_s: float
    high_s: float
    kernels_s: float
    exposed_s: float  # for which kernels wait for collectives
    # by bound: "arithmetic", "memory" and "overhead" of kernels, "call" of the program, "links" (waits)
    parts: Mapping[str, float]
    factor: float  # within which nine of ten collectives of the test tables are predicted

    @property
    def bound(self) -> str:
        """Return the part that takes most of the step's time."""
        return max(self.parts, key=lambda name: self.parts[name])

    @property
    def overhead_share(self) -> float:
        """Return the share of the step that is overhead of kernels and of the call."""
        return (self.parts.get("overhead", 0.0) + self.parts["call"]) / self.step_s


@dataclass(frozen=True)
class SizePlan:
    """A step on one number of devices. Bytes, FLOPs and kernels are those of one device in one step."""

    devices: int
    nodes: int
    per_node: int
    mesh: Mapping[str, int]
    batch: int  # examples of the whole batch; 0 if there is none
    batch_arguments: tuple[int, ...]  # positions
    padded: int  # examples that were added so that the batch divides evenly
    split: int  # into how many parts the mesh divides the batch
    exchanges: tuple[Exchange, ...]
    flops: float  # of matrix products, convolutions and custom kernels
    bytes: float  # that kernels read and write
    kernels: float
    unknown_loops: int  # whose number of iterations XLA does not know, counted once
    unknown_kernels: tuple[str, ...]  # whose arithmetic is not known
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    peak_bytes: int
    memory_bytes: int  # of the card
    state_bytes: int  # of the arguments that are not the batch, in total
    state_share_bytes: int  # and on one device
    live: tuple[Live, ...]
    remat: bool  # whether the step uses jax.checkpoint
    busiest: str  # the line with most kernels, if their overhead is most of the step
    pipeline: float  # turns of a pipeline's loop over those in which a device has work; 1 for no pipeline
    compile_s: float
    time: StepTime | None  # None for a TPU
    # useful work per second and device, relative to the first size, and its range; None for the first, and if
    # the devices all do the same work
    efficiency: float | None = None
    efficiency_low: float | None = None
    efficiency_high: float | None = None
    advice: tuple[PlanAdvice, ...] = ()

    @property
    def step_s(self) -> float | None:
        return self.time.step_s if self.time else None

    @property
    def useful(self) -> float:
        """Return the share of a pipeline's turns in which a device has work; 1 without a pipeline."""
        return 1 / self.pipeline

    @property
    def collectives(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for each in self.exchanges:
            counts[each.collective.kind] += round(each.count)
        return dict(counts)

    @property
    def usable_bytes(self) -> float:
        return USABLE * self.memory_bytes

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.usable_bytes


@dataclass(frozen=True)
class StepPlan:
    """A step on several numbers of devices; `print` shows it as text."""

    name: str  # the step's
    card: str  # such as "h100"
    network: str  # between nodes
    versions: Mapping[str, str]  # of JAX and jaxlib
    sizes: tuple[SizePlan, ...]
    notes: tuple[str, ...] = ()
    fit: Any = None  # what `--fit` tried, a `jaxperf.plan.fitting.Fit`

    def __str__(self) -> str:
        out = io.StringIO()
        console = Console(file=out, width=110, highlight=False, force_terminal=False, force_jupyter=False)
        for block in self.blocks():
            terminal.show(console, block)
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())

    def blocks(self) -> list[Block]:
        last = self.sizes[-1]
        predicted = " and predicted" if last.time else ""
        blocks: list[Block] = [
            Heading(f"{self.name} on {self.card}, not run: compiled{predicted}"),
            _overview(self.sizes),
            _memory(self.sizes),
        ]
        if last.live:
            blocks.append(_at_peak(last))
        if last.exchanges:
            blocks.append(_exchanges(last))
        blocks += [Text(line) for line in self._advice()]
        if self.fit:
            blocks += self.fit.blocks()
        return blocks + [Note(note) for note in self.notes]

    def _advice(self) -> list[str]:
        """Return one line for each kind of advice, with the figures of the most devices that have it."""
        lines = []
        for kind in dict.fromkeys(advice.kind for size in self.sizes for advice in size.advice):
            having = {s.devices: a.text for s in self.sizes for a in s.advice if a.kind == kind}
            *others, most = having
            also = f"; also on {format_list([str(n) for n in others])}" if others else ""
            lines.append(f"Change, on {most} devices{also}: {having[most]}")
        return lines

    def to_json(self) -> dict[str, Any]:
        plain_plan = dataclasses.asdict(dataclasses.replace(self, fit=None))
        body = {"format": FORMAT, "schema_version": 2, **plain_plan}
        body["fit"] = self.fit.to_json() if self.fit else None
        for size, plain in zip(self.sizes, body["sizes"]):
            plain |= {name: getattr(size, name) for name in ("step_s", "fits", "collectives")}
            for exchange, plain_exchange in zip(size.exchanges, plain["exchanges"]):
                collective = exchange.collective
                plain_exchange["collective"] |= {  # only the first group, and the number of groups
                    "groups": [list(group) for group in collective.groups[:1]],
                    "group_count": len(collective.groups),
                    "group_size": collective.group_size,
                    "asked": collective.asked,
                }
        return body


NUMBERS = {
    "devices", "batch", "collectives", "step", "waits", "arguments", "temporaries", "peak", "arithmetic",
    "traffic", "kernels", "times", "bytes", "each", "compiled in",
}  # fmt: skip


def _grid(title: str, rows: list[dict[str, str]], *, first: int = 0) -> Grid:
    """Return a table of rows, whose cells are given by head; columns in `NUMBERS` are right-aligned."""
    heads = tuple(rows[0])
    right = tuple(i for i, head in enumerate(heads) if head in NUMBERS)
    return Grid(title, heads, tuple(tuple(row.values()) for row in rows), right, first=first)


def _overview(sizes: tuple[SizePlan, ...]) -> Grid:
    rows = []
    for size in sizes:
        row = {"devices": str(size.devices)}
        if len(size.mesh) > 1:
            row[" x ".join(size.mesh)] = " x ".join(map(str, size.mesh.values()))
        row["batch"] = str(size.batch or "-")
        rows.append(row | (_prediction(size, size.time) if size.time else {}))
    return _grid("Predicted step" if sizes[0].time else "Compiled step", rows)


def _prediction(size: SizePlan, time: StepTime) -> dict[str, str]:
    efficiency = "-"
    if size.efficiency is not None:
        low, high = 100 * (size.efficiency_low or 0), 100 * (size.efficiency_high or 0)
        efficiency = f"{size.efficiency:.0%} ({low:.0f} to {high:.0f}%)"
    return {
        "step": seconds(time.step_s),
        "between": _spread(time.low_s, time.high_s),
        "waits": seconds(time.exposed_s),
        "efficiency": efficiency,
        "most of it": f"{time.parts[time.bound] / time.step_s:.0%} {time.bound}",
    }


def seconds(value: float) -> str:
    return format_on_page(value, "s")


def nbytes(value: float) -> str:
    return format_on_page(value, "bytes")


def _spread(low_s: float, high_s: float) -> str:
    low, high = seconds(low_s), seconds(high_s)
    if low.split()[1:] == high.split()[1:]:
        low = low.split()[0]
    return f"{low} to {high}".replace(" ", "\u00a0")


def _memory(sizes: tuple[SizePlan, ...]) -> Grid:
    rows = []
    for size in sizes:
        share = f"{size.peak_bytes / size.memory_bytes:.0%}"
        row = {
            "devices": str(size.devices),
            "arguments": nbytes(size.argument_bytes),
            "temporaries": nbytes(size.temp_bytes),
            "peak": nbytes(size.peak_bytes),
            "of the card": share if size.fits else f"{share} (does not fit)",
        }
        if size.time:
            row["arithmetic"] = format_on_page(size.flops, "FLOP")
            row |= {"traffic": nbytes(size.bytes), "kernels": f"{size.kernels:.0f}"}
        row["collectives"] = str(sum(size.collectives.values()))
        rows.append(row)
    return _grid("Each device", rows)


def _at_peak(size: SizePlan) -> Grid:
    rows = [
        {
            "bytes": nbytes(each.bytes),
            "array": each.shown,
            "line": each.source or "-",
            "operation": _operation(each.operation),
            "goes with": each.remedy or "-",
        }
        for each in size.live
    ]
    return _grid(f"Largest temporary arrays at the peak, on {size.devices} devices", rows)


def _exchanges(size: SizePlan) -> Grid:
    rows = [
        {
            "collective": each.collective.kind,
            "times": f"{each.count:g}",
            "bytes": nbytes(each.collective.bytes),
            "of": each.carries or "-",
            "groups": each.groups,
            **({"each": seconds(each.each_s), "waits": seconds(each.exposed_s)} if size.time else {}),
            "line": each.collective.source or "-",
        }
        for each in sorted(size.exchanges, key=lambda e: (-e.seconds, -e.bytes))
    ]
    return _grid(f"Collectives on {size.devices} devices", rows, first=12)


def _operation(name: str) -> str:
    """Return the last part of JAX's name of an operation, or the number of merged operations."""
    if name.count(":") > 1:
        return f"{name.count(':') + 1} merged"
    return name.rstrip(")").rpartition("/")[2].replace("\\'", "'")[:12]
