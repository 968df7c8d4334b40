"""A batch that memory cannot hold: XLA's own refusal, told with the batch size and with one that fits."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxperf.errors import JaxperfError
from jaxperf.train import fitting

TOO_MANY = 10**14  # float32 values; no machine has 400 TB


def step(n: int, *, most: int) -> jax.Array:
    """Ask for more memory than there is for more than `most` images."""
    return jnp.ones((TOO_MANY if n > most else n,))


def test_the_batch_that_does_not_fit_is_named_with_the_largest_tried_that_does() -> None:
    tried: list[int] = []
    for batch, most, devices, says in (
        (256, 64, 1, "64 fit, so give --batch-size 64"),
        (256, 100, 1, "64 fit, so give --batch-size 64"),
        (96, 30, 8, "24 fit, so give --batch-size 24"),
        (40, 25, 8, "16 fit, so give --batch-size 16"),  # 20 does not divide among eight
        (256, 0, 1, "nor do 1; use more devices"),
        (8, 0, 8, "nor do 8; use more devices"),
    ):

        def attempt(n: int, most: int = most) -> Any:
            tried.append(n)
            return step(n, most=most)

        with (
            pytest.raises(
                JaxperfError, match=f"^a batch of {batch} images does not fit into memory"
            ) as caught,
            fitting(batch, attempt, jax.devices("cpu")[:1] * devices),
        ):
            attempt(batch)
        assert str(caught.value).endswith(says)
        assert "RESOURCE_EXHAUSTED: Out of memory allocating 400000000000000 bytes" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert all(n % devices == 0 for n in tried)
        tried.clear()


def test_a_step_that_fits_or_fails_otherwise_is_left_alone() -> None:
    def never(n: int) -> None:
        pytest.fail("nothing is to be tried")

    with fitting(256, never, jax.devices()):
        step(256, most=256)
    for error in (ZeroDivisionError("no memory"), jax.errors.JaxRuntimeError("INTERNAL: broken")):
        with pytest.raises(type(error)), fitting(256, never, jax.devices()):
            raise error
    wrong = jax.errors.JaxRuntimeError("INTERNAL: broken")

    def breaks(n: int) -> None:
        raise wrong

    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), fitting(256, breaks, jax.devices()):
        step(256, most=0)
