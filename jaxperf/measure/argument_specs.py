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
_ARRAY = re.compile(r"([A-Za-z]\w*)\s*\[([^][]*)\]")
_LENGTHS = re.compile(r"\s*([0-9]{1,15}\s*(,\s*[0-9]{1,15}\s*)*)?")
_KEY = re.compile(r"key(?:\((\d{1,18})\))?")
_NAMED = re.compile(r"([A-Za-z_]\w*)=(?!=)(.*)", re.DOTALL)


def parse(word: str, *, seed: int = 0, shapes: bool = False) -> Any:
    """Return what a word means: an array with values from `seed`, a random key, or a Python value.

    With `shapes`, an array is only its shape and dtype.
    """
    text = word.strip()
    array, key = _ARRAY.fullmatch(text), _KEY.fullmatch(text)
    if array:
        spec = _shape_and_dtype(array[1], array[2], word)
        return spec if shapes else _draw(spec, np.random.default_rng(seed), word)
    if key:
        return jax.random.key(int(key[1] or 0))
    with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return ast.literal_eval(text)
    raise JaxperfError(
        f"argument {word!r} is not understood; give an array like f32[256,28,28,1], key or key(7), "
        "or a Python value like 3, 0.5 or '\"same\"'; --setup takes a function that makes anything else"
    )


def _shape_and_dtype(name: str, lengths: str, word: str) -> jax.ShapeDtypeStruct:
    long_name = DTYPES.get(name, name)
    if long_name not in DTYPES.values():
        raise JaxperfError(f"argument {word!r}: no dtype {name!r}; there are {', '.join(DTYPES)}")
    if not _LENGTHS.fullmatch(lengths):
        raise JaxperfError(f"argument {word!r}: {lengths!r} are no lengths; give whole numbers, f32[8,3]")
    dtype = jnp.dtype(long_name)
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise JaxperfError(f"argument {word!r}: JAX has no 64 bits unless JAX_ENABLE_X64=1 is set; set it")
    shape = tuple(map(int, lengths.split(","))) if lengths.strip() else ()
    return jax.ShapeDtypeStruct(shape, dtype)


def _draw(spec: jax.ShapeDtypeStruct, rng: np.random.Generator, word: str) -> jax.Array:
    dtype, shape = spec.dtype, tuple[int, ...](spec.shape)
    size, free = math.prod(shape) * dtype.itemsize, psutil.virtual_memory().available
    if size > free:
        raise JaxperfError(
            f"argument {word!r} has {size:,} bytes, but only {free:,} are free; give a smaller one"
        )
    values: np.ndarray
    if jnp.issubdtype(dtype, jnp.complexfloating):
        values = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    elif jnp.issubdtype(dtype, jnp.floating):
        values = rng.standard_normal(shape, dtype=np.float64 if dtype.itemsize > 4 else np.float32)
    else:
        values = rng.integers(0, 2, shape, dtype=np.int8)
    return jnp.asarray(values, dtype)


def parse_all(words: Sequence[str], *, shapes: bool = False) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what words by position mean, and words by name (`n=3`)."""
    by_position: list[Any] = []
    by_name: dict[str, Any] = {}
    for i, word in enumerate(words):
        named = _NAMED.fullmatch(word.strip())
        if not named and by_name:
            raise JaxperfError(f"argument {word!r} has no name but follows one that has; give it first")
        if not named:
            by_position.append(parse(word, seed=i, shapes=shapes))
        elif named[1] in by_name:
            raise JaxperfError(f"argument {named[1]!r} is given twice; give it once")
        else:
            by_name[named[1]] = parse(named[2], seed=i, shapes=shapes)
    return tuple(by_position), by_name
