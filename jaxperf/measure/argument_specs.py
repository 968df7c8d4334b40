"""Arguments as text: `f32[256,28,28,1]` is an array, `key` a random key, `3` a number, `n=3` has a name.

Arrays are written as in JAX's own printed programs. Values are drawn with a fixed seed, so two runs get the
same ones: standard normal numbers for floats, 0 and 1 for integers and booleans.
"""

from __future__ import annotations

import ast
import contextlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil

from jaxperf.errors import JaxperfError

DTYPES = {
    "bool": "bool", "i4": "int4", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "u4": "uint4", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "f8_e4m3fn": "float8_e4m3fn", "f8_e5m2": "float8_e5m2",
    "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64",
    "c64": "complex64", "c128": "complex128",
}  # fmt: skip
_SHORT = {long: short for short, long in DTYPES.items()}
_ARRAY = re.compile(r"([A-Za-z]\w*)\s*\[([^][]*)\]")
_KEY = re.compile(r"key(?:\((\d{1,18})\))?")
_NAMED = re.compile(r"([A-Za-z_]\w*)=(?!=)(.*)", re.DOTALL)


@dataclass(frozen=True)
class Array:
    """An array to be drawn: `dtype` is NumPy's name, "float32"."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{_SHORT[self.dtype]}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class RandomKey:
    """A random key, `jax.random.key(seed)`."""

    seed: int = 0


def parse(word: str) -> Any:
    """Return what a word means: an `Array`, a `RandomKey`, or a Python value itself.

    Raises:
      JaxperfError: it is neither an array, nor a key, nor a Python value; or a dtype or length is wrong.
    """
    text = word.strip()
    array, key = _ARRAY.fullmatch(text), _KEY.fullmatch(text)
    if array:
        return Array(_dtype(array[1], word), _shape(array[2], word))
    if key:
        return RandomKey(int(key[1] or 0))
    with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        value = ast.literal_eval(text)
        if _is_plain(value):
            return value
    raise JaxperfError(
        f"argument {word!r} is not understood; give an array like f32[256,28,28,1], key or key(7), "
        "or a Python value like 3, 0.5 or '\"same\"'; --setup takes a function that makes anything else"
    )


def _is_plain(value: Any) -> bool:
    """Return whether a literal is a pytree of numbers and strings, which sets and `...` are not."""
    if isinstance(value, dict):
        return len({type(key) for key in value}) <= 1 and all(map(_is_plain, value.values()))
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is not ... and not isinstance(value, set)


def _dtype(name: str, word: str) -> str:
    dtype = DTYPES.get(name, name)
    if dtype not in _SHORT:
        raise JaxperfError(f"argument {word!r}: no dtype {name!r}; there are {', '.join(DTYPES)}")
    return dtype


def _shape(text: str, word: str) -> tuple[int, ...]:
    lengths = [length.strip() for length in text.split(",")] if text.strip() else []
    for length in lengths:
        if not re.fullmatch("[0-9]{1,15}", length):
            raise JaxperfError(f"argument {word!r}: {length!r} is not a length; give whole numbers, f32[8,3]")
    return tuple(map(int, lengths))


def parse_all(arguments: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """Return what words by position mean, and words by name (`n=3`).

    Raises:
      JaxperfError: as `parse`; a name comes twice, or a position after a name.
    """
    by_position: list[Any] = []
    by_name: dict[str, Any] = {}
    for argument in arguments:
        named = _NAMED.fullmatch(argument.strip())
        if not named and by_name:
            raise JaxperfError(f"argument {argument!r} has no name but follows one that has; give it first")
        if not named:
            by_position.append(parse(argument))
        elif named[1] in by_name:
            raise JaxperfError(f"argument {named[1]!r} is given twice; give it once")
        else:
            by_name[named[1]] = parse(named[2])
    return by_position, by_name


def make(spec: Any, *, seed: int = 0, shapes: bool = False) -> Any:
    """Return what `parse` returned as an argument: an array or a key on JAX's default device, or the value.

    With `shapes`, an array is only its shape and dtype.

    Raises:
      JaxperfError: an array is larger than the free memory, or has a dtype that JAX would narrow.
    """
    if isinstance(spec, RandomKey):
        return jax.random.key(spec.seed)
    if shapes and isinstance(spec, Array):
        return shape_and_dtype(spec)
    return _draw(spec, np.random.default_rng(seed)) if isinstance(spec, Array) else spec


def shape_and_dtype(spec: Array) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of an array that need not be drawn.

    Raises:
      JaxperfError: JAX would narrow the dtype.
    """
    dtype = jnp.dtype(spec.dtype)
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise JaxperfError(f"argument {spec}: JAX has no 64 bits unless JAX_ENABLE_X64=1 is set; set it")
    return jax.ShapeDtypeStruct(spec.shape, dtype)


def _draw(spec: Array, rng: np.random.Generator) -> jax.Array:
    dtype = shape_and_dtype(spec).dtype
    size, free = math.prod(spec.shape) * dtype.itemsize, psutil.virtual_memory().available
    if size > free:
        raise JaxperfError(
            f"argument {spec} has {size:,} bytes, but only {free:,} are free; give a smaller one"
        )
    values: np.ndarray
    if jnp.issubdtype(dtype, jnp.complexfloating):
        values = rng.standard_normal(spec.shape) + 1j * rng.standard_normal(spec.shape)
    elif jnp.issubdtype(dtype, jnp.floating):
        values = rng.standard_normal(spec.shape, dtype=np.float64 if dtype.itemsize > 4 else np.float32)
    else:
        values = rng.integers(0, 2, spec.shape, dtype=np.int8)
    return jnp.asarray(values, dtype)
