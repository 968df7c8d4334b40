"""A user's function and its arguments: found by name, and run so that its errors are shown as its own."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxperf.errors import JaxperfError
from jaxperf.flags import did_you_mean
from jaxperf.libraries import library_of
from jaxperf.measure import argument_specs, block

EXAMPLE = "give MODULE:FUNCTION, e.g. train:step or train.py:step"


class Arguments(NamedTuple):
    """What a function is called with; a pytree."""

    by_position: tuple[Any, ...]
    by_name: dict[str, Any]

    def passed_to(self, fn: Callable[..., Any]) -> Any:
        return fn(*self.by_position, **self.by_name)

    def fresh(self) -> Arguments:
        """Return copies of all arrays, for a function that donates its arguments."""
        return jax.tree.map(lambda x: x.copy() if isinstance(x, jax.Array | np.ndarray) else x, self)

    @property
    def used_up(self) -> bool:
        return any(isinstance(x, jax.Array) and x.is_deleted() for x in jax.tree.leaves(self))


@contextmanager
def user_errors_shown(doing: str) -> Iterator[None]:
    """Run the user's code: an error in it is shown with its own part of the traceback, then in one line."""
    try:
        yield
    except JaxperfError:
        raise
    except (Exception, SystemExit) as e:
        own_trace = _users_part(e.__traceback__)
        if own_trace:
            traceback.print_exception(type(e), e, own_trace)
        lines = str(e).strip().splitlines() or ["no message"]
        raise JaxperfError(f"{doing} raised {type(e).__name__}: {lines[0][:300]}") from None


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback that starts at the first line outside jaxperf and the import system."""
    while trace and library_of(trace.tb_frame.f_code.co_filename) in ("jaxperf", "importlib", "python"):
        trace = trace.tb_next
    return trace


def load_function(word: str) -> Callable[..., Any]:
    """Return the function that MODULE:FUNCTION names; MODULE is imported as if from the current folder."""
    module_name, _, path = word.rpartition(":")
    if not module_name or not path:
        raise JaxperfError(f"{word!r} names no function; {EXAMPLE}")
    target: Any = _module(module_name)
    for name in path.split("."):
        if not hasattr(target, name):
            names = [n for n in dir(target) if not n.startswith("__")]
            hint = did_you_mean(name, names) or f"; {EXAMPLE}"
            raise JaxperfError(f"{word}: there is no {name!r} in {module_name}{hint}")
        target = getattr(target, name)
    if not callable(target):
        raise JaxperfError(f"{word} is not a function but {type(target).__name__}; {EXAMPLE}")
    return target


def _module(name: str) -> ModuleType:
    path = Path(name)
    if path.suffix == ".py":
        if not path.is_file():
            raise JaxperfError(f"no file {name}; {EXAMPLE}")
        _search(path.resolve().parent)
        module = _imported(path.stem)
        origin = getattr(module, "__file__", None) or "Python itself"
        if Path(origin).resolve() != path.resolve():
            raise JaxperfError(
                f"{name}: a module {path.stem!r} is imported already, from {origin}; rename one of the two, "
                "or give each to a command of its own"
            )
        return module
    _search(Path.cwd())
    return _imported(name)


def _imported(name: str) -> ModuleType:
    with user_errors_shown(f"importing {name}"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as e:  # the user's, if the module exists and imports one that does not
            if not e.name or not f"{name}.".startswith(f"{e.name}."):
                raise
            raise JaxperfError(f"no module {name!r} in {Path.cwd()} or installed; {EXAMPLE}") from None


def _search(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def load_arguments(specs: Sequence[str], setup: str, *, shapes: bool = False) -> Arguments:
    """Return the arguments of a function, from words or from another function, or none.

    Args:
      specs: as `argument_specs.parse` takes them.
      setup: MODULE:FUNCTION of a function without parameters. A tuple that it returns is the arguments by
        position; anything else is the only argument. It is waited for.
      shapes: whether shapes are enough: then words make no arrays, and a setup is not waited for.
    """
    if specs and setup:
        raise JaxperfError("arguments come from --args or from --setup; give one of the two")
    if setup:
        make = load_function(setup)
        with user_errors_shown(f"{setup}()"):
            arguments = make()
        try:
            if not shapes:
                block(arguments)
        except TypeError as e:
            raise JaxperfError(f"{setup}() returns what a call cannot be timed with: {e}") from None
        return Arguments(arguments if isinstance(arguments, tuple) else (arguments,), {})
    return Arguments(*argument_specs.parse_all(specs, shapes=shapes))
