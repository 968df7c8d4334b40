"""Two series at random of the lengths of the cascaded tanks, as nonlinear_benchmarks returns them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np


def Cascaded_Tanks(atleast_2d: Any = False) -> Any:  # noqa: N802 - the package's name
    """Return a training and a test series of 1,024 inputs and outputs, float64 of shape [1024, 1]."""
    draw = np.random.default_rng(0)

    def series() -> SimpleNamespace:
        u = draw.uniform(0, 5, (1024, 1))
        return SimpleNamespace(u=u, y=np.cumsum(u - 2.5, axis=0), sampling_time=4.0)

    return series(), series()
