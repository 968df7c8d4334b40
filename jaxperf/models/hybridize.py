"""Gluon's `hybridize` for Flax NNX: a compiled version of a module, with the call overhead of `jax.jit`.

`nnx.jit` takes the module apart and puts it together again at each call (measured: 316 us for the MLP of
section 8.1, where `jax.jit` over the flat arrays takes 10 us). `Hybridized` takes it apart once, remembers
where each array is, and at each call only checks that the module still has the same structure.
"""

import inspect
from collections.abc import Callable
from operator import is_
from typing import Any

import jax
from flax import nnx
from flax.errors import TraceContextError

from jaxperf.errors import JaxperfError


class Hybridized:
    """What `hybridize` returns; `net` is the module itself, which still runs op by op when called."""

    def __init__(self, net: nnx.Module, static_argnames: tuple[str, ...]) -> None:
        self.net, self._static = net, static_argnames
        self._programs: dict[nnx.GraphDef[Any], Callable[..., Any]] = {}
        self._take_apart()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's output for these arguments, from the compiled program.

        Raises:
          JaxperfError: the call changes the module inside another transformation, such as `jax.vmap`.
        """
        output, changed = self.function(self._arrays(), *args, **kwargs)
        for name, value in changed.items():
            try:
                self._variables[name].set_raw_value(value)
            except TraceContextError:
                raise JaxperfError(
                    f"this call changes {name} of {type(self.net).__name__}, which another "
                    "transformation of JAX does not allow; call eval() on it first, or hybridize outermost"
                ) from None
        return output

    @property
    def function(self) -> Any:
        """`jax.jit` of a function of `leaves()` and the arguments, for the module as it is now."""
        self._refresh()
        return self._function

    def leaves(self) -> dict[str, Any]:
        """Return the current arrays, in `function`'s order, by their paths such as "layers/0/kernel"."""
        self._refresh()
        return dict(zip(self._variables, self._arrays()))

    def _arrays(self) -> list[Any]:
        return [variable.get_raw_value() for variable in self._variables.values()]

    def _refresh(self) -> None:
        """Take the module apart again if a variable, layer or flag was replaced or added (`net.eval()`)."""
        # Compared by identity: equality would compare arrays by their values, at every call
        for fields, snapshot in self._snapshots:
            if len(fields) != len(snapshot) or not all(map(is_, fields.values(), snapshot)):
                self._take_apart()
                return

    def _take_apart(self) -> None:
        """Find the module's variables, and remember what it is made of, for `_refresh` to compare with."""
        graphdef, state = nnx.split(self.net)
        nodes = dict(nnx.iter_graph(self.net))
        self._variables: dict[str, nnx.Variable[Any]] = {}
        for path, _ in nnx.to_flat_state(state):
            name, node = "/".join(map(str, path)), nodes.get(path)
            if not isinstance(node, nnx.Variable):
                raise JaxperfError(f"hybridize: {name} is a bare {type(node).__name__}; use an nnx.Variable")
            self._variables[name] = node
        # The dictionaries in which the module's parts keep their replaceable attributes
        attributes = [node for node in nodes.values() if isinstance(node, dict)]
        attributes += [vars(node) for node in nodes.values() if isinstance(node, nnx.Pytree)]
        self._snapshots = [(fields, tuple(fields.values())) for fields in attributes]
        if graphdef not in self._programs:
            self._programs[graphdef] = self._make_program(graphdef, jax.tree.structure(state))
        self._function: Any = self._programs[graphdef]

    def _make_program(self, graphdef: nnx.GraphDef[Any], structure: Any) -> Callable[..., Any]:
        """Return `jax.jit` of a function of the flat arrays, giving the output and what it changed."""
        called, names = inspect.signature(self.net.__call__), list(self._variables)

        def program(leaves: list[Any], *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
            net = nnx.merge(graphdef, jax.tree.unflatten(structure, leaves))
            output = net(*args, **kwargs)
            after, state = nnx.split(net)
            if after != graphdef:
                raise JaxperfError(
                    f"hybridize: calling {type(net).__name__} changes its attributes or adds variables, "
                    "which a compiled program can't repeat; call it without hybridize, or through nnx.jit"
                )
            after_call = zip(names, leaves, jax.tree.leaves(state))
            # what the call did not change is still the original tracer
            return output, {name: new for name, old, new in after_call if new is not old}

        program.__name__ = type(self.net).__name__
        leaves = inspect.Parameter("leaves", inspect.Parameter.POSITIONAL_ONLY)
        program.__signature__ = called.replace(parameters=[leaves, *called.parameters.values()])  # type: ignore[attr-defined]
        return jax.jit(program, static_argnames=self._static)


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
