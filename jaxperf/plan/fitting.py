"""`--fit`: find by trying what fits into a card's memory. Each try is a compilation; nothing runs."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxperf.errors import JaxperfError
from jaxperf.plan.arguments import Placed
from jaxperf.plan.report import Fit, SizePlan, StepPlan, nbytes

MOST = 2**20  # examples on each device that are tried at most
REMAT = "jax.checkpoint around the body of each lax.scan"
POLICIES = {
    f"{REMAT}, saving matrix products": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    REMAT: None,
}
SHARDED = "the state sharded over all devices (FSDP)"


def fit(
    step: Any,
    first: SizePlan,  # the plan of the given batch
    place: Callable[..., Placed],  # with `per_device` examples on each device; None are the arguments'
    planned: Callable[[Placed], StepPlan],
    per_device: int | None,
    told: Callable[[str], None],
) -> Fit:
    """Find the largest batch per device that fits; if the given one does not, also what makes it fit."""
    began = time.perf_counter()
    tries: list[tuple[str, SizePlan]] = []

    def add(change: str, size: SizePlan) -> bool:
        tries.append((change, size))
        verdict = "fits" if size.fits else "does not fit"
        told(f"{change or 'as it is'}, {size.examples} examples each: {verdict}, {nbytes(size.peak_bytes)}")
        return size.fits

    def fits(examples: int) -> bool:
        return add("", planned(place(per_device=examples)).sizes[0])

    low = high = first.examples
    if not low:
        raise JaxperfError("--fit changes the examples of the batch, but there is none; name it by --batch")
    if add("", first):
        while high < MOST and fits(high := 2 * high):
            low = high
    else:
        while low > 1 and not fits(low := low // 2):
            high = low
    distance = (high - low) // 2
    while distance and 8 * distance >= low:  # halve it, down to an eighth
        if fits(low + distance):
            low += distance
        distance //= 2
    if not first.fits:
        clear = getattr(step, "clear_cache", lambda: None)
        for change, policy in POLICIES.items():
            clear()  # or JAX returns the trace without the change
            with _rematerialized(policy) as met:
                size = planned(place(per_device=per_device)).sizes[0]
            if not met:  # no loop
                break
            add(change, size)
        clear()
        if sharded := _sharded(place(per_device=per_device)):
            add(SHARDED, planned(sharded).sizes[0])
    return Fit(tuple(tries), time.perf_counter() - began)


@contextlib.contextmanager
def _rematerialized(policy: Callable[..., Any] | None) -> Iterator[list[Any]]:
    """While the block runs, put jax.checkpoint around the bodies of jax.lax.scan; yield those that it met."""
    met: list[Any] = []
    scan = jax.lax.scan

    def wrapping(f: Any, *args: Any, **kwargs: Any) -> Any:
        met.append(f)
        return scan(jax.checkpoint(f, policy=policy, prevent_cse=False), *args, **kwargs)

    with mock.patch.object(jax.lax, "scan", wrapping):
        yield met


def _sharded(placed: Placed) -> Placed | None:
    """Return a step whose replicated arguments are split along their last axis that divides; else None."""
    count = placed.mesh.size
    if placed.made or count == 1:
        return None

    def split(leaf: Any) -> Any:
        sharding = getattr(leaf, "sharding", None)
        if not isinstance(sharding, NamedSharding) or any(sharding.spec):
            return leaf
        axis = next((i for i in reversed(range(len(leaf.shape))) if leaf.shape[i] % count == 0), None)
        if axis is None:
            return leaf
        spec = P(*[None] * axis, tuple(placed.mesh.axis_names))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(placed.mesh, spec))

    args = tuple(arg if i in placed.axis else jax.tree.map(split, arg) for i, arg in enumerate(placed.args))
    return dataclasses.replace(placed, args=args)
