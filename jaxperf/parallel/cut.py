"""Running a program with `lax.psum` in it by hand, on several devices, without any collective.

The program of one device is traced, cut at every sum over devices, and the pieces are compiled. Then each
piece is queued on every device in turn, and each sum is done by `allreduce`, as section 8.4 does for
gradients. That serves BatchNorm over the whole batch too, which needs sums in the middle of the network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.extend import core
from jax.sharding import SingleDeviceSharding

from jaxperf.errors import JaxperfError
from jaxperf.parallel.collectives import allreduce, compile_sum

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
    text: str = ""


@dataclass(frozen=True)
class CutProgram:
    """One device's program in pieces."""

    pieces: tuple[Piece, ...]
    inputs: tuple[core.Var, ...]
    outputs: tuple[Any, ...]
    tree: Any


def cut(fn: Callable[..., Tree], *args: Tree, axis_name: str, axis_size: int) -> CutProgram:
    """Trace `fn(*args)` for one device of `axis_size` and cut it at its sums over `axis_name`.

    Args:
        fn: a function of trees of arrays; it may use `lax.psum` and `lax.pmean` over `axis_name`.
        *args: examples, of which only shapes and dtypes count.
        axis_name: the axis of devices.
        axis_size: how many there are.

    Raises:
        JaxperfError: `fn` captures arrays, or sums inside a function of its own (a loop, a `jit`).
    """
    closed, shapes = jax.make_jaxpr(fn, axis_env=[(axis_name, axis_size)], return_shape=True)(*args)
    jaxpr = closed.jaxpr
    if closed.consts:
        raise JaxperfError("an update that captures arrays cannot be cut; pass them in the state")
    segments = _segments(jaxpr.eqns)
    pieces = []
    known = set(jaxpr.invars)
    for i, (eqns, sums) in enumerate(segments):
        later = [e for eqns_, sums_ in segments[i + 1 :] for e in (*eqns_, *sums_)]
        needed = _variables(a for e in later for a in e.invars) | _variables(jaxpr.outvars)
        pieces.append(_piece(jaxpr, eqns, sums, known, needed))
        known = set(pieces[-1].kept)
    return CutProgram(tuple(pieces), tuple(jaxpr.invars), tuple(jaxpr.outvars), jax.tree.structure(shapes))


def compile_on(programs: Sequence[CutProgram], devices: Sequence[jax.Device]) -> list[CutProgram]:
    """The programs with every piece compiled, `programs[i]` for `devices[i]`; `text` is what it became.

    The sums between the pieces are compiled as well, where there are other devices to add.
    """
    lowered = [[_lowered(piece, device) for piece in p.pieces] for p, device in zip(programs, devices)]
    for piece in programs[0].pieces if len(devices) > 1 else ():
        compile_sum([_example(v, devices[0]) for v in piece.summed])
    with (
        ThreadPoolExecutor() as pool
    ):  # XLA compiles without Python's lock; lowering reads thread-local settings
        pending = [[pool.submit(each.compile) for each in pieces] for pieces in lowered]
        compiled = [[each.result() for each in pieces] for pieces in pending]
    return [
        replace(p, pieces=tuple(replace(a, run=c, text=c.as_text() or "") for a, c in zip(p.pieces, pieces)))
        for p, pieces in zip(programs, compiled)
    ]


def run_together(programs: Sequence[CutProgram], args: Sequence[tuple[Tree, ...]]) -> list[Tree]:
    """Run one program a device in step with each other; `args[i]` lie on device i. Nothing is waited for."""
    envs: list[Env] = [dict(zip(p.inputs, jax.tree.leaves(a), strict=True)) for p, a in zip(programs, args)]
    for pieces in zip(*(p.pieces for p in programs), strict=True):
        for piece, env in zip(pieces, envs):  # no device waits for another
            env.update(zip(piece.outputs, piece.run(*[env[v] for v in piece.inputs])))
        if pieces[0].totals:
            sums = allreduce([[_value(v, env) for v in piece.summed] for piece, env in zip(pieces, envs)])
            for piece, env, totals in zip(pieces, envs, sums):
                env.update(zip(piece.totals, totals))
        envs = [{v: a for v, a in env.items() if v in piece.kept} for piece, env in zip(pieces, envs)]
    return [jax.tree.unflatten(p.tree, [_value(v, env) for v in p.outputs]) for p, env in zip(programs, envs)]


def _segments(eqns: Sequence[Any]) -> list[tuple[list[Any], list[Any]]]:
    """Runs of ordinary equations, each with the sums that follow it, none of which needs another's total."""
    segments: list[tuple[list[Any], list[Any]]] = [([], [])]
    for eqn in eqns:
        ordinary, sums = segments[-1]
        totals = _variables(v for e in sums for v in e.outvars)
        if sums and (not _is_sum(eqn) or totals & _variables(eqn.invars)):
            ordinary, sums = [], []
            segments.append((ordinary, sums))
        (sums if _is_sum(eqn) else ordinary).append(eqn)
    return segments


def _is_sum(eqn: Any) -> bool:
    return eqn.primitive.name == "psum"


def _sums_inside(eqn: Any) -> bool:
    parts = jax.tree.leaves(eqn.params, is_leaf=lambda x: hasattr(x, "eqns"))
    return any(_is_sum(e) or _sums_inside(e) for part in parts for e in getattr(part, "eqns", ()))


def _variables(atoms: Any) -> set[core.Var]:
    return {a for a in atoms if isinstance(a, core.Var)}


def _value(atom: Any, env: Env) -> Any:
    return env[atom] if isinstance(atom, core.Var) else atom.val


def _piece(jaxpr: Any, eqns: list[Any], sums: list[Any], known: set[core.Var], later: set[core.Var]) -> Piece:
    if inner := next((e for e in eqns if _sums_inside(e)), None):
        raise JaxperfError(
            f"a sum over devices inside a {inner.primitive.name} cannot be cut; sum outside of it"
        )
    summed = tuple(a for e in sums for a in e.invars)
    totals = tuple(v for e in sums for v in e.outvars)
    made = [v for e in eqns for v in e.outvars]
    outputs = tuple(v for v in made if v in later or v in summed)
    inputs = tuple(v for v in _ordered(a for e in eqns for a in e.invars) if v in known)
    unnamed = jaxpr.debug_info._replace(
        arg_names=None, result_paths=None
    )  # the names are the whole program's
    part = jaxpr.replace(invars=list(inputs), outvars=list(outputs), eqns=eqns, debug_info=unnamed)
    run = jax.jit(core.jaxpr_as_fun(core.ClosedJaxpr(part, [])))
    kept = frozenset(known | set(outputs) | set(totals)) & frozenset(later)
    return Piece(run, inputs, outputs, summed, totals, kept)


def _lowered(piece: Piece, device: jax.Device) -> Any:
    return piece.run.lower(*[_example(v, device) for v in piece.inputs])  # type: ignore[attr-defined]


def _example(atom: Any, device: jax.Device) -> Any:
    return jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype, sharding=SingleDeviceSharding(device))


def _ordered(atoms: Any) -> list[core.Var]:
    return list(dict.fromkeys(a for a in atoms if isinstance(a, core.Var)))
