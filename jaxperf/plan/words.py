"""The values of `jaxperf plan`'s flags: "1,8,64", "1,2:axis=1", "data=8,model=8", "flash=4e12,2e9".

Each function is the type of a flag, and raises ArgumentTypeError for other text. Nothing here imports JAX.
"""

import re
from argparse import ArgumentTypeError


def counts(text: str) -> tuple[int, ...]:
    return tuple(int(n) for (n,) in _parts(text, r"([1-9]\d{0,8})", "numbers from 1 on, as in 1,8,64"))


def batch_axes(text: str) -> dict[int, int]:
    """Return the axis of the examples by the positions of the batch."""
    wanted = "positions from 0 on, as in 1,2 or, with the examples' axis, 1:axis=1"
    parts = _parts(text, r"(\d{1,9})(?::axis=(\d{1,9}))?", wanted)
    return {int(position): int(axis or 0) for position, axis in parts}


def mesh_axes(text: str) -> dict[str, int]:
    parts = _parts(text, r"([^\W\d]\w*)=([1-9]\d{0,5})", "NAME=N for each axis, as in data=8,model=8")
    axes = {name: int(length) for name, length in parts}
    if len(axes) < len(parts):
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


def _parts(text: str, pattern: str, wanted: str) -> list[tuple[str, ...]]:
    """Return a pattern's groups in each part between commas."""
    parts = []
    for part in map(str.strip, text.split(",")):
        match = re.fullmatch(pattern, part, re.ASCII)
        if not match:
            raise ArgumentTypeError(f"has {part!r}; give {wanted}")
        parts.append(match.groups())
    return parts
