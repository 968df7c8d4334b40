"""Advice on a step, from its plan: a sentence for each finding, with its figures.

Advice names only what the program can do: it tells what a collective carries and who asked for it, proposes
no placement that does not fit into memory, and nothing that the program does already.
"""

from collections.abc import Sequence

from jaxperf.plan.collectives import ACTIVATIONS, GRADIENTS, PARAMETERS, Collective
from jaxperf.plan.memory import JAX_SHARE, REMEDIES, USABLE
from jaxperf.plan.report import SizePlan, nbytes, seconds
from jaxperf.plan.timeline import Elapsed

SMALL = 256 * 2**10  # bytes below which latency dominates a collective's time
MANY = 8  # small collectives that are worth a change
WORTH = 0.02  # share of a step that a change must save
OVERHEAD = 0.5  # share of a step that is overhead of kernels
FEW = 20  # kernels: a smaller program is no training step
IDLE = 0.1  # share of a pipeline's turns without work
REPEATED = 1.2  # times as much arithmetic for each example as on fewer devices
WAITS = 0.1  # share of a step that is waits for collectives
MICRO = "add up the gradients of more micro-batches in the step before they are summed over the devices"


def advise(plan: SizePlan) -> dict[str, str]:
    """Return sentences by kind, in the order in which they are shown."""
    texts = _on_memory(plan)
    if plan.time:
        texts |= _on_exchanges(plan, plan.time) | _on_work(plan, plan.time) | _on_waits(plan, plan.time)
    return texts


def _on_memory(plan: SizePlan) -> dict[str, str]:
    share = plan.peak_bytes / plan.memory_bytes
    if plan.fits:
        if not plan.time or share <= JAX_SHARE:
            return {}
        text = (
            f"needs {share:.0%} of the card's memory, of which JAX takes {JAX_SHARE:.0%} by default: set "
            f"XLA_PYTHON_CLIENT_MEM_FRACTION={USABLE} before it starts"
        )
        return {"above JAX's share": text}
    way = "most of it temporaries; take a smaller batch per device"
    if plan.argument_bytes > plan.temp_bytes:
        way = "most of it arguments: whole on every device; shard them over the mesh (FSDP)"
        if plan.state_share_bytes < plan.state_bytes or plan.devices == 1:
            way = "most of it arguments: take more devices, and shard the state over them"
    needed = f"{nbytes(plan.peak_bytes)} of {nbytes(plan.memory_bytes)}"
    if share <= 1:
        needed += ", of which CUDA and NCCL need a part"
    if plan.live and plan.argument_bytes <= plan.temp_bytes:
        array = plan.live[0]
        at = f" of {array.source}" if array.source else ""
        way = (
            f"the largest temporaries are {array.shown}{at}, {nbytes(array.bytes)}: {REMEDIES[array.remedy]}"
        )
        return {"does not fit": f"does not fit: {needed}; {way}"}
    return {"does not fit": f"does not fit: {needed}, {way}"}


def _in_words(group: Sequence[Collective]) -> tuple[float, str, str, str]:
    """Return the number of collectives, and their bytes, lines and seconds as words."""
    sources = list(dict.fromkeys(each.source for each in group if each.source))
    lines = f" (at {', '.join(sources[:3])})" if sources else ""
    size = nbytes(sum(each.times * each.bytes for each in group))
    return sum(each.times for each in group), size, lines, seconds(sum(each.seconds for each in group))


def _is_moved(each: Collective) -> bool:
    """Return whether XLA gathers an array between two operations, or splits it along another axis."""
    gathered = each.kind == "all-gather" and each.carries == ACTIVATIONS
    return not each.asked and (gathered or each.kind in ("all-to-all", "collective-permute"))


def _on_exchanges(plan: SizePlan, time: Elapsed) -> dict[str, str]:
    texts = {}
    worth_s = WORTH * time.step_s
    statistics = [
        each for each in plan.exchanges
        if each.kind == "all-reduce" and not each.asked and each.carries == ACTIVATIONS
        and plan.over_batch(each) and each.bytes <= SMALL
    ]  # fmt: skip
    count, _, lines, spent = _in_words(statistics)
    if count >= MANY and sum(each.seconds for each in statistics) >= worth_s:
        texts["statistics summed over devices"] = (
            f"{count:.0f} small all-reduces, {spent} a step, sum over the whole batch in the middle of the "
            f"network{lines}: jit over a sharded batch makes BatchNorm's statistics global; for statistics "
            "of each device, write the step with jax.shard_map, and sum the gradients only, with "
            "jax.lax.psum"
        )
    gathers = [each for each in plan.exchanges if each.kind == "all-gather" and each.carries == PARAMETERS]
    if gathers and sum(each.waits_s for each in gathers) >= worth_s:
        count, size, lines, spent = _in_words(gathers)
        found = f"{size} of parameters are gathered each step in {count:.0f} all-gathers{lines}, {spent}"
        room = USABLE * plan.memory_bytes
        whole = plan.peak_bytes + plan.state_bytes - plan.state_share_bytes
        in_node = plan.peak_bytes + plan.state_bytes / plan.per_node - plan.state_share_bytes
        if whole <= room:
            texts["parameters gathered"] = (
                f"{found}: a copy of the whole state on every device would fit ({nbytes(whole)} of "
                f"{nbytes(plan.memory_bytes)}), and only gradients would be summed"
            )
        elif plan.devices > plan.per_node and in_node <= room:
            texts["parameters gathered"] = (
                f"{found}: sharded over the {plan.per_node} devices of a node only, with a copy in each "
                f"node, the state would fit ({nbytes(in_node)} of {nbytes(plan.memory_bytes)}), and "
                "parameters would not cross the network"
            )
    moved = list(filter(_is_moved, plan.exchanges))
    if moved and sum(each.seconds for each in moved) >= worth_s:
        _, size, lines, spent = _in_words(moved)
        of = " and ".join(sorted({each.carries for each in moved}))
        texts["resharded"] = (
            f"{size} of {of} change their sharding between two operations{lines}, {spent} a step: unless "
            "you mean it, give both operations the same sharding with jax.lax.with_sharding_constraint, in "
            "a loop over layers inside its body"
        )
    return texts


def _on_work(plan: SizePlan, time: Elapsed) -> dict[str, str]:
    texts = {}
    if 1 - plan.useful >= IDLE:
        texts["pipeline idle"] = (
            f"each device has work in {plan.useful:.0%} of the pipeline's turns only: take more "
            "micro-batches, or fewer stages"
        )
    if plan.repeated >= REPEATED:
        texts["arithmetic repeated"] = (
            f"each example takes {plan.repeated:.1f} times as much arithmetic as on the fewest devices; each "
            "device works on others' examples, too: unless you mean it, as in a loss over pairs, give what "
            "the step draws or reshapes a sharding over the batch, with jax.lax.with_sharding_constraint"
        )
    share = (time.parts.get("overhead", 0.0) + time.parts["call"]) / time.step_s
    if share >= OVERHEAD and time.kernels >= FEW:
        at = max(time.lines, key=lambda line: time.lines[line], default="")
        busiest = f", {time.lines[at]:.0f} of them at {at}" if at else ""
        more = "a larger batch per device, or fewer and larger operations"
        texts["mostly overhead"] = (
            f"{share:.0%} of the step is the start of {time.kernels:.0f} small kernels{busiest}; "
            f"more devices do not shorten that: take {more if plan.batch else 'larger operations'}"
        )
    return texts


def _on_waits(plan: SizePlan, time: Elapsed) -> dict[str, str]:
    group = [each for each in plan.exchanges if not _is_moved(each)]
    waits = sum(each.waits_s for each in group)
    if waits < WAITS * time.step_s:
        return {}
    most = max(group, key=lambda each: each.waits_s)
    at = f" (at {most.source})" if most.source else ""
    if plan.useful < 1 or most.kind in ("all-to-all", "collective-permute"):
        way = "larger micro-batches or layers give each device more work for each exchange"
    elif most.carries == ACTIVATIONS and not plan.over_batch(most):
        way = f"fewer devices along {' and '.join(most.axes)}, and more along the batch, exchange less"
    elif most.carries == ACTIVATIONS and most.bytes > SMALL:
        way = "a sharding that keeps on each device what its examples need exchanges less"
    else:
        way = "give each device more examples"
        if plan.peak_bytes + plan.temp_bytes > USABLE * plan.memory_bytes:
            way += ", of which twice as many may not fit"
        if most.carries == GRADIENTS:
            way += f"; or {MICRO}"
    text = (
        f"the step waits {seconds(waits)}, {waits / time.step_s:.0%} of its time, for collectives that no "
        f"kernels overlap, most for {most.kind}s of {most.carries}{at}: {way}"
    )
    return {"not overlapped": text}
