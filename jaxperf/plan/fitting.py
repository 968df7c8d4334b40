"""`--fit`: find by trying what fits into a card's memory. Each try is a compilation; nothing runs."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxperf.errors import JaxperfError
from jaxperf.plan.arguments import Placed
from jaxperf.plan.report import SizePlan, grid, nbytes, seconds
from jaxperf.result import Block, Text

MOST = 2**20  # examples on each device that are tried at most
REMAT = "jax.checkpoint around the body of each lax.scan"
POLICIES = {
    f"{REMAT}, saving matrix products": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    REMAT: None,
}
SHARDED = "the state sharded over all devices (FSDP)"


@dataclass
class Fit:
    """What was tried on one number of devices, in order, and the seconds that it took.

    A try has its "change", the "examples" on each device, "peak_bytes", whether it "fits", and "step_s".
    """

    devices: int
    tries: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def largest(self) -> int:
        """Return the most examples with which the unchanged step fits; 0 if it never does."""
        good = (each["examples"] for each in self.tries if each["fits"] and not each["change"])
        return max(good, default=0)

    def blocks(self) -> list[Block]:
        rows = (
            {
                "change": each["change"] or "as it is",
                "examples each": str(each["examples"]),
                "peak": nbytes(each["peak_bytes"]),
                "fits": "yes" if each["fits"] else "no",
                "step": seconds(each["step_s"]) if each["step_s"] else "-",
            }
            for each in self.tries
        )
        most = f"{self.largest} examples on each device fit" if self.largest else "no number of examples fits"
        changed = [each for each in self.tries if each["change"] and each["fits"]]
        said = [
            f"{len(self.tries)} compilations in {self.seconds:.0f} s",
            f"as it is, {most}",
            *(f"with {each['change']}, {each['examples']} fit" for each in changed),
        ]
        return [grid(f"What fits, on {self.devices} devices", rows), Text("; ".join(said) + ".")]


def fit(
    step: Any,
    first: SizePlan,
    place: Callable[..., Placed],
    planned: Callable[[Placed], SizePlan],
    per_device: int | None,
    told: Callable[[str], None],
) -> Fit:
    """Find the largest batch per device that fits; if the given one does not, also what makes it fit.

    `first` is the plan of the given batch. `place` places the step with `per_device` examples on each device;
    None are those of the arguments.
    """
    began = time.perf_counter()
    result = Fit(first.devices)

    def attempt(examples: int | None, change: str = "", size: SizePlan | None = None) -> bool:
        size = size or planned(place(per_device=examples))
        each = {"change": change, "examples": size.batch // size.split}
        result.tries.append(each | {name: getattr(size, name) for name in ("peak_bytes", "fits", "step_s")})
        fits = "fits" if size.fits else "does not fit"
        told(f"{change or 'as it is'}, {each['examples']} examples each: {fits}, {nbytes(size.peak_bytes)}")
        return size.fits

    fits = attempt(per_device, size=first)
    low = high = first.batch // first.split
    if not low:
        raise JaxperfError(
            "--fit changes the examples of the batch, and the step has none; name it by --batch"
        )
    if fits:
        while high < MOST and attempt(high := 2 * high):
            low = high
    else:
        while low > 1 and not attempt(low := low // 2):
            high = low
    distance = (high - low) // 2
    while result.largest and distance and 8 * distance >= low:  # halve it, down to an eighth
        if attempt(low + distance):
            low += distance
        distance //= 2
    if not fits:
        clear = getattr(step, "clear_cache", lambda: None)
        for change, policy in POLICIES.items():
            clear()  # or JAX returns the trace without the change
            with _rematerialized(policy) as met:
                size = planned(place(per_device=per_device))
            if not met:  # no loop
                break
            attempt(per_device, change, size)
        clear()
        if sharded := _sharded(place(per_device=per_device)):
            attempt(per_device, SHARDED, planned(sharded))
    result.seconds = time.perf_counter() - began
    return result


@contextlib.contextmanager
def _rematerialized(policy: Callable[..., Any] | None) -> Iterator[list[str]]:
    """While the block runs, put jax.checkpoint around the bodies of jax.lax.scan; yield those that it met."""
    met: list[str] = []
    scan = jax.lax.scan

    def wrapping(f: Any, *args: Any, **kwargs: Any) -> Any:
        met.append(str(getattr(f, "__name__", f)))
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
