"""Place a step and its arguments, as shapes, on a mesh of devices that are not there.

An array that is sharded over a mesh of the devices here is sharded the same way over the larger mesh. An
array without a sharding is split over the mesh's first axis if it is part of the batch, and otherwise
replicated.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxperf.errors import JaxperfError
from jaxperf.measure.stages import all_equations
from jaxperf.measure.user_function import reader_code

DATA = "data"
CALLBACKS = {"pure_callback", "io_callback", "debug_callback", "debug_print", "infeed", "outfeed"}


@dataclass(frozen=True)
class Placed:
    """A step with its arguments for one number of devices.

    Attributes:
      step: the result of `jax.jit` or `jax.pmap`.
      args, kwargs: arguments as shapes with shardings.
      mesh: the mesh of all devices.
      batch: examples of the whole batch; 0 if there is none.
      batch_arguments: positions of the arguments that are the batch.
      padded: examples that were added so that the batch divides evenly.
      made: whether the reader's function made the step for these devices.
      split: into how many parts the mesh divides the batch.
    """

    step: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    mesh: Mesh
    batch: int
    batch_arguments: tuple[int, ...]
    padded: int
    made: bool
    split: int = 1


def makes_step(step: Any) -> bool:
    """Return whether a function makes a step: its only parameter is named `devices` or `mesh`."""
    if _is_jitted(step):
        return False
    try:
        return list(inspect.signature(step).parameters) in (["devices"], ["mesh"])
    except (TypeError, ValueError):
        return False


def _is_jitted(step: Any) -> bool:
    return callable(step) and hasattr(step, "lower")  # what Equinox jits has no `trace`


def mesh_of(devices: Sequence[Any], axes: Mapping[str, int], like: Mesh | None) -> Mesh:
    """Return a mesh of all devices, with the requested axes, those of `like`, or one named "data".

    The length of the first axis follows from the others.

    Raises:
      JaxperfError: the other axes do not divide the devices.
    """
    named = dict(axes) or (dict(like.shape) if like else {}) or {DATA: len(devices)}
    others = list(named)[1:]
    rest = math.prod(named[name] for name in others)
    if len(devices) % rest:
        sizes = ",".join(f"{name}={named[name]}" for name in others)
        raise JaxperfError(
            f"a mesh with {sizes} does not fit {len(devices)} devices; take a multiple of {rest}"
        )
    lengths = (len(devices) // rest, *(named[name] for name in others))
    types = like.axis_types if like and tuple(like.axis_names) == tuple(named) else None
    return Mesh(np.array(devices).reshape(lengths), tuple(named), axis_types=types)


def place(
    step: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    devices: Sequence[Any],
    *,
    axes: Mapping[str, int],
    per_device: int | None = None,
    total: int | None = None,
    batch: Sequence[int] | None = None,
) -> Placed:
    """Return a step with arguments for these devices.

    Args:
      step: the result of `jax.jit`; or a function of `devices` (or `mesh`) that returns the step, or (step,
        arguments) with arguments that are for these devices already.
      args, kwargs: arguments for one device, arrays or shapes.
      devices: the descriptions of all devices.
      axes: the mesh's axes; empty for those of the arguments or a single one.
      per_device: examples on each device; by default those of the arguments.
      total: examples of the whole batch, for any number of devices.
      batch: positions of the arguments that are the batch; found by their first axis if None.

    Raises:
      JaxperfError: the step is not jitted, its arguments are missing, or a mesh or batch does not fit.
    """
    mesh = mesh_of(devices, axes, mesh_of_arguments((args, kwargs)))
    made, placed = makes_step(step), False
    if made:
        make, (step, args, placed) = step, _made(step, args, mesh)
        if not _is_jitted(step):
            raise JaxperfError(
                f"{_name(make)} returned {_name(step)}, not a jitted step; return what jax.jit returned, or "
                "(step, arguments)"
            )
    if not _is_jitted(step):
        raise JaxperfError(
            f"{_name(step)} is not jitted, so nothing can be compiled; give what jax.jit returned, or a "
            "function of `devices` that makes the step"
        )
    if not args and not kwargs and (missing := _required(step)):
        raise JaxperfError(
            f"{_name(step)} needs arguments ({', '.join(missing)}), but none are given; give them by --setup "
            "or --args"
        )
    positions = tuple(sorted(set(batch))) if batch is not None else batch_positions(args)
    for i in positions:
        if not 0 <= i < len(args):
            raise JaxperfError(f"--batch names argument {i}, but the step has {len(args)}, counted from 0")
    examples = max((_lead(args[i], scalars=batch is not None) for i in positions), default=0)
    if batch and not examples:
        shapes = sorted(
            {str(np.shape(x)) for i in positions for x in jax.tree.leaves(args[i]) if np.shape(x)}
        )
        raise JaxperfError(
            f"--batch {','.join(map(str, positions))}: these arrays have no common first axis: "
            f"{', '.join(shapes[:6])}; name arguments whose arrays begin with the examples"
        )
    if placed:
        return Placed(step, jax.tree.map(_shape, args), kwargs, mesh, examples, positions, 0, made)
    names, shares = _batch_axes(args, positions)
    if not names or not set(names) <= set(mesh.axis_names):
        names = (mesh.axis_names[0],)
    split = math.prod(mesh.shape[name] for name in names)
    whole, padded = _whole(examples, shares, split, per_device, total)
    new = tuple(
        jax.tree.map(lambda leaf, i=i: _leaf(leaf, mesh, whole if i in positions else 0), arg)
        for i, arg in enumerate(args)
    )
    named = {name: jax.tree.map(lambda leaf: _leaf(leaf, mesh, 0), value) for name, value in kwargs.items()}
    if type(step).__module__.startswith("equinox"):
        step, new, named = _of_arrays(step, new, named)
    return Placed(step, new, named, mesh, whole, positions if examples else (), padded, made, split)


def _made(make: Callable[..., Any], args: tuple[Any, ...], mesh: Mesh) -> tuple[Any, tuple[Any, ...], bool]:
    """Return the step that the reader's function makes, arguments, and whether it returned these, too."""
    parameter = next(iter(inspect.signature(make).parameters))
    with reader_code(_name(make)):
        made = make(mesh if parameter == "mesh" else list(mesh.devices.flat))
    if not isinstance(made, tuple) or len(made) != 2:
        return made, args, False
    step, made_args = made
    return step, made_args if isinstance(made_args, tuple) else (made_args,), True


def _name(step: Any) -> str:
    return str(getattr(step, "__name__", type(step).__name__))


def _required(step: Any) -> list[str]:
    """Return the names of the parameters without default; none where Python does not know them."""
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):
        return []
    return [
        p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]


def mesh_of_arguments(tree: Any) -> Mesh | None:
    """Return the first mesh over which an argument is sharded; None if there is none."""
    for leaf in jax.tree.leaves(tree):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
            return sharding.mesh
    return None


def _is_shape(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _shape(leaf: Any) -> Any:
    """Return an array as its shape without sharding; other leaves, including shapes, stay as they are."""
    if isinstance(leaf, jax.ShapeDtypeStruct) or not _is_shape(leaf):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _lead(arg: Any, *, scalars: bool = False) -> int:
    """Return the length of the first axis if all arrays of an argument share it; else 0.

    With `scalars`, an argument may also have scalars.
    """
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(arg)]
    leads = {shape[0] for shape in shapes if shape}
    return leads.pop() if len(leads) == 1 and (scalars or all(shapes)) else 0


def _is_key(leaf: Any) -> bool:
    """Return whether a leaf is what `jax.random.PRNGKey` returns."""
    return np.shape(leaf) == (2,) and getattr(leaf, "dtype", None) == np.uint32


def batch_positions(args: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the positions of the batch: the last arguments whose arrays all have the same first axis.

    Scalars and keys after them are skipped. If there are several arguments, the first one is never included.
    """
    positions: list[int] = []
    length = 0
    for i in reversed(range(int(len(args) > 1), len(args))):
        lead = _lead(args[i])
        leaves = jax.tree.leaves(args[i])
        if not positions and all(not np.shape(leaf) or _is_key(leaf) for leaf in leaves):
            continue
        if not lead or (length and lead != length):
            break
        length = lead
        positions.append(i)
    return tuple(sorted(positions))


def _batch_axes(args: tuple[Any, ...], positions: tuple[int, ...]) -> tuple[tuple[str, ...], int]:
    """Return the axes over which the arguments' sharding splits the batch, and into how many parts."""
    for i in positions:
        for leaf in jax.tree.leaves(args[i]):
            sharding = getattr(leaf, "sharding", None)
            if isinstance(sharding, NamedSharding) and sharding.spec and sharding.spec[0]:
                names = sharding.spec[0]
                names = names if isinstance(names, tuple) else (names,)
                return names, math.prod(sharding.mesh.shape[name] for name in names)
    return (), 1


def _whole(
    examples: int, shares: int, split: int, per_device: int | None, total: int | None
) -> tuple[int, int]:
    """Return the examples of the whole batch, and how many of them were added so that it divides evenly."""
    if not examples:
        if per_device or total:
            raise JaxperfError("no argument is a batch, so --per-device and --total have nothing to change")
        return 0, 0
    if total:
        padded = -total % split
        return total + padded, padded
    return (per_device or -(-examples // shares)) * split, 0


def _of_arrays(
    step: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, Any, dict[str, Any]]:
    """Return a step as a jitted function of arrays only, and its arguments; nothing is donated.

    `eqx.filter_jit` would treat everything but arrays, even shapes, as static.
    """
    leaves, tree = jax.tree.flatten((args, kwargs))

    @functools.wraps(step.__wrapped__)
    def of_arrays(*arrays: Any) -> list[Any]:
        rest = iter(arrays)
        args, kwargs = jax.tree.unflatten(tree, [next(rest) if _is_shape(x) else x for x in leaves])
        return [leaf for leaf in jax.tree.leaves(step(*args, **kwargs)) if isinstance(leaf, jax.Array)]

    return jax.jit(of_arrays), tuple(filter(_is_shape, leaves)), {}


def _leaf(leaf: Any, mesh: Mesh, whole: int) -> Any:
    """Return an array as its shape on the mesh; other leaves stay as they are.

    Args:
      leaf: an array, a shape, or anything else.
      mesh: the mesh of all devices.
      whole: length of the first axis if the leaf is part of the batch; else 0.
    """
    if not _is_shape(leaf):
        return leaf
    shape = (whole, *leaf.shape[1:]) if whole and leaf.shape else tuple(leaf.shape)
    sharding = getattr(leaf, "sharding", None)
    if isinstance(sharding, NamedSharding) and set(sharding.mesh.axis_names) <= set(mesh.axis_names):
        spec = sharding.spec
    else:
        spec = P(mesh.axis_names[0]) if whole and leaf.shape else P()
    return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=NamedSharding(mesh, spec))


def check_plannable(jaxpr: Any) -> None:
    """Check that a traced step has no callbacks and no Pallas kernels.

    Raises:
      JaxperfError: it calls Python while it runs, or has a Pallas kernel.
    """
    for equation in all_equations(jaxpr):
        name = equation.primitive.name
        if name in CALLBACKS:
            raise JaxperfError(
                f"the step calls Python while it runs ({name}), which cannot be compiled without a GPU; "
                "take jax.debug.print and callbacks out for planning"
            )
        if name == "pallas_call":
            raise JaxperfError(
                "the step has a Pallas kernel, which is compiled for the GPU that is there; no table has its "
                "time; plan the step with jax.numpy in its place"
            )
