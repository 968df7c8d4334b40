"""One small step for each advice of a plan; each is a function of the mesh that returns (step, arguments)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def _shape(mesh: Mesh, spec: P, *lengths: int) -> Any:
    return jax.ShapeDtypeStruct(lengths, jnp.float32, sharding=NamedSharding(mesh, spec))


def statistics(mesh: Mesh) -> Any:
    """Three layers, each normalized over the whole batch, which jit sums over the devices."""

    @jax.jit
    def step(ws: Any, x: jax.Array) -> Any:
        def loss(ws: Any) -> jax.Array:
            h = x
            for w in ws:
                h = h @ w
                h = jnp.tanh((h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-5))
            return (h**2).mean()

        return [w - g for w, g in zip(ws, jax.grad(loss)(ws))]

    return step, ([_shape(mesh, P(), 64, 64)] * 3, _shape(mesh, P("data"), 256, 64))


def gathered(mesh: Mesh) -> Any:
    """Parameters sharded over the devices, and a batch so small that gathering them is most of the step."""

    @jax.jit
    def step(ws: Any, x: jax.Array) -> Any:
        def loss(ws: Any) -> jax.Array:
            return ((jnp.tanh(x @ ws[0]) @ ws[1]) ** 2).sum()

        return [w - 0.1 * g for w, g in zip(ws, jax.grad(loss)(ws))]

    return step, ([_shape(mesh, P("data"), 4096, 4096)] * 2, _shape(mesh, P("data"), 64, 4096))


def resharded(mesh: Mesh) -> Any:
    """Rows over the devices for one operation, columns for the next."""

    @jax.jit
    def step(x: jax.Array) -> jax.Array:
        columns = lax.with_sharding_constraint(jnp.sin(x), NamedSharding(mesh, P(None, "data")))
        return jnp.tanh(columns).cumsum(0)

    return step, (_shape(mesh, P("data"), 4096, 4096),)


def not_overlapped(mesh: Mesh) -> Any:
    """One gradient, summed after all else: nothing is left to overlap it."""

    @jax.jit
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return w - 0.1 * jax.grad(lambda w: jnp.tanh(x @ w).sum())(w)

    return step, (_shape(mesh, P(), 4096, 4096), _shape(mesh, P("data"), 64, 4096))


def too_large(mesh: Mesh) -> Any:
    """Two copies of 64 GB on each device."""
    return jax.jit(lambda x: x + 1), (_shape(mesh, P(), 2**34),)


# The program with this advice, and how the advice begins.
STEPS = {
    "statistics summed over devices": statistics,
    "parameters gathered": gathered,
    "resharded": resharded,
    "not overlapped": not_overlapped,
    "does not fit": too_large,
}
