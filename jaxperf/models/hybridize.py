"""Gluon's `hybridize` for Flax NNX: a compiled version of a module, with the call overhead of `jax.jit`.

`nnx.jit` takes the module apart and puts it together again at each call (measured: 316 us for the MLP of
section 8.1, where `jax.jit` over the flat arrays takes 10 us). `Hybridized` takes it apart once, remembers
where each array is, and at each call only checks that the module still has the same structure.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from flax import nnx

from jaxperf.errors import JaxperfError
from jaxperf.models.module_leaves import Parts
from jaxperf.retraces import argument_changes

ABSENT = "absent"


@dataclass(frozen=True)
class Trace:
    """One trace: what it was made for, by name ({"x": "float32[1,512]"}), and why no earlier one fitted."""

    signature: Mapping[str, str]
    reason: str


def hybridize(net: nnx.Module, *, static_argnames: tuple[str, ...] = ()) -> Hybridized:
    """Return a compiled version of `net` (section 8.1.2); call it as you would call `net`.

    It shares the module's variables: the next call sees parameters that you change, and what a call changes
    (BatchNorm statistics, dropout's counters) is written back. After `net.eval()`, `net.train()`, a new layer
    or any other changed attribute, it is traced again, once.

    Args:
      net: any module; its `__call__` is compiled.
      static_argnames: arguments of `__call__` that are Python values to trace with, as in `jax.jit`.

    Raises:
      JaxperfError: `net` is not an `nnx.Module`.
    """
    if not isinstance(net, nnx.Module):
        raise JaxperfError(
            f"hybridize takes an nnx.Module, not a {type(net).__name__}; for a function use jax.jit"
        )
    return Hybridized(net, static_argnames)


class Hybridized:
    """What `hybridize` returns.

    Attributes:
      net: the module itself, which still runs op by op when called.
      traces: one `Trace` each time Python ran, with the reason.
    """

    def __init__(self, net: nnx.Module, static_argnames: tuple[str, ...]) -> None:
        self.net, self.traces = net, list[Trace]()
        self._static = static_argnames
        self._programs: dict[nnx.GraphDef[Any], Callable[..., Any]] = {}
        self._take_apart()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's output for these arguments, from the compiled program."""
        self._refresh()
        return _run(self._function, self._parts.variables, *args, **kwargs)

    @property
    def function(self) -> Any:
        """`jax.jit` of a function of `leaves()` and the arguments, for the module as it is now."""
        self._refresh()
        return self._function

    def leaves(self) -> list[Any]:
        """Return the module's current arrays, in the order in which `function` takes them."""
        self._refresh()
        return self._parts.leaves()

    def leaf_names(self) -> list[str]:
        """Return the names of `leaves()`: paths in the module such as "layers/0/kernel"."""
        self._refresh()
        return list(self._parts.names)

    def by_name(self) -> Any:
        """Return `jax.jit` of a function that takes `leaves()` in a dictionary, and returns the output."""
        function, names = self.function, self.leaf_names()

        def program(arrays: dict[str, jax.Array], *args: Any) -> Any:
            return function([arrays[name] for name in names], *args)[0]

        return jax.jit(program)

    def compile(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """Compile ahead of time for arguments like these (arrays or `jax.ShapeDtypeStruct`).

        Returns:
          A function that never traces, of arguments with exactly these shapes and dtypes. It reads and writes
          the module's arrays as a call does, and keeps the module's current structure.
        """
        compiled = self.function.lower(self.leaves(), *args, **kwargs).compile()
        return partial(_run, compiled, self._parts.variables)

    def _refresh(self) -> None:
        if self._parts.changed():  # for example by `net.eval()`
            self._take_apart()

    def _take_apart(self) -> None:
        """Find the module's arrays and remember what it is made of, for `__call__` to compare with."""
        self._parts = Parts(self.net)
        graphdef = self._parts.graphdef
        if graphdef not in self._programs:
            self._programs[graphdef] = self._make_program(self._parts)
        self._function: Any = self._programs[graphdef]

    def _make_program(self, parts: Parts) -> Callable[..., Any]:
        """Return `jax.jit` of a function of the flat arrays, giving the output and what it changed."""
        called = inspect.signature(self.net.__call__)

        def program(leaves: list[Any], *args: Any, **kwargs: Any) -> tuple[Any, dict[int, Any]]:
            self._note(_arguments(called, args, kwargs) | dict(zip(parts.names, leaves)), parts.settings)
            net = parts.put_together(leaves)
            output = net(*args, **kwargs)
            after, state = nnx.split(net)
            if after != parts.graphdef:
                raise JaxperfError(
                    f"hybridize: calling {type(net).__name__} changes its attributes or adds variables, "
                    "which a compiled program can't repeat; call it without hybridize, or through nnx.jit"
                )
            new = jax.tree.leaves(state)  # what the call did not change is still the original tracer
            return output, {i: v for i, v in enumerate(new) if v is not leaves[i]}

        program.__name__ = type(self.net).__name__
        leaves = inspect.Parameter("leaves", inspect.Parameter.POSITIONAL_ONLY)
        program.__signature__ = called.replace(parameters=[leaves, *called.parameters.values()])  # type: ignore[attr-defined]
        return jax.jit(program, static_argnames=self._static)

    def _note(self, arrays: Mapping[str, Any], settings: Mapping[str, str]) -> None:
        """Keep what a trace depends on: arguments and arrays by name, and the module's other attributes."""
        signature = {name: _describe(value) for name, value in arrays.items()} | dict(settings)
        reason = "first call"
        if self.traces:
            changes = [_changes(trace.signature, signature) for trace in self.traces]
            fewest = min(changes, key=len)
            reason = "; ".join(fewest) or "same arguments: a JAX setting or context changed"
        self.traces.append(Trace(signature, reason))


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    names = dict.fromkeys([*new, *old], ABSENT)
    return [str(change) for change in argument_changes({**names, **old}, {**names, **new})]


def _arguments(called: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's arguments by name: tracers, or the values of static ones."""
    try:
        named = dict(called.bind(*args, **kwargs).arguments)
    except TypeError:  # the call itself is about to fail with a better message
        named = {str(i): a for i, a in enumerate(args)} | dict(kwargs)
    leaves = jax.tree_util.tree_leaves_with_path(named)
    return {top.key + jax.tree_util.keystr(tuple(rest)): leaf for (top, *rest), leaf in leaves}


def _describe(value: Any) -> str:
    """Return an array as "float32[2,512]" (after "weak" if the dtype is weak), a static value as itself."""
    if not isinstance(value, jax.Array):
        return repr(value)
    text = f"{value.dtype}[{','.join(map(str, value.shape))}]"
    return f"weak {text}" if getattr(value, "weak_type", False) else text


def _run(
    program: Callable[..., Any], variables: Sequence[nnx.Variable[Any]], *args: Any, **kwargs: Any
) -> Any:
    """Call a program of the flat arrays, and write what it changed back into the module's variables."""
    output, changed = program([v.get_raw_value() for v in variables], *args, **kwargs)
    for i, value in changed.items():
        variables[i].set_raw_value(value)
    return output
