"""A module taken apart once: its variables in a flat list, and a check whether its structure has changed."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

import jax
from flax import nnx

from jaxperf.errors import JaxperfError


class Parts:
    """What `nnx.split` finds in a module, kept with the variables themselves.

    Attributes:
      names: paths of the variables, such as "layers/0/kernel".
      variables: in the order in which `put_together` takes their arrays.
      graphdef: the rest of the module; equal for modules of equal structure.

    Raises:
      JaxperfError: an array of the module is not in an `nnx.Variable`.
    """

    def __init__(self, net: nnx.Module) -> None:
        self.graphdef, state = nnx.split(net)
        self._structure = jax.tree.structure(state)
        nodes = dict(nnx.iter_graph(net))
        flat = nnx.to_flat_state(state)
        self.names = ["/".join(map(str, path)) for path, _ in flat]
        self.variables = [_variable(nodes, path) for path, _ in flat]
        self._snapshots = [
            (fields, tuple(fields.values()))
            for fields in map(attributes, nodes.values())
            if fields is not None
        ]

    def changed(self) -> bool:
        """Return whether a variable, layer or flag of the module has been replaced or added."""
        # Compared by identity: equality would compare arrays by their values, at every call
        for fields, snapshot in self._snapshots:
            if len(fields) != len(snapshot) or not all(map(is_, fields.values(), snapshot)):
                return True
        return False

    def leaves(self) -> list[Any]:
        return [v.get_raw_value() for v in self.variables]

    def put_together(self, leaves: Sequence[Any]) -> nnx.Module:
        """Return a module of this structure with other arrays."""
        return nnx.merge(self.graphdef, jax.tree.unflatten(self._structure, leaves))


def attributes(node: Any) -> dict[Any, Any] | None:
    """Return the dictionary in which a node of a module keeps its replaceable attributes."""
    if isinstance(node, dict):
        return node
    return vars(node) if isinstance(node, nnx.Pytree) else None


def _variable(nodes: dict[Any, Any], path: tuple[Any, ...]) -> nnx.Variable[Any]:
    node = nodes.get(path)
    if not isinstance(node, nnx.Variable):
        where = "/".join(map(str, path))
        raise JaxperfError(f"hybridize: {where} is a bare {type(node).__name__}; make it an nnx.Variable")
    return node
