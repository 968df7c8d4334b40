"""A network on disk without its code: Gluon's `net.export("my_mlp")`, which section 8.1.2 shows, for JAX.

As with Gluon, there are two files: NAME.jaxexport holds the program (StableHLO, serialized by `jax.export`),
and NAME.safetensors the arrays by name. Reading them takes JAX and safetensors, but none of the model's code.
The reader must compile the program first. An optional third file, NAME.jaxcompiled, holds the program as
compiled by this JAX for this backend and processor, and is of no use elsewhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import export as jax_export
from safetensors.numpy import load_file, save

from jaxperf import jax_internals
from jaxperf.errors import JaxperfError
from jaxperf.models.hybridize import Hybridized, hybridize
from jaxperf.result.machine import cpu_features, cpu_model, versions
from jaxperf.result.store import write_whole

PROGRAM, ARRAYS, COMPILED = ".jaxexport", ".safetensors", ".jaxcompiled"
# With XLA's switch, a program calls oneDNN, and jaxlib 0.12 cannot serialize such calls (std::bad_alloc).
WITHOUT_ONEDNN: dict[str, Any] = {"xla_cpu_experimental_onednn_custom_call": False}


def export_net(
    net: nnx.Module | Hybridized,
    stem: Path,
    *args: Any,
    platforms: Sequence[str] | None = None,
    compiled: bool = False,
) -> tuple[Path, ...]:
    """Write `stem`.jaxexport and `stem`.safetensors, and return their paths; each is complete or missing.

    The program takes a dictionary of the arrays by name, then arguments like `args`, and gives the module's
    output. What a call would change in the module (BatchNorm statistics) is dropped, so call `net.eval()`
    first. The program does not depend on the arrays' values. So a hybridized module that is exported again,
    for example after each epoch, is not traced again, and the files that hold the same program are left.

    Args:
      net: the module, or its version from `hybridize`.
      stem: path without the file ending.
      *args: example arguments: arrays, or `jax.ShapeDtypeStruct`s (also with symbolic shapes).
      platforms: where the program is to run, such as ("cpu", "cuda"); this machine need not have them. None:
        only the platform on which JAX runs now.
      compiled: also write `stem`.jaxcompiled, for `load_compiled`; it does not use oneDNN.

    Raises:
      JaxperfError: the files cannot be written, or a program is to be compiled that has symbolic shapes or
        is only for other platforms.
    """
    twin = net if isinstance(net, Hybridized) else hybridize(net)
    program, arrays = twin.by_name(), dict(zip(twin.leaf_names(), twin.leaves()))
    traced = program.trace(arrays, *args)  # JAX caches the trace
    where = tuple(getattr(a, "sharding", None) for a in jax.tree.leaves((arrays, args)))
    key = traced.jaxpr, where, tuple(platforms or [jax.default_backend()])
    made = twin.exports.setdefault(key, {})
    if PROGRAM not in made:
        made[PROGRAM] = bytes(jax_export.export(program, platforms=platforms)(arrays, *args).serialize())
    if compiled and COMPILED not in made:
        made[COMPILED] = _compile(made[PROGRAM], arrays, args)
    write_whole(_path(stem, ARRAYS), save({k: np.asarray(v) for k, v in arrays.items()}))
    _write_changed(_path(stem, PROGRAM), made[PROGRAM])
    if not compiled:
        _path(stem, COMPILED).unlink(missing_ok=True)  # from an older program, useless now
        return _path(stem, PROGRAM), _path(stem, ARRAYS)
    _write_changed(_path(stem, COMPILED), made[COMPILED])
    return _path(stem, PROGRAM), _path(stem, ARRAYS), _path(stem, COMPILED)


def _path(stem: Path, ending: str) -> Path:
    return stem.with_name(stem.name + ending)


def _write_changed(path: Path, content: bytes) -> None:
    """Leave a file that already holds this, as usual after the first export: reading it takes less time."""
    with contextlib.suppress(OSError):  # what cannot be read may still be replaced
        if path.is_file() and path.read_bytes() == content:
            return
    write_whole(path, content)


def load_net(stem: Path) -> tuple[jax_export.Exported, dict[str, np.ndarray[Any, Any]]]:
    """Read what `export_net` wrote: the program (`.call(arrays, *args)` runs it) and its arrays.

    Raises:
      JaxperfError: a file is missing or damaged.
    """
    with _reading(stem):
        program = jax_export.deserialize(bytearray(_path(stem, PROGRAM).read_bytes()))
    return program, load_arrays(stem)


def load_arrays(stem: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Read the arrays that `export_net` wrote, by name; raises as `load_net` does."""
    with _reading(stem):
        return load_file(_path(stem, ARRAYS))


@contextlib.contextmanager
def _reading(stem: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise JaxperfError(
            f"cannot read {e.filename or stem}: {e.strerror or e}; export the net again"
        ) from None
    except Exception as e:  # flatbuffers and safetensors have no common error
        raise JaxperfError(f"{stem} is damaged ({type(e).__name__}: {e}); export the net again") from None


def load_compiled(stem: Path) -> Callable[..., Any] | None:
    """Read the machine code that `export_net(..., compiled=True)` left, if it fits here.

        run, arrays = load_compiled(stem), load_arrays(stem)
        run = run or jax.jit(load_net(stem)[0].call)
        run(arrays, x)

    Returns:
      A function of the arrays and of arguments with exactly the exported shapes; None if there is no such
      file, if it was compiled from another program or for another JAX, backend or processor, or if it is
      damaged.

    It is machine code in a pickle: only load files from people whose programs you would run.
    """
    try:
        head, _, body = _path(stem, COMPILED).read_bytes().partition(b"\n")
        if json.loads(head) != _made_for(_path(stem, PROGRAM).read_bytes()) | {"body": _digest(body)}:
            return None
        machine_code, takes, gives = pickle.loads(body)
        load = jax_internals.get(jax_internals.DESERIALIZE)
        return load(machine_code, takes, gives, execution_devices=jax.devices()[:1])
    except (OSError, ValueError, jax.errors.JaxRuntimeError):
        return None


def _compile(written: bytes, arrays: Any, args: Sequence[Any]) -> bytes:
    """A line that says what the code was compiled for, then the pickle that JAX reads."""
    exported = jax_export.deserialize(bytearray(written))
    if any(not isinstance(n, int) for a in exported.in_avals for n in a.shape):
        raise JaxperfError(
            "a program of symbolic shapes has no machine code; export it for arrays of one shape, "
            "or without compiled=True"
        )
    try:
        with _without_compile_cache():
            lowered = jax.jit(exported.call).lower(arrays, *args)
            serialize = jax_internals.get(jax_internals.SERIALIZE)
            try:
                made = serialize(lowered.compile())
            except MemoryError:
                made = serialize(lowered.compile(WITHOUT_ONEDNN))
    except ValueError as e:  # a program for other platforms
        raise JaxperfError(f"cannot compile it here, leave out compiled=True: {e}".splitlines()[0]) from None
    body = pickle.dumps(made)
    return json.dumps(_made_for(written) | {"body": _digest(body)}).encode() + b"\n" + body


@contextlib.contextmanager
def _without_compile_cache() -> Iterator[None]:
    """Compile without JAX's cache: a cached program is written without its functions, and calls fail."""
    reset_cache = jax_internals.get(jax_internals.RESET_CACHE)
    before = bool(jax.config.jax_enable_compilation_cache)  # type: ignore[attr-defined]
    jax.config.update("jax_enable_compilation_cache", False)
    reset_cache()  # JAX reads the setting only once
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        reset_cache()


def _made_for(program: bytes) -> dict[str, Any]:
    device = jax.devices()[0]
    return {
        "program": _digest(program),
        "versions": versions(("jax", "jaxlib")),
        "backend": [device.platform, device.device_kind, device.client.platform_version],
        "processor": [cpu_model(), cpu_features()],
    }


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
