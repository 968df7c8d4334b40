"""Advice on a step, from its plan: a sentence for each finding, with its figures."""

from __future__ import annotations

from jaxperf.plan.links import LATENCY_S
from jaxperf.plan.report import Exchange, PlanAdvice, SizePlan
from jaxperf.result.formatting import format_on_page

SMALL = 256 * 2**10  # bytes below which latency dominates a collective's time
MANY = 8  # small collectives that are worth merging
WORTH = 0.02  # share of a step that a change must save
LARGE_SHARE = 0.5  # all-gathers of this share of the arguments' bytes gather the parameters


def advise(plan: SizePlan) -> tuple[PlanAdvice, ...]:
    """Return the advice on a step for one number of devices."""
    texts = {
        "does not fit": _does_not_fit(plan),
        "batch does not divide": _does_not_divide(plan),
        "statistics summed over devices": _statistics(plan),
        "a sum for each array": _per_parameter(plan),
        "parameters gathered": _gathered(plan),
        "resharded": _resharded(plan),
        "not overlapped": _not_overlapped(plan),
    }
    return tuple(PlanAdvice(kind, text) for kind, text in texts.items() if text)


def _does_not_fit(plan: SizePlan) -> str:
    if plan.fits:
        return ""
    state = "the state" if plan.argument_bytes > plan.temp_bytes else "the activations"
    way = (
        "shard the parameters and the optimizer's state over the mesh (FSDP)"
        if plan.argument_bytes > plan.temp_bytes
        else "take a smaller batch per device, or jax.checkpoint"
    )
    peak, memory = (format_on_page(n, "bytes") for n in (plan.peak_bytes, plan.memory_bytes))
    return f"does not fit: {peak} of {memory}, most of it for {state}; {way}"


def _does_not_divide(plan: SizePlan) -> str:
    if not plan.padded:
        return ""
    batch = plan.batch - plan.padded
    less = f" or {plan.batch - plan.split}" if plan.batch > plan.split else ""
    return (
        f"the batch of {batch} does not divide by {plan.split}, which JAX refuses; planned with "
        f"{plan.batch}: take {plan.batch}{less}"
    )


def _small(each: Exchange) -> bool:
    return each.collective.kind == "all-reduce" and each.collective.bytes <= SMALL


def _is_statistic(each: Exchange) -> bool:
    """Return whether an all-reduce is of statistics over the batch, as in BatchNorm."""
    operation = each.collective.operation
    names = ("reduce_sum", "reduce_mean", "batch_norm", "BatchNorm", "mean", "var")
    return _small(each) and each.collective.arrays <= 4 and any(name in operation for name in names)


def _seconds(group: list[Exchange]) -> float:
    return sum(each.count * each.each_s for each in group)


def _worth(plan: SizePlan, group: list[Exchange]) -> bool:
    return _seconds(group) >= WORTH * plan.step_s


def _cost(plan: SizePlan, group: list[Exchange]) -> str:
    return ("at least " if plan.at_least else "") + format_on_page(_seconds(group), "s")


def _lines(group: list[Exchange]) -> str:
    sources = list(dict.fromkeys(each.collective.source for each in group if each.collective.source))
    return f" (at {', '.join(sources[:3])})" if sources else ""


def _statistics(plan: SizePlan) -> str:
    group = [each for each in plan.exchanges if _is_statistic(each)]
    count = sum(each.count for each in group)
    if count < MANY or not (plan.at_least or _worth(plan, group)):  # lower bounds lack latency
        return ""
    return (
        f"{count:.0f} small all-reduces, {_cost(plan, group)} a step, sum over the whole "
        f"batch in the middle of the network{_lines(group)}: jit over a sharded batch makes BatchNorm's "
        "statistics global; for statistics of each device, write the step with jax.shard_map, and sum the "
        "gradients only, with jax.lax.psum"
    )


def _per_parameter(plan: SizePlan) -> str:
    group = [e for e in plan.exchanges if e.collective.kind == "all-reduce" and not _is_statistic(e)]
    count = sum(each.count for each in group)
    alone = [each for each in group if each.collective.arrays == 1]
    if plan.at_least or sum(each.count for each in alone) < MANY:  # merging saves latency only
        return ""
    saved = (count - 1) * LATENCY_S
    if saved < WORTH * plan.step_s:
        return ""
    return (
        f"{count:.0f} all-reduces of one array each{_lines(alone)}, where one of all gradients would save "
        f"about {format_on_page(saved, 's')} a step: sum the whole tree of gradients in one jax.lax.psum, "
        "at the end"
    )


def _gathered(plan: SizePlan) -> str:
    group = [each for each in plan.exchanges if each.collective.kind == "all-gather"]
    size = sum(each.count * each.collective.bytes for each in group)
    if not group or size < LARGE_SHARE * plan.argument_bytes or not _worth(plan, group):
        return ""
    return (
        f"{format_on_page(size, 'bytes')} are gathered each step in {sum(each.count for each in group):.0f} "
        f"all-gathers{_lines(group)}, {_cost(plan, group)}: sharded parameters are "
        f"gathered where they are used; with "
        f"{format_on_page(max(0, plan.memory_bytes - plan.peak_bytes), 'bytes')} free, "
        + (
            "keep a copy on every device if it fits"
            if plan.peak_bytes + size < plan.memory_bytes
            else "shard over the devices of a node only"
        )
    )


def _resharded(plan: SizePlan) -> str:
    group = [e for e in plan.exchanges if e.collective.kind in ("all-to-all", "collective-permute")]
    if not group or not _worth(plan, group):
        return ""
    size = sum(each.count * each.collective.bytes for each in group)
    return (
        f"{format_on_page(size, 'bytes')} change their sharding between two operations{_lines(group)}, "
        f"{_cost(plan, group)} a step: give both operations the same sharding with "
        "jax.lax.with_sharding_constraint"
    )


def _not_overlapped(plan: SizePlan) -> str:
    waits = [e for e in plan.exchanges if not e.collective.asynchronous and e.exposed_s > 0]
    waited = sum(each.exposed_s for each in waits)
    if waited < 0.1 * plan.step_s:
        return ""
    return (
        f"the step waits {format_on_page(waited, 's')}, {waited / plan.step_s:.0%} of its time, for "
        "collectives that nothing overlaps: give each device more examples, or accumulate gradients over "
        "several steps"
    )
