"""`plan`: compile a step for devices that are not there, and predict its time and memory on them."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxperf.errors import JaxperfError
from jaxperf.hlo import Instruction, Module
from jaxperf.plan import arguments, deviceless, links, timeline
from jaxperf.plan.accuracy import COMPUTE, MEASURED, collective_factor, summary
from jaxperf.plan.advice import advise
from jaxperf.plan.cards import Card, Tpu, find_device
from jaxperf.plan.collectives import collectives, describe_collective, source_of
from jaxperf.plan.flow import Flow, axes_of
from jaxperf.plan.kernels import CALL_S, Cost, kernel_of
from jaxperf.plan.programs import Program, compiled_programs
from jaxperf.plan.report import Exchange, Live, SizePlan, StepPlan, StepTime
from jaxperf.result.formatting import format_list

_STACKS = (
    "",
    "while",
    "dynamic_update_slice",
    "transpose",
    "squeeze",
    "reshape",
)  # move arrays, and make none
LARGEST = 5  # arrays at the peak that are shown
SHOWN = 0.02  # share of the temporaries that a shown array has at least


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
    measured_s: float | None = None,
    kernels: Mapping[str, tuple[float, float]] | None = None,
    told: Callable[[str], None] = lambda line: None,
    fit: bool = False,
    **kwargs: Any,
) -> StepPlan:
    """Compile a step for numbers of devices that are not there, and predict its time and memory on them.

        print(plan(step, state, images, labels, device="h100", devices=(1, 8, 64)))

    Nothing runs and nothing is downloaded. It needs JAX's CUDA plugin, and no GPU; for TPUs, libtpu.

    Args:
      step: the result of `jax.jit`; or a function whose only parameter is `devices` or `mesh`, and which
        returns the step for them, or (step, arguments).
      *args: arguments for one device, arrays or shapes. Shardings over a mesh are kept, on a larger mesh.
        Without shardings, the batch is split, and everything else is replicated.
      device: "a100", "h100", "h200", "b200", "v5e", "v5p" or "v6e"; "this" is this machine's GPU. For a TPU,
        a plan has collectives and memory, and no times.
      devices: numbers of devices, each of which gets a plan.
      mesh: lengths of the mesh's axes; that of the first one follows from the others.
      per_device: examples on each device; by default those of the arguments.
      total: examples of the whole batch, for any number of devices.
      batch: positions of the arguments that are the batch, or the axis of the examples by position; by
        default the last arguments with the same first axis.
      network: the network between nodes: "infiniband", "efa" or "tcpxo".
      measured_s: measured seconds of the step on one such card, which replace the prediction.
      kernels: FLOPs and bytes of one run on one device, of custom kernels by name.
      told: called with a line of progress.
      fit: also find, by compiling again, the largest batch per device that fits on the most devices.
      **kwargs: further arguments, by name; they are replicated.

    Raises:
      JaxperfError: the plugin is missing, or the step, a number, the mesh or the batch cannot be planned.
    """
    if per_device and total:
        raise JaxperfError("per_device and total exclude each other; give one of them")
    if not devices:
        raise JaxperfError("no number of devices given; give some, devices=(1, 8, 64)")
    if not (connected := links.NETWORKS.get(network.strip().lower())):
        raise JaxperfError(f"no network {network!r}; there are {', '.join(links.NETWORKS)}")
    card = deviceless.card_of_this_machine() if device == "this" else find_device(device)
    if measured_s is not None and isinstance(card, Tpu):
        raise JaxperfError(f"{card.name} has no model of kernels, so a measured step has nothing to scale")
    if measured_s is not None and min(devices) > 1:
        raise JaxperfError("a measured step counts for one device; give 1 among the numbers of devices")
    deviceless.check_plugin(card)
    known = {name: Cost(*cost) for name, cost in (kernels or {}).items()}
    placed = [
        arguments.place(
            step, args, kwargs, deviceless.devices_of(card, count),
            axes=mesh or {}, per_device=per_device, total=total, batch=batch,
        )
        for count in sorted(set(devices))
    ]  # fmt: skip
    programs = compiled_programs(card, placed, known, told)
    made = plan_of(card, placed, programs, connected, measured_s, known)
    if fit:
        from jaxperf.plan import fitting  # which imports this module

        options = {"axes": mesh or {}, "per_device": per_device, "batch": batch}
        last = list(placed[-1].mesh.devices.flat)
        tried = fitting.fit(card, step, args, kwargs, last, connected, known, told, **options)
        made = dataclasses.replace(made, fit=tried)
    return made


def plan_of(
    card: Card | Tpu,
    placed: Sequence[arguments.Placed],
    programs: Sequence[Program],
    network: links.Network = links.NETWORKS["infiniband"],
    measured_s: float | None = None,
    kernels: Mapping[str, Cost] | None = None,
) -> StepPlan:
    """Return the plan of compiled programs, one for each item of `placed`."""
    kernels = kernels or {}
    scale = 1.0
    if measured_s is not None and isinstance(card, Card):
        elapsed = timeline.run(programs[0].module, card, 1, network, kernels=kernels)
        scale = measured_s / (elapsed.total_s + CALL_S)
    error = COMPUTE if measured_s is None else MEASURED
    sizes: list[SizePlan] = []
    for each, program in zip(placed, programs):
        size = _size(card, each, program, network, kernels, scale, error)
        sizes.append(_with_efficiency(size, sizes[0], error) if sizes else size)
    versions = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib")}
    return StepPlan(
        name=placed[0].name or programs[0].module.name.removeprefix("jit_").removeprefix("pmap_") or "step",
        card=card.name,
        network="links between chips" if isinstance(card, Tpu) else network.name,
        versions=versions,
        sizes=tuple(dataclasses.replace(size, advice=advise(size)) for size in sizes),
        notes=tuple(_notes(card, network.name, measured_s, sizes, placed)),
    )


def _size(
    card: Card | Tpu,
    placed: arguments.Placed,
    program: Program,
    network: links.Network,
    kernels: Mapping[str, Cost],
    scale: float,
    error: tuple[float, float],
) -> SizePlan:
    """Return the plan of one size, without efficiency and advice."""
    count, module, cost = placed.mesh.size, program.module, program.costs
    time, elapsed = None, timeline.Elapsed()
    if isinstance(card, Card):
        elapsed = timeline.run(module, card, count, network, scale=scale, kernels=kernels)
        exposed, call = sum(elapsed.exposed_s.values()), scale * CALL_S
        factor = collective_factor(network.name, count > card.per_node)
        kernels_s = elapsed.kernels_s + call
        time = StepTime(
            step_s=elapsed.total_s + call,
            low_s=kernels_s * error[0] + exposed / factor,
            high_s=kernels_s * error[1] + exposed * factor,
            kernels_s=kernels_s,
            exposed_s=exposed,
            parts={**elapsed.parts(), "call": call, "links": exposed},
            factor=factor,
        )
    local = _local_shapes(placed)
    state = [leaf for i, arg in enumerate(placed.args) if i not in placed.batch_arguments
             for leaf in jax.tree.leaves(arg) if hasattr(leaf, "shape")]  # fmt: skip
    return SizePlan(
        devices=count,
        nodes=deviceless.nodes_of(card, count)[0] if isinstance(card, Card) else 1,
        per_node=card.per_node if isinstance(card, Card) else count,
        mesh=dict(placed.mesh.shape),
        batch=placed.batch,
        batch_arguments=placed.batch_arguments,
        padded=placed.padded,
        split=placed.split,
        exchanges=_exchanges(card, placed, program, network, elapsed.exposed_s, local),
        flops=elapsed.flops,
        bytes=elapsed.bytes,
        kernels=elapsed.kernels,
        unknown_loops=elapsed.unknown_loops,
        unknown_kernels=tuple(elapsed.unknown_kernels),
        argument_bytes=cost.argument_bytes,
        output_bytes=cost.output_bytes,
        temp_bytes=cost.temp_bytes,
        peak_bytes=cost.peak_bytes,
        memory_bytes=card.memory_bytes,
        state_bytes=sum(_bytes(leaf, leaf.shape) for leaf in state),
        state_share_bytes=sum(_bytes(leaf, _on_device(leaf)) for leaf in state),
        live=_live(program),
        remat=program.remat,
        busiest=_busiest(module, kernels) if time and time.overhead_share >= 0.5 else "",
        pipeline=_pipeline(module, count),
        compile_s=program.compile_s,
        time=time,
    )


def _bytes(leaf: Any, shape: Sequence[int]) -> int:
    """Return the bytes of an array of a leaf's dtype; a random key has four words at most."""
    return math.prod(shape) * int(getattr(leaf.dtype, "itemsize", 16))


def _on_device(leaf: Any) -> tuple[int, ...]:
    """Return the shape that each device has of an array."""
    sharding = getattr(leaf, "sharding", None)
    return tuple(sharding.shard_shape(leaf.shape)) if sharding is not None else tuple(leaf.shape)


def _local_shapes(placed: arguments.Placed) -> set[tuple[int, ...]]:
    """Return the dimensions of the arrays of the batch on each device."""
    return {
        _on_device(leaf)
        for i in placed.batch_arguments
        if i < len(placed.args)
        for leaf in jax.tree.leaves(placed.args[i])
        if hasattr(leaf, "shape")
    }


def _with_efficiency(size: SizePlan, base: SizePlan, error: tuple[float, float]) -> SizePlan:
    """Return a plan with its efficiency relative to the first size, and the range of the efficiency.

    It compares useful work per second and device: examples if the devices split them, and otherwise
    arithmetic without the idle turns of a pipeline. Devices that all do the same work have none. Most of the
    kernels' error is common to both sizes and cancels. What remains is that of waits over kernels.
    """
    if not size.time or not base.time:
        return size
    if size.batch and size.split > 1:
        work = (size.batch / size.devices) / (base.batch / base.devices)
    elif size.pipeline > 1 and base.flops:
        work = size.flops * size.useful / (base.flops * base.useful)
    else:
        return size

    def at(stretch: float, factor: float) -> float:
        before, after = (
            stretch * s.time.kernels_s + factor * s.time.exposed_s for s in (base, size) if s.time
        )
        return work * before / after

    value = work * base.time.step_s / size.time.step_s
    ends = sorted((at(error[0], size.time.factor), at(error[1], 1 / size.time.factor), value))
    return dataclasses.replace(size, efficiency=value, efficiency_low=ends[0], efficiency_high=ends[-1])


def _exchanges(
    card: Card | Tpu,
    placed: arguments.Placed,
    program: Program,
    network: links.Network,
    exposed_s: Mapping[str, float],
    local: set[tuple[int, ...]],
) -> tuple[Exchange, ...]:
    """Return the collectives of a program, with equal ones combined, and their seconds."""
    alike: dict[tuple[Any, ...], list[Any]] = {}
    found = collectives(program.module, placed.mesh.size)
    carried: dict[str, str] = {}
    if found:
        flow = Flow(program.module)
        carried = {each.name: flow.carried(each.name, local) for each in found}
        found = [
            each if each.source else dataclasses.replace(each, source=flow.used_at(each.name))
            for each in found
        ]
    for each in found:
        key = (each.kind, each.bytes, each.groups[:1], len(each.groups), each.source, each.asynchronous,
               carried[each.name])  # fmt: skip
        alike.setdefault(key, []).append(each)
    return tuple(
        Exchange(
            collective=group[0],
            count=sum(each.times for each in group),
            each_s=links.collective_seconds(card, group[0], network) if isinstance(card, Card) else 0.0,
            exposed_s=sum(exposed_s.get(name, 0.0) for name in {each.name for each in group}),
            carries=carried[group[0].name],
            axes=tuple(sorted(axes_of(group[0].groups, placed.mesh.shape))),
            over_batch=_over_batch(placed, group[0].groups),
        )
        for group in alike.values()
    )


def _over_batch(placed: arguments.Placed, groups: Sequence[tuple[int, ...]]) -> bool:
    """Return whether a collective is among devices with different examples."""
    return not placed.batch_axes or bool(axes_of(groups, placed.mesh.shape) & set(placed.batch_axes))


def _live(program: Program) -> tuple[Live, ...]:
    """Return the largest arrays at the peak that are no arguments, with the lines that made them."""
    by_name = {i.name: i for i in program.module.instructions}
    # XLA reports before it makes some fusions asynchronous, under new names: those are found by their bytes
    renamed = defaultdict(list)
    for i in by_name.values():
        if i.opcode == "fusion-start":
            renamed[i.shapes[-2].bytes].append(i)
    live: list[Live] = []
    for name, size in program.live:
        instruction = by_name.get(name) or (renamed[size].pop() if renamed[size] else None)
        if instruction is None or instruction.opcode == "parameter" or not instruction.shapes:
            continue
        if size < SHOWN * program.costs.temp_bytes:
            continue
        shape = next((s for s in instruction.shapes if s.bytes == size), instruction.shapes[0])
        origin = _made_by(program.module, instruction)
        live.append(Live(size, shape, source_of(program.module, origin), origin.op_name))
    live.sort(key=lambda each: -each.bytes)
    return tuple(live[:LARGEST])


def _made_by(module: Module, instruction: Instruction) -> Instruction:
    """Return the instruction that made an array; of an update of a stack, that of what is put there."""
    at: Instruction | None = instruction
    for _ in range(8):  # back through reinterpretations, and out of fusions
        if at is None:
            break
        inside = module.inside(at) if "fusion" in at.opcode else ()
        for each in (at, *reversed(inside)):
            if each.operation not in _STACKS and each.opcode != "parameter" and source_of(module, each):
                return each
        update = next((i for i in inside if i.opcode == "dynamic-update-slice" and len(i.operands) > 1), None)
        put = module.operand(update, update.operands[1]) if update else None
        if put is not None and put.number is not None:
            at = module.operand(at, at.operands[put.number])
        else:
            at = next(iter(module.operands(at)), None)
    return instruction


def _busiest(module: Module, kernels: Mapping[str, Cost]) -> str:
    """Return "N kernels of 4.5 us at file:line" for the line with most kernels."""
    counts: Counter[str] = Counter()
    for instruction, times in module.executed():
        if kernel_of(module, instruction, kernels):
            counts[source_of(module, instruction)] += round(times)
    counts.pop("", None)
    if not counts:
        return ""
    line, count = counts.most_common(1)[0]
    return f"{count} of them at {line}"


def _pipeline(module: Module, count: int) -> float:
    """Return the turns of a pipeline's loop over those in which a device has work; 1 for no pipeline.

    It is a loop whose body passes a value to the next device, as often as there are micro-batches and stages.
    """
    most = 1.0
    for instruction in module.instructions:
        if instruction.opcode != "while" or not instruction.trips:
            continue
        passed = [c for each in module.inside(instruction) if (c := _passed(module, each, count))]
        stages = max(passed, default=0)
        if 1 < stages <= instruction.trips:
            most = max(most, instruction.trips / (instruction.trips - stages + 1))
    return most


def _passed(module: Module, instruction: Instruction, count: int) -> int:
    """Return the number of devices along which the program asks to pass a value; 0 for other instructions."""
    found = describe_collective(module, instruction, count)
    if found is None or found.kind != "collective-permute" or not found.asked:
        return 0
    following = {pair[0]: pair[1] for pair in found.groups}
    at, seen = found.groups[0][0], {found.groups[0][0]}
    starts = set(following) - set(following.values())
    if starts:
        at = min(starts)
        seen = {at}
    while (at := following.get(at, -1)) not in seen and at >= 0:
        seen.add(at)
    return len(seen)


def _notes(
    card: Card | Tpu,
    network: str,
    measured_s: float | None,
    sizes: Sequence[SizePlan],
    placed: Sequence[arguments.Placed],
) -> list[str]:
    """Return notes on the figures."""
    about = f"{card.title}: {card.memory_bytes / 1e9:.0f} GB"
    if isinstance(card, Tpu):
        shapes = format_list([card.slice_of(size.devices) for size in sizes])
        notes = [f"{about}, slices {shapes}; collectives and memory only: there is no model of a TPU's time"]
    else:
        notes = [f"{about}, nodes of {card.per_node}; {summary(network)}"]
        if measured_s is None:
            notes.append(
                "the time of kernels is from the card's table; a measured step makes it exact (--step-ms)"
            )
    last = placed[-1]
    if last.batch_arguments:
        named = format_list(
            [f"{i}" + (f" (axis {last.axis[i]})" if last.axis.get(i) else "") for i in last.batch_arguments]
        )
        notes.append(
            f"the batch: argument {named}, counted from 0; --batch names others, 1:axis=1 another axis"
        )
    elif not last.doubt:
        notes.append(
            "no argument was taken for the batch, so all devices do the same work; --batch names one"
        )
    if last.doubt:
        notes.append(last.doubt)
    if last.batch_arguments and last.split == 1 and sizes[-1].devices > 1 and sizes[-1].pipeline == 1:
        notes.append("the batch is on every device whole, so all devices do the same work")
    unknown = sorted({name for size in sizes for name in size.unknown_kernels})
    notes += [
        f"{name} is a kernel whose arithmetic is not known, counted by its arrays only; give it as "
        f"--kernel {name}=FLOPS,BYTES of one run"
        for name in unknown
    ]
    if any(size.unknown_loops for size in sizes):
        notes.append("a loop whose number of turns XLA does not know counts once, so the step takes longer")
    return notes
