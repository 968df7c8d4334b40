"""Tolerances follow the device and the precision of its products."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxperf.chapter import network_size
from jaxperf.chapter.tolerance import SHORT, tolerance


def test_a_cpu_multiplies_in_float32_whatever_the_precision() -> None:
    for precision in (None, "default", "tensorfloat32", "highest"):
        assert tolerance("cpu", 1e-6, precision=precision) == 1e-6


def test_a_gpu_gets_more_and_most_where_it_shortens_the_factors() -> None:
    for precision in ("highest", "float32"):
        assert tolerance("gpu", 1e-6, precision=precision) == pytest.approx(1e-5)
    for precision in (None, "default", "high", "tensorfloat32", "bfloat16"):
        assert tolerance("gpu", 1e-6, precision=precision) == SHORT
    assert tolerance("gpu", 1.0, precision=None) == 10.0  # never less than with exact products


def test_outputs_are_compared_by_the_precision_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = np.ones(3), np.ones(3) + 1e-4
    assert network_size.differ(a, b)[1] is (jax.default_backend() != "cpu")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert network_size.differ(a, b)[1] is True  # TF32, unless something else is asked for
    with jax.default_matmul_precision("highest"):
        assert network_size.differ(a, b)[1] is False
