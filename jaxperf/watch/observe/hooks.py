"""Hooks into other modules: their functions, and their import.

`is_running` tells whether JAX has started its backend, without starting it: a program may choose its
platform, or call `jax.distributed.initialize`, only before the backend starts.
"""

import contextlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from jaxperf import jax_internals


def is_running(*, otherwise: bool = False) -> bool:
    """Return whether a backend runs in this process; `otherwise` if this JAX version does not say."""
    backends_are_initialized = jax_internals.loaded(jax_internals.BACKEND_STARTED)
    return bool(backends_are_initialized()) if backends_are_initialized else otherwise


class Replacements:
    """Replaces functions of other modules until `close`; `missing` names those that cannot be replaced."""

    def __init__(self) -> None:
        self.missing: list[str] = []
        self.replaced: list[tuple[Any, str, Any]] = []  # owner, name, and the original function

    def replace(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        """Replace a function of a module or a class by `wrap(function)`, which then looks like it."""
        old = vars(owner).get(name)
        if callable(old):
            wrapper = named_as(old, wrap(old))
            if isinstance(owner, ModuleType):
                wrapper.__module__ = owner.__name__  # where pickle looks for it
            with contextlib.suppress(AttributeError, TypeError):
                setattr(owner, name, wrapper)
                self.replaced.append((owner, name, old))
                return
        self.missing.append(f"{owner.__name__}.{name}")

    def call_before(self, owner: Any, name: str, act: Callable[[], None]) -> None:
        """Call `act`, which raises nothing, before each call of a function."""

        def calling(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                act()
                return function(*args, **kwargs)

            return call

        self.replace(owner, name, calling)

    def close(self) -> None:
        while self.replaced:
            setattr(*self.replaced.pop())


# Python's warnings pass over frames of files with both words in their names, when they look for the line
_NO_LINE = "(as importlib and its _bootstrap)"


def named_as(old: Any, new: Any) -> Any:
    """Make `new` look like `old`, as `functools.wraps` does, but also for a C++ method.

    A warning that counts frames outwards still names the program's line, not that of `new`.
    """
    code = new.__code__
    new.__code__ = code.replace(co_filename=f"{code.co_filename} {_NO_LINE}")
    new.__name__, new.__doc__, new.__wrapped__ = old.__name__, old.__doc__, old
    new.__module__ = getattr(old, "__module__", None) or new.__module__
    qualified = getattr(old, "__qualname__", None)  # a C++ method's need not be a string
    new.__qualname__ = qualified if isinstance(qualified, str) else old.__name__
    return new


class WhenImported(importlib.abc.MetaPathFinder):
    """Calls `then` once a module has been imported, which the other finders find."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name, self.then = name, then
        sys.meta_path.insert(0, self)

    def close(self) -> None:
        # it is gone already, or Python is shutting down
        with contextlib.suppress(ValueError, AttributeError):
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.name:
            return None
        self.close()
        spec = importlib.util.find_spec(name)
        if spec is not None:
            loader: Any = spec.loader

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module  # the class's own is left
                loader.exec_module(module)
                self.then(module)

            loader.exec_module = exec_module
        return spec
