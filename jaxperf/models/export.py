"""A network on disk without its code: Gluon's `net.export("my_mlp")`, which section 8.1.2 shows, for JAX.

Two files, as there: NAME.jaxexport holds the program (StableHLO, serialized by `jax.export`),
NAME.safetensors the arrays by name. Reading them takes JAX and safetensors, and none of the model's code.
"""

from __future__ import annotations

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
    """Write `stem`.jaxexport and `stem`.safetensors, whole or not at all.

    The program takes a dictionary of the arrays by name, then arguments like `args`, and gives the module's
    output; what a call would change in the module (BatchNorm statistics) is dropped: call `net.eval()` first.

    Args:
      net: the module, or what `hybridize` made of it.
      stem: path without ending.
      *args: example arguments: arrays, or `jax.ShapeDtypeStruct`s (symbolic shapes too).
      platforms: where the program is to run, such as ("cpu", "cuda"), which need not be here; None: where JAX
        runs now, and nowhere else.

    Raises:
      JaxperfError: the files cannot be written.
    """
    twin = net if isinstance(net, Hybridized) else hybridize(net)
    names = twin.leaf_names()

    def program(arrays: dict[str, jax.Array], *args: Any) -> Any:
        return twin.function([arrays[name] for name in names], *args)[0]

    arrays = dict(zip(names, twin.leaves()))
    exported = jax_export.export(jax.jit(program), platforms=platforms)(arrays, *args)
    program_path, arrays_path = (stem.with_name(stem.name + s) for s in (".jaxexport", ".safetensors"))
    write_whole(arrays_path, save({k: np.asarray(v) for k, v in arrays.items()}))
    write_whole(program_path, bytes(exported.serialize()))
    return program_path, arrays_path


def load_net(stem: Path) -> tuple[jax_export.Exported, dict[str, np.ndarray[Any, Any]]]:
    """Read what `export_net` wrote: the program (`.call(arrays, *args)` runs it) and its arrays.

    Raises:
      JaxperfError: a file is missing or damaged.
    """
    program_path, arrays_path = (stem.with_name(stem.name + s) for s in (".jaxexport", ".safetensors"))
    try:
        return jax_export.deserialize(bytearray(program_path.read_bytes())), load_file(arrays_path)
    except OSError as e:
        raise JaxperfError(
            f"cannot read {e.filename or stem}: {e.strerror or e}; export the net again"
        ) from None
    except Exception as e:  # flatbuffers and safetensors have no common error
        raise JaxperfError(f"{stem} is damaged ({type(e).__name__}: {e}); export the net again") from None
