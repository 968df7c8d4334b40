"""Plan a step for GPUs or TPUs that are not there: compile it, read its collectives, predict its time.

`jaxperf.plan` is this package and also a function:

    print(jaxperf.plan(step, state, images, labels, device="h100", devices=(1, 8, 64)))

Names are imported on first use, so that the command line can parse its flags without JAX.
"""

import sys
from types import ModuleType
from typing import Any

__all__ = ["SizePlan", "StepPlan", "plan"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from jaxperf.plan import planning

    return getattr(planning, name)


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.plan(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
