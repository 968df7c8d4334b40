"""Find the line of the reader's own code at which something happens: the innermost frame of no library.

The reader is the user who watches a program and reads the report. A library is whatever is installed
(site-packages, the standard library, jaxperf), except the program itself: the package of
`jaxperf watch -m package.train` is the reader's code wherever it is. A frame's current instruction shows
which call of its line is running, and whether the line is a `for` that waits for an item.
"""

import contextlib
import dis
import functools
import inspect
import itertools
import linecache
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import CodeType, FrameType, MemberDescriptorType, ModuleType
from typing import Any

from jaxperf.libraries import NOWHERE, Place, library_of


def frames_outwards(frame: FrameType | None, until: FrameType | None = None) -> Iterator[FrameType]:
    while frame is not None and frame is not until:
        yield frame
        frame = frame.f_back


def readers_frames(frame: FrameType | None) -> Iterator[FrameType]:
    return (f for f in frames_outwards(frame) if not library_of(f.f_code.co_filename))


# libraries that run the reader's function for its parameters: inside it, nothing can be jitted
_TRANSFORMS = re.compile(r"[/\\](?:haiku|flax[/\\](?:linen|core))[/\\]")


def reader_and_library_frames(frame: FrameType | None) -> tuple[FrameType | None, FrameType | None]:
    """Return the innermost frame of the reader's own code, and the frame of the library that it called.

    Inside a function that Haiku or Flax transforms, it is the frame that called the transformed function.
    """
    reader, called, library, transforms = None, None, None, False
    for f in frames_outwards(frame):
        file = f.f_code.co_filename
        if owner := library_of(file):
            called = called if owner == "jaxperf" else f  # skips our wrappers
            transforms = transforms or bool(_TRANSFORMS.search(file))
            continue
        if reader is None or transforms:
            reader, library = f, called
        called, transforms = None, False
    return reader, library


def place_of(frame: FrameType | None) -> Place:
    if frame is None:
        return NOWHERE
    return Place(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name)


def reader_place(frame: FrameType | None) -> Place:
    return place_of(reader_and_library_frames(frame)[0])


def caller_places(frame: FrameType | None) -> tuple[Place, ...]:
    """Return the reader's own lines on the stack above a frame, the innermost first."""
    return tuple(map(place_of, readers_frames(frame.f_back if frame else None)))


_API = str(Path("jax", "_src", "api.py"))  # of JAX's `vmap`, `grad` and the like


def transformed_at(frame: FrameType | None) -> Place:
    """Return the reader's outermost line that calls what `vmap` or `grad` made of a function that runs.

    A transformation that a library of JAX makes is not the reader's.
    """
    at, transforms = NOWHERE, False
    for f in itertools.dropwhile(lambda f: library_of(f.f_code.co_filename), frames_outwards(frame)):
        owner = library_of(f.f_code.co_filename)
        if not owner and transforms:
            at = place_of(f)
        inside = transforms and owner in ("jax", "python")
        transforms = inside or f.f_code.co_filename.endswith(_API)
    return at


def is_transformed(frame: FrameType, reader: FrameType | None) -> bool:
    """Return whether `grad`, `vmap` or the like runs between the reader's frame and one inside of JAX."""
    return any(f.f_code.co_filename.endswith(_API) for f in frames_outwards(frame, reader))


_UNDER_JAX = frozenset({"jax", "jaxlib", "jaxperf", "python", *sys.stdlib_module_names})


def outside_jax(file: str) -> bool:
    """Return whether a file is the program's own, or that of a library on top of JAX."""
    return library_of(file) not in _UNDER_JAX


def places_outside_jax(frame: FrameType | None, most: int) -> tuple[Place, ...]:
    """Return the innermost lines on a frame's stack that are neither JAX's nor Python's own."""
    outer = (f for f in frames_outwards(frame) if outside_jax(f.f_code.co_filename))
    return tuple(place_of(f) for f in itertools.islice(outer, most))


def waits_for_next(frame: FrameType) -> bool:
    return called_name(frame) in (_FOR, "next")


def stores_item(frame: FrameType) -> bool:
    """Return whether a frame is at an assignment such as `x[i] = y`."""
    return called_name(frame) == _STORE


def callee(frame: FrameType) -> Any:
    return resolve_name(called_name(frame), functools.partial(variable_value, frame))[0]


def resolve_name(dotted: str, lookup: Callable[[str], Any]) -> tuple[Any, str]:
    """Return the object of a dotted name and ""; for a method, its owner and the rest of the name.

    Names and attributes are looked up where they are stored, so that no code of the program runs.
    """
    first, *rest = dotted.split(".")
    value = lookup(first) if first else None
    for i, name in enumerate(rest):
        if isinstance(value, ModuleType):
            value = object.__getattribute__(value, "__dict__").get(name)  # does not load a lazy module
            continue
        attribute = _stored(value, name)
        if attribute is _METHOD:
            return value, ".".join(rest[i:])
        value = attribute
    while type(value) is functools.partial:
        value = value.func
    return value, ""


_ALONE = 3  # reference count of variables that only a frame and `variable_value` hold


def variable_value(frame: FrameType, name: str) -> Any:
    """Return the value of a name in a running function or module; None if it is not defined yet."""
    return variable_values(frame, (name,))[name]


def variable_values(frame: FrameType, names: Collection[str]) -> dict[str, Any]:
    """Return the values of names in a running function or module; None for those that are not defined yet.

    Before Python 3.13, a function's `f_locals` is a copy that the frame keeps, which would keep arrays alive
    that the program drops later. So the copy is emptied, unless the program holds it from `locals()`, or a
    trace function is set, after which Python would write it back.
    """
    code, values = frame.f_code, dict[str, Any].fromkeys(names)
    is_function = code.co_flags & inspect.CO_OPTIMIZED
    local = {*code.co_varnames, *code.co_cellvars, *code.co_freevars} if is_function else {*names}
    if not local.isdisjoint(names):
        variables = frame.f_locals
        values |= {name: variables.get(name) for name in local.intersection(names)}
        copied = is_function and sys.version_info < (3, 13)
        if copied and sys.getrefcount(variables) <= _ALONE and frame.f_trace is None:
            for known in local:
                variables.pop(known, None)
    for name, value in values.items():
        if value is None and not (is_function and name in local):
            values[name] = frame.f_globals.get(name, frame.f_builtins.get(name))
    return values


_METHOD = object()


def _stored(owner: Any, name: str) -> Any:
    """Return an attribute that an object or its class stores; `_METHOD` for a method or an unknown name."""
    with contextlib.suppress(AttributeError):  # it may have no dictionary
        if name in (stored := object.__getattribute__(owner, "__dict__")):
            return stored[name]
    value = inspect.getattr_static(type(owner), name, _METHOD)
    if isinstance(value, MemberDescriptorType):  # of a class with slots
        with contextlib.suppress(AttributeError):
            return value.__get__(owner)
    if isinstance(value, staticmethod):
        value = value.__func__
    return _METHOD if type(value).__module__ == "builtins" else value


# in place of the name of a call: where a `for` waits for an item, and where `x[i] = y` stores one
_FOR, _STORE = "for", "[]="
_INSTEAD = {"FOR_ITER": _FOR, "STORE_SUBSCR": _STORE, "STORE_SLICE": _STORE}
# what `calls_by_offset` returned, by the id of the code, which is kept alive: hashing it takes 50 us
_calls: dict[int, tuple[CodeType, dict[int, tuple[str, int]]]] = {}


def called_name(frame: FrameType) -> str:
    return calls_by_offset(frame.f_code).get(frame.f_lasti, ("", 0))[0]


def called_names(code: CodeType) -> dict[str, list[int]]:
    """Return the lines at which a code calls each name."""
    lines: dict[str, list[int]] = defaultdict(list)
    for name, line in sorted(set(calls_by_offset(code).values())):
        if name not in (_FOR, _STORE):
            lines[name].append(line)
    return dict(lines)


def calls_by_offset(code: CodeType) -> dict[int, tuple[str, int]]:
    """Return the dotted name and the line of each call, by the values of `f_lasti` of its instruction."""
    if id(code) in _calls:
        return _calls[id(code)][1]
    calls, call, operations = dict[int, tuple[str, int]](), ("", 0), code.co_code
    for offset, (line, _, column, _) in zip(itertools.count(0, 2), code.co_positions()):
        operation = dis.opname[operations[offset]]
        if operation != "CACHE":  # which continues an instruction
            call = _INSTEAD.get(operation, ""), 0
        if operation.startswith(("CALL", "PRECALL")) and line is not None:
            text = linecache.getline(code.co_filename, line).encode()[column or 0 :]
            name = text.decode(errors="replace").partition("(")[0].strip()
            if all(part.isidentifier() for part in name.split(".")):
                call = name, line
        if call[0]:
            calls[offset] = call
    _calls[id(code)] = code, calls
    return calls


def jitted_program(called: Any, name: str = "") -> str:
    """Return the program's name of the reader's jitted or compiled function; "" for any other object.

    Whatever jit, pmap, nnx.jit and eqx.filter_jit return has a method `lower`, and a class of a library.
    `name` is that in the reader's code, for an object without a name.
    """
    name, kind = name.rpartition(".")[2], type(called)
    if issubclass(kind, getattr(sys.modules.get("jax.stages"), "Compiled", ())):
        run = getattr(getattr(called, "_executable", None), "unsafe_call", None)  # no public way is cheap
        return str(getattr(run, "name", "")).removeprefix("jit(").removesuffix(")") or name
    if not callable(called) or issubclass(kind, type) or not is_a_librarys(kind):
        return ""
    if module_of(called) in ("jax", "jaxlib") or inspect.getattr_static(called, "lower", None) is None:
        return ""
    function_name = getattr(called, "__name__", "")
    return function_name if isinstance(function_name, str) and function_name else name or "a program"


def is_a_librarys(kind: type) -> bool:
    """Return whether a class comes with Python or a library: code of the program must not run for a look."""
    module = sys.modules.get(kind.__module__)
    file = stored_attributes(module).get("__file__")
    return bool(library_of(file)) if isinstance(file, str) else kind.__module__ != "__main__"


def stored_attributes(value: Any) -> dict[str, Any]:
    """Return the attributes that an object itself stores, or has in slots."""
    with contextlib.suppress(AttributeError):
        return object.__getattribute__(value, "__dict__")  # type: ignore[no-any-return]
    stored = {}
    for cls in type.__getattribute__(type(value), "__mro__"):
        for name, slot in type.__getattribute__(cls, "__dict__").items():
            if isinstance(slot, MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # it may be empty
                    stored[name] = slot.__get__(value)
    return stored


def variables(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Yield the variables of a frame of the reader, and the attributes of the program's own objects."""
    code, known = frame.f_code, [*frame.f_globals]
    if code.co_flags & inspect.CO_OPTIMIZED:
        known = [*code.co_varnames, *code.co_cellvars, *code.co_freevars]
        known += [name for name in code.co_names if name in frame.f_globals]
    names = [name for name in known if not name.startswith("_")]  # those are a notebook's own
    for name, value in variable_values(frame, names).items():
        yield name, value
        if not is_a_librarys(type(value)):
            for attribute, part in list(stored_attributes(value).items()):
                yield f"{name}.{attribute}", part


def module_of(value: object) -> str:
    """Return the top-level package of an object or its class, such as "jax"."""
    return str(getattr(value, "__module__", "")).partition(".")[0]
