"""Rounds: every part takes one turn a round, one at a time, in an order that favours nobody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def order(parts: Sequence[T], number: int) -> list[T]:
    """The parts in the order of round `number`: each once.

    The start moves on by one from round to round, and every other round runs backwards, so that no part is
    always first, nor always after the same other.
    """
    if not parts:
        return []
    at = number // 2 % len(parts)
    turned = [*parts[at:], *parts[:at]]
    return turned[::-1] if number % 2 else turned
