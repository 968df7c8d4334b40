"""Errors in our hooks must not reach the program: they are kept for the report."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator


class Trouble:
    """Errors in hooks, by what was lost."""

    def __init__(self) -> None:
        self._lost: Counter[str] = Counter()

    @contextlib.contextmanager
    def catch_errors(self, what: str) -> Iterator[None]:
        """Catch any error inside and record it as the loss of `what`."""
        try:
            yield
        except Exception as e:
            self.lost(what, e)

    def lost(self, what: str, error: Exception) -> None:
        """Record the loss of `what`."""
        self._lost[f"{what} ({type(error).__name__}: {error})".splitlines()[0]] += 1

    @property
    def remarks(self) -> list[str]:
        """Return one line for each kind of loss."""
        return [f"lost {what}, {times} times; please report it" for what, times in self._lost.items()]
