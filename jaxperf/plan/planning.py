"""`plan`: compile a step for devices that are not there, and predict its time and memory on them."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jaxlib

from jaxperf.errors import JaxperfError
from jaxperf.hlo import Module
from jaxperf.known_faults import faults_of
from jaxperf.plan import deviceless, fitting, links, timeline
from jaxperf.plan.accuracy import COMPUTE, collective_factor, summary
from jaxperf.plan.advice import advise
from jaxperf.plan.arguments import Placed, as_flag, by_position, name_of, place
from jaxperf.plan.cards import Card, find_card
from jaxperf.plan.collectives import Collective, Flow, collectives, source_of
from jaxperf.plan.kernels import CALL_S, Kernel, kernels_of
from jaxperf.plan.memory import largest_arrays
from jaxperf.plan.report import SizePlan, StepPlan
from jaxperf.result.formatting import format_list


def plan(
    step: Callable[..., Any],
    *args: Any,
    device: str = "h100",
    devices: Sequence[int] = (1, 8, 64),
    mesh: Mapping[str, int] | None = None,
    per_device: int | None = None,
    total: int | None = None,
    batch: Sequence[int] | Mapping[int, int] | None = None,
    network: str = "infiniband",
    kernels: Mapping[str, tuple[float, float]] | None = None,
    told: Callable[[str], None] = lambda line: None,
    fit: bool = False,
    **kwargs: Any,
) -> StepPlan:
    """Compile a step for numbers of devices that are not there, and predict its time and memory on them.

        print(plan(step, state, images, labels, device="h100", devices=(1, 8, 64)))

    Nothing runs and nothing is downloaded. It needs JAX's CUDA plugin, or libtpu for TPUs.

    Args:
      step: the result of `jax.jit`; or a function whose only parameter is `devices` or `mesh`, and which
        returns the step for them, or (step, arguments). A plain function is planned as one program.
      *args: arguments for one device, arrays or shapes. Shardings over a mesh are kept, on a larger mesh.
        Without shardings, the batch is split, and everything else is replicated.
      device: "a100", "h100", "h200", "b200", or "this" machine's GPU; or a TPU, "v5e", "v5p" or "v6e", whose
        plan has no times.
      devices: numbers of devices, each of which gets a plan.
      mesh: lengths of the mesh's axes; that of the first one follows from the others.
      per_device: examples on each device; by default those of the arguments.
      total: examples of the whole batch, for any number of devices, in place of `per_device`.
      batch: positions of the arguments that are the batch, or the axis of the examples by position.
      network: the network between nodes: "infiniband", "efa" or "tcpxo".
      kernels: FLOPs and bytes of one run on one device, of custom kernels by name.
      told: called with a line of progress.
      fit: also find, by compiling again, the largest batch per device that fits on the most devices.
      **kwargs: further arguments, by name.

    Raises:
      JaxperfError: the plugin is missing, or the step, a number, the mesh or the batch cannot be planned.
    """
    if not devices:
        raise JaxperfError("no number of devices given; give some, devices=(1, 8, 64)")
    if not (connected := links.NETWORKS.get(network.strip().lower())):
        raise JaxperfError(f"no network {network!r}; there are {', '.join(links.NETWORKS)}")
    card = deviceless.card_of_this_machine() if device == "this" else find_card(device)
    described = [deviceless.devices_of(card, count) for count in sorted(set(devices))]
    step, args = by_position(step, args, kwargs)
    told(f"tracing, lowering and compiling for {', '.join(str(len(each)) for each in described)} devices")
    at = functools.partial(place, step, args, axes=mesh or {}, per_device=per_device, total=total)
    placed: list[Placed] = []
    for each in described:
        placed.append(at(each, batch=batch))
        if not placed[-1].made:
            batch = placed[-1].axis  # to find it takes a trace

    def planned(*placed: Placed, told: Callable[[str], None] = lambda line: None) -> StepPlan:
        return plan_of(card, placed, deviceless.compiled_programs(card, placed, told), connected, kernels)

    made = planned(*placed, told=told)
    if not fit:
        return made
    with_examples = functools.partial(at, described[-1], batch=batch, total=None)
    tried = fitting.fit(step, made.sizes[-1], with_examples, planned, per_device, told)
    return dataclasses.replace(made, fit=tried)


def plan_of(
    card: Card,
    placed: Sequence[Placed],
    programs: Sequence[deviceless.Program],
    network: links.Network = links.NETWORKS["infiniband"],
    kernels: Mapping[str, tuple[float, float]] | None = None,
) -> StepPlan:
    sizes = [_size(card, each, program, network, kernels or {}) for each, program in zip(placed, programs)]
    for size in sizes:
        _add_range(size, sizes[0], collective_factor(network.name, size.devices > card.per_node))
        size.advice = advise(size)
    return StepPlan(
        name=name_of(placed[0].step),
        card=card.name,
        network="links between chips" if card.is_tpu else network.name,
        versions={"jax": jax.__version__, "jaxlib": jaxlib.__version__},
        sizes=tuple(sizes),
        notes=tuple(_notes(card, network.name, sizes, placed)),
    )


def _size(
    card: Card,
    placed: Placed,
    program: deviceless.Program,
    network: links.Network,
    kernels: Mapping[str, tuple[float, float]],
) -> SizePlan:
    mesh, module, cost = dict(placed.mesh.shape), program.module, program.costs
    works, state = kernels_of(module, kernels), placed.arrays(batch=False)
    exchanges = collectives(module, mesh)
    time = None
    if not card.is_tpu:
        exchanges = {name: _timed(card, each, network) for name, each in exchanges.items()}
        time = timeline.run(module, works, exchanges, card)
        time.add(timeline.Elapsed(CALL_S, {"call": CALL_S}))
    return SizePlan(
        devices=placed.mesh.size,
        per_node=placed.mesh.size if card.is_tpu else card.per_node,
        mesh=mesh,
        batch=placed.batch,
        batch_arguments=tuple(placed.axis),
        batch_axes=placed.batch_axes,
        exchanges=_rows(placed, module, works, exchanges, time.waits if time else {}),
        argument_bytes=cost.argument_bytes,
        temp_bytes=cost.temp_bytes,
        peak_bytes=cost.peak_bytes,
        memory_bytes=card.memory_bytes,
        state_bytes=sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in state),
        state_share_bytes=sum(math.prod(_on_device(leaf)) * leaf.dtype.itemsize for leaf in state),
        live=largest_arrays(program, placed),
        useful=_useful(module, exchanges, mesh),
        notes=tuple(_of_program(card, module, works, jaxlib.__version__)),
        time=time,
    )


def _timed(card: Card, each: Collective, network: links.Network) -> Collective:
    nodes = each.nodes(card.per_node)
    seconds = links.exchange_s(card, each.kind, each.bytes, each.group_size, nodes, network)
    return dataclasses.replace(each, each_s=seconds)


def _on_device(leaf: Any) -> tuple[int, ...]:
    return tuple(leaf.sharding.shard_shape(leaf.shape) if leaf.sharding else leaf.shape)


def _add_range(size: SizePlan, base: SizePlan, factor: float) -> None:
    """Add the range of the step, if collectives are wrong by `factor`, and the efficiency.

    Efficiency compares useful work per second and device with that of `base`: examples if the devices split
    them, and otherwise arithmetic without the idle turns of a pipeline. Devices that all do the same work
    have none. Most of the kernels' error is common to both sizes and cancels. What remains is that of waits
    over kernels.
    """
    before, after = base.time, size.time
    if not before or not after:
        return
    size.between_s = after.stretched(COMPUTE[0], 1 / factor), after.stretched(COMPUTE[1], factor)
    arithmetic = after.flops * size.useful / (before.flops * base.useful or 1.0)
    if size.devices == base.devices:
        return
    if size.examples < size.batch:
        work = (size.batch / size.devices) / (base.batch / base.devices)
        size.repeated = arithmetic / work
    elif size.useful < 1 and before.flops:
        work = arithmetic
    else:
        return
    scales = (1.0, 1.0), (COMPUTE[0], factor), (COMPUTE[1], 1 / factor)
    ends = [work * before.stretched(*scale) / after.stretched(*scale) for scale in scales]
    size.efficiency, size.efficiency_range = ends[0], (min(ends), max(ends))


def _rows(
    placed: Placed,
    module: Module,
    kernels: Mapping[str, Kernel],
    exchanges: Mapping[str, Collective],
    waits: Mapping[str, float],
) -> tuple[Collective, ...]:
    """Return the collectives of a program with what they carry; equal ones are one."""
    if not exchanges:
        return ()
    flow = Flow(module, kernels, {_on_device(leaf) for leaf in placed.arrays(batch=True)})
    rows: dict[Collective, Collective] = {}
    for name, each in exchanges.items():
        line = each.source or flow.line_after(name)
        kind = dataclasses.replace(each, times=0.0, source=line, carries=flow.carried(name))
        row = rows.get(kind, kind)
        times, waits_s = row.times + each.times, row.waits_s + waits.get(name, 0.0)
        rows[kind] = dataclasses.replace(row, times=times, waits_s=waits_s)
    return tuple(rows.values())


def _useful(module: Module, exchanges: Mapping[str, Collective], mesh: Mapping[str, int]) -> float:
    """Return the share of the turns of a pipeline's loop in which a device has work; 1 for no pipeline.

    Its body passes a value to the next device, as often as there are micro-batches and stages, less one. In
    rounds of as many turns as devices, the value goes round a ring; values that go both ways are those of
    neighbors on a grid. There, all devices have work.
    """
    least = 1.0
    for loop in (i for i in module.instructions if i.opcode == "while"):
        turns = loop.trips or 0
        inside = (exchanges[i.name] for i in module.inside(loop) if i.name in exchanges)
        passed = [each for each in inside if each.kind == "collective-permute" and each.asked]
        ways = {frozenset(each.groups) for each in passed}
        for each in passed:
            stages = math.prod(mesh[name] for name in each.axes)
            back = frozenset(pair[::-1] for pair in each.groups)
            if stages < turns and turns % stages and (stages == 2 or back not in ways):
                least = min(least, (turns - stages + 1) / turns)
    return least


def _notes(card: Card, network: str, sizes: Sequence[SizePlan], placed: Sequence[Placed]) -> list[str]:
    about = f"{card.title}: {card.memory_bytes / 1e9:.0f} GB"
    if card.is_tpu:
        shapes = format_list([card.slice_of(size.devices) for size in sizes])
        notes = [f"{about}, slices {shapes}; collectives and memory only: there is no model of a TPU's time"]
    else:
        notes = [f"{about}, nodes of {card.per_node}; {summary(network)}"]
    first = placed[0]
    if first.axis:
        flag = as_flag(first.axis)
        notes.append(f"taken for the batch: {flag}, positions from 0; 1:axis=1 names another axis than 0")
    elif not first.notes:
        notes.append("no argument was taken for the batch; --batch names one")
    notes += first.notes
    leaves = jax.tree.leaves(placed[-1].args)
    shardings = [leaf.sharding for leaf in leaves if getattr(leaf, "sharding", None)]
    if sizes[-1].devices > 1 and shardings and all(each.is_fully_replicated for each in shardings):
        notes.append("each device has all arguments whole, so all devices do the same work")
    return [*notes, *dict.fromkeys(note for size in reversed(sizes) for note in size.notes)]


def _of_program(card: Card, module: Module, kernels: Mapping[str, Kernel], version: str) -> list[str]:
    """Return notes on what the times of a program leave out: unknown work, and known faults of jaxlib."""
    if card.is_tpu:
        return []
    notes = [
        f"{name} is a kernel whose arithmetic is not known, counted by its arrays only; give it as "
        f"--kernel {name}=FLOPS,BYTES of one run"
        for name in sorted({kernel.unknown for kernel in kernels.values() if kernel.unknown})
    ]
    if any(i.opcode == "while" and i.trips is None for i, _ in module.executed()):
        notes.append("a loop whose number of turns XLA does not know counts once, so the step takes longer")
    for fault in faults_of(version, "gpu", card.title):
        if hits := fault.hits(module):
            lines = dict.fromkeys(filter(None, (source_of(module, each) for each in hits)))
            at = f" at {', '.join(list(lines)[:3])}" if lines else ""
            notes.append(f"known fault of jaxlib {version}, not in the times{at}: {fault.text}")
    return notes
