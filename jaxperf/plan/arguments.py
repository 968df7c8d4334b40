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
from types import FunctionType, MethodType
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxperf.errors import JaxperfError
from jaxperf.measure.user_function import user_errors_shown
from jaxperf.plan.batch import find_batch, is_array, length_of, positions_by_shape

DATA = "data"


@dataclass(frozen=True)
class Placed:
    """A step with its arguments for one number of devices."""

    step: Any  # what jax.jit or jax.pmap returned
    args: tuple[Any, ...]  # arrays as shapes with shardings
    kwargs: Mapping[str, Any]
    mesh: Mesh  # of all devices
    batch: int = 0  # examples of the whole batch; 0 if there is none
    axis: Mapping[int, int] = field(default_factory=dict)  # of the examples, by position of the batch
    split: int = 1  # into how many parts the mesh divides the batch
    batch_axes: tuple[str, ...] = ()  # the mesh's axes that divide it
    padded: int = 0  # examples that were added so that the batch divides evenly
    made: bool = False  # whether the user's function made the step for these devices
    name: str = ""  # the step's name, if the program's text lacks it
    notes: tuple[str, ...] = ()  # what was assumed

    @property
    def state(self) -> list[Any]:
        rest = [arg for i, arg in enumerate(self.args) if i not in self.axis]
        return [leaf for leaf in jax.tree.leaves((rest, dict(self.kwargs))) if is_array(leaf)]


def makes_step(step: Any) -> bool:
    """Return whether a function makes a step: its only parameter is named `devices` or `mesh`."""
    return not _is_jitted(step) and _parameters(step) in (["devices"], ["mesh"])


def _parameters(step: Any, *, required: bool = False) -> list[str]:
    """Return the names of a function's parameters; none where Python does not know them."""
    try:
        found = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):
        return []
    many = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in found if not required or (p.default is p.empty and p.kind not in many)]


def _is_jitted(step: Any) -> bool:
    return callable(step) and hasattr(step, "lower")  # what Equinox jits has no `trace`


def name_of(step: Any) -> str:
    return str(getattr(step, "__name__", type(step).__name__))


class Bound:
    """A jitted method of an object, with the parts of a jitted function that a plan needs."""

    def __init__(self, method: MethodType) -> None:
        self.method = method
        self.__name__ = name_of(method)
        self.__signature__ = inspect.signature(method)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.method(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        return self.method.__func__.trace(self.method.__self__, *args, **kwargs)  # type: ignore[attr-defined]

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        return self.trace(*args, **kwargs).lower()


def bound(step: Any) -> Any:
    """Return a jitted method of an object as a function of its other arguments; other steps as they are."""
    return Bound(step) if isinstance(step, MethodType) and hasattr(step, "trace") else step


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


def place(
    step: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    devices: Sequence[Any],
    *,
    axes: Mapping[str, int],
    per_device: int | None = None,
    total: int | None = None,
    batch: Sequence[int] | Mapping[int, int] | None = None,
) -> Placed:
    """Return a step with arguments for these devices; the parameters are those of `jaxperf.plan`."""
    mesh = mesh_of(devices, axes, mesh_of_arguments((args, kwargs)))
    made = makes_step(step)
    step, args, placed, note = _made(step, args, mesh) if made else _jitted(step, args, kwargs)
    args, kwargs = by_position(step, args, kwargs)
    if not args and not kwargs and (missing := _parameters(step, required=True)):
        raise JaxperfError(
            f"{name_of(step)} needs arguments ({', '.join(missing)}), but none are given; give them by "
            "--setup or --args"
        )
    if type(step).__module__.startswith("equinox"):
        step, args, kwargs = _of_arrays(step, args, kwargs)
    mapped = type(step) is FunctionType  # of jax.pmap, whose arguments begin with the devices
    if batch is not None:
        axis, doubt = _asked(args, batch), ""
    elif mapped or placed:
        inner = jax.tree.map(lambda x: np.empty(np.shape(x)[1:], "V0"), args) if mapped else args
        axis, doubt = dict.fromkeys(positions_by_shape(inner), 0), ""
    else:
        axis, doubt = find_batch(step, args, kwargs)
    notes = tuple(filter(None, (note, doubt)))
    examples = max((length_of(args[i], at) for i, at in axis.items()), default=0)
    names, shares = _sharded_over(args, axis)
    if mapped or placed:
        leaves = [x for i in axis for x in jax.tree.leaves(args[i])]
        rows = max((np.shape(x)[1] for x in leaves if np.ndim(x) > 1), default=1)
        return Placed(
            step,
            jax.tree.map(_shape, args),
            kwargs,
            mesh,
            batch=examples * rows if mapped else examples,
            axis=axis,
            split=examples if mapped else shares,
            batch_axes=(mesh.axis_names[0],) if mapped else names,
            made=made,
            name=name_of(step) if mapped else "",
            notes=notes,
        )
    if not set(names) <= set(mesh.axis_names) or not names:
        names = (mesh.axis_names[0],)
    split = math.prod(mesh.shape[name] for name in names)
    whole, padded = _whole(examples, shares, split, per_device, total)
    args = tuple(
        jax.tree.map(lambda leaf, i=i: _leaf(leaf, mesh, whole if i in axis else 0, axis.get(i, 0)), arg)
        for i, arg in enumerate(args)
    )
    kwargs = {name: jax.tree.map(lambda leaf: _leaf(leaf, mesh, 0), value) for name, value in kwargs.items()}
    if not examples:
        return Placed(step, args, kwargs, mesh, made=made, notes=notes)
    return Placed(
        step, args, kwargs, mesh, batch=whole, axis=axis, split=split, batch_axes=names, padded=padded,
        made=made, notes=notes,
    )  # fmt: skip


def _made(
    make: Callable[..., Any], args: tuple[Any, ...], mesh: Mesh
) -> tuple[Any, tuple[Any, ...], bool, str]:
    """Return the step that the user's function makes, arguments, whether it returned these, and no note."""
    with user_errors_shown(name_of(make)):
        made = make(mesh if _parameters(make) == ["mesh"] else list(mesh.devices.flat))
    both = isinstance(made, tuple) and len(made) == 2
    step = bound(made[0] if both else made)
    if not _is_jitted(step):
        raise JaxperfError(
            f"{name_of(make)} returned {name_of(step)}, not a jitted step; return what jax.jit returned, or "
            "(step, arguments)"
        )
    if both:
        args = made[1] if isinstance(made[1], tuple) else (made[1],)
    return step, args, both, ""


def _jitted(
    step: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, tuple[Any, ...], bool, str]:
    """Return a step, its arguments, and a note if it is a plain function, which is planned as one program."""
    step = bound(step)
    if _is_jitted(step):
        return step, args, False, ""
    if not args and not kwargs:
        raise JaxperfError(
            f"{name_of(step)} is not jitted, so nothing can be compiled; give what jax.jit returned, or a "
            "function of `devices` that makes the step"
        )
    note = (
        f"{name_of(step)} is not jitted: it is planned as one program, as jax.jit({name_of(step)}) would be; "
        "its parts one by one take longer, and keep more between them"
    )
    return jax.jit(step), args, False, note


def by_position(
    step: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments that are given by name by position, where the step's parameters allow it."""
    try:
        call = inspect.signature(step).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return args, dict(kwargs)
    return call.args, call.kwargs


def _asked(args: tuple[Any, ...], batch: Sequence[int] | Mapping[int, int]) -> dict[int, int]:
    """Return the axis of the examples by position, as the user says it."""
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


def mesh_of_arguments(tree: Any) -> Mesh | None:
    """Return the first mesh over which an argument is sharded; None if there is none."""
    for leaf in jax.tree.leaves(tree):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
            return sharding.mesh
    return None


def _shape(leaf: Any) -> Any:
    """Return an array as its shape without sharding; other leaves, including shapes, stay as they are."""
    if isinstance(leaf, jax.ShapeDtypeStruct) or not is_array(leaf):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


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
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return a step of Equinox as a jitted function, and its arguments with None for what is no array.

    `eqx.filter_jit` would treat everything but arrays, even shapes, as static. Nothing is donated.
    """
    whole = (args, dict(kwargs))

    @functools.wraps(step.__wrapped__)
    def of_arrays(*args: Any, **kwargs: Any) -> list[Any]:
        args, kwargs = jax.tree.map(
            lambda array, rest: rest if array is None else array,
            (args, kwargs),
            whole,
            is_leaf=lambda x: x is None,
        )
        return [leaf for leaf in jax.tree.leaves(step(*args, **kwargs)) if isinstance(leaf, jax.Array)]

    return jax.jit(of_arrays), *jax.tree.map(lambda x: x if is_array(x) else None, whole)


def _leaf(leaf: Any, mesh: Mesh, whole: int, axis: int = 0) -> Any:
    """Return an array as its shape on the mesh, with `whole` examples unless 0; others stay as they are."""
    if not is_array(leaf):
        return leaf
    shape = list(leaf.shape)
    of_batch = whole and len(shape) > axis and not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    if of_batch:
        shape[axis] = whole
    sharding = getattr(leaf, "sharding", None)
    if isinstance(sharding, NamedSharding) and set(sharding.mesh.axis_names) <= set(mesh.axis_names):
        spec = sharding.spec
    else:
        spec = P(*[None] * axis, mesh.axis_names[0]) if of_batch else P()
    return jax.ShapeDtypeStruct(tuple(shape), leaf.dtype, sharding=NamedSharding(mesh, spec))
