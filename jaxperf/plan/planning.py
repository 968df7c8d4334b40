"""`plan`: compile a step for numbers of devices that are not there, and predict what it does on them."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax

from jaxperf.errors import JaxperfError
from jaxperf.plan import arguments, deviceless, faults, hlo, links, repeated, timeline, validation
from jaxperf.plan.advice import advise
from jaxperf.plan.cards import Card, find_card
from jaxperf.plan.collectives import Collective, collectives
from jaxperf.plan.kernels import CALL_S
from jaxperf.plan.report import Exchange, SizePlan, StepPlan
from jaxperf.report.formatting import format_list
from jaxperf.user_function.loading import reader_code

MEASURED_ERROR = 0.03  # of a step's time that was measured on one card
AT_ONCE = 2  # programs compiled at the same time


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

    Nothing runs and nothing is downloaded. It needs JAX's CUDA plugin, and no GPU.

    Args:
      step: what `jax.jit` returned; or a function whose only parameter is `devices` or `mesh`, which makes
        the step for them, or (step, arguments).
      *args: arguments for one device, arrays or shapes. Shardings over a mesh are kept, on a larger mesh.
        Without any, the batch is split and everything else is copied to every device.
      device: a card: "a100", "h100", "h200", "b200"; "this" is the GPU that is here.
      devices: how many, one plan each.
      mesh: lengths of the mesh's axes; the first takes what the others leave.
      per_device: examples on each device; by default those of the arguments.
      total: examples of the whole batch, whatever the number of devices.
      batch: positions of the arguments that are the batch; by default the last ones with the same first axis.
      network: what connects the nodes: "infiniband", "efa" or "tcpxo".
      measured_s: seconds of the step on one such card, if they were measured; they replace the prediction.
      **kwargs: further arguments, by name, copied to every device.

    Raises:
      JaxperfError: no plugin, or a step, number, mesh or batch that cannot be planned; one line says why.
    """
    if per_device and total:
        raise JaxperfError("per_device and total exclude each other; give one of them")
    if not devices:
        raise JaxperfError("no number of devices given; give some, devices=(1, 8, 64)")
    arguments.check_jitted(step, or_maker=True)
    if not (connected := links.NETWORKS.get(network.strip().lower())):
        raise JaxperfError(f"no network {network!r}; there are {', '.join(links.NETWORKS)}")
    card = deviceless.card_of_this_machine() if device == "this" else find_card(device)
    deviceless.check_plugin()
    options: dict[str, Any] = {
        "axes": mesh or {}, "per_device": per_device, "total": total, "batch": batch,
    }  # fmt: skip
    placed = [
        arguments.place(step, args, kwargs, deviceless.devices_of(card, count), **options)
        for count in sorted(set(devices))
    ]
    programs = _compiled(card, placed)
    scale = _scale(card, programs[0].module, placed[0], connected, measured_s)
    sizes: list[SizePlan] = []
    for each, program in zip(placed, programs):
        size_plan = _size(card, each, program, connected, scale, measured_s, sizes[:1])
        sizes.append(dataclasses.replace(size_plan, advice=advise(size_plan, card)))
    versions = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib")}
    name = programs[0].module.name.removeprefix("jit_").removeprefix("pmap_") or "step"
    notes = (
        *_notes(card, measured_s, sizes),
        *faults.fault_lines(programs[-1].module, versions["jaxlib"], card),
    )
    return StepPlan(name, card.name, connected.name, versions, tuple(sizes), notes)


@dataclass(frozen=True)
class _Program:
    """A compiled program: its text taken apart, its memory, and the seconds it took; 0 if it is another's."""

    module: hlo.Module
    memory: Any
    compile_s: float


def _compiled(card: Card, placed: Sequence[arguments.Placed]) -> list[_Program]:
    """Lower and compile the step for each size; sizes of equal programs share one.

    XLA compiles without Python's lock, so the next size is lowered meanwhile.
    """
    first, text = None, ""  # the smallest size of several nodes
    alike: dict[int, Any] = {}
    started: dict[int, Future[_Program]] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for i, each in enumerate(placed):
            lowered, count = _lower(each), each.mesh.size
            if first is not None:
                times, rest = divmod(count, placed[first].mesh.size)
                if not rest and repeated.grows(text, lowered.as_text(), times):
                    alike[i] = lowered
                    continue
            elif count > card.per_node and len(each.mesh.shape) == 1:
                first, text = i, lowered.as_text()
            started[i] = pool.submit(_program, lowered)
    programs = {i: future.result() for i, future in started.items()}
    for i, lowered in alike.items():
        program = programs[first or 0]
        if repeated.among_all(program.module, placed[first or 0].mesh.size):
            programs[i] = _Program(repeated.widened(program.module), program.memory, 0.0)
        else:
            programs[i] = _program(lowered)
    return [programs[i] for i in range(len(placed))]


def _lower(placed: arguments.Placed) -> Any:
    """Trace and lower a step for its mesh, which is also the mesh of the context."""
    step, args, kwargs = placed.step, placed.args, placed.kwargs
    name = str(getattr(step, "__name__", "the step"))
    try:
        with reader_code(name), _context(placed):
            if hasattr(step, "trace"):
                traced = step.trace(*args, **kwargs)
                traced = getattr(traced, "traced", traced)  # nnx.jit wraps JAX's
                arguments.check_plannable(traced.jaxpr.jaxpr)
                return traced.lower()
            return step.lower(*args, **kwargs)
    except JaxperfError as e:
        if "incompatible devices" in str(e) or "different devices" in str(e):
            raise JaxperfError(
                f"{name} is bound to devices that are here; give a function of `devices` that makes it: "
                "def make(devices): mesh = jax.sharding.Mesh(devices, ('data',)); ...; return step"
            ) from None
        raise


def _context(placed: arguments.Placed) -> Any:
    """The context of lowering: the mesh, unless the reader's function has made the step for it."""
    return contextlib.nullcontext() if placed.made else jax.set_mesh(placed.mesh)


def _program(lowered: Any) -> _Program:
    began = time.perf_counter()
    compiled = deviceless.compile_for(lowered)
    took = time.perf_counter() - began
    return _Program(hlo.parse(compiled.as_text()), compiled.memory_analysis(), took)


def _scale(
    card: Card,
    module: hlo.Module,
    placed: arguments.Placed,
    network: links.Network,
    measured_s: float | None,
) -> float:
    """Return by what kernels' times are multiplied, so that the first size takes what was measured."""
    if measured_s is None:
        return 1.0
    if placed.mesh.size > 1:
        raise JaxperfError("a measured step counts for one device; give 1 among the numbers of devices")
    return measured_s / (timeline.run(module, card, 1, network).total_s + CALL_S)


def _size(
    card: Card,
    placed: arguments.Placed,
    program: _Program,
    network: links.Network,
    scale: float,
    measured_s: float | None,
    first: Sequence[SizePlan],
) -> SizePlan:
    """Return the plan of one size, without advice; `first` has the smallest size, if this is another."""
    count, module = placed.mesh.size, program.module
    elapsed = timeline.run(module, card, count, network, scale=scale)
    exposed, call = sum(elapsed.exposed_s.values()), scale * CALL_S
    compute = elapsed.kernels_s + call
    error = validation.COMPUTE_ERROR if measured_s is None else MEASURED_ERROR
    factor = validation.factor(count > card.per_node)
    size = SizePlan(
        devices=count,
        nodes=deviceless.nodes_of(card, count)[0],
        mesh=dict(placed.mesh.shape),
        batch=placed.batch,
        batch_arguments=placed.batch_arguments,
        padded=placed.padded,
        exchanges=tuple(_exchanges(card, collectives(module, count), elapsed, network)),
        flops=elapsed.flops,
        bytes=elapsed.bytes,
        kernels=elapsed.kernels,
        **_memory(program.memory),
        memory_bytes=card.memory_bytes,
        compute_s=compute,
        exposed_s=exposed,
        step_s=elapsed.total_s + call,
        step_low_s=compute * (1 - error) + exposed / factor,
        step_high_s=compute * (1 + error) + exposed * factor,
        parts={**elapsed.parts(), "call": call, "links": exposed},
        unknown_loops=elapsed.unknown_loops,
        compile_s=program.compile_s,
    )
    return _with_efficiency(size, first[0], error, factor) if first else size


def _memory(memory: Any) -> dict[str, Any]:
    """Return the bytes of a device's arguments, outputs and temporaries, and of all at once."""
    names = ("argument", "output", "temp", "alias")
    argument, output, temp, alias = (int(getattr(memory, f"{name}_size_in_bytes", 0)) for name in names)
    peak = argument + output + temp - alias
    return {"argument_bytes": argument, "output_bytes": output, "temp_bytes": temp, "peak_bytes": peak}


def _with_efficiency(size: SizePlan, base: SizePlan, error: float, factor: float) -> SizePlan:
    """Return a plan with its efficiency against the first size, and the range of that.

    Most of the error of the kernels is common to both sizes and cancels. What is left is how large the waits
    are beside the kernels.
    """
    work = (size.batch / size.devices) / (base.batch / base.devices) if base.batch else 1.0

    def at(stretch: float) -> float:
        before, after = (s.compute_s + stretch * s.exposed_s for s in (base, size))
        return work * before / after

    value = work * base.step_s / size.step_s
    ends = sorted((at(factor / (1 - error)), at((1 - error) / factor), value))
    return dataclasses.replace(size, efficiency=value, efficiency_low=ends[0], efficiency_high=ends[-1])


def _exchanges(
    card: Card, program_collectives: Sequence[Collective], elapsed: timeline.Elapsed, network: links.Network
) -> list[Exchange]:
    """Return the collectives with equal ones counted together, and the seconds of each."""
    alike: dict[tuple[Any, ...], list[Collective]] = {}
    for each in program_collectives:
        key = (each.kind, each.bytes, each.groups[:1], len(each.groups), each.source, each.asynchronous)
        alike.setdefault(key, []).append(each)
    return [
        Exchange(
            group[0],
            sum(each.times for each in group),
            links.collective_seconds(card, group[0], network),
            sum(elapsed.exposed_s.get(name, 0.0) for name in {each.name for each in group}),
        )
        for group in alike.values()
    ]


def _notes(card: Card, measured_s: float | None, sizes: Sequence[SizePlan]) -> list[str]:
    notes = [
        f"{card.title}: {card.memory_bytes / 1e9:.0f} GB, nodes of {card.per_node}; {validation.summary()}"
    ]
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
        notes.append(f"on {format_list(shared)} devices each device runs the same program as on fewer nodes")
    if any(size.unknown_loops for size in sizes):
        notes.append("a loop whose number of turns XLA does not know counts once, so the step takes longer")
    return notes
