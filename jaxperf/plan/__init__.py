"""Plan a step for GPUs that are not there: compile it for them, read its collectives, predict its time.

    import jaxperf.plan
    print(jaxperf.plan.plan(step, state, images, labels, device="h100", devices=(1, 8, 64)))

What is named here is imported on first use, so that the command line can read the flags without JAX.
"""

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
