"""Hooks into modules of others: what they log, their functions, and the moment at which one is imported."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any


@contextlib.contextmanager
def filtered_logs(keep: Callable[[logging.LogRecord], bool]) -> Iterator[None]:
    """Let JAX's loggers pass only records for which `keep` is true."""
    loggers = [
        logging.getLogger(n) for n in list(logging.root.manager.loggerDict) if n.split(".")[0] == "jax"
    ]
    for logger in loggers:
        logger.addFilter(keep)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(keep)


@contextlib.contextmanager
def called_before(module: Any, names: Sequence[str], act: Callable[[], None]) -> Iterator[None]:
    """Call `act` whenever the program calls one of a module's functions, before it runs."""

    def acting(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            act()
            return function(*args, **kwargs)

        return call

    old = {name: getattr(module, name) for name in names}
    for name, function in old.items():
        setattr(module, name, acting(function))
    try:
        yield
    finally:
        for name, function in old.items():
            setattr(module, name, function)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module as the other finders do, and calls `then` once it has been imported."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name, self.then = name, then
        self.loader: Any = None

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__.loader = module.__loader__ = self.loader  # type: ignore[union-attr]
        self.loader.exec_module(module)
        self.then(module)


@contextlib.contextmanager
def when_imported(name: str, then: Callable[[ModuleType], None]) -> Iterator[None]:
    """Call `then` with a module as soon as the program has imported it."""
    finder = _Finder(name, then)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(finder)
