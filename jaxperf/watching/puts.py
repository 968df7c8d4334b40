"""Large NumPy arrays that the program itself puts on a device, by `jnp.array`, `jnp.asarray` or `device_put`.

The functions are wrapped as those that wait are. An array whose bytes are the same as at its last time at a
line need not have been put there again; whether they are is asked of a thousand of its elements.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxperf.watching import place
from jaxperf.watching.place import Place
from jaxperf.watching.trouble import Trouble

LARGE = 1 << 20  # bytes
_ELEMENTS = 1000  # that are compared


class Put(NamedTuple):
    """One array on its way to a device, and whether this line has put the same bytes there before."""

    at: Place
    start: float
    end: float
    nbytes: int
    again: bool


class Puts:
    """Hears of large arrays; `puts` holds those that the opening thread put on a device."""

    def __init__(self, trouble: Trouble) -> None:
        self.trouble = trouble
        self.puts: list[Put] = []
        self._last: dict[Place, tuple[int, bytes]] = {}
        self._thread = threading.get_ident()

    def open(self, jax: Any, replace: Callable[[Any, str, Any], None]) -> None:
        """Wrap the functions by `replace`, which puts them back; `jax` is the imported module."""
        self._thread = threading.get_ident()
        numpy = sys.modules["numpy"]
        for owner, name in ((jax.numpy, "array"), (jax.numpy, "asarray"), (jax, "device_put")):
            replace(owner, name, self._heard(getattr(owner, name), numpy.ndarray))

    def _heard(self, function: Callable[..., Any], array: type) -> Callable[..., Any]:
        def putting(*args: Any, **kwargs: Any) -> Any:
            large = args and isinstance(args[0], array) and args[0].nbytes >= LARGE  # type: ignore[attr-defined]
            if not large or threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                end = time.perf_counter()
                with self.trouble.kept("an array put on a device"):
                    self._note(args[0], start, end)

        putting.__module__ = function.__module__  # a look takes it for JAX's
        return named_as(function, putting)

    def _note(self, array: Any, start: float, end: float) -> None:
        at = place.place_of(place.own(sys._getframe(1))[0])
        looked = array.nbytes, array.flat[:: max(1, array.size // _ELEMENTS)].tobytes()
        self.puts.append(Put(at, start, end, array.nbytes, self._last.get(at) == looked))
        self._last[at] = looked


def named_as(old: Any, new: Any) -> Any:
    """Let `new` look like `old`; `functools.wraps` fails on C++ methods without a qualified name."""
    new.__name__, new.__doc__, new.__wrapped__ = old.__name__, old.__doc__, old
    return new
