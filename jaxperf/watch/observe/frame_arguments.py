"""What a call passes to a traced function, and what the function gets from elsewhere, read from frames."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
from collections.abc import Mapping
from types import FrameType, FunctionType
from typing import Any, NamedTuple

from jaxperf.watch.advice.explanations import Change
from jaxperf.watch.observe import source_location


def call_arguments(frame: FrameType | None) -> dict[str, Any]:
    """Return the leaves of the arguments in the library's frame that the reader called, by name."""
    if frame is None:
        return {}
    import jax  # has been imported by the program

    names, varargs, keywords, values = inspect.getargvalues(frame)
    passed = {n: values.get(n) for n in (*names, varargs, keywords) if n}
    leaves = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(passed):
        first, where = str(getattr(path[0], "key", "")), jax.tree_util.keystr(path[1:])
        if first == varargs:
            where = f"argument {where[1:].replace(']', '', 1)}"
        elif first == keywords:
            where = where.removeprefix("['").replace("']", "", 1)
        else:
            where = first + where
        leaves[where] = leaf
    return leaves


def describe_value(value: Any, *, fields: bool = True) -> str:
    """Return an array's type, a number or text itself, and for other values what tells them apart.

    Args:
      value: any object.
      fields: whether to describe the fields of a dataclass, too.
    """
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if isinstance(value, bool | int | float | str | slice):
        return repr(value)[:60]
    name = type(value).__name__
    if type(value).__eq__ is object.__eq__:
        return f"<{name} object at {id(value):#x}>"
    if fields and dataclasses.is_dataclass(value):  # such as a module of Linen
        parts = ((f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value) if f.compare)
        return f"{name}({', '.join(f'{k}={describe_value(v, fields=False)}' for k, v in parts)})"
    return name


class Placement(NamedTuple):
    """Where an array is: its devices, how it is split over them, whether it is committed to them."""

    devices: tuple[int, ...]
    split: str
    committed: bool

    def __str__(self) -> str:
        where = f"{len(self.devices)} devices" if len(self.devices) > 1 else f"device {self.devices[0]}"
        how = "committed to" if self.committed else "not committed, on"
        return f"{how} {where}" + (f" as {self.split}" if self.split else "")


def array_placements(arguments: Mapping[str, Any]) -> dict[str, Placement]:
    """Return where the arrays among a call's arguments are, by name; none of those being traced."""
    placements = {}
    for name, value in arguments.items():
        with contextlib.suppress(Exception):  # NumPy's have no such attributes, and tracers raise
            sharding = value.sharding
            devices = tuple(sorted(d.id for d in sharding.device_set))
            split = str(getattr(sharding, "spec", "")) if len(devices) > 1 else ""
            placements[name] = Placement(devices, split, bool(value.committed))
    return placements


def placement_changes(before: Mapping[str, Placement], now: Mapping[str, Placement]) -> tuple[Change, ...]:
    """Return arguments that are on the same devices as before, but split or committed in another way.

    None if some are on other devices, which need a program of their own.
    """
    pairs = [(name, before[name], now[name]) for name in now if name in before]
    if any(then.devices != later.devices for _, then, later in pairs):
        return ()
    return tuple(
        Change("placement", name, str(then), str(later)) for name, then, later in pairs if then != later
    )


def traced_function(frame: FrameType, reader: FrameType | None, defined: str) -> FunctionType | None:
    """Find the function that is traced, a variable of some frame between JAX's and the reader's."""
    inner = itertools.takewhile(lambda f: f is not reader, source_location.frames_outwards(frame))
    values = (value for f in inner for value in f.f_locals.values())
    functions = (inspect.unwrap(value) for value in values if isinstance(value, FunctionType))
    codes = ((f, getattr(f, "__code__", None)) for f in functions)
    return next((f for f, c in codes if c and f"{c.co_filename}:{c.co_firstlineno}" == defined), None)


def captured_values(function: FunctionType) -> dict[str, Any]:
    """Return what a function gets from outside, in its closure and as its defaults."""
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    captured = {**dict(zip(names, defaults)), **(function.__kwdefaults__ or {})}
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        with contextlib.suppress(ValueError):  # it is empty
            captured[name] = cell.cell_contents
    return captured


def referenced_arrays(function: FunctionType) -> dict[str, str]:
    """Return the arrays that a function refers to, in its closure and in its module, by name."""
    names = function.__code__.co_names
    referenced = captured_values(function) | {
        n: function.__globals__[n] for n in names if n in function.__globals__
    }
    return {name: describe_value(value) for name, value in referenced.items() if _is_array(value)}


def _is_array(value: Any) -> bool:
    return type(value).__module__.startswith(("numpy", "jax")) and hasattr(value, "nbytes")


def identify_value(value: Any) -> str:
    """Describe a value, with the object's address if the description does not identify it."""
    description = describe_value(value)
    return f"{description} at {id(value):#x}" if hasattr(value, "dtype") else description
