"""Group items by a key."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TypeVar

_T = TypeVar("_T")
_K = TypeVar("_K")


def group_by(items: Iterable[_T], key: Callable[[_T], _K]) -> dict[_K, list[_T]]:
    """Return lists of the items by key; keys and items keep their order."""
    groups: dict[_K, list[_T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)
