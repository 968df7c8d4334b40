"""`--fit`: find by trying what fits into a card's memory. Each try is a compilation; nothing runs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxperf.errors import JaxperfError
from jaxperf.plan import arguments, planning
from jaxperf.plan.arguments import Placed
from jaxperf.plan.cards import Card, Tpu
from jaxperf.plan.kernels import Cost
from jaxperf.plan.links import Network
from jaxperf.plan.programs import compiled_programs
from jaxperf.plan.report import SizePlan
from jaxperf.result import Block, Grid, Text
from jaxperf.result.formatting import format_on_page

MOST = 2**20  # examples on each device that are tried at most
POLICIES: Mapping[str, Callable[..., Any] | None] = {
    "jax.checkpoint around the body of each lax.scan, saving matrix products": (
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    ),
    "jax.checkpoint around the body of each lax.scan": None,
}


@dataclass(frozen=True)
class Try:
    """One compilation: what was changed, the examples on each device, and the plan."""

    change: str
    examples: int
    size: SizePlan


@dataclass
class Fit:
    """What was tried on one number of devices, in order, and the seconds that it took."""

    tries: list[Try] = dataclasses.field(default_factory=list)
    seconds: float = 0.0

    @property
    def largest(self) -> Try | None:
        """Return the try of the unchanged step with most examples that fits; None if none does."""
        good = [each for each in self.tries if each.size.fits and not each.change]
        return max(good, key=lambda each: each.examples, default=None)

    def to_json(self) -> list[dict[str, Any]]:
        """Return what was tried as plain values, for `json.dumps`."""
        return [
            {
                "change": each.change,
                "examples": each.examples,
                "peak_bytes": each.size.peak_bytes,
                "fits": each.size.fits,
                "step_s": each.size.step_s,
            }
            for each in self.tries
        ]

    def blocks(self) -> list[Block]:
        """Return what was tried as blocks of a report."""
        rows = tuple(
            (
                each.change or "as it is",
                str(each.examples),
                format_on_page(each.size.peak_bytes, "bytes"),
                "yes" if each.size.fits else "no",
                format_on_page(each.size.time.step_s, "s") if each.size.time else "-",
            )
            for each in self.tries
        )
        devices = self.tries[0].size.devices
        tried = Grid(
            f"What fits, on {devices} devices",
            ("change", "examples each", "peak", "fits", "step"),
            rows,
            (1, 2, 4),
        )
        say = [f"{len(self.tries)} compilations in {self.seconds:.0f} s"]
        if found := self.largest:
            say.append(f"as it is, {found.examples} examples on each device fit")
        else:
            say.append("as it is, no number of examples fits")
        say += [
            f"with {each.change}, {each.examples} fit"
            for each in self.tries
            if each.change and each.size.fits
        ]
        return [tried, Text("; ".join(say) + ".")]


def fit(
    card: Card | Tpu,
    step: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    devices: list[Any],
    network: Network,
    kernels: Mapping[str, Cost],
    told: Callable[[str], None],
    **options: Any,
) -> Fit:
    """Find the largest batch per device that fits; if the given one does not, also what makes it fit.

    Args:
      card, step, args, kwargs, devices, network, kernels, told: as for a plan of one size.
      **options: the other options of `arguments.place`.

    Raises:
      JaxperfError: the step has no batch, or its arguments are for these devices already.
    """
    began, result = time.perf_counter(), Fit()

    def attempt(examples: int | None, change: str = "", placed: Placed | None = None) -> Try:
        if placed is None:
            placed = arguments.place(step, args, kwargs, devices, **{**options, "per_device": examples})
        (program,) = compiled_programs(card, [placed], kernels)
        (size,) = planning.plan_of(card, [placed], [program], network, kernels=kernels).sizes
        one = Try(change, size.batch // size.split if size.batch else 0, size)
        result.tries.append(one)
        fits = "fits" if size.fits else "does not fit"
        told(f"{change or 'as it is'}, {one.examples} examples each: {fits}")
        return one

    first = attempt(options.get("per_device"))
    if not first.examples:
        raise JaxperfError(
            "--fit changes the examples of the batch, and the step has none; name it by --batch"
        )
    low = first.examples
    if first.size.fits:
        high = low
        while high < MOST and attempt(high := 2 * high).size.fits:
            low = high
        _between(low, high, attempt)
    else:
        while low > 1 and not attempt(low := low // 2).size.fits:
            pass
        if result.largest:
            _between(low, 2 * low, attempt)
        place = functools.partial(arguments.place, step, args, kwargs, devices, **options)
        _changes(step, result, attempt, place, options.get("per_device"))
    result.seconds = time.perf_counter() - began
    return result


def _between(low: int, high: int, attempt: Callable[[int], Try]) -> None:
    """Halve the distance between a number of examples that fits and one that does not, down to an eighth."""
    step = (high - low) // 2
    while step and 8 * step >= low:
        if attempt(low + step).size.fits:
            low += step
        step //= 2


def _changes(
    step: Any, result: Fit, attempt: Callable[..., Try], place: Callable[[], Placed], given: int | None
) -> None:
    """Try jax.checkpoint around the bodies of loops, and the state sharded over all devices."""
    clear = getattr(step, "clear_cache", lambda: None)
    for change, policy in POLICIES.items():
        clear()  # or JAX returns the trace without the change
        with _rematerialized(policy) as met:
            one = attempt(given, change)
        if not met:  # no loop
            result.tries.remove(one)
            break
    clear()
    placed = place()
    if not placed.made and placed.mesh.size > 1:
        attempt(None, "the state sharded over all devices (FSDP)", _sharded(placed))


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


def _sharded(placed: Placed) -> Placed:
    """Return a step whose replicated arguments are split along their last axis that divides."""

    def split(leaf: Any) -> Any:
        sharding = getattr(leaf, "sharding", None)
        if not isinstance(sharding, NamedSharding) or any(sharding.spec):
            return leaf
        count = placed.mesh.size
        axis = next((i for i in reversed(range(len(leaf.shape))) if leaf.shape[i] % count == 0), None)
        if axis is None:
            return leaf
        spec = P(*[None] * axis, tuple(placed.mesh.axis_names))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(placed.mesh, spec))

    args = tuple(
        arg if i in placed.batch_arguments else jax.tree.map(split, arg) for i, arg in enumerate(placed.args)
    )
    return dataclasses.replace(placed, args=args)
