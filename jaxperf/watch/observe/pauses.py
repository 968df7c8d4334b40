"""Hooks that rest for most of the time while a program reads thousands of single numbers a second.

Such a read takes about 80 us, and to record it 8 us more. So once there are `MANY` waits, and they come at
`RATE`, the hooks of these reads are removed for a multiple of the time in which the last ones were recorded.
The report assumes that the program goes on in the same way where its samples are in the same functions.

Hooks of other calls, such as `block_until_ready`, stay: there are few of them, and each may wait for long.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxperf.result.intervals import Interval
from jaxperf.watch.observe.hooks import Replacements

KINDS = frozenset({"item", "float", "int", "complex", "if", "np.asarray"})  # of waits, whose hooks rest
MANY = 20_000  # waits before the first pause, so that a short program has all of them
RATE = 4000  # waits per second
LONGER = 4  # pause over recorded time
# of the time since the first pause, at least: Python 3.13 no longer caches a class's attributes after it has
# been changed a thousand times
GROWTH = 0.01


class Pause(NamedTuple):
    """A stretch without hooks, and the one just before it, in which waits were recorded."""

    recorded: Interval
    start: float
    end: float


class Pauses:
    """Removes hooks and puts them back: call `look` every few milliseconds from one thread."""

    def __init__(self, replacements: Replacements) -> None:
        self.pauses: list[Pause] = []
        self._replacements = replacements
        self._hooks: list[tuple[Any, str, Any, Any]] = []
        self._paused: Pause | None = None
        self._count, self._moment, self._first = 0, 0.0, 0.0

    def replace(self, owner: Any, name: str, hook: Any) -> None:
        """Replace a function as `Replacements` does, by a hook that may rest."""
        function = vars(owner)[name]
        self._replacements.replace(owner, name, hook)
        if vars(owner)[name] is hook:
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
        elif not needed and count >= MANY and count - self._count >= RATE * (now - self._moment):
            self._first = self._first or now
            pause_s = max(LONGER * (now - self._moment), GROWTH * (now - self._first))
            self._paused = Pause((self._moment, now), now, now + pause_s)
            self._set(hooked=False)
        self._count, self._moment = count, now

    def end(self, now: float) -> None:
        """Put the hooks back if they are paused."""
        if self._paused:
            self._set(hooked=True)
            self.pauses.append(self._paused._replace(end=now))
            self._paused = None

    def _set(self, *, hooked: bool) -> None:
        """Exchange hooks and functions, except where the program has set something else since."""
        for owner, name, hook, function in self._hooks:
            before, after = (function, hook) if hooked else (hook, function)
            if vars(owner).get(name) is before:
                setattr(owner, name, after)
