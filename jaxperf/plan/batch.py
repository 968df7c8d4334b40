"""Which arguments of a step are the batch, and on which axis their examples are.

The step itself says it: its parameters come back, and time is scanned. Where that leaves room for doubt, the
user is asked, or told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxperf.errors import JaxperfError
from jaxperf.measure.stages import all_equations

_RANDOM = ("random_bits", "threefry2x32", "random_wrap", "rng_bit_generator")
# operations that keep an array's axes
_KEEPS = {
    "convert_element_type", "copy", "copy_p", "device_put", "sharding_constraint", "neg", "mul", "add", "sub",
}  # fmt: skip


def is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def length_of(arg: Any, axis: int = 0) -> int:
    """Return the length of an axis if all arrays of an argument share it; else 0. Scalars do not count."""
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(arg) if np.shape(leaf) and not _is_key(leaf)]
    lengths = {shape[axis] if axis < len(shape) else 0 for shape in shapes}
    return lengths.pop() if len(lengths) == 1 else 0


def _is_key(leaf: Any) -> bool:
    """Return whether a leaf is what `jax.random.PRNGKey` returns."""
    return np.shape(leaf) == (2,) and getattr(leaf, "dtype", None) == np.uint32


def positions_by_shape(args: Sequence[Any], without: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the arguments whose arrays have the first axis that most arguments have, or else the last.

    `without` are those that come back from the step. If none does, the first of several is not among them.
    """
    first = 0 if without or len(args) == 1 else 1
    candidates = [i for i in range(first, len(args)) if i not in without]
    lengths = {i: length for i in candidates if (length := length_of(args[i]))}
    counts = Counter(reversed(lengths.values()))  # of equally many, the last comes first
    return tuple(i for i, length in lengths.items() if length == counts.most_common(1)[0][0])


def find_batch(step: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[dict[int, int], str]:
    """Return the axis of the examples by the positions of the batch, and a note if there is doubt."""
    try:
        traced = step.trace(*args, **kwargs)
        jaxpr = getattr(traced, "traced", traced).jaxpr.jaxpr  # nnx.jit wraps JAX's
    except Exception:  # it needs its mesh, or cannot be traced at all: then the lowering says what is wrong
        return dict.fromkeys(positions_by_shape(args), 0), ""
    leaves = [(i, leaf) for i, arg in enumerate(args) for leaf in jax.tree.leaves(arg)]
    if len(leaves) + len(jax.tree.leaves(dict(kwargs))) != len(jaxpr.invars):
        return dict.fromkeys(positions_by_shape(args), 0), ""
    back = _come_back(args, Counter(_kind(var.aval) for var in jaxpr.outvars))
    found = positions_by_shape(args, without=back)
    _refuse_time(args, found, back, _scanned(jaxpr, dict(zip(jaxpr.invars, (i for i, _ in leaves)))))
    doubt = ""
    if not found and (alike := [i for i in positions_by_shape(args) if i in back]):
        doubt = (
            f"argument {alike[0]} comes back from the step with the same shape, so it was taken for "
            f"parameters, not for the batch; --batch {alike[0]} if it is the batch"
        )
    elif not found and any(each.primitive.name in _RANDOM for each in all_equations(jaxpr)):
        doubt = (
            "no argument is a batch and the step draws random numbers: if it draws its batch, every device "
            "draws all of it; pass the batch as an argument, or give it a sharding with "
            "jax.lax.with_sharding_constraint"
        )
    return dict.fromkeys(found, 0), doubt


def _refuse_time(args: Sequence[Any], found: Sequence[int], back: Sequence[int], scanned: set[int]) -> None:
    """Ask where the examples are, if the step scans over the first axis of what may be the batch."""
    examples = length_of(args[found[-1]]) if found else 0
    beside = [
        i for i, arg in enumerate(args)
        if i in scanned and i not in found and i not in back and examples and length_of(arg, 1) == examples
    ]  # fmt: skip
    over = [i for i in found if i in scanned]
    if not over and not beside:
        return
    moved = {*beside, *(found if over else ())}
    named = ",".join(f"{i}:axis=1" if i in moved else f"{i}" for i in sorted({*found, *beside}))
    raise JaxperfError(
        f"the step scans over the first axis of argument {(over or beside)[0]}, as over time or "
        "micro-batches, so its examples are probably on another axis; name it: "
        f"--batch {named} (or --batch {','.join(map(str, found))})"
    )


def _kind(leaf: Any) -> tuple[tuple[int, ...], str]:
    return tuple(leaf.shape), str(leaf.dtype)


def _come_back(args: Sequence[Any], results: Counter[Any]) -> list[int]:
    """Return the arguments all of whose arrays are among a step's results, as parameters are.

    A result is one argument's, and of those with most arrays first: a batch may have the shape of a weight.
    """
    arrays = [[leaf for leaf in jax.tree.leaves(arg) if is_array(leaf) and np.shape(leaf)] for arg in args]
    back = []
    for i in sorted(range(len(args)), key=lambda i: -len(arrays[i])):
        kinds = Counter(map(_kind, arrays[i]))
        if kinds and kinds <= results:
            back.append(i)
            results = results - kinds
    return back


def _scanned(jaxpr: Any, origin: Mapping[Any, int]) -> set[int]:
    """Return the positions of the arguments whose first axis a step scans over.

    `origin` has the positions of what variables are, or are made of without a change of axes.
    """
    known, found = dict(origin), set[int]()
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        read = [known.get(var) if type(var).__name__ != "Literal" else None for var in equation.invars]
        inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
        inner = getattr(inner, "jaxpr", inner)
        if name == "scan":  # the body has one axis less of what is scanned
            pairs = zip(equation.invars, inner.invars, read)
            found |= {
                i for outer, one, i in pairs if i is not None and len(outer.aval.shape) > len(one.aval.shape)
            }
        elif hasattr(inner, "eqns") and len(inner.invars) == len(read):
            found |= _scanned(inner, {var: i for var, i in zip(inner.invars, read) if i is not None})
        if name in _KEEPS and len(equation.outvars) == 1:
            (result,) = equation.outvars
            for var, i in zip(equation.invars, read):
                if i is not None and var.aval.shape == result.aval.shape:
                    known[result] = i
    return found
