"""Large NumPy arrays that the program itself puts on a device, by `jnp.array`, `jnp.asarray` or `device_put`.

The functions are wrapped in the same way as those that wait. If an array has the same bytes as a recent one
at the same line, it need not have been put there again; a thousand elements are compared. Four arrays are
remembered for each line, since a line in a function may serve data, labels and weights in turn.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from types import CodeType
from typing import Any, NamedTuple

from jaxperf.watch.observe import source_location
from jaxperf.watch.observe.hook_errors import Trouble
from jaxperf.watch.observe.source_location import Place

LARGE = 1 << 20  # bytes
MANY = 100  # numbers in a list
_ELEMENTS = 1000  # compared
_REMEMBERED = 4  # arrays per line; a data set of so few batches should also be kept on the device


class Put(NamedTuple):
    """An array on its way to a device, and whether this line has put the same bytes there before.

    An array made from a list has the count of its `numbers`, which JAX converts one by one, and no bytes.
    """

    at: Place
    start: float
    end: float
    nbytes: int
    again: bool
    numbers: int = 0


class Puts:
    """Records large arrays; `puts` holds those that the opening thread put on a device."""

    def __init__(self, trouble: Trouble) -> None:
        self.trouble = trouble
        self.puts: list[Put] = []
        self._small: dict[tuple[CodeType, int], list[float]] = defaultdict(list)
        self._last: dict[Place, deque[tuple[int, bytes]]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))
        self._thread = threading.get_ident()

    def open(self, jax: Any, replace: Callable[[Any, str, Any], None]) -> None:
        """Wrap the functions with `replace`, which later restores them; `jax` is the imported module."""
        self._thread = threading.get_ident()
        numpy = sys.modules["numpy"]
        for owner, name in ((jax.numpy, "array"), (jax.numpy, "asarray"), (jax, "device_put")):
            replace(owner, name, self._heard(getattr(owner, name), numpy.ndarray))

    def watch_thread(self, ident: int) -> None:
        """Watch this thread from now on."""
        self._thread = ident

    @property
    def small(self) -> dict[Place, list[float]]:
        """Return when the program's own lines called `jax.device_put` for what is not large."""
        return {
            Place(code.co_filename, line, code.co_name): times
            for (code, line), times in self._small.items()
            if not source_location.library_of(code.co_filename)
        }

    def _heard(self, function: Callable[..., Any], array: type) -> Callable[..., Any]:
        small = function.__name__ == "device_put"

        def putting(*args: Any, **kwargs: Any) -> Any:
            value = args[0] if args else None
            large = isinstance(value, array) and value.nbytes >= LARGE  # type: ignore[attr-defined]
            large = large or _numbers(value) >= MANY
            if not large and small:
                caller = sys._getframe(1)
                self._small[caller.f_code, caller.f_lineno or 0].append(time.perf_counter())
            if not large or threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                end = time.perf_counter()
                with self.trouble.catch_errors("an array put on a device"):
                    self._note(value, start, end)

        return named_as(function, putting)

    def _note(self, array: Any, start: float, end: float) -> None:
        at = source_location.place_of(source_location.reader_and_library_frames(sys._getframe(1))[0])
        if numbers := _numbers(array):
            self.puts.append(Put(at, start, end, 0, again=False, numbers=numbers))
            return
        looked = array.nbytes, array.flat[:: max(1, array.size // _ELEMENTS)].tobytes()
        last = self._last[at]
        self.puts.append(Put(at, start, end, array.nbytes, looked in last))
        if looked in last:
            last.remove(looked)
        last.append(looked)


def _numbers(value: Any) -> int:
    """Count the Python numbers in a list, or in a list of lists; 0 if it holds anything else."""
    count = 1
    while type(value) in (list, tuple) and value:
        count, value = count * len(value), value[0]
    return count if isinstance(value, int | float) else 0


def named_as(old: Any, new: Any) -> Any:
    """Make `new` look like `old`, also to the sampler; `functools.wraps` fails on nameless C++ methods."""
    new.__name__, new.__doc__, new.__wrapped__ = old.__name__, old.__doc__, old
    new.__module__ = getattr(old, "__module__", None) or new.__module__
    return new
