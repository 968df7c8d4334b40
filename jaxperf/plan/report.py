"""The plan for one number of devices, and for all of them, as text and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxperf.hlo import Shape
from jaxperf.plan.collectives import Collective
from jaxperf.result import Block, Grid, Heading, Note, Text
from jaxperf.result.formatting import format_list, format_on_page

FORMAT = "jaxperf-plan"


@dataclass(frozen=True)
class PlanAdvice:
    """Advice: the kind of finding, and one sentence with its figures."""

    kind: str
    text: str


@dataclass(frozen=True)
class Exchange:
    """Equal collectives of a step: the same kind, bytes, groups and line.

    Attributes:
      collective: one of them.
      count: number of their runs in a step.
      each_s: predicted seconds of one run; 0 for a TPU.
      exposed_s: seconds for which the step waits for all of them.
      carries: "gradients", "activations", "parameters", or "state" (what a step updates); "" if unknown.
      axes: the mesh's axes along which the devices exchange.
      over_batch: whether these devices have different examples.
    """

    collective: Collective
    count: float
    each_s: float
    exposed_s: float
    carries: str = ""
    axes: tuple[str, ...] = ()
    over_batch: bool = True

    @property
    def bytes(self) -> float:
        """Return the bytes of all runs in a step."""
        return self.count * self.collective.bytes

    @property
    def seconds(self) -> float:
        """Return the seconds of all runs in a step."""
        return self.count * self.each_s


@dataclass(frozen=True)
class Live:
    """An array that is alive when a step needs most memory.

    Attributes:
      bytes: its bytes on one device.
      shape: its HLO dtype and dimensions.
      source: "file:line" of the reader's code that made it; "" if unknown.
      operation: JAX's name of the operation.
    """

    bytes: int
    shape: Shape
    source: str
    operation: str

    @property
    def described(self) -> str:
        """Return its dtype, dimensions and line."""
        at = f" of {self.source}" if self.source else ""
        return f"{self.shape.dtype}[{','.join(map(str, self.shape.dims))}]{at}"


@dataclass(frozen=True)
class StepTime:
    """Predicted seconds of a step on GPUs.

    Attributes:
      step_s: of a step.
      low_s, high_s: its range, by the errors of the tables that test the model.
      kernels_s: of the kernels.
      exposed_s: for which kernels wait for collectives.
      parts: by their bound: "arithmetic", "memory", "overhead" (of kernels), "call" (of the program) and
        "links" (waits for collectives).
      factor: the factor within which nine of ten collectives of the test tables are predicted.
    """

    step_s: float
    low_s: float
    high_s: float
    kernels_s: float
    exposed_s: float
    parts: Mapping[str, float]
    factor: float

    @property
    def bound(self) -> str:
        """Return the part that takes most of the step's time."""
        return max(self.parts, key=lambda name: self.parts[name])

    @property
    def overhead_share(self) -> float:
        """Return the share of the step that is overhead of kernels and of the call."""
        return (self.parts["overhead"] + self.parts["call"]) / self.step_s


@dataclass(frozen=True)
class SizePlan:
    """A step on one number of devices.

    Attributes:
      devices, nodes, per_node: their numbers.
      mesh: lengths of the mesh's axes.
      batch: examples of the whole batch; 0 if there is none.
      batch_arguments: positions of the arguments that are the batch.
      padded: examples that were added so that the batch divides evenly.
      split: into how many parts the mesh divides the batch.
      exchanges: the collectives.
      flops, bytes: FLOPs of one device's matrix products, convolutions and custom kernels, and bytes that its
        kernels read and write.
      kernels: number of kernels on one device.
      unknown_loops: loops whose number of iterations XLA does not know, counted once.
      unknown_kernels: names of custom kernels whose arithmetic is not known.
      argument_bytes, output_bytes, temp_bytes, peak_bytes: memory of one device.
      memory_bytes: memory of the card.
      state_bytes, state_share_bytes: of the arguments that are not the batch, in total and on one device.
      live: the largest temporary arrays when most memory is needed.
      remat: whether the step uses jax.checkpoint.
      busiest: the line with most kernels, if their overhead is most of the step.
      pipeline: turns of a pipeline's loop over those in which a device has work; 1 for no pipeline.
      compile_s: seconds to compile the program here.
      time: predicted seconds; None for a TPU.
      efficiency: useful work per second and device, relative to the first size; None for the first, and if
        the devices all do the same work.
      efficiency_low, efficiency_high: its range.
      advice: the advice on this size.
    """

    devices: int
    nodes: int
    per_node: int
    mesh: Mapping[str, int]
    batch: int
    batch_arguments: tuple[int, ...]
    padded: int
    split: int
    exchanges: tuple[Exchange, ...]
    flops: float
    bytes: float
    kernels: float
    unknown_loops: int
    unknown_kernels: tuple[str, ...]
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    peak_bytes: int
    memory_bytes: int
    state_bytes: int
    state_share_bytes: int
    live: tuple[Live, ...]
    remat: bool
    busiest: str
    pipeline: float
    compile_s: float
    time: StepTime | None
    efficiency: float | None = None
    efficiency_low: float | None = None
    efficiency_high: float | None = None
    advice: tuple[PlanAdvice, ...] = ()

    @property
    def step_s(self) -> float | None:
        """Return the predicted seconds of a step; None for a TPU."""
        return self.time.step_s if self.time else None

    @property
    def useful(self) -> float:
        """Return the share of a pipeline's turns in which a device has work; 1 without a pipeline."""
        return 1 / self.pipeline

    @property
    def collectives(self) -> dict[str, int]:
        """Return the number of collectives that a step runs, by kind."""
        counts: dict[str, int] = {}
        for each in self.exchanges:
            kind = each.collective.kind
            counts[kind] = counts.get(kind, 0) + round(each.count)
        return counts

    @property
    def fits(self) -> bool:
        """Return whether the step fits into the card's memory."""
        return self.peak_bytes <= self.memory_bytes


@dataclass(frozen=True)
class StepPlan:
    """A step on several numbers of devices; `print` shows it as text.

    Attributes:
      name: the step's name.
      card: the card's name, such as "h100".
      network: the network between nodes.
      versions: versions of JAX and jaxlib.
      sizes: one plan per number of devices.
      notes: notes on the figures.
      fit: what `--fit` tried, a `jaxperf.plan.fitting.Fit`; None without it.
    """

    name: str
    card: str
    network: str
    versions: Mapping[str, str]
    sizes: tuple[SizePlan, ...]
    notes: tuple[str, ...] = field(default=())
    fit: Any = None

    def __str__(self) -> str:
        import io

        from rich.console import Console

        from jaxperf.result import terminal

        out = io.StringIO()
        console = Console(file=out, width=110, highlight=False, force_terminal=False, force_jupyter=False)
        for block in self.blocks():
            terminal.show(console, block)
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())

    def blocks(self) -> list[Block]:
        """Return the plan as blocks of a report."""
        predicted = " and predicted" if self.sizes[0].time else ""
        blocks: list[Block] = [Heading(f"{self.name} on {self.card}, not run: compiled{predicted}")]
        blocks.append(_overview(self.sizes))
        blocks.append(_memory(self.sizes))
        if self.sizes[-1].live:
            blocks.append(_at_peak(self.sizes[-1]))
        if largest := next((s for s in reversed(self.sizes) if s.exchanges), None):
            blocks.append(_exchanges(largest))
        kinds = dict.fromkeys(advice.kind for size in self.sizes for advice in size.advice)
        for kind in kinds:
            has = {s.devices: a.text for s in self.sizes for a in s.advice if a.kind == kind}
            *others, largest_count = has
            also = f"; also on {format_list([str(n) for n in others])}" if others else ""
            blocks.append(Text(f"Change, on {largest_count} devices{also}: {has[largest_count]}"))
        if self.fit:
            blocks += self.fit.blocks()
        blocks += [Note(note) for note in self.notes]
        return blocks

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain values, for `json.dumps`."""
        body = {
            "format": FORMAT,
            "schema_version": 2,
            **dataclasses.asdict(dataclasses.replace(self, fit=None)),
        }
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
    "traffic", "kernels", "times", "bytes", "each",
}  # fmt: skip


def _grid(title: str, rows: list[dict[str, str]], *, first: int = 0) -> Grid:
    """Return a table of rows, whose cells are given by head; columns in `NUMBERS` are right-aligned."""
    heads = tuple(rows[0])
    right = tuple(i for i, head in enumerate(heads) if head in NUMBERS)
    return Grid(title, heads, tuple(tuple(row.values()) for row in rows), right, first=first)


def _overview(sizes: tuple[SizePlan, ...]) -> Grid:
    axes = any(len(s.mesh) > 1 for s in sizes)
    rows = [
        {
            "devices": str(s.devices),
            **({"mesh": " ".join(f"{name}={length}" for name, length in s.mesh.items())} if axes else {}),
            "batch": str(s.batch or "-"),
            "collectives": str(sum(s.collectives.values())),
            **(_prediction(s, s.time) if s.time else {}),
        }
        for s in sizes
    ]
    return _grid("Predicted step" if sizes[0].time else "Compiled step", rows)


def _prediction(size: SizePlan, time: StepTime) -> dict[str, str]:
    efficiency = "-"
    if size.efficiency is not None:
        efficiency = f"{size.efficiency:.0%} ({size.efficiency_low:.0%} to {size.efficiency_high:.0%})"
    return {
        "step": _s(time.step_s),
        "between": _spread(time.low_s, time.high_s),
        "waits": _s(time.exposed_s),
        "efficiency": efficiency,
        "most of it": f"{time.parts[time.bound] / time.step_s:.0%} {time.bound}",
    }


def _s(seconds: float) -> str:
    return format_on_page(seconds, "s")


def _spread(low_s: float, high_s: float) -> str:
    low, high = _s(low_s), _s(high_s)
    if low.split()[1:] == high.split()[1:]:
        low = low.split()[0]
    return f"{low} to {high}".replace(" ", "\u00a0")


def _memory(sizes: tuple[SizePlan, ...]) -> Grid:
    rows = [
        {
            "devices": str(s.devices),
            "arguments": format_on_page(s.argument_bytes, "bytes"),
            "temporaries": format_on_page(s.temp_bytes, "bytes"),
            "peak": format_on_page(s.peak_bytes, "bytes"),
            "of the card": f"{s.peak_bytes / s.memory_bytes:.0%}" + ("" if s.fits else " (does not fit)"),
            **(
                {
                    "arithmetic": format_on_page(s.flops, "FLOP"),
                    "traffic": format_on_page(s.bytes, "bytes"),
                    "kernels": f"{s.kernels:.0f}",
                }
                if s.time
                else {}
            ),
        }
        for s in sizes
    ]
    return _grid("Each device", rows)


def _at_peak(size: SizePlan) -> Grid:
    rows = [
        {
            "bytes": format_on_page(each.bytes, "bytes"),
            "array": f"{each.shape.dtype}[{','.join(map(str, each.shape.dims))}]",
            "line": each.source or "-",
            "operation": _operation(each.operation),
        }
        for each in size.live
    ]
    return _grid(f"Largest temporary arrays at the peak, on {size.devices} devices", rows)


def _exchanges(size: SizePlan) -> Grid:
    rows = [
        {
            "collective": each.collective.kind,
            "times": f"{each.count:g}",
            "bytes": format_on_page(each.collective.bytes, "bytes"),
            "of": each.carries or "-",
            "groups": each.collective.shown_groups,
            **({"each": _s(each.each_s), "waits": _s(each.exposed_s)} if size.time else {}),
            "line": each.collective.source or "-",
            "operation": _operation(each.collective.operation),
        }
        for each in sorted(size.exchanges, key=lambda e: (-e.seconds, -e.bytes))
    ]
    return _grid(f"Collectives on {size.devices} devices", rows, first=12)


def _operation(name: str) -> str:
    """Return the last part of JAX's name of an operation, or the number of merged operations."""
    if name.count(":") > 1:
        return f"{name.count(':') + 1} merged"
    return name.rstrip(")").rpartition("/")[2].replace("\\'", "'")[:12]
