"""All that a process needs to run an exported network: this file imports neither Flax nor our networks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from jax import export
from safetensors.numpy import load_file


def run_exported(program: str, arrays: str, inputs: str) -> dict[str, Any]:
    """Run a program on its arrays and an input, all three from files.

    Returns:
      The output as lists, and which of the two packages that made the network this process has loaded.
    """
    exported = export.deserialize(bytearray(Path(program).read_bytes()))
    output = exported.call(load_file(arrays), np.load(inputs))
    made_with = [name for name in ("flax", "jaxperf.models") if name in sys.modules]
    return {"output": np.asarray(output).tolist(), "made_with": made_with}
