"""Watch an unchanged program: where its time goes, why, and what to change.

`jaxperf.watch` is this package and also a function: `with jaxperf.watch():` watches a part of a program.
"""

import sys
from types import ModuleType

from jaxperf.watch.context import Watched, watch
from jaxperf.watch.run_script import run_module, run_script

__all__ = ["Watched", "run_module", "run_script", "watch"]


class _Callable(ModuleType):
    __call__ = staticmethod(watch)


sys.modules[__name__].__class__ = _Callable
