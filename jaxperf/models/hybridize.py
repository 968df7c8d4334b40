"""Gluon's `hybridize` for Flax NNX: a compiled version of a module, with the call overhead of `jax.jit`.

`nnx.jit` takes the module apart and puts it together again at each call (measured: 316 us for the MLP of
section 8.1, where `jax.jit` over the flat arrays takes 10 us). `Hybridized` takes it apart once, remembers
where each array is, and at a call only checks that the module is still put together the same way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from operator import is_
from typing import Any

import jax
from flax import nnx

from jaxperf.errors import JaxperfError
from jaxperf.models.retrace import Signature, Trace, read_signature, why


def hybridize(net: nnx.Module, *, static_argnames: tuple[str, ...] = ()) -> Hybridized:
    """Return a compiled version of `net` (section 8.1.2); call it as you would call `net`.

    It shares the module's variables: parameters that you change are seen at the next call, and what a call
    changes (BatchNorm statistics, dropout's counters) is written back. After `net.eval()`, `net.train()`, a
    new layer or any other changed attribute it is traced again, once.

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
        # Compared by identity: equality would compare arrays by their values, at every call
        for attributes, snapshot in self._snapshots:
            if len(attributes) != len(snapshot) or not all(map(is_, attributes.values(), snapshot)):
                self._take_apart()
                break
        return _run(self.function, self._variables, *args, **kwargs)

    @property
    def trace_count(self) -> int:
        """How often the module's Python code ran, to be compiled."""
        return len(self.traces)

    def explain(self) -> str:
        """Return one line per trace: why it was made."""
        return "\n".join(f"trace {i}: {t.reason}" for i, t in enumerate(self.traces, 1))

    def leaves(self) -> list[Any]:
        """Return the module's arrays of now, in the order in which `function` takes them."""
        return [v.get_raw_value() for v in self._variables]

    def leaf_names(self) -> list[str]:
        """Return the names of `leaves()`: paths in the module such as "layers/0/kernel"."""
        return list(self._names)

    def compile(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """Compile ahead of time for arguments like these (arrays or `jax.ShapeDtypeStruct`).

        Returns:
          A function of arguments of just these shapes and dtypes that never traces. It reads and writes the
          module's arrays as a call does, and keeps the module's structure of now.
        """
        compiled = self.function.lower(self.leaves(), *args, **kwargs).compile()
        return partial(_run, compiled, self._variables)

    def _take_apart(self) -> None:
        """Find the module's arrays and remember what it is made of, for `__call__` to compare with."""
        graphdef, state = nnx.split(self.net)
        nodes = dict(nnx.iter_graph(self.net))
        flat = nnx.to_flat_state(state)
        self._names = ["/".join(map(str, path)) for path, _ in flat]
        self._variables = [_variable(nodes, path) for path, _ in flat]
        self._snapshots = [
            (held, tuple(held.values())) for held in map(_attributes, nodes.values()) if held is not None
        ]
        self._settings = {
            "/".join(map(str, path)): repr(node) for path, node in nodes.items() if _is_setting(path, node)
        }
        if graphdef not in self._programs:
            self._programs[graphdef] = self._make_program(graphdef, jax.tree.structure(state))
        self.function: Any = self._programs[graphdef]

    def _make_program(self, graphdef: Any, structure: Any) -> Callable[..., Any]:
        """Return `jax.jit` of a function of the flat arrays, giving the output and what it changed."""
        names, settings = self._names, self._settings
        called = inspect.signature(self.net.__call__)

        def program(leaves: list[Any], *args: Any, **kwargs: Any) -> tuple[Any, dict[int, Any]]:
            self._note(read_signature(called, args, kwargs, dict(zip(names, leaves)), settings))
            net = nnx.merge(graphdef, jax.tree.unflatten(structure, leaves))
            output = net(*args, **kwargs)
            after, state = nnx.split(net)
            if after != graphdef:
                raise JaxperfError(
                    f"hybridize: calling {type(net).__name__} changes its attributes or adds variables, "
                    "which a compiled program can't repeat; call it without hybridize, or through nnx.jit"
                )
            new = jax.tree.leaves(state)  # what the call left alone is still the tracer that came in
            return output, {i: v for i, v in enumerate(new) if v is not leaves[i]}

        program.__name__ = type(self.net).__name__
        leaves = inspect.Parameter("leaves", inspect.Parameter.POSITIONAL_ONLY)
        program.__signature__ = called.replace(parameters=[leaves, *called.parameters.values()])  # type: ignore[attr-defined]
        return jax.jit(program, static_argnames=self._static)

    def _note(self, signature: Signature) -> None:
        self.traces.append(Trace(signature, why(signature, [t.signature for t in self.traces])))


def _run(
    program: Callable[..., Any], variables: Sequence[nnx.Variable[Any]], *args: Any, **kwargs: Any
) -> Any:
    """Call a program of the flat arrays, and write what it changed back into the module's variables."""
    output, changed = program([v.get_raw_value() for v in variables], *args, **kwargs)
    for i, value in changed.items():
        variables[i].set_raw_value(value)
    return output


def _variable(nodes: dict[Any, Any], path: tuple[Any, ...]) -> nnx.Variable[Any]:
    found = nodes.get(path)
    if not isinstance(found, nnx.Variable):
        where = "/".join(map(str, path))
        raise JaxperfError(f"hybridize: {where} is a bare {type(found).__name__}; make it an nnx.Variable")
    return found


def _attributes(node: Any) -> dict[Any, Any] | None:
    """Return the dictionary in which a node of the module keeps what can be replaced."""
    if isinstance(node, dict):
        return node
    return vars(node) if isinstance(node, nnx.Pytree) else None


def _is_setting(path: tuple[Any, ...], node: Any) -> bool:
    """Return whether it is a plain attribute (a flag, a rate), not a module, a variable or Flax's own."""
    return not isinstance(node, nnx.Pytree | nnx.Variable) and not str(path[-1] if path else "").startswith(
        "_"
    )
