"""Advice on a step, from its plan: a sentence for each finding, with its figures.

Advice names only what the program can do: it tells what a collective carries and who asked for it, proposes
no placement that does not fit into memory, and nothing that the program does already.
"""

from __future__ import annotations

from collections.abc import Iterable

from jaxperf.plan.flow import ACTIVATIONS, GRADIENTS, PARAMETERS
from jaxperf.plan.report import Exchange, PlanAdvice, SizePlan, StepTime
from jaxperf.result.formatting import format_on_page

SMALL = 256 * 2**10  # bytes below which latency dominates a collective's time
MANY = 8  # small collectives that are worth merging
WORTH = 0.02  # share of a step that a change must save
OVERHEAD = 0.5  # share of a step that is overhead of kernels
FEW = 20  # kernels: a smaller program is no training step
IDLE = 0.1  # share of a pipeline's turns without work
LATENCY_S = 20e-6  # what merging saves for each collective, at least


def advise(plan: SizePlan) -> tuple[PlanAdvice, ...]:
    """Return the advice on a step for one number of devices."""
    texts = {"does not fit": _does_not_fit(plan), "batch does not divide": _does_not_divide(plan)}
    if time := plan.time:
        texts |= {
            "statistics summed over devices": _statistics(plan, time),
            "a sum for each array": _per_array(plan, time),
            "parameters gathered": _gathered(plan, time),
            "activations gathered": _activations(plan, time),
            "resharded": _resharded(plan, time),
            "pipeline idle": _idle(plan),
            "mostly overhead": _overhead(plan, time),
            "not overlapped": _not_overlapped(plan, time),
        }
    return tuple(PlanAdvice(kind, text) for kind, text in texts.items() if text)


def _bytes(size: float) -> str:
    return format_on_page(size, "bytes")


def _s(seconds: float) -> str:
    return format_on_page(seconds, "s")


def _does_not_fit(plan: SizePlan) -> str:
    if plan.fits:
        return ""
    over = f"does not fit: {_bytes(plan.peak_bytes)} of {_bytes(plan.memory_bytes)}"
    largest = plan.live[0] if plan.live else None
    if plan.argument_bytes > plan.temp_bytes:
        if plan.state_share_bytes < plan.state_bytes or plan.devices == 1:
            return f"{over}, most of it arguments; take more devices to shard the state over"
        return f"{over}, most of it arguments, whole on every device; shard them over the mesh (FSDP)"
    if largest is None:
        return f"{over}, most of it temporaries; take a smaller batch per device"
    array = f"{over}; the largest temporary is {_bytes(largest.bytes)}, {largest.described}"
    if len(largest.shape.dims) >= 4 and largest.shape.dims[-1] == largest.shape.dims[-2] >= 512:
        return (
            f"{array}: the scores of attention, which fused attention never stores "
            '(jax.nn.dot_product_attention(..., implementation="cudnn"))'
        )
    if plan.remat:
        return f"{array}; the step uses jax.checkpoint already: take a smaller batch per device"
    return f"{array}; take a smaller batch per device, or jax.checkpoint around each layer"


def _does_not_divide(plan: SizePlan) -> str:
    if not plan.padded:
        return ""
    batch = plan.batch - plan.padded
    less = f" or {plan.batch - plan.split}" if plan.batch > plan.split else ""
    return (
        f"the batch of {batch} does not divide by {plan.split}, which JAX refuses; planned with "
        f"{plan.batch}: take {plan.batch}{less}"
    )


def _seconds(group: Iterable[Exchange]) -> float:
    return sum(each.seconds for each in group)


def _worth(time: StepTime, group: list[Exchange]) -> bool:
    return bool(group) and _seconds(group) >= WORTH * time.step_s


def _lines(group: list[Exchange]) -> str:
    sources = list(dict.fromkeys(each.collective.source for each in group if each.collective.source))
    return f" (at {', '.join(sources[:3])})" if sources else ""


def _count(group: list[Exchange]) -> float:
    return sum(each.count for each in group)


def _is_statistic(each: Exchange) -> bool:
    """Return whether an all-reduce is of statistics over the batch, as in BatchNorm."""
    c = each.collective
    small = c.kind == "all-reduce" and c.bytes <= SMALL and c.arrays <= 4
    return small and each.carries == ACTIVATIONS and each.over_batch and not c.asked


def _statistics(plan: SizePlan, time: StepTime) -> str:
    group = [each for each in plan.exchanges if _is_statistic(each)]
    if _count(group) < MANY or not _worth(time, group):
        return ""
    return (
        f"{_count(group):.0f} small all-reduces, {_s(_seconds(group))} a step, sum over the whole "
        f"batch in the middle of the network{_lines(group)}: jit over a sharded batch makes BatchNorm's "
        "statistics global; for statistics of each device, write the step with jax.shard_map, and sum the "
        "gradients only, with jax.lax.psum"
    )


def _per_array(plan: SizePlan, time: StepTime) -> str:
    alone = [
        each
        for each in plan.exchanges
        if each.collective.kind == "all-reduce" and each.carries == GRADIENTS and each.over_batch
        and each.collective.arrays == 1 and each.collective.times == 1
    ]  # fmt: skip
    saved = (_count(alone) - 1) * LATENCY_S
    if _count(alone) < MANY or saved < WORTH * time.step_s:
        return ""
    return (
        f"{_count(alone):.0f} all-reduces of one gradient each{_lines(alone)}, where one of all of them "
        f"would save about {_s(saved)} a step: sum the whole tree of gradients in one jax.lax.psum at the end"
    )


def _gathered(plan: SizePlan, time: StepTime) -> str:
    group = [e for e in plan.exchanges if e.collective.kind == "all-gather" and e.carries == PARAMETERS]
    if not _worth(time, group) or sum(e.exposed_s for e in group) < WORTH * time.step_s:
        return ""
    found = (
        f"{_bytes(sum(e.bytes for e in group))} of parameters are gathered each step in {_count(group):.0f} "
        f"all-gathers{_lines(group)}, {_s(_seconds(group))}"
    )
    whole = plan.peak_bytes + plan.state_bytes - plan.state_share_bytes
    in_node = plan.peak_bytes + plan.state_bytes / plan.per_node - plan.state_share_bytes
    if whole <= plan.memory_bytes:
        return (
            f"{found}: a copy of the whole state on every device would fit ({_bytes(whole)} of "
            f"{_bytes(plan.memory_bytes)}), and only gradients would be summed"
        )
    if plan.nodes > 1 and in_node <= plan.memory_bytes:
        return (
            f"{found}: sharded over the {plan.per_node} devices of a node only, with a copy in each node, "
            f"the state would fit ({_bytes(in_node)} of {_bytes(plan.memory_bytes)}), and parameters would "
            "not cross the network"
        )
    return ""


def _activations(plan: SizePlan, time: StepTime) -> str:
    group = [
        e for e in plan.exchanges
        if e.collective.kind == "all-gather" and e.carries == ACTIVATIONS and not e.collective.asked
    ]  # fmt: skip
    if not _worth(time, group):
        return ""
    return (
        f"{_bytes(sum(e.bytes for e in group))} of activations are gathered each step{_lines(group)}, "
        f"{_s(_seconds(group))}: XLA chose a sharding for them that an operation does not keep; name theirs "
        "with jax.lax.with_sharding_constraint, in the loop over the layers"
    )


def _resharded(plan: SizePlan, time: StepTime) -> str:
    kinds = ("all-to-all", "collective-permute")
    group = [e for e in plan.exchanges if e.collective.kind in kinds and not e.collective.asked]
    if not _worth(time, group):
        return ""
    return (
        f"{_bytes(sum(e.bytes for e in group))} change their sharding between two operations{_lines(group)}, "
        f"{_s(_seconds(group))} a step: give both operations the same sharding with "
        "jax.lax.with_sharding_constraint"
    )


def _idle(plan: SizePlan) -> str:
    if plan.pipeline == 1 or 1 - plan.useful < IDLE:
        return ""
    return (
        f"each device has work in {plan.useful:.0%} of the pipeline's turns only: take more micro-batches, "
        "or fewer stages"
    )


def _overhead(plan: SizePlan, time: StepTime) -> str:
    if time.overhead_share < OVERHEAD or plan.kernels < FEW:
        return ""
    busiest = f", {plan.busiest}" if plan.busiest else ""
    grow = "a larger batch per device, or fewer and larger operations" if plan.batch else "larger operations"
    return (
        f"{time.overhead_share:.0%} of the step is the start of {plan.kernels:.0f} small kernels{busiest}; "
        f"more devices do not shorten that: take {grow}"
    )


def _not_overlapped(plan: SizePlan, time: StepTime) -> str:
    waits = [e for e in plan.exchanges if not e.collective.asynchronous and e.exposed_s > 0]
    waited = sum(each.exposed_s for each in waits)
    if waited < 0.1 * time.step_s:
        return ""
    most = max(waits, key=lambda each: each.exposed_s)
    found = (
        f"the step waits {_s(waited)}, {waited / time.step_s:.0%} of its time, for collectives that nothing "
        f"overlaps, most for {most.collective.kind}s{' of ' + most.carries if most.carries else ''}"
        f"{_lines([most])}"
    )
    if plan.pipeline > 1 or most.collective.kind == "all-to-all":
        return f"{found}: larger micro-batches or layers give each device more work for each exchange"
    if most.carries == ACTIVATIONS and not most.over_batch:
        return (
            f"{found}: fewer devices along {' and '.join(most.axes)}, and more along the batch, exchange less"
        )
    if plan.peak_bytes + plan.temp_bytes > plan.memory_bytes:
        return f"{found}: accumulate gradients over several steps (twice the batch per device may not fit)"
    return f"{found}: give each device more examples, or accumulate gradients over several steps"
