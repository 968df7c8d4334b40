"""jaxperf: the chapter "Computational Performance" of Dive into Deep Learning, measured on JAX and Flax.

`with jaxperf.watch():` watches a part of a program, and `jaxperf.onednn.enable()` speeds up convolutions on
x86 CPUs. Both are imported on first use, so that importing jaxperf imports nothing else.
"""

from typing import Any

__version__ = "1.0.0"


def __getattr__(name: str) -> Any:
    if name in ("onednn", "watch"):
        import importlib  # an import statement would point upwards in the layers

        return importlib.import_module(f"jaxperf.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
