"""`jaxperf plan -- python train.py`: take the first training step that a program would run, and stop."""

from __future__ import annotations

import contextlib
import functools
import importlib
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import MethodType
from typing import Any
from unittest import mock

import jax

from jaxperf.errors import JaxperfError
from jaxperf.measure.stages import all_equations
from jaxperf.measure.user_function import user_errors_shown
from jaxperf.plan.arguments import bound

# what nnx.jit and eqx.filter_jit return: they call jax.jit with other arguments than they get
_WRAPPERS = (("flax.nnx.transforms.compilation", "JitWrapped"), ("equinox._jit", "_JitWrapper"))
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


class _Found(BaseException):
    """A call of a training step, which ends the program."""

    def __init__(self, *call: Any) -> None:
        super().__init__()
        self.call = call


class _Watched:
    """What `jax.jit` returned; a call of it ends the program if it is a training step."""

    def __init__(self, jitted: Any) -> None:
        self._jitted = jitted
        self.__wrapped__ = jitted
        self.__name__ = str(getattr(jitted, "__name__", "step"))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._stop_at(args, kwargs)
        return self._jitted(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Lower it: a program that compiles ahead calls what it compiled, and not this."""
        self._stop_at(args, kwargs)
        return self._jitted.lower(*args, **kwargs)

    def _stop_at(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if _watching and _trains(self._jitted, args, kwargs):
            raise _Found(self._jitted, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else _Watched(bound(MethodType(self._jitted, instance)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jitted, name)


def _trains(jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a jitted function computes a gradient: some operations are transposed."""
    with _not_watching():  # a step inside of another one is a part of it
        traced = jitted.trace(*args, **kwargs)
    return any("transpose" in str(each.source_info.name_stack) for each in all_equations(traced.jaxpr.jaxpr))


_watching: list[bool] = []  # empty: a call is an ordinary one


@contextlib.contextmanager
def _not_watching() -> Iterator[None]:
    kept = _watching[:]
    _watching.clear()
    try:
        yield
    finally:
        _watching.extend(kept)


def _with_its_arguments(wrapper: type) -> Any:
    """Return a patch of a wrapper's calls: a training step found inside has the wrapper's own arguments."""
    call: Callable[..., Any] = wrapper.__call__

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(self, *args, **kwargs)
        except _Found:
            raise _Found(self, args, kwargs) from None

    return mock.patch.object(wrapper, "__call__", watched)


def _watch(fun: Any = None, *, jit: Any, **options: Any) -> Any:
    """Call `jax.jit`, also as a decorator with options, and watch what it returns."""
    if fun is None:
        return lambda fun: _Watched(jit(fun, **options))
    return _Watched(jit(fun, **options))


def first_step(command: Sequence[str]) -> Call:
    """Run a program up to its first training step, and return this step and its arguments.

    Args:
      command: "python train.py --epochs 2", "python -m package.train", or without "python", as words.
    """
    words = list(command)
    if words and Path(words[0]).name.startswith("python"):
        words = words[1:]
    if not words:
        raise JaxperfError("no program after --; give one, jaxperf plan -- python train.py")
    is_module = words[0] == "-m" and len(words) > 1
    name, *rest = words[1:] if is_module else words
    if not is_module and not Path(name).is_file():
        raise JaxperfError(f"there is no program {name}; give its path, jaxperf plan -- python train.py")
    where = str(Path.cwd() if is_module else Path(name).resolve().parent)
    with contextlib.ExitStack() as stack:
        for path, wrapper in _WRAPPERS:
            with contextlib.suppress(ImportError, AttributeError):
                stack.enter_context(_with_its_arguments(getattr(importlib.import_module(path), wrapper)))
        watched = functools.partial(_watch, jit=jax.jit)
        stack.enter_context(mock.patch.object(jax, "jit", watched))
        stack.enter_context(mock.patch.object(sys, "argv", [name, *rest]))
        stack.enter_context(mock.patch.object(sys, "path", [where, *sys.path]))
        _watching.append(True)
        stack.callback(_watching.clear)
        try:
            with user_errors_shown(name), contextlib.suppress(SystemExit):
                if is_module:
                    runpy.run_module(name, run_name="__main__", alter_sys=True)
                else:
                    runpy.run_path(name, run_name="__main__")
        except _Found as found:
            return found.call
    raise JaxperfError(
        f"{name} ended without a training step: no function of jax.jit that it called has a gradient; give "
        "a step of jax.pmap, or one that is not jitted, by its name and its arguments"
    )
