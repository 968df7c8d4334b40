"""Read from stack frames what a call passes to a traced function, and what the function captures."""

import contextlib
import dataclasses
import enum
import inspect
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType, FunctionType, MethodType
from typing import Any, NamedTuple

from jaxperf.retraces import LONGEST_VALUE, Change
from jaxperf.watch.observe import source_location
from jaxperf.watch.observe.source_location import module_of, stored_attributes

PARTS = 8  # elements of a tuple that are described
LONG, SHOWN = 64, 8  # numbers in a list that are all looked at, and those of a longer list
LONGEST = 1000  # elements of any kind, above which a list is shortened, too
FIELDS, DEPTH = 32, 3  # values that are described of an object, and of how many objects inside each other
_PLAIN = (int, float, bool, complex, str, list, tuple)


def call_arguments(frame: FrameType | None) -> dict[str, Any]:
    """Return the leaves of a call's arguments by name, from the frame of the library that was called."""
    if frame is None:
        return {}
    import jax  # the program has imported it already

    names, varargs, keywords, values = inspect.getargvalues(frame)
    leaves = {}
    for name in filter(None, (*names, varargs, keywords)):
        value = _shortened(values.get(name))
        paths: list[tuple[Any, Any]] = [((), value)]
        # an object of the program's own class may not be flattened while it is being made
        with contextlib.suppress(Exception):
            paths = list(jax.tree_util.tree_leaves_with_path(value))
        for path, leaf in paths:
            where = jax.tree_util.keystr(path)
            if name == varargs:
                where = f"argument {where[1:].replace(']', '', 1)}"
            elif name == keywords:
                where = where.removeprefix("['").replace("']", "", 1)
            else:
                where = name + where
            leaves[where] = leaf
    return leaves


def _shortened(value: Any) -> Any:
    """Return a value in which a long list of numbers, or of lists, has its first elements only."""
    if type(value) not in (list, tuple):
        return value
    numbers = len(value) > LONG and (type(value[0]) in _PLAIN or type(value[0]).__module__ == "numpy")
    if numbers or len(value) > LONGEST:
        value = value[:SHOWN]
    return [_shortened(each) for each in value] if type(value) is list else tuple(map(_shortened, value))


_PRINTED: tuple[Any, ...] = (bool, int, float, complex, str, slice, type(None))


def is_array(value: Any) -> bool:
    """Return whether a value is an array of NumPy or JAX, or a tracer; other objects are not asked."""
    cls = type(value)
    known = module_of(cls) in ("numpy", "jax", "jaxlib") or issubclass(cls, sys.modules["numpy"].ndarray)
    return known and hasattr(cls, "dtype") and hasattr(cls, "shape")


def is_tracer(value: Any) -> bool:
    return issubclass(type(value), getattr(sys.modules["jax"].core, "Tracer", ()))


def describe_value(value: Any, *, fields: bool = True) -> str:
    """Return an array's type, a number's or text's `repr`, else the class with an address or its `fields`."""
    if is_array(value):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    cls, name = type(value), type(value).__name__
    if issubclass(cls, enum.Enum):
        return f"{name}.{stored_attributes(value).get('_name_', '')}"
    for printed in _PRINTED:
        if issubclass(cls, printed):  # by the methods of Python's own class, not of the program's
            part = str.__getitem__(value, slice(LONGEST_VALUE)) if printed is str else value
            return str(printed.__repr__(part))[:LONGEST_VALUE]
    if cls is FunctionType:
        return f"<function {value.__name__} line {value.__code__.co_firstlineno} at {id(value):#x}>"
    if cls.__eq__ is object.__eq__:
        return f"<{name} object at {id(value):#x}>"
    parts: list[str] = []
    if fields and issubclass(cls, tuple) and cls.__eq__ is tuple.__eq__:  # such as an optimizer
        parts = [describe_value(x, fields=False) for x in tuple.__getitem__(value, slice(PARTS))]
    elif fields and dataclasses.is_dataclass(value):  # such as a Linen module
        stored, compared = stored_attributes(value), (f.name for f in dataclasses.fields(value) if f.compare)
        parts = [f"{name}={describe_value(stored.get(name), fields=False)}" for name in compared]
    return f"{name}({', '.join(parts)})" if parts else name


# of their objects, nothing is the program's
_NO_FIELDS = {"builtins", "functools", "jax", "jaxlib", "numpy"}


def object_fields(where: str, value: Any, depth: int = DEPTH) -> dict[str, str]:
    """Return what an object stores, by name, also in objects in it; no code of the program runs."""
    return _described(_parts(where, value), depth)


def _described(parts: Iterable[tuple[str, Any]], depth: int = DEPTH) -> dict[str, str]:
    fields: dict[str, str] = {}
    for name, part in itertools.islice(parts, FIELDS):
        inner = object_fields(name, part, depth - 1) if depth > 1 else {}
        fields |= inner or {name: _describe_part(part)}
        if len(fields) >= FIELDS:
            break
    return fields


def _parts(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    cls = type(value)
    if is_array(value) or issubclass(cls, enum.Enum | type):
        return
    if issubclass(cls, dict):
        yield from ((f"{where}[{describe_value(key)}]", part) for key, part in dict.items(value))
    elif issubclass(cls, list | tuple):
        of = list if issubclass(cls, list) else tuple
        first = of.__getitem__(value, slice(PARTS))
        yield from ((f"{where}[{i}]", part) for i, part in enumerate(first))
    elif module_of(cls) not in _NO_FIELDS:
        stored = stored_attributes(value)
        names = list(stored)
        if dataclasses.is_dataclass(cls):
            names = [f.name for f in dataclasses.fields(cls) if f.compare and f.name in stored]
        yield from ((f"{where}.{name}", stored[name]) for name in names)


def _describe_part(value: Any) -> str:
    """Return a number also of NumPy's, and of a library's function its name, by which two are told apart."""
    if issubclass(type(value), sys.modules["numpy"].generic):
        value = value.item()
    elif callable(value) and type(value) is not FunctionType and module_of(type(value)) in _NO_FIELDS:
        return f"<{getattr(value, '__name__', '')} at {id(value):#x}>"
    return describe_value(value, fields=False)


class Placement(NamedTuple):
    """An array's device ids, its partition spec, and whether it is committed to these devices."""

    devices: tuple[int, ...]
    split: str
    committed: bool

    def __str__(self) -> str:
        where = f"{len(self.devices)} devices" if len(self.devices) > 1 else f"device {self.devices[0]}"
        how = "committed to" if self.committed else "not committed, on"
        return f"{how} {where}" + (f" as {self.split}" if self.split else "")


def array_placements(arguments: Mapping[str, Any]) -> dict[str, Placement]:
    placements = {}
    for name, value in arguments.items():
        # asked for its sharding, a tracer looks for its origin among all equations, to say so in an error
        if module_of(type(value)) not in ("jax", "jaxlib") or is_tracer(value):
            continue
        with contextlib.suppress(Exception):
            devices = tuple(sorted(d.id for d in value.sharding.device_set))
            split = str(getattr(value.sharding, "spec", "")) if len(devices) > 1 else ""
            placements[name] = Placement(devices, split, bool(value.committed))
    return placements


def placement_changes(before: Mapping[str, Placement], now: Mapping[str, Placement]) -> tuple[Change, ...]:
    """Return changes of arguments that are on the same devices, but split or committed differently.

    The result is empty if any argument is on other devices, which needs another program anyway.
    """
    names = [name for name in now if name in before]
    if any(before[name].devices != now[name].devices for name in names):
        return ()
    changed = (name for name in names if before[name] != now[name])
    return tuple(Change("placement", name, str(before[name]), str(now[name])) for name in changed)


def defined_at(function: Any) -> str:
    """Return the file and line of a function as JAX writes them; "" for an object without code."""
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""


def traced_function(frame: FrameType, reader: FrameType | None, defined: str) -> Any:
    """Return the traced function or method, whose line is `defined`, from a variable in JAX's frames."""
    for value in _values_inside(frame, reader):
        if isinstance(value, FunctionType | MethodType):
            function = inspect.unwrap(value)
            if defined_at(function) == defined:
                return function
    return None


def jitted_function(frame: FrameType, reader: FrameType, name: str) -> Any:
    """Return the jitted function of a name that the reader's frame calls, or has, or one of JAX inside it."""
    known = source_location.variable_value(reader, name), source_location.callee(reader)
    for value in itertools.chain(known, _values_inside(frame, reader)):
        function = value.__func__ if type(value) is MethodType else value
        if source_location.jitted_program(function) == name:
            return inspect.unwrap(function)
    return None


def filtered_function(frame: FrameType, reader: FrameType | None) -> Any:
    """Return the function that `eqx.filter_jit` took: what it jits is one wrapper, the same for all."""
    for value in _values_inside(frame, reader):
        if module_of(type(value)) == "equinox" and hasattr(type(value), "__wrapped__"):
            function = inspect.unwrap(value)
            return function if isinstance(function, FunctionType | MethodType) else None
    return None


def _values_inside(frame: FrameType, reader: FrameType | None) -> Iterator[Any]:
    """Yield the variables' values of all frames inside of the reader's."""
    for f in source_location.frames_outwards(frame, reader):
        yield from f.f_locals.values()


def captured_values(function: Any) -> dict[str, Any]:
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    captured = {**dict(zip(names, defaults)), **(function.__kwdefaults__ or {})}
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        with contextlib.suppress(ValueError):  # the cell is empty
            captured[name] = cell.cell_contents
    return captured


def captured_fields(function: Any) -> dict[str, str]:
    """Return what captured objects store, and of a method's own object what the method reads."""
    fields: dict[str, str] = {}
    for name, value in captured_values(function).items():
        fields |= object_fields(name, value)
    own = stored_attributes(getattr(function, "__self__", None))
    return fields | _described((f"self.{n}", own[n]) for n in function.__code__.co_names if n in own)


def referenced_arrays(function: Any) -> dict[str, str]:
    """Return the types of the arrays that a function refers to, also as attributes of an object, by name."""
    code, captured = function.__code__, captured_values(function)
    if isinstance(function, MethodType) and code.co_argcount:
        captured[code.co_varnames[0]] = function.__self__
    referenced = captured | {n: function.__globals__[n] for n in code.co_names if n in function.__globals__}
    for name, value in captured.items():
        attributes = stored_attributes(value)
        referenced |= {f"{name}.{n}": attributes[n] for n in code.co_names if n in attributes}
    return {name: describe_value(value) for name, value in referenced.items() if is_array(value)}


def identify_value(value: Any) -> str:
    description = describe_value(value)
    return f"{description} at {id(value):#x}" if is_array(value) else description
