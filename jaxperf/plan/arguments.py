"""Place a step and its arguments, as shapes, on a mesh of devices that are not there.

An array that is sharded over a mesh of the devices here is sharded the same way over the larger mesh. An
array without a sharding is split over the mesh's first axis if it is part of the batch, and otherwise
replicated. The step itself says what the batch is: its parameters come back, and time is scanned. Where that
leaves room for doubt, the user is asked, or told.
"""

import contextlib
import functools
import inspect
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxperf.errors import JaxperfError
from jaxperf.measure.stages import all_equations
from jaxperf.measure.user_function import user_errors_shown
from jaxperf.plan.first_step import traced

_KEY = (2,), np.uint32  # what `jax.random.PRNGKey` returns
_RANDOM = ("random_bits", "threefry2x32", "random_wrap", "rng_bit_generator")


@dataclass(frozen=True)
class Placed:
    """A step with its arguments for one number of devices."""

    step: Any  # what jax.jit or jax.pmap returned
    args: tuple[Any, ...]  # arrays as shapes with shardings
    mesh: Mesh  # of all devices
    batch: int = 0  # examples of the whole batch; 0 if there is none
    axis: Mapping[int, int] = field(default_factory=dict)  # of the examples, by position of the batch
    batch_axes: tuple[str, ...] = ()  # the mesh's axes that divide the batch
    made: bool = False  # whether the user's function made the step for these devices
    notes: tuple[str, ...] = ()  # what was assumed

    def arrays(self, *, batch: bool) -> list[Any]:
        """Return the arrays of the batch, or of all other arguments."""
        args = [arg for i, arg in enumerate(self.args) if (i in self.axis) is batch]
        return [leaf for leaf in jax.tree.leaves(args) if is_array(leaf)]


def name_of(step: Any) -> str:
    return str(getattr(step, "__name__", type(step).__name__))


def _is_jitted(step: Any) -> bool:
    return callable(step) and hasattr(step, "lower")  # what Equinox jits has no `trace`


def _parameters(step: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(step).parameters.values())
    except (TypeError, ValueError):
        return []


def by_position(step: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...]]:
    """Return a step and its arguments by position; those that it takes by name only come last."""
    with contextlib.suppress(TypeError, ValueError):  # calling it says what is wrong
        call = inspect.signature(step).bind(*args, **kwargs)
        args, kwargs = call.args, call.kwargs
    return _of_arrays(step, args, kwargs) if kwargs else (step, args)


def _of_arrays(step: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...]]:
    """Return a step as a jitted function of its arguments' arrays, None for all else; none is donated."""
    # `eqx.filter_jit` would treat everything but arrays, even shapes, as static
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


def mesh_of(devices: Sequence[Any], axes: Mapping[str, int], args: Any) -> Mesh:
    """Return a mesh of all devices, with the requested axes, those of an argument, or one named "data"."""
    meshes = (getattr(getattr(leaf, "sharding", None), "mesh", None) for leaf in jax.tree.leaves(args))
    like = next((mesh for mesh in meshes if isinstance(mesh, Mesh)), None)
    named = dict(axes) or (dict(like.shape) if like else {}) or {"data": len(devices)}
    first, *others = named  # whose length follows from the others
    rest = math.prod(named[name] for name in others)
    if len(devices) % rest:
        sizes = ",".join(f"{name}={named[name]}" for name in others)
        raise JaxperfError(
            f"a mesh with {sizes} does not fit {len(devices)} devices; take a multiple of {rest}"
        )
    named[first] = len(devices) // rest
    types = like.axis_types if like and like.axis_names == tuple(named) else None
    return Mesh(np.array(devices).reshape(tuple(named.values())), tuple(named), axis_types=types)


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
    mesh = mesh_of(devices, axes, args)
    name, notes = name_of(step), []
    takes = [parameter.name for parameter in _parameters(step)]
    made = not _is_jitted(step) and takes in (["devices"], ["mesh"])
    given = False  # whether the user's function has made the arguments, too
    if made:
        with user_errors_shown(name):
            step = step(mesh if takes == ["mesh"] else list(mesh.devices.flat))
        given = isinstance(step, tuple) and len(step) == 2
        if given:
            step, args = step
            args = args if isinstance(args, tuple) else (args,)
    if not _is_jitted(step):
        if made or not args:
            subject = f"{name} returned {name_of(step)}, which" if made else name
            raise JaxperfError(
                f"{subject} is no jitted step; give what jax.jit returned, or a function of `devices` or "
                "`mesh` that returns it, or (step, arguments)"
            )
        step = jax.jit(step)
        notes.append(
            f"{name} is not jitted: it is planned as one program, as jax.jit would compile it; its parts one "
            "by one take longer, and keep more between them"
        )
    many = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [p.name for p in _parameters(step) if p.default is p.empty and p.kind not in many]
    if required and not args:
        names = ", ".join(required)
        raise JaxperfError(
            f"{name_of(step)} needs arguments ({names}), but none are given; give them by --setup or --args"
        )
    if type(step).__module__.startswith("equinox"):
        step, args = _of_arrays(step, args, {})
    mapped = type(step) is FunctionType  # of jax.pmap, whose arguments begin with the devices
    if batch is not None:
        axis = _asked(args, batch)
    elif mapped or given:
        axis = dict.fromkeys(positions_by_shape(args, axis=int(mapped)), int(mapped))
    else:
        axis, doubts = find_batch(step, args)
        notes += doubts
    examples = max((length_of(args[i], at) for i, at in axis.items()), default=0)
    split_by, parts_here = _sharded_over(args, axis)
    if mapped:
        split_by, examples = mesh.axis_names, examples * mesh.size
    elif not given and axis:
        if not split_by or not set(split_by) <= set(mesh.axis_names):
            split_by = mesh.axis_names[:1]
        parts = math.prod(mesh.shape[name] for name in split_by)
        examples = total or (per_device or -(-examples // parts_here)) * parts
        if examples % parts:
            raise JaxperfError(f"{total} examples do not divide by {parts}; give --total a multiple of it")
    elif not given and (per_device or total):
        raise JaxperfError("no argument is a batch, so --per-device and --total have nothing to change")
    if mapped or given:
        args = jax.tree.map(lambda x: x if isinstance(x, jax.ShapeDtypeStruct) else _as_shape(x), args)
    else:
        args = tuple(_on_mesh(arg, mesh, examples, axis.get(i)) for i, arg in enumerate(args))
    return Placed(step, args, mesh, examples, axis, split_by if axis else (), made, tuple(notes))


def as_flag(axis: Mapping[int, int]) -> str:
    return "--batch " + ",".join(f"{i}:axis={at}" if at else str(i) for i, at in sorted(axis.items()))


def _asked(args: tuple[Any, ...], batch: Sequence[int] | Mapping[int, int]) -> dict[int, int]:
    axis = {i: batch[i] if isinstance(batch, Mapping) else 0 for i in sorted(set(batch))}
    for i in axis:
        if not 0 <= i < len(args):
            raise JaxperfError(f"--batch names argument {i}, but the step has {len(args)}, counted from 0")
    if axis and not any(length_of(args[i], at) for i, at in axis.items()):
        shapes = sorted({str(np.shape(x)) for i in axis for x in jax.tree.leaves(args[i]) if np.shape(x)})
        raise JaxperfError(
            f"{as_flag(axis)}: these arrays have no common length on that axis: {', '.join(shapes[:6])}; "
            "name arguments whose arrays begin with the examples, or their axis, as in --batch 1:axis=1"
        )
    return axis


def _sharded_over(args: tuple[Any, ...], axis: Mapping[int, int]) -> tuple[tuple[str, ...], int]:
    """Return the axes over which the arguments' sharding splits the batch, and into how many parts."""
    for i, at in axis.items():
        for leaf in jax.tree.leaves(args[i]):
            spec = getattr(getattr(leaf, "sharding", None), "spec", ())
            if len(spec) > at and spec[at]:
                names = spec[at] if isinstance(spec[at], tuple) else (spec[at],)
                return names, math.prod(leaf.sharding.mesh.shape[name] for name in names)
    return (), 1


def _as_shape(leaf: Any, shape: Sequence[int] | None = None, sharding: Any = None) -> Any:
    """Return an array as its shape, with the dtype in a program: NumPy's 64 bits become 32."""
    if not is_array(leaf):
        return leaf
    dtype = leaf.dtype
    if isinstance(leaf, np.ndarray | np.generic):
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    return jax.ShapeDtypeStruct(tuple(leaf.shape if shape is None else shape), dtype, sharding=sharding)


def _on_mesh(tree: Any, mesh: Mesh, whole: int, axis: int | None) -> Any:
    """Return arrays as shapes on the mesh; those of the batch have `whole` examples on `axis`."""
    examples = None if axis is None else length_of(tree, axis)

    def placed(leaf: Any) -> Any:
        if not is_array(leaf):
            return leaf
        shape, spec = list(leaf.shape), P()
        if axis is not None and shape[axis : axis + 1] == [examples]:
            shape[axis], spec = whole, P(*[None] * axis, mesh.axis_names[0])
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and set(sharding.mesh.axis_names) <= set(mesh.axis_names):
            spec = sharding.spec
        return _as_shape(leaf, shape, NamedSharding(mesh, spec))

    return jax.tree.map(placed, tree)


def is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def length_of(arg: Any, axis: int = 0) -> int:
    """Return the length of an axis if all arrays of an argument share it; else 0. Scalars do not count."""
    shapes = ((np.shape(leaf), getattr(leaf, "dtype", None)) for leaf in jax.tree.leaves(arg))
    arrays = [shape for shape, dtype in shapes if shape and (shape, dtype) != _KEY]
    lengths = {shape[axis] if axis < len(shape) else 0 for shape in arrays}
    return lengths.pop() if len(lengths) == 1 else 0


def positions_by_shape(args: Sequence[Any], without: Sequence[int] = (), axis: int = 0) -> tuple[int, ...]:
    """Return the arguments whose arrays have the length of an axis that most have, or else the last."""
    # of several, the first is not among them, unless others, `without`, come back from the step
    first = 0 if without or len(args) == 1 else 1
    candidates = [i for i in range(first, len(args)) if i not in without]
    lengths = {i: length for i in candidates if (length := length_of(args[i], axis))}
    counts = Counter(reversed(lengths.values()))  # of equally many, the last comes first
    return tuple(i for i, length in lengths.items() if length == counts.most_common(1)[0][0])


def find_batch(step: Any, args: Sequence[Any]) -> tuple[dict[int, int], list[str]]:
    """Return the axis of the examples by the positions of the batch, and a note if there is doubt."""
    try:
        jaxpr = traced(step, args).jaxpr
    except Exception:  # it needs its mesh, or cannot be traced at all: then the lowering says what is wrong
        return dict.fromkeys(positions_by_shape(args), 0), []
    back = _come_back(args, jaxpr.out_avals)
    if not back and len(args) > 1:  # then the first are parameters
        back = [0]
    equations = list(all_equations(jaxpr.jaxpr))
    scanned = _scanned(args, equations)
    # the length of what is scanned is that of time, or of layers whose parameters are frozen
    lengths = {length_of(args[i]) for i in scanned if i not in back}
    others = [i for i, arg in enumerate(args) if length_of(arg) in lengths]
    positions = positions_by_shape(args, [*back, *others]) or positions_by_shape(args, back)
    _refuse_time(args, positions, back, scanned)
    doubts = []
    if not positions and (alike := [i for i in positions_by_shape(args) if i in back]):
        doubts.append(
            f"argument {alike[0]} comes back from the step with the same shape, so it was taken for "
            f"parameters, not for the batch; --batch {alike[0]} if it is the batch"
        )
    elif not positions and any(each.primitive.name in _RANDOM for each in equations):
        doubts.append(
            "no argument is a batch and the step draws random numbers: if it draws its batch, every device "
            "draws all of it; pass the batch as an argument, or give it a sharding with "
            "jax.lax.with_sharding_constraint"
        )
    return dict.fromkeys(positions, 0), doubts


def _come_back(args: Sequence[Any], results: Sequence[Any]) -> list[int]:
    """Return the arguments all of whose arrays are among a step's results, as parameters are."""
    left = Counter((tuple(result.shape), str(result.dtype)) for result in results)
    arrays = [[leaf for leaf in jax.tree.leaves(arg) if is_array(leaf) and np.shape(leaf)] for arg in args]
    back = []
    # a result is one argument's, and of those with most arrays first: a batch may have the shape of a weight
    for i in sorted(range(len(args)), key=lambda i: -len(arrays[i])):
        kinds = Counter((tuple(leaf.shape), str(leaf.dtype)) for leaf in arrays[i])
        if kinds and kinds <= left:
            back.append(i)
            left = left - kinds
    return back


def _scanned(args: Sequence[Any], equations: Sequence[Any]) -> list[int]:
    """Return the arguments over whose first axis the step scans."""
    scanned = set()  # the first two axes, which also the embeddings of an argument have
    for each in equations:
        if each.primitive.name == "scan":  # whose body has one axis less of what is scanned
            pairs = zip(each.invars, each.params["jaxpr"].jaxpr.invars)
            scanned |= {stack.aval.shape[:2] for stack, one in pairs if stack.aval.ndim > one.aval.ndim > 0}
    leaves = [jax.tree.leaves(arg) for arg in args]
    return [i for i, each in enumerate(leaves) if any(np.shape(leaf)[:2] in scanned for leaf in each)]


def _refuse_time(
    args: Sequence[Any], batch: Sequence[int], back: Sequence[int], scanned: Sequence[int]
) -> None:
    """Ask where the examples are, if the step scans over the first axis of what may be the batch."""
    examples = length_of(args[batch[-1]]) if batch else 0
    over = [i for i in scanned if i not in back and (i in batch or length_of(args[i], 1) == examples > 0)]
    if not over:
        return
    moved = {*over, *batch} if set(over) & set(batch) else set(over)
    # a net's first state
    carried = [i for i in back if length_of(args[i]) == length_of(args[over[0]], 1) > 0]
    axis = {i: int(i in moved) for i in (*batch, *over, *carried)}
    raise JaxperfError(
        f"the step scans over the first axis of argument {over[0]}, as over time or micro-batches, so its "
        f"examples are probably on another axis; name it: {as_flag(axis)} (or "
        f"{as_flag(dict.fromkeys(batch, 0))})"
    )
