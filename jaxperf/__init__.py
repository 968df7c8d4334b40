"""jaxperf: the chapter "Computational Performance" of Dive into Deep Learning, measured on JAX and Flax.

`with jaxperf.watch():` watches a part of a program, and `%load_ext jaxperf` defines the cell magic
`%%jaxperf`. All is imported on first use, so that importing jaxperf imports nothing else.
"""

from typing import Any

__version__ = "1.0.0"
__all__ = ["chapter", "data", "measure", "models", "notebook", "parallel", "plan", "result", "watch"]


def load_ipython_extension(shell: Any) -> None:
    """Define `%%jaxperf` in a notebook; IPython calls this for `%load_ext jaxperf`."""
    __getattr__("notebook").load_ipython_extension(shell)


def __getattr__(name: str) -> Any:
    if name in __all__:
        import importlib  # an import statement would point upwards in the layers

        return importlib.import_module(f"jaxperf.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__", "load_ipython_extension"]
