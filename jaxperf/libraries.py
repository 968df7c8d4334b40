"""Which code is the user's and which a library's; and the libraries that only an extra of jaxperf brings."""

import contextlib
import functools
import linecache
import os
import shlex
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from jaxperf.errors import JaxperfError

# Libraries wherever they lie: on PYTHONPATH, in a folder of `pip --target`, or in a checkout
_KNOWN = (
    "jax", "jaxlib", "flax", "optax", "orbax", "chex", "equinox", "haiku", "numpy", "scipy", "ml_dtypes",
    "torch", "tensorflow", "jaxperf",
)  # fmt: skip
# What the extra "chapter" brings, by the names that are imported
CHAPTER = (
    "flax", "optax", "orbax.checkpoint", "chex", "matplotlib", "nbformat", "safetensors", "flatbuffers",
)  # fmt: skip
# beginnings of the names of code that a library makes as text
_MADE = (
    "<frozen ", "<string>", "<timeit-src>", "<attrs generated", "<decorator-gen", "<makefun-gen",
    "<@beartype", "<__array_function__",
)  # fmt: skip
_user_roots: list[str] = []


@functools.cache
def library_of(file: str, module: str = "") -> str:
    """Return the library that a source file belongs to ("jax", "numpy", "queue"); "" for the user's own code.

    A library is whatever is installed (site-packages, the standard library, jaxperf), and well-known packages
    in other folders. `file` is as in a code object, and `module` the name of code without a file.
    """
    if file.startswith(_MADE):
        return module.split(".")[0] or "python"
    if file.startswith(tuple(_user_roots)):
        return ""
    for root in _installed_roots():
        if file.startswith(root):
            first = Path(file[len(root) :].lstrip("/\\")).parts[0]
            return first.removesuffix(".py")
    for name in _KNOWN:
        folders = getattr(sys.modules.get(name), "__path__", ())
        if any(file.startswith(f"{folder}{os.sep}") for folder in folders):
            return name
    return ""


@contextlib.contextmanager
def user_code(roots: Iterable[str]) -> Iterator[None]:
    """Treat files whose paths begin with one of `roots` as the user's own code, although installed."""
    _user_roots[:] = roots
    library_of.cache_clear()
    try:
        yield
    finally:
        _user_roots.clear()
        library_of.cache_clear()


@functools.cache
def _installed_roots() -> tuple[str, ...]:
    """Return the folders of installed code, the longest first because one may contain another."""
    paths = {sysconfig.get_paths()[key] for key in ("purelib", "platlib", "stdlib", "platstdlib")}
    paths |= {path for path in sys.path if path.endswith(("site-packages", "dist-packages"))}
    return tuple(sorted({path.rstrip("/\\") + os.sep for path in paths}, key=len, reverse=True))


def missing_from(names: Iterable[str]) -> list[str]:
    """Return which packages are not installed; nothing is imported but the parents of names with a dot."""
    missing = []
    for name in names:
        try:
            if find_spec(name) is None:
                missing.append(name)
        except (ImportError, ValueError):
            missing.append(name)
    return missing


def pip_install(*packages: str) -> str:
    return shlex.join([sys.executable, "-m", "pip", "install", *packages])


def require_chapter(feature: str) -> None:
    """Refuse a feature that needs the extra "chapter" where that is not installed."""
    missing = missing_from(CHAPTER)
    if missing:
        raise JaxperfError(
            f"{feature} needs {', '.join(missing)}; install the extra: {pip_install('jaxperf[chapter]')}"
        )


@contextlib.contextmanager
def from_chapter() -> Iterator[None]:
    """Import packages of the extra "chapter"; where one is missing, the error names the extra."""
    try:
        yield
    except ModuleNotFoundError as e:
        line = f"{e.name} is not installed; install the extra: {pip_install('jaxperf[chapter]')}"
        raise ModuleNotFoundError(line, name=e.name) from None


class Place(NamedTuple):
    """A line of a program, and the name of its function; NOWHERE is false."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{shorten_path(self.file)}:{self.line}"

    def __bool__(self) -> bool:
        return self != NOWHERE

    @property
    def source(self) -> str:
        """Return the line itself, without its indentation; "" if the file cannot be read."""
        return linecache.getline(self.file, self.line).strip()


NOWHERE = Place("", 0)


def shorten_path(file: str) -> str:
    """Return a path relative to the working directory, or the last two parts of a path outside of it.

    A file of a library is named from the folder of installed code on.
    """
    path = Path(file)
    if "site-packages" in path.parts:
        return str(Path(*path.parts[path.parts.index("site-packages") + 1 :]))
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(Path(*path.parts[-2:]))
