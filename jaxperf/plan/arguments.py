"""Place a step and its arguments, as shapes, on a mesh of devices that are not there.

An array that is sharded over a mesh of the devices here is sharded the same way over the larger mesh. An
array without a sharding is split over the mesh's first axis if it is part of the batch, and otherwise
replicated. What the batch is, the step itself says: its parameters come back, and time is scanned.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
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
      axis: the axis of the examples, by position.
      batch_axes: the mesh's axes that split the batch.
      name: the step's name, if the program's text lacks it.
      doubt: a note on what was taken for the batch; "" if there is no doubt.
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
    axis: Mapping[int, int] = field(default_factory=dict)
    batch_axes: tuple[str, ...] = ()
    name: str = ""
    doubt: str = ""


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
    batch: Sequence[int] | Mapping[int, int] | None = None,
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
      batch: positions of the arguments that are the batch, or the axis of the examples by position; found by
        the step and its arguments if None.

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
    whole_step = type(step) is FunctionType  # of jax.pmap, whose arguments begin with the devices
    found, doubt = _found(step, args, kwargs, whole_step or placed) if batch is None else (batch, "")
    axis = {i: found[i] if isinstance(found, Mapping) else 0 for i in sorted(found)}
    for i in axis:
        if not 0 <= i < len(args):
            raise JaxperfError(f"--batch names argument {i}, but the step has {len(args)}, counted from 0")
    examples = max((_length(args[i], at, scalars=batch is not None) for i, at in axis.items()), default=0)
    if batch and not examples:
        shapes = sorted({str(np.shape(x)) for i in axis for x in jax.tree.leaves(args[i]) if np.shape(x)})
        raise JaxperfError(
            f"--batch {','.join(map(str, axis))}: these arrays have no common first axis: "
            f"{', '.join(shapes[:6])}; name arguments whose arrays begin with the examples, or their axis, "
            "as in --batch 1:axis=1"
        )
    names, shares = _batch_axes(args, axis)
    known = bool(names) and set(names) <= set(mesh.axis_names)
    common: dict[str, Any] = {"axis": axis, "made": made, "doubt": doubt}
    if whole_step:
        rows = max(
            (np.shape(x)[1] for i in axis for x in jax.tree.leaves(args[i]) if np.ndim(x) > 1), default=1
        )
        return Placed(
            step, jax.tree.map(_shape, args), kwargs, mesh, examples * rows, tuple(axis), 0,
            split=examples, batch_axes=(mesh.axis_names[0],), name=_name(step), **common,
        )  # fmt: skip
    if placed:
        shapes = jax.tree.map(_shape, args)
        return Placed(
            step, shapes, kwargs, mesh, examples, tuple(axis), 0, split=shares, batch_axes=names, **common
        )
    if not known:
        names = (mesh.axis_names[0],)
    split = math.prod(mesh.shape[name] for name in names)
    whole, padded = _whole(examples, shares, split, per_device, total)
    new = tuple(
        jax.tree.map(lambda leaf, i=i: _leaf(leaf, mesh, whole if i in axis else 0, axis.get(i, 0)), arg)
        for i, arg in enumerate(args)
    )
    named = {name: jax.tree.map(lambda leaf: _leaf(leaf, mesh, 0), value) for name, value in kwargs.items()}
    if type(step).__module__.startswith("equinox"):
        step, new, named = _of_arrays(step, new, named)
    positions = tuple(axis) if examples else ()
    common["axis"] = {i: axis[i] for i in positions}
    return Placed(
        step, new, named, mesh, whole, positions, padded, split=split if examples else 1,
        batch_axes=names if examples else (), **common,
    )  # fmt: skip


def _found(
    step: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], by_shapes: bool
) -> tuple[tuple[int, ...], str]:
    """Return the positions of the batch, and a note if the step leaves room for doubt.

    Raises:
      JaxperfError: the step scans over the first axis of what would be the batch.
    """
    positions = batch_positions(args)
    if by_shapes and type(step) is FunctionType:  # the first axis of all arguments of a pmap is the devices
        rows = tuple(jax.tree.map(lambda x: np.empty(np.shape(x)[1:], "V0"), arg) for arg in args)
        return batch_positions(rows), ""
    try:
        traced = step.trace(*args, **kwargs) if hasattr(step, "trace") and not by_shapes else None
    except Exception:  # it needs its mesh; it is traced again with it, and then says what is wrong
        traced = None
    if traced is None or not hasattr(traced, "jaxpr"):
        return positions, ""
    leaves = [(i, leaf) for i, arg in enumerate(args) for leaf in jax.tree.leaves(arg)]
    jaxpr = traced.jaxpr.jaxpr
    if len(leaves) + len(jax.tree.leaves(dict(kwargs))) != len(jaxpr.invars):
        return positions, ""
    results = Counter(_kind(var.aval) for var in jaxpr.outvars)
    back = [i for i in positions if _comes_back([leaf for at, leaf in leaves if at == i], results)]
    left = tuple(i for i in positions if i not in back)
    doubt = ""
    if back and not left:
        doubt = (
            f"argument {back[0]} comes back from the step with the same shape, so it was taken for "
            f"parameters, not for the batch; --batch {back[0]} if it is the batch"
        )
    scanned = _scanned(jaxpr, dict(zip(jaxpr.invars, (i for i, _ in leaves))))
    if over := [i for i in left if i in scanned]:
        others = ",".join(f"{i}:axis=1" for i in left)
        raise JaxperfError(
            f"the step scans over the first axis of argument {over[0]}, as over time, so its examples are "
            f"probably on another axis; name it: --batch {others} (or --batch {','.join(map(str, left))})"
        )
    drawn = not left and any(each.primitive.name in _RANDOM for each in all_equations(jaxpr))
    if drawn and not doubt:
        doubt = (
            "no argument is a batch and the step draws random numbers: if it draws its batch, every device "
            "draws all of it; pass the batch as an argument, or give it a sharding with "
            "jax.lax.with_sharding_constraint"
        )
    return left, doubt


_RANDOM = ("random_bits", "threefry2x32", "random_wrap", "rng_bit_generator")
# operations that keep an array's axes
_KEEPS = {
    "convert_element_type",
    "copy",
    "copy_p",
    "device_put",
    "sharding_constraint",
    "neg",
    "mul",
    "add",
    "sub",
}


def _kind(leaf: Any) -> tuple[tuple[int, ...], str]:
    return tuple(leaf.shape), str(leaf.dtype)


def _comes_back(leaves: Sequence[Any], results: Mapping[Any, int]) -> bool:
    """Return whether all arrays of an argument are among a step's results, as parameters are."""
    kinds = Counter(_kind(leaf) for leaf in leaves if _is_shape(leaf))
    return bool(kinds) and all(results.get(kind, 0) >= count for kind, count in kinds.items())


def _scanned(jaxpr: Any, origin: Mapping[Any, int]) -> set[int]:
    """Return the positions of the arguments whose first axis a step scans over.

    Args:
      jaxpr: of the step, or of a part of it.
      origin: the positions of the arguments that variables are, or are made of without a change of axes.
    """
    known, found = dict(origin), set()

    def of(var: Any) -> int | None:
        return known.get(var) if type(var).__name__ != "Literal" else None

    for equation in jaxpr.eqns:
        name, read = equation.primitive.name, [of(var) for var in equation.invars]
        inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
        inner = getattr(inner, "jaxpr", inner)
        if name == "scan":  # the body has one axis less of what is scanned
            pairs = zip(equation.invars, inner.invars, read)
            found |= {
                i for outer, one, i in pairs if i is not None and len(outer.aval.shape) > len(one.aval.shape)
            }
        if name != "scan" and hasattr(inner, "eqns") and len(inner.invars) == len(read):
            found |= _scanned(inner, {var: i for var, i in zip(inner.invars, read) if i is not None})
        if name in _KEEPS and len(equation.outvars) == 1:
            (result,) = equation.outvars
            for var, i in zip(equation.invars, read):
                if i is not None and var.aval.shape == result.aval.shape:
                    known[result] = i
    return found


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


def _length(arg: Any, axis: int, *, scalars: bool = False) -> int:
    """Return the length of an axis if all arrays of an argument share it; else 0.

    With `scalars`, an argument may also have scalars.
    """
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(arg)]
    lengths = {shape[axis] if axis < len(shape) else 0 for shape in shapes if shape}
    return lengths.pop() if len(lengths) == 1 and (scalars or all(shapes)) else 0


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
        lead = _length(args[i], 0)
        leaves = jax.tree.leaves(args[i])
        if not positions and all(not np.shape(leaf) or _is_key(leaf) for leaf in leaves):
            continue
        if not lead or (length and lead != length):
            break
        length = lead
        positions.append(i)
    return tuple(sorted(positions))


def _batch_axes(args: tuple[Any, ...], axis: Mapping[int, int]) -> tuple[tuple[str, ...], int]:
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


def _leaf(leaf: Any, mesh: Mesh, whole: int, axis: int = 0) -> Any:
    """Return an array as its shape on the mesh; other leaves stay as they are.

    Args:
      leaf: an array, a shape, or anything else.
      mesh: the mesh of all devices.
      whole: number of examples if the leaf is part of the batch; else 0.
      axis: the axis of the examples.
    """
    if not _is_shape(leaf):
        return leaf
    shape = list(leaf.shape)
    if whole and shape:
        shape[axis] = whole
    sharding = getattr(leaf, "sharding", None)
    if isinstance(sharding, NamedSharding) and set(sharding.mesh.axis_names) <= set(mesh.axis_names):
        spec = sharding.spec
    else:
        spec = P(*[None] * axis, mesh.axis_names[0]) if whole and leaf.shape else P()
    return jax.ShapeDtypeStruct(tuple(shape), leaf.dtype, sharding=NamedSharding(mesh, spec))


def check_plannable(jaxpr: Any) -> None:
    """Check that a traced step has no callbacks.

    Raises:
      JaxperfError: it calls Python while it runs.
    """
    for equation in all_equations(jaxpr):
        if (name := equation.primitive.name) in CALLBACKS:
            raise JaxperfError(
                f"the step calls Python while it runs ({name}), which cannot be compiled without a GPU; "
                "take jax.debug.print and callbacks out for planning"
            )
