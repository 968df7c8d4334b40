"""`jaxperf plan -- python train.py`: take the first training step that a program would run, and stop."""

from __future__ import annotations

import contextlib
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
from jaxperf.measure.user_function import reader_code


class _Found(BaseException):
    """A call of a training step, which ends the program."""

    def __init__(self, step: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.step, self.args_, self.kwargs = step, args, kwargs


class _Watched:
    """What `jax.jit` returned; a call of it ends the program if it is a training step."""

    def __init__(self, jitted: Any) -> None:
        self._jitted = jitted
        self.__wrapped__ = jitted
        self.__name__ = str(getattr(jitted, "__name__", "step"))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _watching and _trains(self._jitted, args, kwargs):
            raise _Found(self._jitted, args, kwargs)
        return self._jitted(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

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


# what nnx.jit and eqx.filter_jit return: they call jax.jit with other arguments than they get
_WRAPPERS = (("flax.nnx.transforms.compilation", "JitWrapped"), ("equinox._jit", "_JitWrapper"))


def _with_its_arguments(wrapper: type) -> Any:
    """Return a patch of a wrapper's calls: a training step found inside has the wrapper's own arguments."""
    call: Callable[..., Any] = wrapper.__call__

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(self, *args, **kwargs)
        except _Found:
            raise _Found(self, args, kwargs) from None

    return mock.patch.object(wrapper, "__call__", watched)


def first_step(command: Sequence[str]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Run a program up to its first training step, and return this step and its arguments.

    Args:
      command: "python train.py --epochs 2", "python -m package.train", or without "python", as words.

    Raises:
      JaxperfError: the program fails, or ends without a training step.
    """
    words = list(command)
    if words and Path(words[0]).name.startswith("python"):
        words = words[1:]
    if not words:
        raise JaxperfError("no program after --; give one, jaxperf plan -- python train.py")
    module = words[0] == "-m"
    name, *rest = words[1:] if module else words
    if not module and not Path(name).is_file():
        raise JaxperfError(f"there is no program {name}; give its path, jaxperf plan -- python train.py")
    run: Callable[..., Any] = runpy.run_module if module else runpy.run_path
    options = {"alter_sys": True} if module else {}
    jit = jax.jit

    def watched(fun: Any = None, **options: Any) -> Any:
        if fun is None:
            return lambda fun: _Watched(jit(fun, **options))
        return _Watched(jit(fun, **options))

    where = str(Path.cwd() if module else Path(name).resolve().parent)
    with contextlib.ExitStack() as stack:
        for path, wrapper in _WRAPPERS:
            with contextlib.suppress(ImportError, AttributeError):
                stack.enter_context(_with_its_arguments(getattr(importlib.import_module(path), wrapper)))
        stack.enter_context(mock.patch.object(jax, "jit", watched))
        stack.enter_context(mock.patch.object(sys, "argv", [name, *rest]))
        stack.enter_context(mock.patch.object(sys, "path", [where, *sys.path]))
        _watching.append(True)
        stack.callback(_watching.clear)
        try:
            with reader_code(name), contextlib.suppress(SystemExit):
                run(name, run_name="__main__", **options)
        except _Found as found:
            return found.step, found.args_, found.kwargs
    raise JaxperfError(
        f"{name} ended without a training step: no function of jax.jit that it called has a gradient"
    )
