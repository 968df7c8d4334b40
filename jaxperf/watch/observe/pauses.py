"""Remove hooks for most of the time while a program reads thousands of scalars per second.

Such a read takes about 80 us, and recording it 8 us more. So after `FIRST_WAITS` waits, and while they come
at `RATE`, the hooks are removed for a multiple of the time for which they last recorded. For a pause, the
report assumes the same waits as before it, while the samples are in the same functions.

Hooks of other calls, such as `block_until_ready`, stay: these calls are few, and each may wait for long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxperf.result.intervals import Interval
from jaxperf.watch.observe.hooks import Replacements

KINDS = frozenset({"item", "float", "int", "complex", "if", "np.asarray"})  # of waits whose hooks pause
FIRST_WAITS = 5000  # waits before the first pause, so that a short program has all of them
RATE = 4000  # waits per second
LONGER = 9  # ratio of a pause to the recorded time before it
# shortest pause over the time since the first one, which limits the number of pauses: Python 3.13 no longer
# caches the attributes of a class that has been changed a thousand times
GROWTH = 0.01


class Pause(NamedTuple):
    """An interval without hooks, and the interval just before it, in which waits were recorded."""

    recorded: Interval
    start: float
    end: float


class Pauses:
    """Removes and restores hooks: call `look` every few milliseconds from one thread."""

    def __init__(self, replacements: Replacements) -> None:
        self.pauses: list[Pause] = []
        self._replacements = replacements
        self._hooks: list[tuple[Any, str, Any, Any]] = []
        self._paused: Pause | None = None
        self._count, self._moment, self._first = 0, 0.0, 0.0

    def replace(self, owner: Any, name: str, new: Callable[[Any], Any]) -> None:
        """Replace a function by a hook, as `Replacements` does, but not in pauses."""
        function = vars(owner).get(name)
        self._replacements.replace(owner, name, new)
        if (hook := vars(owner).get(name)) is not function:
            self._hooks.append((owner, name, hook, function))

    def look(self, now: float, count: int, needed: bool) -> None:
        """Begin or end a pause if it is time to.

        Args:
          now: the time, by `time.perf_counter`.
          count: how many waits have been recorded so far.
          needed: whether every wait must be recorded now, as in a window of the profiler.
        """
        if self._paused:
            if needed or now >= self._paused.end:
                self.end(now)
        elif not needed and count >= FIRST_WAITS and count - self._count >= RATE * (now - self._moment):
            self._first = self._first or now
            pause_s = max(LONGER * (now - self._moment), GROWTH * (now - self._first))
            self._paused = Pause((self._moment, now), now, now + pause_s)
            self._set(hooked=False)
        self._count, self._moment = count, now

    def end(self, now: float) -> None:
        """End the current pause, if there is one."""
        if self._paused:
            self._set(hooked=True)
            self.pauses.append(self._paused._replace(end=now))
            self._paused = None

    def _set(self, *, hooked: bool) -> None:
        """Install or remove the hooks, except where the program has replaced the function itself."""
        for owner, name, hook, function in self._hooks:
            before, after = (function, hook) if hooked else (hook, function)
            if vars(owner).get(name) is before:
                setattr(owner, name, after)
