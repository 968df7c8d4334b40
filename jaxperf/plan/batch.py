"""Which arguments of a step are the batch, and on which axis their examples are.

The step itself says it: its parameters come back, and time is scanned. Where that leaves room for doubt, the
user is asked, or told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType, MethodType
from typing import Any

import jax
import numpy as np

from jaxperf.errors import JaxperfError
from jaxperf.measure.stages import all_equations

_RANDOM = ("random_bits", "threefry2x32", "random_wrap", "rng_bit_generator")


def is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def traced(step: Any, args: Sequence[Any], kwargs: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Return what JAX traces of a jitted step, with its `jaxpr` and `lower`."""
    if isinstance(step, MethodType):  # of an object, which is the function's first argument
        step, args = step.__func__, (step.__self__, *args)
    found = step.trace(*args, **kwargs)
    return getattr(found, "traced", found)  # nnx.jit wraps JAX's


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


def find_batch(step: Any, args: Sequence[Any]) -> tuple[dict[int, int], str]:
    """Return the axis of the examples by the positions of the batch, and a note if there is doubt."""
    try:
        jaxpr = traced(step, args).jaxpr
    except Exception:  # it needs its mesh, or cannot be traced at all: then the lowering says what is wrong
        return dict.fromkeys(positions_by_shape(args), 0), ""
    back = _come_back(args, jaxpr.out_avals)
    found = positions_by_shape(args, without=back)
    equations = list(all_equations(jaxpr.jaxpr))
    _refuse_time(args, found, back, equations)
    doubt = ""
    if not found and (alike := [i for i in positions_by_shape(args) if i in back]):
        doubt = (
            f"argument {alike[0]} comes back from the step with the same shape, so it was taken for "
            f"parameters, not for the batch; --batch {alike[0]} if it is the batch"
        )
    elif not found and any(each.primitive.name in _RANDOM for each in equations):
        doubt = (
            "no argument is a batch and the step draws random numbers: if it draws its batch, every device "
            "draws all of it; pass the batch as an argument, or give it a sharding with "
            "jax.lax.with_sharding_constraint"
        )
    return dict.fromkeys(found, 0), doubt


def _come_back(args: Sequence[Any], results: Sequence[Any]) -> list[int]:
    """Return the arguments all of whose arrays are among a step's results, as parameters are.

    A result is one argument's, and of those with most arrays first: a batch may have the shape of a weight.
    """
    left = Counter((tuple(result.shape), str(result.dtype)) for result in results)
    arrays = [[leaf for leaf in jax.tree.leaves(arg) if is_array(leaf) and np.shape(leaf)] for arg in args]
    back = []
    for i in sorted(range(len(args)), key=lambda i: -len(arrays[i])):
        kinds = Counter((tuple(leaf.shape), str(leaf.dtype)) for leaf in arrays[i])
        if kinds and kinds <= left:
            back.append(i)
            left = left - kinds
    return back


def _refuse_time(
    args: Sequence[Any], found: Sequence[int], back: Sequence[int], equations: Sequence[Any]
) -> None:
    """Ask where the examples are, if the step scans over the first axis of what may be the batch.

    What is scanned is told by its first two axes: also the embeddings of an argument have these.
    """
    examples = length_of(args[found[-1]]) if found else 0
    scanned = set()
    for each in equations:
        if each.primitive.name == "scan":  # whose body has one axis less of what is scanned
            pairs = zip(each.invars, each.params["jaxpr"].jaxpr.invars)
            scanned |= {stack.aval.shape[:2] for stack, one in pairs if stack.aval.ndim > one.aval.ndim > 0}
    over = [
        i for i, arg in enumerate(args)
        if i not in back and any(np.shape(leaf)[:2] in scanned for leaf in jax.tree.leaves(arg))
        and (i in found or (examples and length_of(arg, 1) == examples))
    ]  # fmt: skip
    if not over:
        return
    moved = {*over, *(found if set(over) & set(found) else ())}
    named = ",".join(f"{i}:axis=1" if i in moved else f"{i}" for i in sorted({*found, *over}))
    raise JaxperfError(
        f"the step scans over the first axis of argument {over[0]}, as over time or micro-batches, so its "
        f"examples are probably on another axis; name it: --batch {named} (or --batch "
        f"{','.join(map(str, found))})"
    )
