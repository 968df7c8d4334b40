"""Advice on a step, from its plan: a sentence for each finding, with its figures.

Advice names only what the program can do: it tells what a collective carries and who asked for it, proposes
no placement that does not fit into memory, and nothing that the program does already.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxperf.plan.collectives import ACTIVATIONS, GRADIENTS, PARAMETERS
from jaxperf.plan.memory import CHECKPOINT, FSDP, FUSED, JAX_SHARE, POLICY, USABLE
from jaxperf.plan.report import Exchange, SizePlan, nbytes, seconds
from jaxperf.plan.timeline import Elapsed

SMALL = 256 * 2**10  # bytes below which latency dominates a collective's time
MANY = 8  # small collectives that are worth merging
WORTH = 0.02  # share of a step that a change must save
OVERHEAD = 0.5  # share of a step that is overhead of kernels
FEW = 20  # kernels: a smaller program is no training step
IDLE = 0.1  # share of a pipeline's turns without work
WAITS = 0.1  # share of a step that is waits for collectives
MICRO = "add up the gradients of several micro-batches in the step, and sum them over the devices once"
LATENCY_S = 20e-6  # what merging saves for each collective, at least
# what to do about the largest array, by what removes it
REMEDIES = {
    FUSED: (
        "the scores of attention, which fused attention never stores "
        '(jax.nn.dot_product_attention(..., implementation="cudnn"))'
    ),
    CHECKPOINT: (
        "saved for the backward pass: jax.checkpoint around each layer, or a smaller batch per device"
    ),
    POLICY: (
        "saved for the backward pass, although the step uses jax.checkpoint already: another policy, or a "
        "smaller batch per device"
    ),
    FSDP: "as large as a parameter that every device has whole: shard the parameters over the mesh (FSDP)",
    "": "take a smaller batch per device",
}


def advise(plan: SizePlan) -> dict[str, str]:
    """Return the sentences by kind."""
    texts = {"does not fit": _does_not_fit(plan)}
    if time := plan.time:
        texts |= {
            "above JAX's share": _above_share(plan),
            "statistics summed over devices": _statistics(plan, time),
            "a sum for each array": _per_array(plan, time),
            "parameters gathered": _gathered(plan, time),
            "resharded": _resharded(plan, time),
            "pipeline idle": _idle(plan),
            "mostly overhead": _overhead(plan, time),
            "not overlapped": _not_overlapped(plan, time),
        }
    return {kind: text for kind, text in texts.items() if text}


def _does_not_fit(plan: SizePlan) -> str:
    if plan.fits:
        return ""
    over = f"does not fit: {nbytes(plan.peak_bytes)} of {nbytes(plan.memory_bytes)}"
    if plan.peak_bytes <= plan.memory_bytes:
        over += ", of which CUDA and NCCL need a part"
    if plan.argument_bytes > plan.temp_bytes:
        if plan.state_share_bytes < plan.state_bytes or plan.devices == 1:
            return f"{over}, most of it arguments; take more devices to shard the state over"
        return f"{over}, most of it arguments, whole on every device; shard them over the mesh (FSDP)"
    if not plan.live:
        return f"{over}, most of it temporaries; take a smaller batch per device"
    largest = plan.live[0]
    at = f" of {largest.source}" if largest.source else ""
    array = f"the largest temporary is {nbytes(largest.bytes)}, {largest.shown}{at}"
    return f"{over}; {array}: {REMEDIES[largest.remedy]}"


def _above_share(plan: SizePlan) -> str:
    share = plan.peak_bytes / plan.memory_bytes
    if share <= JAX_SHARE or not plan.fits:
        return ""
    return (
        f"needs {share:.0%} of the card's memory, of which JAX takes {JAX_SHARE:.0%} by default: set "
        f"XLA_PYTHON_CLIENT_MEM_FRACTION={USABLE} before it starts"
    )


def _seconds(group: Sequence[Exchange]) -> float:
    return sum(each.seconds for each in group)


def _count(group: Sequence[Exchange]) -> float:
    return sum(each.count for each in group)


def _bytes(group: Sequence[Exchange]) -> str:
    return nbytes(sum(each.bytes for each in group))


def _worth(time: Elapsed, group: Sequence[Exchange]) -> bool:
    return bool(group) and _seconds(group) >= WORTH * time.step_s


def _lines(group: Sequence[Exchange]) -> str:
    sources = list(dict.fromkeys(each.collective.source for each in group if each.collective.source))
    return f" (at {', '.join(sources[:3])})" if sources else ""


def _statistics(plan: SizePlan, time: Elapsed) -> str:
    group = [
        each for each in plan.exchanges
        if each.collective.kind == "all-reduce" and not each.collective.asked
        and each.carries == ACTIVATIONS and each.over_batch
        and each.collective.bytes <= SMALL and each.collective.arrays <= 4
    ]  # fmt: skip
    if _count(group) < MANY or not _worth(time, group):
        return ""
    return (
        f"{_count(group):.0f} small all-reduces, {seconds(_seconds(group))} a step, sum over the whole "
        f"batch in the middle of the network{_lines(group)}: jit over a sharded batch makes BatchNorm's "
        "statistics global; for statistics of each device, write the step with jax.shard_map, and sum the "
        "gradients only, with jax.lax.psum"
    )


def _per_array(plan: SizePlan, time: Elapsed) -> str:
    group = [
        each for each in plan.exchanges
        if each.collective.kind == "all-reduce" and each.carries == GRADIENTS and each.over_batch
        and each.collective.arrays == 1 and each.collective.times == 1
    ]  # fmt: skip
    saved = (_count(group) - 1) * LATENCY_S
    if _count(group) < MANY or saved < WORTH * time.step_s:
        return ""
    return (
        f"{_count(group):.0f} all-reduces of one gradient each{_lines(group)}, where one of all of them "
        f"would save about {seconds(saved)} a step: sum the whole tree of gradients in one jax.lax.psum at "
        "the end"
    )


def _gathered(plan: SizePlan, time: Elapsed) -> str:
    group = [e for e in plan.exchanges if e.collective.kind == "all-gather" and e.carries == PARAMETERS]
    if not _worth(time, group) or sum(e.exposed_s for e in group) < WORTH * time.step_s:
        return ""
    found = (
        f"{_bytes(group)} of parameters are gathered each step in {_count(group):.0f} "
        f"all-gathers{_lines(group)}, {seconds(_seconds(group))}"
    )
    whole = plan.peak_bytes + plan.state_bytes - plan.state_share_bytes
    in_node = plan.peak_bytes + plan.state_bytes / plan.per_node - plan.state_share_bytes
    if whole <= plan.usable_bytes:
        return (
            f"{found}: a copy of the whole state on every device would fit ({nbytes(whole)} of "
            f"{nbytes(plan.memory_bytes)}), and only gradients would be summed"
        )
    if plan.devices > plan.per_node and in_node <= plan.usable_bytes:
        return (
            f"{found}: sharded over the {plan.per_node} devices of a node only, with a copy in each node, "
            f"the state would fit ({nbytes(in_node)} of {nbytes(plan.memory_bytes)}), and parameters would "
            "not cross the network"
        )
    return ""


def _resharded(plan: SizePlan, time: Elapsed) -> str:
    """Of what XLA inserts between two operations: an array is gathered, or split along another axis."""
    inserted = [each for each in plan.exchanges if not each.collective.asked]
    group = [
        each for each in inserted
        if each.collective.kind in ("all-to-all", "collective-permute")
        or (each.collective.kind == "all-gather" and each.carries == ACTIVATIONS)
    ]  # fmt: skip
    if not _worth(time, group):
        return ""
    of = sorted({each.carries for each in group if each.carries})
    what = f"{_bytes(group)} of {' and '.join(of)}" if of else _bytes(group)
    return (
        f"{what} change their sharding between two operations{_lines(group)}, {seconds(_seconds(group))} a "
        "step, which the program does not ask for: give both operations the same sharding with "
        "jax.lax.with_sharding_constraint, in a loop over layers inside its body"
    )


def _idle(plan: SizePlan) -> str:
    if 1 - plan.useful < IDLE:
        return ""
    return (
        f"each device has work in {plan.useful:.0%} of the pipeline's turns only: take more micro-batches, "
        "or fewer stages"
    )


def _overhead(plan: SizePlan, time: Elapsed) -> str:
    if time.overhead_share < OVERHEAD or time.kernels < FEW:
        return ""
    busiest = f", {plan.busiest}" if plan.busiest else ""
    grow = "a larger batch per device, or fewer and larger operations" if plan.batch else "larger operations"
    return (
        f"{time.overhead_share:.0%} of the step is the start of {time.kernels:.0f} small kernels{busiest}; "
        f"more devices do not shorten that: take {grow}"
    )


def _not_overlapped(plan: SizePlan, time: Elapsed) -> str:
    if time.waits_s < WAITS * time.step_s:
        return ""
    most = max(plan.exchanges, key=lambda each: each.exposed_s)
    of = f" of {most.carries}" if most.carries else ""
    found = (
        f"the step waits {seconds(time.waits_s)}, {time.waits_s / time.step_s:.0%} of its time, for "
        f"collectives that no kernels overlap, most for {most.collective.kind}s{of}{_lines([most])}"
    )
    if plan.pipeline > 1 or most.collective.kind == "all-to-all":
        return f"{found}: larger micro-batches or layers give each device more work for each exchange"
    if most.carries == ACTIVATIONS and not most.over_batch:
        return (
            f"{found}: fewer devices along {' and '.join(most.axes)}, and more along the batch, exchange less"
        )
    if plan.peak_bytes + plan.temp_bytes > plan.usable_bytes:
        return f"{found}: {MICRO} (twice the batch per device may not fit)"
    return f"{found}: give each device more examples, or {MICRO}"
