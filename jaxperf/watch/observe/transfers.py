"""Record large arrays that the program puts on a device, by `jnp.array`, `jnp.asarray` or `device_put`.

`device_put` also takes pytrees of arrays, and arrays that are on other devices or have another sharding. If a
line puts the same arrays on the same devices as recently, it need not have done so: JAX arrays cannot change,
and of NumPy arrays a thousand elements are compared. Four puts are remembered for each line and sharding,
because a line in a function may serve data, labels and weights in turn.
"""

import functools
import sys
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from jaxperf.watch.log import Log, Put
from jaxperf.watch.observe import source_location
from jaxperf.watch.observe.frame_arguments import is_tracer
from jaxperf.watch.observe.hooks import Replacements
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.observe.waits import array_classes

LARGE = 1 << 20  # bytes
LONG_LIST = 100  # numbers, or arrays of JAX, in a list
_ELEMENTS = 1000  # compared elements of a NumPy array
_REMEMBERED = 4  # puts per line and sharding; a data set of so few batches should also stay on the device


class Puts:
    """Records the large arrays that the watched thread puts on a device, and when it puts small ones."""

    def __init__(self, log: Log, replacements: Replacements) -> None:
        self.log, self._replacements = log, replacements
        # by line, and the shardings that the arrays get
        self._last: dict[tuple[Place, tuple[Any, ...]], deque[list[Mark]]] = defaultdict(
            lambda: deque(maxlen=_REMEMBERED)
        )

    def open(self, jax: Any) -> None:
        numpy, replace = sys.modules["numpy"].ndarray, self._replacements.replace
        self._arrays = tuple(array_classes(jax))
        for name in ("array", "asarray"):
            replace(jax.numpy, name, functools.partial(self._noted, kinds=(numpy,)))
        arrays = (numpy, *(c for c in array_classes(jax) if "__array__" in vars(c)))
        leaves = jax.tree_util.tree_leaves
        replace(jax, "device_put", functools.partial(self._noted, kinds=arrays, leaves=leaves))

    def _noted(
        self,
        function: Callable[..., Any],
        kinds: tuple[type, ...],
        leaves: Callable[[Any], list[Any]] | None = None,
    ) -> Callable[..., Any]:
        """Wrap a function; with `leaves`, it takes pytrees, and its result may be on another device."""

        def putting(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self.log.thread_id:
                return function(*args, **kwargs)
            arrays, numbers, joined, large = list[Any](), 0, 0, False
            start = time.perf_counter()
            with self.log.losses.guard("an array put on a device"):
                value = args[0] if args else None
                count, first = _listed(value)
                numbers = count if issubclass(type(first), (int, float)) else 0
                several = leaves(value) if leaves and not numbers else [value]
                arrays = [a for a in several if issubclass(type(a), kinds)]
                large = numbers >= LONG_LIST or sum(a.nbytes for a in arrays) >= LARGE
                # of a tree, `device_put` keeps the list
                joined = count if not leaves and issubclass(type(first), self._arrays) else 0
                at = source_location.place_of(sys._getframe(1))
                if leaves and not large and not source_location.library_of(at.file):
                    self.log.small_puts[at].append(start)
            result = function(*args, **kwargs)
            if joined >= LONG_LIST:
                with self.log.losses.guard("an array made of arrays"):
                    at, end = source_location.reader_place(sys._getframe()), time.perf_counter()
                    self.log.puts.append(Put(at, start, end, 0, again=False, arrays=joined))
            if large:
                with self.log.losses.guard("an array put on a device"):
                    put = [x for x in leaves(result) if not is_tracer(x)] if leaves else []
                    self._note(arrays, put if len(put) == len(arrays) else [], numbers, start)
            return result

        return putting

    def _note(self, arrays: list[Any], put: list[Any], numbers: int, start: float) -> None:
        end = time.perf_counter()
        at = source_location.reader_place(sys._getframe(1))
        if numbers >= LONG_LIST:
            self.log.puts.append(Put(at, start, end, 0, again=False, numbers=numbers))
            return
        placed = {id(a) for a, b in zip(arrays, put) if getattr(a, "sharding", None) == b.sharding}
        moved = [a for a in arrays if id(a) not in placed]
        nbytes = sum(a.nbytes for a in moved)
        if nbytes < LARGE:
            return
        shardings = tuple(b.sharding for a, b in zip(arrays, put) if id(a) not in placed)
        marks, last = list(map(_mark, moved)), self._last[at, shardings]
        again = next((known for known in last if _same(known, marks)), None)
        from_devices = all(isinstance(mark, weakref.ref) for mark in marks)
        self.log.puts.append(Put(at, start, end, nbytes, again is not None, moved=from_devices))
        if again is not None:
            last.remove(again)
        last.append(marks)


Mark = tuple[int, bytes] | weakref.ref[Any]


def _mark(array: Any) -> Mark:
    """Return what identifies an array: a reference to a JAX array, or part of a NumPy array's bytes."""
    if hasattr(array, "sharding"):
        return weakref.ref(array)
    return array.nbytes, array.flat[:: max(1, array.size // _ELEMENTS)].tobytes()


def _same(before: list[Mark], now: list[Mark]) -> bool:
    if len(before) != len(now) or [*map(type, before)] != [*map(type, now)]:
        return False
    return all(b == n if isinstance(b, tuple) else b() is n() for b, n in zip(before, now))  # type: ignore[operator]


def _listed(value: Any) -> tuple[int, Any]:
    """Return how many elements a list, or one of lists, has, and the first of them; 1 for anything else."""
    count = 1
    while type(value) in (list, tuple) and value:
        count, value = count * len(value), value[0]
    return count, value
