"""Guards: an error inside the watch costs rows of the report, and never reaches the program."""

import contextlib
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeVar

from jaxperf.errors import first_line

_T = TypeVar("_T")


class Losses(Counter[str]):
    """What errors inside the watch cost, and how often."""

    @contextlib.contextmanager
    def guard(self, part: str) -> Iterator[None]:
        """Catch any error inside and record it as the loss of `part`."""
        try:
            yield
        except Exception as e:
            self.note(part, e)

    def ask(self, part: str, read: Callable[[], _T], otherwise: _T) -> _T:
        """Return what `read` returns; after an error, `otherwise`, and record the loss of `part`."""
        with self.guard(part):
            return read()
        return otherwise

    def guarded(self, part: str, function: Callable[..., _T]) -> Callable[..., _T | None]:
        """Return a function that calls another one, and records its errors as the loss of `part`."""
        return self.guard(part)(function)

    def note(self, part: str, error: Exception) -> None:
        self[f"{part} ({first_line(error, with_class=True)})"] += 1

    @property
    def remarks(self) -> list[str]:
        return [f"lost {part}, {times} times; please report it" for part, times in self.items()]


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Keep Python's garbage collector from running, if it would."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
