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
from jaxperf.plan.report import SizePlan, nbytes, seconds
from jaxperf.result import Block, Grid, Text

MOST = 2**20  # examples on each device that are tried at most
REMAT = "jax.checkpoint around the body of each lax.scan"
POLICIES = {
    f"{REMAT}, saving matrix products": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    REMAT: None,
}
SHARDED = "the state sharded over all devices (FSDP)"


@dataclass(frozen=True)
class Try:
    """One compilation: what was changed, the examples on each device, and the plan."""

    change: str
    examples: int
    size: SizePlan


@dataclass
class Fit:
    """What was tried on one number of devices, in order, and the seconds that it took."""

    tries: list[Try] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def largest(self) -> Try | None:
        """Return the try of the unchanged step with most examples that fits; None if none does."""
        good = [each for each in self.tries if each.size.fits and not each.change]
        return max(good, key=lambda each: each.examples, default=None)

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {"change": each.change, "examples": each.examples}
            | {name: getattr(each.size, name) for name in ("peak_bytes", "fits", "step_s")}
            for each in self.tries
        ]

    def blocks(self) -> list[Block]:
        rows = tuple(
            (
                each.change or "as it is",
                str(each.examples),
                nbytes(each.size.peak_bytes),
                "yes" if each.size.fits else "no",
                seconds(each.size.step_s) if each.size.step_s else "-",
            )
            for each in self.tries
        )
        title = f"What fits, on {self.tries[0].size.devices} devices"
        heads = ("change", "examples each", "peak", "fits", "step")
        found = self.largest
        say = [
            f"{len(self.tries)} compilations in {self.seconds:.0f} s",
            f"as it is, {found.examples} examples on each device fit"
            if found
            else "as it is, no number of examples fits",
        ]
        changed = [each for each in self.tries if each.change and each.size.fits]
        say += [f"with {each.change}, {each.examples} fit" for each in changed]
        return [Grid(title, heads, rows, (1, 2, 4)), Text("; ".join(say) + ".")]


def fit(
    step: Any,
    first: SizePlan,
    place: Callable[[int | None], Placed],
    planned: Callable[[Placed], SizePlan],
    per_device: int | None,
    told: Callable[[str], None],
) -> Fit:
    """Find the largest batch per device that fits; if the given one does not, also what makes it fit.

    `first` is the plan of the given batch. `place` places the step with a number of examples on each device;
    None are those of the arguments.
    """
    began, result = time.perf_counter(), Fit()

    def attempt(examples: int | None, change: str = "", size: SizePlan | None = None) -> bool:
        size = size or planned(place(examples))
        each = Try(change, size.batch // size.split if size.batch else 0, size)
        result.tries.append(each)
        fits = "fits" if size.fits else "does not fit"
        told(f"{change or 'as it is'}, {each.examples} examples each: {fits}, {nbytes(size.peak_bytes)}")
        return size.fits

    fits = attempt(per_device, size=first)
    low = result.tries[0].examples
    if not low:
        raise JaxperfError(
            "--fit changes the examples of the batch, and the step has none; name it by --batch"
        )
    high = low
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
        _try_changes(step, result, attempt, per_device)
        sharded = _sharded(place(per_device))
        if sharded:
            attempt(per_device, SHARDED, planned(sharded))
    result.seconds = time.perf_counter() - began
    return result


def _try_changes(step: Any, result: Fit, attempt: Callable[..., bool], per_device: int | None) -> None:
    """Try jax.checkpoint around the bodies of loops."""
    clear = getattr(step, "clear_cache", lambda: None)
    for change, policy in POLICIES.items():
        clear()  # or JAX returns the trace without the change
        with _rematerialized(policy) as met:
            attempt(per_device, change)
        if not met:  # no loop
            result.tries.pop()
            break
    clear()


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
