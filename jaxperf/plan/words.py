"""The values of `jaxperf plan`'s flags: "1,8,64", "1,2:axis=1", "data=8,model=8", "flash=4e12,2e9".

Each function is the type of a flag, and raises ArgumentTypeError for other text. Nothing here imports JAX.
"""

from __future__ import annotations

from argparse import ArgumentTypeError


def counts(text: str) -> tuple[int, ...]:
    for part in text.split(","):
        if not part.strip().isdecimal() or len(part) > 9 or int(part) < 1:
            raise ArgumentTypeError(f"has {part!r}; give numbers from 1 on, as in 1,8,64")
    return tuple(int(part) for part in text.split(","))


def batch_axes(text: str) -> dict[int, int]:
    """Return the axis of the examples by the positions of the batch."""
    axes: dict[int, int] = {}
    for part in text.split(","):
        position, _, axis = part.strip().partition(":axis=")
        if not position.isdecimal() or not (axis or "0").isdecimal() or len(part) > 20:
            raise ArgumentTypeError(
                f"has {part!r}; give positions from 0 on, as in 1,2 or, with the examples' axis, 1:axis=1"
            )
        axes[int(position)] = int(axis or 0)
    return axes


def mesh_axes(text: str) -> dict[str, int]:
    axes: dict[str, int] = {}
    for part in text.split(","):
        name, _, length = part.strip().partition("=")
        if not name.isidentifier() or not length.isdecimal() or not 0 < int(length) < 10**6 or name in axes:
            raise ArgumentTypeError(f"has {part!r}, which is not NAME=N; give axes as in data=8,model=8")
        axes[name] = int(length)
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
