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
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxperf.errors import JaxperfError
from jaxperf.measure.user_function import user_errors_shown
from jaxperf.plan.batch import find_batch, is_array, length_of, positions_by_shape

DATA = "data"
Call = tuple[Any, tuple[Any, ...]]  # a step and its arguments by position


@dataclass(frozen=True)
class Placed:
    """A step with its arguments for one number of devices."""

    step: Any  # what jax.jit or jax.pmap returned
    args: tuple[Any, ...]  # arrays as shapes with shardings
    mesh: Mesh  # of all devices
    batch: int = 0  # examples of the whole batch; 0 if there is none
    axis: Mapping[int, int] = field(default_factory=dict)  # of the examples, by position of the batch
    split: int = 1  # into how many parts the mesh divides the batch
    batch_axes: tuple[str, ...] = ()  # the mesh's axes that divide it
    made: bool = False  # whether the user's function made the step for these devices
    notes: tuple[str, ...] = ()  # what was assumed

    @property
    def state(self) -> list[Any]:
        rest = [arg for i, arg in enumerate(self.args) if i not in self.axis]
        return [leaf for leaf in jax.tree.leaves(rest) if is_array(leaf)]


def name_of(step: Any) -> str:
    return str(getattr(step, "__name__", type(step).__name__))


def _is_jitted(step: Any) -> bool:
    return callable(step) and hasattr(step, "lower")  # what Equinox jits has no `trace`


def _parameters(step: Any, *, required: bool = False) -> list[str]:
    """Return the names of a function's parameters; none where Python does not know them."""
    try:
        found = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):
        return []
    many = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in found if not required or (p.default is p.empty and p.kind not in many)]


def by_position(step: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
    """Return a step and its arguments by position; those that it takes by name only come last."""
    try:
        call = inspect.signature(step).bind(*args, **kwargs)
        args, kwargs = call.args, call.kwargs
    except (TypeError, ValueError):  # calling it says what is wrong
        pass
    return _of_arrays(step, args, kwargs) if kwargs else (step, args)


def _of_arrays(step: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
    """Return a step as a jitted function of its arguments' arrays, with None for all else; none is donated.

    `eqx.filter_jit` would treat everything but arrays, even shapes, as static.
    """
    whole = (*args, *kwargs.values())

    @functools.wraps(getattr(step, "__wrapped__", step))
    def of_arrays(*arrays: Any) -> list[Any]:
        both = jax.tree.map(
            lambda array, rest: rest if array is None else array, arrays, whole, is_leaf=lambda x: x is None
        )
        result = step(*both[: len(args)], **dict(zip(kwargs, both[len(args) :])))
        return [leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)]

    del of_arrays.__wrapped__  # its parameters are not those of the step
    return jax.jit(of_arrays), jax.tree.map(lambda x: x if is_array(x) else None, whole)


def mesh_of(devices: Sequence[Any], axes: Mapping[str, int], like: Mesh | None) -> Mesh:
    """Return a mesh of all devices, with the requested axes, those of `like`, or one named "data".

    The length of the first axis follows from the others.
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


def mesh_of_arguments(args: Any) -> Mesh | None:
    """Return the first mesh over which an argument is sharded; None if there is none."""
    meshes = (getattr(getattr(leaf, "sharding", None), "mesh", None) for leaf in jax.tree.leaves(args))
    return next((mesh for mesh in meshes if isinstance(mesh, Mesh)), None)


def place(
    step: Any,
    args: tuple[Any, ...],
    devices: Sequence[Any],
    *,
    axes: Mapping[str, int],
    per_device: int | None = None,
    total: int | None = None,
    batch: Sequence[int] | Mapping[int, int] | None = None,
) -> Placed:
    """Return a step with arguments for these devices; the parameters are those of `jaxperf.plan`."""
    mesh = mesh_of(devices, axes, mesh_of_arguments(args))
    made = not _is_jitted(step) and _parameters(step) in (["devices"], ["mesh"])
    given = False
    notes: list[str] = []
    if made:
        step, args, given = _made(step, args, mesh)
    elif not _is_jitted(step):
        step, note = _as_jitted(step, args)
        notes.append(note)
    required = _parameters(step, required=True)
    if required and not args:
        raise JaxperfError(
            f"{name_of(step)} needs arguments ({', '.join(required)}), but none are given; give them by "
            "--setup or --args"
        )
    if type(step).__module__.startswith("equinox"):
        step, args = _of_arrays(step, args, {})
    mapped = type(step) is FunctionType  # of jax.pmap, whose arguments begin with the devices
    if batch is not None:
        axis = _asked(args, batch)
    elif mapped or given:
        inner = jax.tree.map(lambda x: np.empty(np.shape(x)[1:], "V0"), args) if mapped else args
        axis = dict.fromkeys(positions_by_shape(inner), 0)
    else:
        axis, doubt = find_batch(step, args)
        if doubt:
            notes.append(doubt)
    examples = max((length_of(args[i], at) for i, at in axis.items()), default=0)
    names, split = _sharded_over(args, axis)
    if mapped:
        shapes = [np.shape(leaf) for i in axis for leaf in jax.tree.leaves(args[i])]
        names, split = mesh.axis_names[:1], examples
        examples *= max((shape[1] for shape in shapes if len(shape) > 1), default=1)
    if mapped or given:
        args = jax.tree.map(_shape, args)
    else:
        if not names or not set(names) <= set(mesh.axis_names):
            names = mesh.axis_names[:1]
        parts = math.prod(mesh.shape[name] for name in names)
        examples = _whole(examples, split, parts, per_device, total)
        split = parts
        args = tuple(_on_mesh(arg, mesh, examples, axis.get(i)) for i, arg in enumerate(args))
    if not examples:
        return Placed(step, args, mesh, made=made, notes=tuple(notes))
    return Placed(step, args, mesh, examples, axis, split, names, made, tuple(notes))


def _made(make: Callable[..., Any], args: tuple[Any, ...], mesh: Mesh) -> tuple[Any, tuple[Any, ...], bool]:
    """Return the step that the user's function makes, its arguments, and whether it returned these."""
    with user_errors_shown(name_of(make)):
        made = make(mesh if _parameters(make) == ["mesh"] else list(mesh.devices.flat))
    both = isinstance(made, tuple) and len(made) == 2
    step = made[0] if both else made
    if not _is_jitted(step):
        raise JaxperfError(
            f"{name_of(make)} returned {name_of(step)}, not a jitted step; return what jax.jit returned, or "
            "(step, arguments)"
        )
    if both:
        args = made[1] if isinstance(made[1], tuple) else (made[1],)
    return step, args, both


def _as_jitted(step: Any, args: tuple[Any, ...]) -> tuple[Any, str]:
    name = name_of(step)
    if not args:
        raise JaxperfError(
            f"{name} is not jitted, so nothing can be compiled; give what jax.jit returned, or a function of "
            "`devices` that makes the step"
        )
    return jax.jit(step), (
        f"{name} is not jitted: it is planned as one program, as jax.jit({name}) would be; its parts one by "
        "one take longer, and keep more between them"
    )


def _asked(args: tuple[Any, ...], batch: Sequence[int] | Mapping[int, int]) -> dict[int, int]:
    axis = {i: batch[i] if isinstance(batch, Mapping) else 0 for i in sorted(set(batch))}
    for i in axis:
        if not 0 <= i < len(args):
            raise JaxperfError(f"--batch names argument {i}, but the step has {len(args)}, counted from 0")
    if axis and not any(length_of(args[i], at) for i, at in axis.items()):
        shapes = sorted({str(np.shape(x)) for i in axis for x in jax.tree.leaves(args[i]) if np.shape(x)})
        raise JaxperfError(
            f"--batch {','.join(map(str, axis))}: these arrays have no common first axis: "
            f"{', '.join(shapes[:6])}; name arguments whose arrays begin with the examples, or their axis, "
            "as in --batch 1:axis=1"
        )
    return axis


def _sharded_over(args: tuple[Any, ...], axis: Mapping[int, int]) -> tuple[tuple[str, ...], int]:
    """Return the axes over which the arguments' sharding splits the batch, and into how many parts."""
    for i, at in axis.items():
        for leaf in jax.tree.leaves(args[i]):
            sharding = getattr(leaf, "sharding", None)
            if isinstance(sharding, NamedSharding) and len(sharding.spec) > at and sharding.spec[at]:
                names = sharding.spec[at]
                names = names if isinstance(names, tuple) else (names,)
                return names, math.prod(sharding.mesh.shape[name] for name in names)
    return (), 1


def _whole(examples: int, shares: int, split: int, per_device: int | None, total: int | None) -> int:
    if not examples and (per_device or total):
        raise JaxperfError("no argument is a batch, so --per-device and --total have nothing to change")
    if total and total % split:
        near = [n for n in (total // split * split, total // split * split + split) if n]
        raise JaxperfError(
            f"a batch of {total} does not divide by {split} devices, which JAX refuses; take "
            f"{' or '.join(map(str, near))}"
        )
    return total or (per_device or -(-examples // shares)) * split


def _shape(leaf: Any) -> Any:
    """Return an array as its shape without sharding; other leaves, including shapes, stay as they are."""
    if isinstance(leaf, jax.ShapeDtypeStruct) or not is_array(leaf):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, _dtype(leaf))


def _dtype(leaf: Any) -> Any:
    """Return the dtype of an array in a program: NumPy's 64 bits become 32."""
    return (
        jax.dtypes.canonicalize_dtype(leaf.dtype) if isinstance(leaf, np.ndarray | np.generic) else leaf.dtype
    )


def _on_mesh(tree: Any, mesh: Mesh, whole: int, axis: int | None) -> Any:
    """Return arrays as shapes on the mesh; those of the batch have `whole` examples on `axis`."""
    at = axis or 0
    examples = 0 if axis is None else length_of(tree, at)

    def placed(leaf: Any) -> Any:
        if not is_array(leaf):
            return leaf
        shape = list(leaf.shape)
        of_batch = axis is not None and len(shape) > at and shape[at] == examples
        if of_batch:
            shape[at] = whole
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and set(sharding.mesh.axis_names) <= set(mesh.axis_names):
            spec = sharding.spec
        else:
            spec = P(*[None] * at, mesh.axis_names[0]) if of_batch else P()
        return jax.ShapeDtypeStruct(tuple(shape), _dtype(leaf), sharding=NamedSharding(mesh, spec))

    return jax.tree.map(placed, tree)
