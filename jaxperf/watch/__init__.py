"""Watch an unchanged program: where its time goes, why, and what to change.

`jaxperf.watch` is this package and also a function: `with jaxperf.watch():` watches a part of a program.
"""

import sys
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

from jaxperf.watch.context import Watched, watch
from jaxperf.watch.run_script import run_module, run_script

__all__ = ["Watched", "run_module", "run_script", "watch"]


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> AbstractContextManager[Watched]:
        """Call `watch`."""
        return watch(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
