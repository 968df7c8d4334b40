"""Running a program with `lax.psum` in it by hand, on several devices, without any collective.

The program of one device is traced, cut at every sum over devices, and the pieces are compiled. Then each
piece is queued on every device in turn, and each sum is done by `allreduce`, as section 8.4 does for
gradients. That serves BatchNorm over the whole batch too, which needs sums in the middle of the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import jax
from jax.extend import core
from jax.sharding import SingleDeviceSharding

from jaxperf.errors import JaxperfError
from jaxperf.parallel.collectives import allreduce

Tree = Any
Env = dict[core.Var, jax.Array]


@dataclass(frozen=True)
class Piece:
    """What runs between two sums: `run(*[env[v] for v in inputs])` gives the values of `outputs`.

    Then the values of `summed` are summed over devices into `totals`, and only those of `kept` live on.
    """

    run: Callable[..., Sequence[jax.Array]]
    inputs: tuple[core.Var, ...]
    outputs: tuple[core.Var, ...]
    summed: tuple[Any, ...]
    totals: tuple[core.Var, ...]
    kept: frozenset[core.Var]
    text: str


@dataclass(frozen=True)
class CutProgram:
    """One device's program in compiled pieces."""

    pieces: tuple[Piece, ...]
    inputs: tuple[core.Var, ...]
    outputs: tuple[Any, ...]
    tree: Any


def cut(
    fn: Callable[..., Tree], *args: Tree, device: jax.Device, axis_name: str, axis_size: int
) -> CutProgram:
    """Trace `fn(*args)` for one device of `axis_size`, cut it at its sums over `axis_name`, and compile it.

    Args:
        fn: a function of trees of arrays; it may use `lax.psum` and `lax.pmean` over `axis_name`.
        *args: examples, of which only shapes and dtypes count.
        device: where the pieces will run.
        axis_name: the axis of devices.
        axis_size: how many there are.
    """
    closed, shapes = jax.make_jaxpr(fn, axis_env=[(axis_name, axis_size)], return_shape=True)(*args)
    jaxpr = closed.jaxpr
    if closed.consts:
        raise JaxperfError("an update that captures arrays cannot be cut; pass them in the state")
    segments = list(_segments(jaxpr.eqns))
    pieces = []
    known = set(jaxpr.invars)
    for i, (eqns, sums) in enumerate(segments):
        later = [e for eqns_, sums_ in segments[i + 1 :] for e in (*eqns_, *sums_)]
        needed = _variables(a for e in later for a in e.invars) | _variables(jaxpr.outvars)
        pieces.append(_piece(jaxpr, eqns, sums, known, needed, device))
        known = set(pieces[-1].kept)
    return CutProgram(tuple(pieces), tuple(jaxpr.invars), tuple(jaxpr.outvars), jax.tree.structure(shapes))


def run_together(programs: Sequence[CutProgram], args: Sequence[tuple[Tree, ...]]) -> list[Tree]:
    """Run one program a device in step with each other; `args[i]` lie on device i. Nothing is waited for."""
    envs: list[Env] = [dict(zip(p.inputs, jax.tree.leaves(a), strict=True)) for p, a in zip(programs, args)]
    for pieces in zip(*(p.pieces for p in programs), strict=True):
        for piece, env in zip(pieces, envs):  # no device waits for another
            env.update(zip(piece.outputs, piece.run(*[env[v] for v in piece.inputs])))
        if pieces[0].totals:
            sums = allreduce([[env[v] for v in piece.summed] for piece, env in zip(pieces, envs)])
            for piece, env, totals in zip(pieces, envs, sums):
                env.update(zip(piece.totals, totals))
        envs = [{v: a for v, a in env.items() if v in piece.kept} for piece, env in zip(pieces, envs)]
    return [jax.tree.unflatten(p.tree, [_value(v, env) for v in p.outputs]) for p, env in zip(programs, envs)]


def _segments(eqns: Sequence[Any]) -> Iterator[tuple[list[Any], list[Any]]]:
    """Runs of ordinary equations, each with the run of sums that follows it."""
    runs = [(is_sum, list(run)) for is_sum, run in groupby(eqns, key=_is_sum)]
    if runs and runs[0][0]:
        runs.insert(0, (False, []))
    if len(runs) % 2:
        runs.append((True, []))
    for (_, ordinary), (_, sums) in zip(runs[::2], runs[1::2]):
        yield ordinary, sums


def _is_sum(eqn: Any) -> bool:
    return eqn.primitive.name == "psum"


def _variables(atoms: Any) -> set[core.Var]:
    return {a for a in atoms if isinstance(a, core.Var)}


def _value(atom: Any, env: Env) -> Any:
    return env[atom] if isinstance(atom, core.Var) else atom.val


def _piece(
    jaxpr: Any,
    eqns: list[Any],
    sums: list[Any],
    known: set[core.Var],
    later: set[core.Var],
    device: jax.Device,
) -> Piece:
    summed = tuple(a for e in sums for a in e.invars)
    totals = tuple(v for e in sums for v in e.outvars)
    made = [v for e in eqns for v in e.outvars]
    outputs = tuple(v for v in made if v in later or v in summed)
    inputs = tuple(v for v in _ordered(a for e in eqns for a in e.invars) if v in known)
    part = jaxpr.replace(invars=list(inputs), outvars=list(outputs), eqns=eqns, debug_info=None)
    run = jax.jit(core.jaxpr_as_fun(core.ClosedJaxpr(part, [])))
    here = SingleDeviceSharding(device)
    avals: list[Any] = [v.aval for v in inputs]
    examples = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=here) for a in avals]
    compiled = run.lower(*examples).compile()
    kept = frozenset(known | set(outputs) | set(totals)) & frozenset(later)
    return Piece(compiled, inputs, outputs, summed, totals, kept, compiled.as_text() or "")


def _ordered(atoms: Any) -> list[core.Var]:
    return list(dict.fromkeys(a for a in atoms if isinstance(a, core.Var)))
