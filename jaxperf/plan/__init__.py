"""Plan a step for GPUs or TPUs that are not there: compile it, read its collectives, predict its time.

`jaxperf.plan` is this package and also a function:

    print(jaxperf.plan(step, state, images, labels, device="h100", devices=(1, 8, 64)))

Names are imported on first use, so that the command line can parse its flags without JAX.
"""

import sys
from types import ModuleType
from typing import Any

__all__ = ["Exchange", "SizePlan", "StepPlan", "plan"]


def __getattr__(name: str) -> Any:
    if name == "plan":
        from jaxperf.plan.planning import plan

        return plan
    if name in __all__:
        from jaxperf.plan import report

        return getattr(report, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call `plan`."""
        return self.plan(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
