"""Cases of a parametrized test of which `make test` runs some, and CI all."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def cases(everything: Iterable[tuple[Any, ...]], quick: Callable[..., bool]) -> list[Any]:
    """Return all cases for `parametrize`, marked `thorough` where `quick(*case)` is false."""
    return [
        pytest.param(*case, marks=() if quick(*case) else pytest.mark.thorough, id="-".join(map(_name, case)))
        for case in everything
    ]


def _name(value: Any) -> str:
    return getattr(value, "__name__", str(value))
