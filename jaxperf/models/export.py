"""A network on disk without its code: Gluon's `net.export("my_mlp")`, which section 8.1.2 shows, for JAX.

As with Gluon, there are two files: NAME.jaxexport holds the program (StableHLO, serialized by `jax.export`),
and NAME.safetensors the arrays by name. Reading them takes JAX and safetensors, but none of the model's code.
The reader must compile the program first.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import export as jax_export
from safetensors.numpy import load_file, save

from jaxperf.errors import JaxperfError
from jaxperf.models.hybridize import Hybridized, hybridize
from jaxperf.result.store import write_whole


def export_net(
    net: nnx.Module | Hybridized, stem: Path, *args: Any, platforms: Sequence[str] | None = None
) -> tuple[Path, Path]:
    """Write `stem`.jaxexport and `stem`.safetensors, and return their paths; each is complete or missing.

    The program takes a dictionary of the arrays by name, then arguments like `args`, and gives the module's
    output. What a call would change in the module (BatchNorm statistics) is dropped, so call `net.eval()`
    first.

    Args:
      net: the module, or its version from `hybridize`.
      stem: path without the file ending.
      *args: example arguments: arrays, or `jax.ShapeDtypeStruct`s (also with symbolic shapes).
      platforms: where the program is to run, such as ("cpu", "cuda"); this machine need not have them. None:
        only the platform on which JAX runs now.

    Raises:
      JaxperfError: the files cannot be written.
    """
    twin = net if isinstance(net, Hybridized) else hybridize(net)
    function, arrays = twin.function, twin.leaves()
    names = list(arrays)

    @jax.jit
    def program(arrays: dict[str, jax.Array], *args: Any) -> Any:
        return function([arrays[name] for name in names], *args)[0]

    exported = jax_export.export(program, platforms=platforms)(arrays, *args)
    program_path, arrays_path = _paths(stem)
    write_whole(arrays_path, save({k: np.asarray(v) for k, v in arrays.items()}))
    write_whole(program_path, bytes(exported.serialize()))
    return program_path, arrays_path


def _paths(stem: Path) -> tuple[Path, Path]:
    return stem.with_name(f"{stem.name}.jaxexport"), stem.with_name(f"{stem.name}.safetensors")


def load_net(stem: Path) -> tuple[jax_export.Exported, dict[str, np.ndarray[Any, Any]]]:
    """Read what `export_net` wrote: the program (`.call(arrays, *args)` runs it) and its arrays.

    Raises:
      JaxperfError: a file is missing or damaged.
    """
    program, arrays = _paths(stem)
    try:
        return jax_export.deserialize(bytearray(program.read_bytes())), load_file(arrays)
    except OSError as e:
        path, reason = e.filename or stem, e.strerror or e
        raise JaxperfError(f"cannot read {path}: {reason}; export the net again") from None
    except Exception as e:  # flatbuffers and safetensors have no common error
        raise JaxperfError(f"{stem} is damaged ({type(e).__name__}: {e}); export the net again") from None
