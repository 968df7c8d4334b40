"""`plan`: compile a step for devices that are not there, and predict its time and memory on them."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxperf.errors import JaxperfError
from jaxperf.plan import arguments, deviceless, faults, links, timeline, tpu, validation
from jaxperf.plan.advice import advise
from jaxperf.plan.cards import Card, Tpu, find_device
from jaxperf.plan.collectives import Collective, collectives
from jaxperf.plan.kernels import CALL_S
from jaxperf.plan.programs import Program, compiled_programs
from jaxperf.plan.report import Exchange, SizePlan, StepPlan
from jaxperf.result.formatting import format_list

MEASURED_ERROR = 0.03  # relative error of a step's time that was measured on one card


def plan(
    step: Callable[..., Any],
    *args: Any,
    device: str = "h100",
    devices: Sequence[int] = (1, 8, 64),
    mesh: Mapping[str, int] | None = None,
    per_device: int | None = None,
    total: int | None = None,
    batch: Sequence[int] | None = None,
    network: str = "infiniband",
    measured_s: float | None = None,
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
      device: "a100", "h100", "h200", "b200", "v5e", "v5p" or "v6e"; "this" is this machine's GPU.
      devices: numbers of devices, each of which gets a plan.
      mesh: lengths of the mesh's axes; that of the first one follows from the others.
      per_device: examples on each device; by default those of the arguments.
      total: examples of the whole batch, for any number of devices.
      batch: positions of the arguments that are the batch; by default the last ones with the same first axis.
      network: the network between nodes: "infiniband", "efa" or "tcpxo".
      measured_s: measured seconds of the step on one such card, which replace the prediction.
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
    options: dict[str, Any] = {
        "axes": mesh or {}, "per_device": per_device, "total": total, "batch": batch,
    }  # fmt: skip
    placed = [
        arguments.place(step, args, kwargs, deviceless.devices_of(card, count), **options)
        for count in sorted(set(devices))
    ]
    return plan_of(card, placed, compiled_programs(card, placed), connected, measured_s)


def plan_of(
    card: Card | Tpu,
    placed: Sequence[arguments.Placed],
    programs: Sequence[Program],
    network: links.Network = links.NETWORKS["infiniband"],
    measured_s: float | None = None,
) -> StepPlan:
    """Return the plan of compiled programs, one for each item of `placed`."""
    if isinstance(card, Tpu):
        sizes = [_least(card, each, program) for each, program in zip(placed, programs)]
    else:
        sizes = _predicted(card, placed, programs, network, measured_s)
    versions = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib")}
    return StepPlan(
        name=programs[0].module.name.removeprefix("jit_").removeprefix("pmap_") or "step",
        card=card.name,
        network="links between chips" if isinstance(card, Tpu) else network.name,
        versions=versions,
        sizes=tuple(dataclasses.replace(size, advice=advise(size)) for size in sizes),
        notes=(
            *_notes(card, measured_s, sizes),
            *faults.fault_lines(programs[-1].module, versions["jaxlib"], card),
        ),
    )


def _predicted(
    card: Card,
    placed: Sequence[arguments.Placed],
    programs: Sequence[Program],
    network: links.Network,
    measured_s: float | None,
) -> list[SizePlan]:
    """Return the plan of each size; a measured step on one card scales the kernel times of all sizes."""
    scale = 1.0
    if measured_s is not None:
        scale = measured_s / (timeline.run(programs[0].module, card, 1, network).total_s + CALL_S)
    error = validation.COMPUTE_ERROR if measured_s is None else MEASURED_ERROR
    sizes: list[SizePlan] = []
    for each, program in zip(placed, programs):
        size = _size(card, each, program, network, scale, error)
        sizes.append(_with_efficiency(size, sizes[0], error, card) if sizes else size)
    return sizes


def _size(
    card: Card,
    placed: arguments.Placed,
    program: Program,
    network: links.Network,
    scale: float = 1.0,
    error: float = validation.COMPUTE_ERROR,
) -> SizePlan:
    """Return the plan of one size on GPUs, without efficiency and advice."""
    count = placed.mesh.size
    elapsed = timeline.run(program.module, card, count, network, scale=scale)
    exposed, call = sum(elapsed.exposed_s.values()), scale * CALL_S
    compute, factor = elapsed.kernels_s + call, validation.factor(count > card.per_node)
    return SizePlan(
        **_work(card, placed, program, elapsed),
        nodes=deviceless.nodes_of(card, count)[0],
        exchanges=_exchanges(
            program, count, lambda each: links.collective_seconds(card, each, network), elapsed.exposed_s
        ),
        compute_s=compute,
        exposed_s=exposed,
        step_s=elapsed.total_s + call,
        step_low_s=compute * (1 - error) + exposed / factor,
        step_high_s=compute * (1 + error) + exposed * factor,
        parts={**elapsed.parts(), "call": call, "links": exposed},
    )


def _least(card: Tpu, placed: arguments.Placed, program: Program) -> SizePlan:
    """Return the plan of one size on TPUs, whose times are lower bounds, without advice."""
    count = placed.mesh.size
    work = tpu.least_work(program.module, card)
    exchanges = _exchanges(program, count, lambda each: tpu.collective_s(card, each, count), {})
    sent = sum(each.count * each.each_s for each in exchanges)
    step = max(work.arithmetic_s, work.memory_s, sent)
    return SizePlan(
        **_work(card, placed, program, work),
        nodes=1,
        exchanges=exchanges,
        compute_s=max(work.arithmetic_s, work.memory_s),
        exposed_s=0.0,
        step_s=step,
        step_low_s=step,
        step_high_s=None,
        parts={"arithmetic": work.arithmetic_s, "memory": work.memory_s, "links": sent},
    )


def _work(
    card: Card | Tpu, placed: arguments.Placed, program: Program, work: timeline.Elapsed
) -> dict[str, Any]:
    """Return the fields of a size that GPUs and TPUs share: its batch, its work, and its memory."""
    names = ("argument", "output", "temp", "alias")
    argument, output, temp, alias = (
        int(getattr(program.memory, f"{name}_size_in_bytes", 0)) for name in names
    )
    return {
        "devices": placed.mesh.size,
        "mesh": dict(placed.mesh.shape),
        "batch": placed.batch,
        "batch_arguments": placed.batch_arguments,
        "padded": placed.padded,
        "split": placed.split,
        "flops": work.flops,
        "bytes": work.bytes,
        "kernels": work.kernels,
        "unknown_loops": work.unknown_loops,
        "argument_bytes": argument,
        "output_bytes": output,
        "temp_bytes": temp,
        "peak_bytes": argument + output + temp - alias,
        "memory_bytes": card.memory_bytes,
        "compile_s": program.compile_s,
    }


def _with_efficiency(size: SizePlan, base: SizePlan, error: float, card: Card) -> SizePlan:
    """Return a plan with its efficiency relative to the first size, and the range of the efficiency.

    Most of the kernels' error is common to both sizes and cancels. What remains is the error of the ratio
    between waits and kernels.
    """
    work = (size.batch / size.devices) / (base.batch / base.devices) if base.batch else 1.0
    factor = validation.factor(size.devices > card.per_node)

    def at(stretch: float) -> float:
        before, after = (s.compute_s + stretch * s.exposed_s for s in (base, size))
        return work * before / after

    value = work * base.step_s / size.step_s
    ends = sorted((at(factor / (1 - error)), at((1 - error) / factor), value))
    return dataclasses.replace(size, efficiency=value, efficiency_low=ends[0], efficiency_high=ends[-1])


def _exchanges(
    program: Program, count: int, seconds: Callable[[Collective], float], exposed_s: Mapping[str, float]
) -> tuple[Exchange, ...]:
    """Return the collectives of a program, with equal ones combined, and their seconds."""
    alike: dict[tuple[Any, ...], list[Collective]] = {}
    for each in collectives(program.module, count):
        key = (each.kind, each.bytes, each.groups[:1], len(each.groups), each.source, each.asynchronous)
        alike.setdefault(key, []).append(each)
    return tuple(
        Exchange(
            group[0],
            sum(each.times for each in group),
            seconds(group[0]),
            sum(exposed_s.get(name, 0.0) for name in {each.name for each in group}),
        )
        for group in alike.values()
    )


def _notes(card: Card | Tpu, measured_s: float | None, sizes: Sequence[SizePlan]) -> list[str]:
    """Return notes on the figures."""
    about = f"{card.title}: {card.memory_bytes / 1e9:.0f} GB"
    if isinstance(card, Tpu):
        shapes = format_list([card.slice_of(size.devices) for size in sizes])
        notes, units = [f"{about}, slices {shapes}; {tpu.CHECKED}"], "chips"
    else:
        notes, units = [f"{about}, nodes of {card.per_node}; {validation.summary()}"], "nodes"
        if measured_s is None:
            notes.append(
                "the time of kernels is from the card's table; a measured step makes it exact (--step-ms)"
            )
    if sizes[-1].batch_arguments:
        positions = format_list([str(i) for i in sizes[-1].batch_arguments])
        notes.append(f"the batch: argument {positions}, counted from 0; --batch names others")
    else:
        notes.append(
            "no argument was taken for the batch, so every device does the same work; --batch names one"
        )
    if shared := [str(size.devices) for size in sizes if not size.compile_s]:
        notes.append(
            f"on {format_list(shared)} devices each device runs the same program as on fewer {units}"
        )
    if any(size.unknown_loops for size in sizes):
        notes.append("a loop whose number of turns XLA does not know counts once, so the step takes longer")
    return notes
