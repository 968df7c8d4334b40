"""The values of `jaxperf plan`'s flags: "1,8,64", "1,2:axis=1", "data=8,model=8", "flash=4e12,2e9".

Each function is the type of a flag, and raises ArgumentTypeError for other text. Nothing here imports JAX.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from typing import Any


def counts(text: str) -> tuple[int, ...]:
    found = _parts(text, r"([1-9]\d{0,8})", "numbers from 1 on, as in 1,8,64")
    return tuple(int(count) for (count,) in found)


def batch_axes(text: str) -> dict[int, int]:
    """Return the axis of the examples by the positions of the batch."""
    wanted = "positions from 0 on, as in 1,2 or, with the examples' axis, 1:axis=1"
    found = _parts(text, r"(\d{1,9})(?::axis=(\d{1,9}))?", wanted)
    return {int(position): int(axis or 0) for position, axis in found}


def mesh_axes(text: str) -> dict[str, int]:
    found = _parts(text, r"([^\W\d]\w*)=([1-9]\d{0,5})", "NAME=N for each axis, as in data=8,model=8")
    axes = {name: int(length) for name, length in found}
    if len(axes) < len(found):
        raise ArgumentTypeError(f"has {text!r}, in which an axis comes twice; give each once")
    return axes


def kernel(text: str) -> tuple[str, tuple[float, float]]:
    """Return the name of a kernel, and the FLOPs and bytes of one run on one device."""
    name, _, figures = text.partition("=")
    try:
        flops, size = map(float, figures.split(","))
    except ValueError:
        flops = size = -1.0
    if not name or not 0 <= flops < 1e30 or not 0 <= size < 1e30:
        raise ArgumentTypeError(f"is {text!r}; give the work of one run on one device, as in flash=4e12,2e9")
    return name, (flops, size)


def _parts(text: str, pattern: str, wanted: str) -> list[tuple[Any, ...]]:
    """Return the groups of a pattern in each of the parts between commas."""
    parts = [part.strip() for part in text.split(",")]
    matches = [re.fullmatch(pattern, part, re.ASCII) for part in parts]
    if wrong := [part for part, match in zip(parts, matches) if not match]:
        raise ArgumentTypeError(f"has {wrong[0]!r}; give {wanted}")
    return [match.groups() for match in matches if match]
