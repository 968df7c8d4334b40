"""A user's function and its arguments: found by name or read from text; its errors are shown as its own.

An argument as text is an array, `f32[256,28,28,1]`, as in JAX's own printed programs; a random key, `key` or
`key(7)`; or a Python value, `3`. `n=3` has a name. Arrays have values from a fixed seed, so two runs get the
same ones: standard normal numbers for floats, 0 and 1 for integers and booleans.
"""

import ast
import contextlib
import importlib
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import psutil

from jaxperf.errors import JaxperfError, first_line
from jaxperf.flags import did_you_mean
from jaxperf.libraries import library_of
from jaxperf.measure import block

EXAMPLE = "give MODULE:FUNCTION, e.g. train:step or train.py:step"
DTYPES = {
    "bool": "bool", "i4": "int4", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "u4": "uint4", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "f8_e4m3fn": "float8_e4m3fn", "f8_e5m2": "float8_e5m2",
    "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64",
    "c64": "complex64", "c128": "complex128",
}  # fmt: skip
_ARRAY = re.compile(r"([A-Za-z]\w*)\s*\[([^][]*)\]")
_LENGTHS = re.compile(r"\s*([0-9]{1,15}\s*(,\s*[0-9]{1,15}\s*)*)?")
_KEY = re.compile(r"key(?:\((\d{1,18})\))?")
_NAMED = re.compile(r"([A-Za-z_]\w*)=(?!=)(.*)", re.DOTALL)


class Arguments(NamedTuple):
    """What a function is called with; a pytree."""

    by_position: tuple[Any, ...]
    by_name: dict[str, Any]

    def passed_to(self, fn: Callable[..., Any]) -> Any:
        return fn(*self.by_position, **self.by_name)

    def fresh(self) -> Self:
        """Return copies of all arrays, for a function that donates its arguments."""
        return jax.tree.map(lambda x: x.copy() if isinstance(x, jax.Array | np.ndarray) else x, self)

    @property
    def used_up(self) -> bool:
        return any(isinstance(x, jax.Array) and x.is_deleted() for x in jax.tree.leaves(self))


@contextlib.contextmanager
def user_errors_shown(doing: str) -> Iterator[None]:
    """Run the user's code: an error in it is shown with its own part of the traceback, then in one line."""
    try:
        yield
    except JaxperfError:
        raise
    except (Exception, SystemExit) as e:
        # the user's part begins at the first line outside jaxperf and the import system
        trace = e.__traceback__
        while trace and library_of(trace.tb_frame.f_code.co_filename) in ("jaxperf", "importlib", "python"):
            trace = trace.tb_next
        if trace:
            traceback.print_exception(type(e), e, trace)
        raise JaxperfError(f"{doing} raised {first_line(e, with_class=True)}") from None


def load_function(reference: str) -> Callable[..., Any]:
    """Return the function that MODULE:FUNCTION names; MODULE is imported as if from the current folder."""
    module, _, path = reference.rpartition(":")
    if not module or not path:
        raise JaxperfError(f"{reference!r} names no function; {EXAMPLE}")
    function: Any = _import_user_module(module)
    for name in path.split("."):
        if not hasattr(function, name):
            names = [n for n in dir(function) if not n.startswith("__")]
            hint = did_you_mean(name, names) or f"; {EXAMPLE}"
            raise JaxperfError(f"{reference}: there is no {name!r} in {module}{hint}")
        function = getattr(function, name)
    if not callable(function):
        raise JaxperfError(f"{reference} is not a function but {type(function).__name__}; {EXAMPLE}")
    return function


def _import_user_module(module_or_file: str) -> ModuleType:
    file = Path(module_or_file) if module_or_file.endswith(".py") else None
    if file and not file.is_file():
        raise JaxperfError(f"no file {module_or_file}; {EXAMPLE}")
    name, folder = (file.stem, file.resolve().parent) if file else (module_or_file, Path.cwd())
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    with user_errors_shown(f"importing {name}"):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as e:  # the user's, if the module exists and imports one that does not
            if not e.name or not f"{name}.".startswith(f"{e.name}."):
                raise
            raise JaxperfError(f"no module {name!r} in {Path.cwd()} or installed; {EXAMPLE}") from None
    origin = getattr(module, "__file__", None) or "Python itself"
    if file and Path(origin).resolve() != file.resolve():
        raise JaxperfError(
            f"{module_or_file}: a module {name!r} is imported already, from {origin}; rename one of the two, "
            "or give each to a command of its own"
        )
    return module


def load_arguments(specs: Sequence[str], setup: str, *, shapes: bool = False) -> Arguments:
    """Return the arguments of a function, from specs or from what `setup`, MODULE:FUNCTION, returns; or none.

    A tuple is the arguments by position, and anything else the only argument. With `shapes`, shapes are
    enough: specs make no arrays, and a setup is not waited for.
    """
    if specs and setup:
        raise JaxperfError("arguments come from --args or from --setup; give one of the two")
    if not setup:
        return parse_all(specs, shapes=shapes)
    make = load_function(setup)
    with user_errors_shown(f"{setup}()"):
        made = make()
    try:
        if not shapes:
            block(made)
    except TypeError as e:
        raise JaxperfError(f"{setup}() returns what a call cannot be timed with: {e}") from None
    return Arguments(made if isinstance(made, tuple) else (made,), {})


def parse_all(specs: Sequence[str], *, shapes: bool = False) -> Arguments:
    by_position, by_name = list[Any](), dict[str, Any]()
    for i, spec in enumerate(specs):
        named = _NAMED.fullmatch(spec.strip())
        if named and named[1] in by_name:
            raise JaxperfError(f"argument {named[1]!r} is given twice; give it once")
        if named:
            by_name[named[1]] = parse(named[2], seed=i, shapes=shapes)
        elif by_name:
            raise JaxperfError(f"argument {spec!r} has no name but follows one that has; give it first")
        else:
            by_position.append(parse(spec, seed=i, shapes=shapes))
    return Arguments(tuple(by_position), by_name)


def parse(spec: str, *, seed: int = 0, shapes: bool = False) -> Any:
    """Return what a spec means; with `shapes`, an array is only its shape and dtype."""
    text = spec.strip()
    array, key = _ARRAY.fullmatch(text), _KEY.fullmatch(text)
    if array:
        struct = _shape_and_dtype(array[1], array[2], spec)
        return struct if shapes else _draw(struct, np.random.default_rng(seed), spec)
    if key:
        return jax.random.key(int(key[1] or 0))
    with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return ast.literal_eval(text)
    raise JaxperfError(
        f"argument {spec!r} is not understood; give an array like f32[256,28,28,1], key or key(7), "
        "or a Python value like 3, 0.5 or '\"same\"'; --setup takes a function that makes anything else"
    )


def _shape_and_dtype(name: str, lengths: str, spec: str) -> jax.ShapeDtypeStruct:
    long_name = DTYPES.get(name, name)
    if long_name not in DTYPES.values():
        raise JaxperfError(f"argument {spec!r}: no dtype {name!r}; there are {', '.join(DTYPES)}")
    if not _LENGTHS.fullmatch(lengths):
        raise JaxperfError(f"argument {spec!r}: {lengths!r} are no lengths; give whole numbers, f32[8,3]")
    dtype = jnp.dtype(long_name)
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise JaxperfError(f"argument {spec!r}: JAX has no 64 bits unless JAX_ENABLE_X64=1 is set; set it")
    return jax.ShapeDtypeStruct(tuple(map(int, re.findall(r"\d+", lengths))), dtype)


def _draw(struct: jax.ShapeDtypeStruct, rng: np.random.Generator, spec: str) -> jax.Array:
    dtype, shape = struct.dtype, tuple[int, ...](struct.shape)
    size, free = struct.size * dtype.itemsize, psutil.virtual_memory().available
    if size > free:
        raise JaxperfError(f"argument {spec!r} has {size:,} bytes, but only {free:,} are free; give fewer")
    values: np.ndarray
    if jnp.issubdtype(dtype, jnp.complexfloating):
        values = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    elif jnp.issubdtype(dtype, jnp.floating):
        values = rng.standard_normal(shape, dtype=np.float64 if dtype.itemsize > 4 else np.float32)
    else:
        values = rng.integers(0, 2, shape, dtype=np.int8)
    return jnp.asarray(values, dtype)
