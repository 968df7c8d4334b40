"""Why a function was traced again: which argument changed, and its two shapes, dtypes or values."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

Signature = Mapping[str, str]  # what a trace depends on, by name: {"x": "float32[1,512]", ...}


@dataclass(frozen=True)
class Trace:
    """One trace: what it was made for, and why the earlier ones could not be used."""

    signature: Signature
    reason: str


def read_signature(
    called: inspect.Signature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    parameters: Mapping[str, Any],
    settings: Mapping[str, str],
) -> Signature:
    """Return what a trace depends on; call it while tracing.

    Args:
      called: the signature of the function being traced, for the arguments' names.
      args, kwargs: its arguments: tracers, or the values of static ones.
      parameters: the module's arrays by name.
      settings: the module's other attributes by name, as text.
    """
    try:
        named = dict(called.bind(*args, **kwargs).arguments)
    except TypeError:  # the call itself is about to fail with a better message
        named = {str(i): a for i, a in enumerate(args)} | dict(kwargs)
    by_path = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(named):
        top, *rest = path
        by_path[top.key + jax.tree_util.keystr(tuple(rest))] = describe(leaf)
    return by_path | {k: describe(v) for k, v in parameters.items()} | dict(settings)


def describe(value: Any) -> str:
    """Return an array as "float32[2,512]" (after "weak" if the dtype is weak), a static value as itself."""
    if not isinstance(value, jax.Array):
        return repr(value)
    text = f"{value.dtype}[{','.join(map(str, value.shape))}]"
    return f"weak {text}" if getattr(value, "weak_type", False) else text


def retrace_reason(new: Signature, before: Sequence[Signature]) -> str:
    """Return the difference between `new` and the nearest of `before`, as text."""
    if not before:
        return "first call"
    near = min(before, key=lambda old: len(_changes(old, new)))
    return "; ".join(_changes(near, new)) or "same arguments: a JAX setting or context changed"


def _changes(old: Signature, new: Signature) -> list[str]:
    names = [*new, *(k for k in old if k not in new)]
    pairs = [(k, old.get(k, "absent"), new.get(k, "absent")) for k in names]
    return [f"{k}: {a} -> {b}" for k, a, b in pairs if a != b]
