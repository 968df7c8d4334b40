"""A training step and its arguments, taken from a program that would train."""

import contextlib
import functools
import importlib
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, MethodType
from typing import Any
from unittest import mock

import jax

from jaxperf.errors import JaxperfError
from jaxperf.measure.stages import all_equations
from jaxperf.measure.user_function import user_errors_shown

# what nnx.jit and eqx.filter_jit return: they call jax.jit with other arguments than they get
_WRAPPERS = (("flax.nnx.transforms.compilation", "JitWrapped"), ("equinox._jit", "_JitWrapper"))


def traced(step: Any, args: Sequence[Any], kwargs: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Return what JAX traces of a jitted step, with its `jaxpr` and `lower`."""
    if isinstance(step, MethodType):  # of an object, which is the function's first argument
        step, args = step.__func__, (step.__self__, *args)
    trace = step.trace(*args, **kwargs)
    return getattr(trace, "traced", trace)  # nnx.jit wraps JAX's


class _FirstStep(BaseException):
    """A call of a training step, which ends the program."""


class _Watched:
    """What `jax.jit` returned; a call of it ends the program if it is a training step."""

    def __init__(self, jitted: Any) -> None:
        functools.update_wrapper(self, jitted, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._stop_at(args, kwargs)
        return self.__wrapped__(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Lower it: a program that compiles ahead calls what it compiled, and not this."""
        self._stop_at(args, kwargs)
        return self.__wrapped__.lower(*args, **kwargs)

    def _stop_at(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Stop at a function that computes a gradient: some of its operations are transposed."""
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs))):
            return  # a step inside of another one is a part of it
        equations = all_equations(traced(self.__wrapped__, args, kwargs).jaxpr.jaxpr)
        if any("transpose" in str(each.source_info.name_stack) for each in equations):
            raise _FirstStep(self.__wrapped__, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else _Watched(MethodType(self.__wrapped__, instance))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)


def _watched_call(self: Any, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a wrapper of jax.jit; a training step that it finds has the wrapper's own arguments."""
    try:
        return call(self, *args, **kwargs)
    except _FirstStep:
        raise _FirstStep(self, args, kwargs) from None


@contextlib.contextmanager
def _stopping_at_steps() -> Iterator[None]:
    """Let training steps of `jax.jit` and its wrappers raise `_FirstStep` where they are called."""
    jit = jax.jit

    def watched_jit(fun: Any = None, **options: Any) -> Any:
        return functools.partial(watched_jit, **options) if fun is None else _Watched(jit(fun, **options))

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(jax, "jit", watched_jit))
        for path, name in _WRAPPERS:
            with contextlib.suppress(ImportError, AttributeError):
                wrapper = getattr(importlib.import_module(path), name)
                call = functools.partialmethod(_watched_call, wrapper.__call__)
                stack.enter_context(mock.patch.object(wrapper, "__call__", call))
        yield


def first_step(command: Sequence[str]) -> tuple[Any, ...]:
    """Run a program up to its first training step, and return this step and its arguments."""
    starts_python = command and Path(command[0]).name.startswith("python")
    words = command[1:] if starts_python else command
    if not words:
        raise JaxperfError("no program after --; give one, jaxperf plan -- python train.py")
    is_module = words[0] == "-m" and len(words) > 1
    name, *rest = words[1:] if is_module else words
    if not is_module and not Path(name).is_file():
        raise JaxperfError(f"there is no program {name}; give its path, jaxperf plan -- python train.py")
    folder = str(Path.cwd() if is_module else Path(name).resolve().parent)
    argv = mock.patch.object(sys, "argv", [name, *rest])
    path = mock.patch.object(sys, "path", [folder, *sys.path])
    try:
        with _stopping_at_steps(), argv, path, user_errors_shown(name), contextlib.suppress(SystemExit):
            if is_module:
                runpy.run_module(name, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(name, run_name="__main__")
    except _FirstStep as stop:
        return stop.args
    raise JaxperfError(
        f"{name} ended without a training step: no function of jax.jit that it called has a gradient; give "
        "a step of jax.pmap, or one that is not jitted, by its name and its arguments"
    )
